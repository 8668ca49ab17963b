"""The facts of a message in words, part by part, and the address of its trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.forwarder.span_fields import trace_id_of
from bridge.page.markup import fill_template
from bridge.page.wording import counted, duration, utc
from bridge.query.timeline import Half

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.query.evidence import Place
    from bridge.query.search import Answer
    from bridge.query.timeline import Consume, MessageTimeline, Recall, Send, TransactionEnd


UNKNOWN_GROUP = "group unknown"

Facts = tuple[tuple[str, str], ...]
"""Names and values of what is known of one event, in order; what no record says is left out."""
Detail = tuple[str, Facts]
"""One event: its headline and its facts."""


def about(story: MessageTimeline) -> Facts:
    """Return what the message is, whatever happened to it: topics, tags, keys and size."""
    sizes = sorted({send.body_bytes for send in story.sends if send.body_bytes is not None})
    said = (
        *(("topic", story.topics), ("tags", story.tags), ("keys", story.keys)),
        ("body", tuple(counted(size, "byte") for size in sizes)),
    )
    return tuple((name, ", ".join(values)) for name, values in said if values)


def details_of(story: MessageTimeline) -> Iterator[tuple[str, list[Detail]]]:
    """Yield each part's title and its events. Values are as on the wire: make them visible before they are shown."""
    by_group: dict[str | None, list[Send]] = {}
    for send in story.sends:
        by_group.setdefault(send.group, []).append(send)
    for group, sends in by_group.items():
        yield f"Sent by {group or UNKNOWN_GROUP}", [_send(number, send) for number, send in enumerate(sends, start=1)]
    if story.transaction_ends:
        yield "Transaction", [_transaction_end(end) for end in story.transaction_ends]
    if story.recalls:
        yield "Recall", [_recall(recall) for recall in story.recalls]
    for consumer in story.groups:
        attempts = [_consume(number, one) for number, one in enumerate(consumer.attempts, start=1)]
        yield f"Consumed by {consumer.group or UNKNOWN_GROUP}", attempts


def places_of(places: Sequence[Place]) -> str:
    """Return where records were read: ``RMQ_SYS_TRACE_TOPIC 0@17 #3`` is record 3 of offset 17 in partition 0."""
    return ", ".join(
        f"{place.source} {'' if place.partition is None else f'{place.partition}@{place.offset} '}#{place.record_index}"
        for place in places
    )


def _send(number: int, send: Send) -> Detail:
    return (
        f"attempt {number}: {send.outcome.value}",
        _known(
            ("begin", utc(send.begin_ms) if send.begin_ms is not None else None),
            ("end", utc(send.end_ms) if send.end_ms is not None else None),
            ("cost", duration(send.cost_ms) if send.cost_ms is not None else None),
            ("topic", send.topic),
            ("type", send.msg_type.value if send.msg_type else None),
            ("store host", send.store_host),
            ("client host", send.client_host),
            ("offset id", send.offset_msg_id),
            ("batch", counted(send.of_batch, "message") if send.of_batch > 1 else None),
            ("region", send.region_id),
            *_origin(send),
        ),
    )


def _transaction_end(end: TransactionEnd) -> Detail:
    return (
        f"{end.state.value if end.state else 'unknown state'}{', answers a check' if end.from_check else ''}",
        _known(
            ("at", utc(end.at_ms) if end.at_ms is not None else None),
            ("group", end.group),
            ("transaction id", end.transaction_id),
            ("store host", end.store_host),
            ("client host", end.client_host),
            ("region", end.region_id),
            *_origin(end),
        ),
    )


def _recall(recall: Recall) -> Detail:
    return (
        recall.outcome.value,
        _known(
            ("at", utc(recall.at_ms) if recall.at_ms is not None else None),
            ("group", recall.group),
            ("region", recall.region_id),
            *_origin(recall),
        ),
    )


def _consume(number: int, consume: Consume) -> Detail:
    code = consume.context_code
    ended = f"{utc(consume.end_ms)}{' (begin + cost)' if consume.end_estimated else ''}"
    return (
        f"delivery {number}: {consume.outcome.value}{_MISSING.get(consume.missing, '')}",
        _known(
            ("begin", utc(consume.begin_ms) if consume.begin_ms is not None else None),
            ("end", ended if consume.end_ms is not None else None),
            ("took", duration(consume.elapsed_ms) if consume.elapsed_ms is not None else None),
            ("cost per message", duration(consume.cost_ms) if _shared(consume) else None),
            ("code", code.name if code is not None else None),
            ("retry", None if consume.retry_times is None else str(consume.retry_times)),
            ("client host", consume.client_host),
            ("request id", consume.request_id),
            ("region", consume.region_id),
            *_origin(consume),
        ),
    )


_MISSING: dict[Half | None, str] = {
    Half.BEGIN: ", no SubBefore in the trace",
    Half.END: ", no SubAfter in the trace",
}


def _shared(consume: Consume) -> bool:
    """Return whether the listener was given several messages: then the cost is a share of what it took."""
    return consume.cost_ms is not None and consume.elapsed_ms is not None and consume.elapsed_ms > consume.cost_ms + 1


def _origin(event: Send | TransactionEnd | Recall | Consume) -> Iterator[tuple[str, str | None]]:
    places = [place for sighting in event.evidence for place in sighting.places]
    known = [sighting.written_by for sighting in event.evidence if sighting.written_by]
    first, *others = min(known, key=len, default=("",))  # the record that says most of its writer
    seen = sum(sighting.seen - 1 for sighting in event.evidence)
    yield "record", places_of(places) or None
    yield "seen again", counted(seen, "time") if seen else None
    yield "written by", f"{first} or {counted(len(others), 'other')}" if others else first or None


def _known(*facts: tuple[str, str | None]) -> Facts:
    return tuple((name, value) for name, value in facts if value is not None)


LINK_FIELDS: Final = ("trace_id", "msg_id", "topic")
"""The names a template may have in braces."""


def trace_id_hex(answer: Answer, msg_id: str) -> str:
    """Return the trace id that a span gave, else the one that ``mqtrace forward`` makes of the message id."""
    from_spans = answer.traces.get(msg_id)
    return from_spans[0] if from_spans else f"{trace_id_of(msg_id):032x}"


def link_of(answer: Answer, story: MessageTimeline) -> str | None:
    """Return the address of the message's trace, every value quoted; ``None`` without a template or a value for it."""
    if answer.link_template is None:
        return None
    topic = story.topics[0] if story.topics else None
    values = {"trace_id": trace_id_hex(answer, story.msg_id), "msg_id": story.msg_id, "topic": topic}
    return fill_template(answer.link_template, values.__getitem__)
