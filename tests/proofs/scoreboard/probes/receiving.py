"""Probes of the receiving side: the spans of a poll, and how they refer to the senders."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from opentelemetry import baggage, context
from opentelemetry.trace import SpanKind

from tests.proofs.scoreboard.stage import Seen, current_span_id, span_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from tests.proofs.scoreboard.stage import Stage


def _refers(span: ReadableSpan, sends: list[ReadableSpan]) -> set[str]:
    ids = {span_id(send) for send in sends}
    ways = {"link"} if any(link.context.span_id in ids for link in span.links) else set()
    return ways | ({"parent"} if span.parent and span.parent.span_id in ids else set())


def consume_single(stage: Stage) -> Seen:
    """One message polled: a CONSUMER span that refers to its sender's."""
    stage.instrument()
    stage.send()
    stage.poll_one()
    (processed,) = stage.spans("process") or [None]
    ways = _refers(processed, stage.spans("send")) if processed else set()
    whole = processed is not None and processed.kind is SpanKind.CONSUMER and bool(ways)
    return Seen(whole, f"{stage.names()}; refers to the sender by {', '.join(sorted(ways)) or 'nothing'}")


def _batch(stage: Stage) -> list[ReadableSpan]:
    stage.instrument()
    stage.send(3)
    consumer = stage.consumer()
    messages = consumer.consume(3, 20)
    assert len(messages) == 3
    consumer.close()
    return stage.spans("process")


def consume_batch(stage: Stage) -> Seen:
    """Three messages at once: one span, a link for each, and their number."""
    spans = _batch(stage)
    links = [len(span.links) for span in spans]
    count = [span.attributes.get("messaging.batch.message_count") for span in spans]
    whole = True if count == [3] else "partly"
    return Seen(links == [3] and whole, f"links {links}, messaging.batch.message_count {count}")


def link_attributes(stage: Stage) -> Seen:
    """What differs between the messages of a batch stands on their links."""
    links = [link for span in _batch(stage) for link in span.links]
    names = [set(link.attributes or {}) for link in links]
    common = sorted(set.intersection(*names)) if names else []
    return Seen("messaging.kafka.offset" in common, f"on each of {len(links)} links: {', '.join(common) or 'nothing'}")


def receive_span(stage: Stage) -> Seen:
    """A span of the poll itself, of kind CLIENT, that began when the poll began."""
    stage.instrument(receive_spans=True)
    stage.fill()
    consumer = stage.consumer(**{"auto.offset.reset": "earliest", "group.id": f"{stage.topic}-subscribed"})
    consumer.unassign()
    consumer.subscribe([stage.topic])
    before = time.time_ns()
    consumer.poll(20)  # joining the group takes a while
    after = time.time_ns()
    consumer.close()
    polls = [span for span in stage.spans() if span.name.split()[0] in {"poll", "recv"}]
    if len(polls) != 1:
        return Seen(False, stage.names())
    start = polls[0].start_time or 0
    nearer = "start" if start - before < after - start else "end"
    whole = nearer == "start" and polls[0].kind is SpanKind.CLIENT
    return Seen(whole, stage.mask_topic(f"{polls[0].name}, kind {polls[0].kind.name}, begins at the poll's {nearer}"))


def parent_or_link(stage: Stage) -> Seen:
    """How the consumer's span refers to the sender's can be chosen."""
    outcomes = {}
    asked = (("link", {"link"}), ("parent", {"parent"}), ("both", {"link", "parent"}))
    for offset, (mode, wanted) in enumerate(asked):
        stage.exporter.clear()
        stage.instrument(process_context=mode)
        stage.send()
        stage.poll_one(offset, **{"group.id": f"{stage.topic}-{mode}"})
        stage.uninstrument()
        ways = _refers(stage.spans("process")[0], stage.spans("send"))
        outcomes[mode] = (ways, ways == wanted)
    text = "; ".join(f"{mode}: {' and '.join(sorted(ways)) or 'nothing'}" for mode, (ways, _) in outcomes.items())
    return Seen(all(right for _, right in outcomes.values()), text)


def baggage_restored(stage: Stage) -> Seen:
    """Baggage set by the sender can be read where the message is handled."""
    stage.instrument()
    token = context.attach(baggage.set_baggage("customer", "42"))
    stage.send()
    context.detach(token)
    consumer = stage.consumer()
    with stage.handling(stage.poll(consumer)):
        read = baggage.get_baggage("customer")
    consumer.close()
    return Seen(read == "42", f"customer = {read}")


def pseudo_messages(stage: Stage) -> Seen:
    """The end of a partition is reported as a message with an error: it is not a message."""
    stage.instrument()
    consumer = stage.consumer(**{"enable.partition.eof": True})
    event = stage.poll(consumer)
    assert event.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return Seen(not stage.spans(), f"after an end of partition: {stage.names()}")


def empty_polls(stage: Stage) -> Seen:
    """A poll that returns nothing leaves no span."""
    stage.instrument()
    consumer = stage.consumer()
    assert consumer.poll(0.2) is None
    consumer.close()
    return Seen(not stage.spans(), f"after an empty poll: {stage.names()}")


def same_trace(stage: Stage) -> Seen:
    """Sender and consumer are one trace, so that a dependency graph has an edge between them."""
    stage.instrument()
    stage.send()
    stage.poll_one()
    traces = {span.context.trace_id for span in stage.spans()}
    processed = stage.spans("process")[0]
    child = _refers(processed, stage.spans("send"))
    return Seen(len(traces) == 1 and "parent" in child, f"traces: {len(traces)}; refers by {', '.join(sorted(child))}")


def covers_the_handler(stage: Stage) -> Seen:
    """The process span is current while the message is handled, and ends when that ends."""
    stage.instrument()
    stage.fill()
    consumer = stage.consumer()
    message: Any = stage.poll(consumer)
    with stage.handling(message):
        inside = current_span_id()
    ended = {span_id(span) for span in stage.spans("process")}
    covered = bool(inside)
    consumer.close()
    evidence = f"current inside: {'its span' if covered else 'none'}; ended with the handler: {'yes' if inside in ended else 'no'}"
    return Seen((inside in ended or "partly") if covered else False, evidence)


def queue_time(stage: Stage) -> Seen:
    """How long a message lay on the broker can be read from its process span."""
    stage.instrument()
    stage.send()
    message = stage.poll_one()
    stored_ms = message.timestamp()[1]
    (processed,) = stage.spans("process")
    holding = sorted(name for name, value in processed.attributes.items() if value == stored_ms)
    lain = holding and (processed.start_time or 0) // 1_000_000 >= stored_ms
    evidence = f"{', '.join(holding)}, and the span starts after it" if holding else "no store time"
    return Seen(bool(lain), evidence)
