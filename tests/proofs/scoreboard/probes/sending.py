"""Probes of the sending side: a ``produce``, on the wire and on its span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from tests.proofs.scoreboard.stage import Seen, current_span_id, span_id

if TYPE_CHECKING:
    from tests.proofs.scoreboard.stage import Stage

_EARLIER = b"00-11111111111111111111111111111111-2222222222222222-01"


def _traces(headers: list[tuple[str, bytes | None]]) -> list[bytes | None]:
    return [value for name, value in headers if name.lower() == "traceparent"]


def _writes(header: bytes | None, spans: list[Any]) -> bool:
    return header is not None and any(format(span_id(span), "016x").encode() in header for span in spans)


def producer_span(stage: Stage) -> Seen:
    """One PRODUCER span for one message, and its context in the message."""
    stage.instrument()
    stage.send()
    sends = stage.spans("send")
    (headers,) = stage.on_the_wire()
    kinds = [span.kind.name for span in sends]
    whole = kinds == ["PRODUCER"] and len(_traces(headers)) == 1 and _writes(_traces(headers)[0], sends)
    return Seen(whole, f"{stage.names()}, kind {', '.join(kinds)}; traceparent headers: {len(_traces(headers))}")


def ends_at_delivery(stage: Stage) -> Seen:
    """The span is open until the broker has answered, and says where the message lies."""
    stage.instrument()
    producer = stage.producer()
    producer.produce(stage.topic, b"an order")
    early = len(stage.spans("send"))
    producer.flush(20)
    attributes = {name: value for span in stage.spans("send") for name, value in span.attributes.items()}
    place = sorted(name for name in attributes if name.endswith((".partition", ".partition.id", ".offset")))
    evidence = f"ended before the broker answered: {early}; attributes of the delivery: {', '.join(place) or 'none'}"
    return Seen(early == 0 and len(place) == 2, evidence)


def failure_recorded(stage: Stage) -> Seen:
    """A message that is never delivered leaves a span that says so."""
    stage.instrument()
    producer = stage.producer(**{"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 100})
    producer.produce(stage.topic, b"an order")
    producer.flush(20)
    spans = stage.spans("send")
    failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    errors = sorted({str(span.attributes.get("error.type")) for span in spans})
    statuses = ", ".join(sorted({span.status.status_code.name for span in spans}))
    return Seen(bool(failed) and len(failed) == len(spans), f"status {statuses}, error.type {', '.join(errors)}")


def callback_context(stage: Stage) -> Seen:
    """The delivery callback runs in the context the message was sent in."""
    stage.instrument()
    producer, seen = stage.producer(), []
    with stage.tracer.start_as_current_span("checkout") as checkout:
        producer.produce(stage.topic, b"an order", on_delivery=lambda *_: seen.append(current_span_id()))
    producer.flush(20)
    inside = seen == [checkout.get_span_context().span_id]
    return Seen(inside, f"current in the callback: {'the span around the send' if inside else 'nothing'}")


def default_callback(stage: Stage) -> Seen:
    """A callback given with the configuration is called, once for each message."""
    stage.instrument()
    called: list[int] = []
    producer = stage.producer(on_delivery=lambda _error, message: called.append(message.offset()))
    for _ in range(2):
        producer.produce(stage.topic, b"an order")
    producer.flush(20)
    return Seen(called == [0, 1], f"2 messages, called for the offsets {called}")


def positional_headers(stage: Stage) -> Seen:
    """``produce(topic, value, key, partition, callback, on_delivery, timestamp, headers)``, all by position."""
    stage.instrument()
    producer = stage.producer()
    producer.produce(stage.topic, b"an order", b"key", 0, None, None, 0, [("shop", b"7")])
    producer.flush(20)
    (headers,) = stage.on_the_wire()
    kept = ("shop", b"7") in headers
    return Seen(kept and len(_traces(headers)) == 1, f"on the wire: {', '.join(sorted(name for name, _ in headers))}")


def reused_headers(stage: Stage) -> Seen:
    """One list of headers for two messages: it stays as it was, and each message carries its own span's context."""
    stage.instrument()
    mine = [("shop", b"7")]
    stage.send(2, headers=mine)
    wire = stage.on_the_wire(2)
    counts = [len(_traces(headers)) for headers in wire]
    firsts = {values[0] for values in map(_traces, wire) if values}
    evidence = (
        f"traceparent headers of the two: {counts}, different: {len(firsts)}; the list afterwards: {len(mine)} entries"
    )
    return Seen(counts == [1, 1] and len(firsts) == 2 and mine == [("shop", b"7")], evidence)


def carrier_kept(stage: Stage) -> Seen:
    """Duplicate and None headers of the user arrive, an old traceparent is replaced, the list is not touched."""
    stage.instrument()
    mine = [("shop", b"7"), ("shop", b"8"), ("empty", None), ("traceparent", _EARLIER)]
    given = list(mine)
    stage.send(headers=mine)
    (headers,) = stage.on_the_wire()
    users = [header for header in headers if header[0] in {"shop", "empty"}]
    evidence = (
        f"user's headers that arrived: {len(users)} of 3; traceparent headers: {len(_traces(headers))}; "
        f"the list was {'kept' if mine == given else 'changed'}"
    )
    return Seen(users == given[:3] and len(_traces(headers)) == 1 and mine == given, evidence)


def creation_context(stage: Stage) -> Seen:
    """A context that the message carries already is left alone on request, and the send span refers to it."""
    stage.instrument(creation_context="keep")
    stage.send(headers=[("traceparent", _EARLIER)])
    (headers,) = stage.on_the_wire()
    kept = _traces(headers) == [_EARLIER]
    linked = any(format(link.context.span_id, "016x").encode() in _EARLIER for s in stage.spans() for link in s.links)
    evidence = f"the earlier context is {'the only one' if kept else 'not alone'} on the wire, {'linked' if linked else 'not linked'}"
    return Seen(kept and linked, evidence)


def propagation_toggle(stage: Stage) -> Seen:
    """Propagation switched off: a span, and no header."""
    stage.instrument(propagation=False)
    stage.send()
    (headers,) = stage.on_the_wire()
    kinds = [span.kind for span in stage.spans("send")]
    evidence = f"{stage.names()}, kind {', '.join(kind.name for kind in kinds)}; headers on the wire: {len(headers)}"
    return Seen(headers == [] and kinds == [SpanKind.CLIENT], evidence)


def header_capture(stage: Stage) -> Seen:
    """Headers chosen by pattern become attributes; secrets among them are written without their value."""
    stage.instrument(capture_headers=["shop-*"])
    stage.send(headers=[("shop-id", b"7"), ("shop-token", b"hunter2"), ("other", b"x")])
    attributes = {name: value for span in stage.spans("send") for name, value in span.attributes.items()}
    captured = {name: list(value) for name, value in attributes.items() if name.startswith("messaging.header.")}
    wanted = {"messaging.header.shop-id": ["7"], "messaging.header.shop-token": ["REDACTED"]}
    text = ", ".join(f"{name} = {value}" for name, value in sorted(captured.items()))
    return Seen(captured == wanted, text or "no header among the attributes")


def user_hooks(stage: Stage) -> Seen:
    """The application's own hooks add to the spans of both sides."""

    def note(span: Any, *_: Any) -> None:
        span.set_attribute("shop.id", 7)

    stage.instrument(produce_hook=note, consume_hook=note)
    stage.send()
    stage.handle_one()
    noted = sorted({span.name for span in stage.spans() if span.attributes.get("shop.id") == 7})
    return Seen(len(noted) == 2, stage.mask_topic(f"noted on: {', '.join(noted) or 'no span'}"))


def topic_filter(stage: Stage) -> Seen:
    """Topics are left out, or sampled, by pattern."""
    stage.instrument(topic_exclude=["*-audit"], topic_sampling={"*-noise": 0})
    producer = stage.producer()
    for suffix in ("", "-audit", "-noise"):
        producer.produce(stage.topic + suffix, b"an order")
    producer.flush(20)
    return Seen(len(stage.spans()) == 1, f"of orders, orders-audit and orders-noise: {stage.names()}")


def suppressed(stage: Stage) -> Seen:
    """Inside ``suppress_instrumentation`` nothing is traced and nothing is written into the message."""
    stage.instrument()
    with suppress_instrumentation():
        stage.send()
        stage.poll_one()
    (headers,) = stage.on_the_wire()
    return Seen(not stage.spans() and not headers, f"{stage.names()}; headers on the wire: {len(headers)}")


def transactions(stage: Stage) -> Seen:
    """A commit and an abort each leave a span for their message that says how it ended."""
    stage.instrument()
    producer = stage.producer(**{"transactional.id": f"{stage.topic}-transactions"})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(stage.topic, b"an order")
        end(20)
    producer.flush(20)
    states = [span.attributes.get("mqtrace.transaction_state") for span in stage.spans("end_transaction")]
    text = f"; states: {', '.join(map(str, states))}" if states else ""
    return Seen(sorted(map(str, states)) == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"], stage.names() + text)


def rocketmq_attributes(stage: Stage) -> Seen:
    """What RocketMQ's console shows of a message is on the spans of both sides."""
    stage.instrument()
    stage.send(headers=[("TAGS", b"paid"), ("KEYS", b"order-7 shop-1")])
    stage.handle_one()
    wanted = {"mqtrace.tags", "mqtrace.keys", "mqtrace.store_host", "mqtrace.msg_type"}
    held = [wanted & set(span.attributes) for span in stage.spans()]
    both = len(held) == 2 and all(each == wanted for each in held)
    common = sorted(set.intersection(*held)) if held else []
    return Seen(both, f"on all of {len(held)} spans: {', '.join(common) or 'none of tags, keys, store host, type'}")
