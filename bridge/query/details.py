"""The facts of an answer: in words, the same on a terminal and on a page, with the address of a trace, and as JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from bridge.forwarder.span_fields import trace_id_of
from bridge.page.markup import fill_template
from bridge.page.wording import ABSENT, TITLES, UNKNOWN_GROUP, duration, offset, plural, utc, utc_time, visible
from bridge.query.findings import findings, summarise
from bridge.query.matching import Sighting
from bridge.query.search import CONSUMER, PRODUCER, rows_of
from bridge.query.timeline import Kind, describe_end, events
from otel_mqtrace.wire.native import absent
from otel_mqtrace.wire.native.dialects import nearest_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bridge.query.matching import Place
    from bridge.query.search import Answer, Row, Searched
    from bridge.query.timeline import Consume, Event, MessageTimeline, Recall, Send, TransactionEnd

TRACE_ID: Final = "trace id of mqtrace forward"
ESTIMATED: Final = "≈ "
LIST_HEADS: Final = ("time (UTC)", "message id", "topic", "group", "outcome", "attempts")
_VERBS: Final = {PRODUCER: "send", CONSUMER: "consume"}
_TITLES: Final = dict(zip(Kind, TITLES, strict=True))

Facts = tuple[tuple[str, str], ...]
"""Names and values of one event's known fields, in order."""
Detail = tuple[str, Facts]
"""One event: its headline and its facts."""


def describe_message(story: MessageTimeline) -> Facts:
    """Return what the message is, whatever happened to it: topics, tags, keys and size."""
    sizes = sorted({send.body_bytes for send in story.sends if send.body_bytes is not None})
    facts = (
        *(("topic", story.topics), ("tags", story.tags), ("keys", story.keys)),
        ("body", tuple(plural(size, "byte") for size in sizes)),
    )
    return tuple((name, ", ".join(values)) for name, values in facts if values)


def details_of(story: MessageTimeline) -> Iterator[tuple[str, list[Detail]]]:
    """Yield each part's title and its events. Values are as on the wire: make them visible before they are shown."""
    by_group: dict[str | None, list[Send]] = {}
    for send in story.sends:
        by_group.setdefault(send.group, []).append(send)
    for group, sends in by_group.items():
        yield title_of(Kind.SEND, group), [_send(number, send) for number, send in enumerate(sends, start=1)]
    if story.transaction_ends:
        yield "Transaction", [_transaction_end(end) for end in story.transaction_ends]
    if story.recalls:
        yield "Recall", [_recall(recall) for recall in story.recalls]
    for consumer in story.groups:
        attempts = [_consume(number, one) for number, one in enumerate(consumer.attempts, start=1)]
        yield title_of(Kind.CONSUME, consumer.group), attempts


def title_of(kind: Kind, group: str | None) -> str:
    """Return the title of what one group did."""
    return f"{_TITLES[kind]} {group or UNKNOWN_GROUP}"


def list_cells(row: Row) -> tuple[str, str | None, str | None, str | None, str, str]:
    """Return the texts of a row below ``LIST_HEADS``; the failures only where the outcome does not show them."""
    attempts = f"{row.attempts} ({row.failed} failed)" if row.failed and row.attempts > 1 else str(row.attempts)
    outcome = f"{_VERBS[row.role]} {row.outcome.value}"
    return utc(row.time_ms).removesuffix(" UTC"), row.msg_id, row.topic, row.group, outcome, attempts


def timeline_of(story: MessageTimeline) -> tuple[str, list[tuple[Event, dict[str, str]]]]:
    """Return the title of a timeline, and each event with the texts of its row by column."""
    timeline = events(story)
    begin_ms = next((event.from_ms for event in timeline if event.from_ms is not None), None)
    title = "Timeline" if begin_ms is None else f"Timeline from {utc(begin_ms)}"
    return title, [(event, _timeline_cells(event, begin_ms)) for event in timeline]


def _timeline_cells(event: Event, begin_ms: int | None) -> dict[str, str]:
    since_ms = None if event.from_ms is None or begin_ms is None else event.from_ms - begin_ms
    hosts = [visible(host) for host in (event.client_host, event.store_host) if host]
    return {
        "after": f"{'' if event.begin_known or since_ms is None else ESTIMATED}{offset(since_ms)}",
        "what": event.name,
        "group": visible(event.group) if event.group else ABSENT,
        "took": duration(event.took_ms),
        "outcome": event.outcome,
        "at": utc_time(event.from_ms),
        "hosts": " → ".join(hosts) or ABSENT,
    }


def describe_records(story: MessageTimeline) -> str:
    """Return how many records the story is made of, and how many were read again."""
    repeats = f" and {plural(story.repeats, 'repeat')} of them" if story.repeats else ""
    return f"{plural(story.records, 'record')}{repeats}"


def describe_page(answer: Answer) -> str:
    """Return which page of how many is shown, and how to see older messages."""
    older = f"; {plural(answer.left_off, 'older message')}: --page {answer.page + 1}" if answer.left_off else ""
    return f"Page {answer.page:,} of {answer.pages:,}, {plural(answer.total, 'message')}{older}"


def describe_search(searched: Searched) -> tuple[str, ...]:
    """Return what was looked through, as a sentence, and what could not be read, a line each."""
    arrived = ""
    if searched.first_arrival_ms is not None and searched.last_arrival_ms is not None:
        arrived = f", arrived {utc(searched.first_arrival_ms)} to {utc(searched.last_arrival_ms)}"
    sentence = f"Searched {plural(searched.messages, 'trace message')} of {visible(searched.where)}{arrived}."
    return sentence, *(visible(remark, limit=400) for remark in searched.remarks)


def places_of(places: Sequence[Place]) -> str:
    """Return where records were read: ``RMQ_SYS_TRACE_TOPIC 0@17 #3`` is record 3 of offset 17 in partition 0."""
    return ", ".join(
        f"{place.source} {'' if place.partition is None else f'{place.partition}@{place.offset} '}#{place.record_index}"
        for place in places
    )


def _send(number: int, send: Send) -> Detail:
    facts = _facts(
        send,
        ("begin", send.begin_ms, utc),
        ("end", send.end_ms, utc),
        ("cost", send.cost_ms, duration),
        ("topic", send.topic, str),
        ("type", send.msg_type, attrgetter("value")),
        ("store host", send.store_host, str),
        ("client host", send.client_host, str),
        ("offset id", send.offset_msg_id, str),
        ("batch", send.of_batch if send.of_batch > 1 else None, lambda number: plural(number, "message")),
    )
    return f"attempt {number}: {send.outcome.value}", facts


def _transaction_end(end: TransactionEnd) -> Detail:
    facts = _facts(
        end,
        ("at", end.at_ms, utc),
        ("state", end.state, attrgetter("value")),
        ("group", end.group, str),
        ("transaction id", end.transaction_id, str),
        ("store host", end.store_host, str),
        ("client host", end.client_host, str),
    )
    return describe_end(end), facts


def _recall(recall: Recall) -> Detail:
    return recall.outcome.value, _facts(recall, ("at", recall.at_ms, utc), ("group", recall.group, str))


def _consume(number: int, consume: Consume) -> Detail:
    # where the listener was given several messages, the cost is a share of what it took
    is_share = (
        consume.cost_ms is not None and consume.elapsed_ms is not None and consume.elapsed_ms > consume.cost_ms + 1
    )
    estimated = " (begin + cost)" if consume.end_estimated else ""
    missing = "" if consume.missing is None else f", no {consume.missing.value} in the trace"
    facts = _facts(
        consume,
        ("begin", consume.begin_ms, utc),
        ("end", consume.end_ms, lambda end_ms: f"{utc(end_ms)}{estimated}"),
        ("took", consume.elapsed_ms, duration),
        ("cost per message", consume.cost_ms if is_share else None, duration),
        ("code", consume.context_code, attrgetter("name")),
        ("retry", consume.retry_times, str),
        ("client host", consume.client_host, str),
        ("request id", consume.request_id, str),
    )
    return f"delivery {number}: {consume.outcome.value}{missing}", facts


def _facts(event: Send | TransactionEnd | Recall | Consume, *own: tuple[str, Any, Callable[[Any], str]]) -> Facts:
    """Return what is known: its ``own`` facts, each a name, a value and how that is shown, then those of every kind."""
    places = [place for sighting in event.evidence for place in sighting.places]
    known = [sighting.written_by for sighting in event.evidence if sighting.written_by]
    first, *others = min(known, key=len, default=("",))  # the record with the fewest possible writers
    seen = sum(sighting.seen - 1 for sighting in event.evidence)
    facts: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
        *own,
        ("region", event.region_id, str),
        ("record", places_of(places) or None, str),
        ("seen again", plural(seen, "time") if seen else None, str),
        ("layout of", f"{first} or {plural(len(others), 'other')}" if others else first or None, str),
    )
    return tuple((name, show(value)) for name, value, show in facts if value is not None)


LINK_FIELDS: Final = ("trace_id", "msg_id", "topic")
"""The names a template may have in braces."""


def trace_of(story: MessageTimeline) -> str | None:
    """Return the id of the trace that ``mqtrace forward`` makes of the message; ``None`` without a message id."""
    return None if absent(story.msg_id) else trace_id_of(story.msg_id)


def link_of(answer: Answer, story: MessageTimeline) -> str | None:
    """Return the address of the message's trace, every value quoted; ``None`` without a template or a value for it."""
    if answer.link_template is None:
        return None
    topic = story.topics[0] if story.topics else None
    values = {"trace_id": trace_of(story), "msg_id": story.msg_id, "topic": topic}
    return fill_template(answer.link_template, values.__getitem__)


_SCHEMA_VERSION = 1


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return the whole answer as plain values."""
    return {
        "schema_version": _SCHEMA_VERSION,
        "found": len(answer.stories),
        "left_off": answer.left_off,
        "page": answer.page,
        "pages": answer.pages,
        "total": answer.total,
        "searched": _plain(answer.searched),
        "list": [_plain(row) for story in reversed(answer.stories) for row in rows_of(story, answer.query)],
        "messages": [
            {**timeline_json(story), "trace_id": trace_of(story), "link": link_of(answer, story)}
            for story in answer.stories
        ],
    }


def timeline_json(story: MessageTimeline) -> dict[str, Any]:
    """Return one message's story as plain values."""
    groups = [
        {
            "group": group.group,
            "outcome": group.outcome.value,
            "attempts": [{**_plain(attempt), "elapsed_ms": attempt.elapsed_ms} for attempt in group.attempts],
        }
        for group in story.groups
    ]
    bad_records = [
        {
            **_plain(bad.place),
            "field": bad.field_name,
            "reason": bad.reason,
            "text": bad.text,
            "names_message": story.msg_id in bad.names,
        }
        for bad in story.bad
    ]
    return {
        **{name: _plain(getattr(story, name)) for name in ("msg_id", "topics", "tags", "keys")},
        "summary": summarise(story),
        "findings": _plain(findings(story)),
        **{name: _plain(getattr(story, name)) for name in ("sends", "transaction_ends", "recalls")},
        "groups": groups,
        "timeline": _plain(events(story)),
        "bad_records": bad_records,
        "records": story.records,
        "repeats": story.repeats,
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Enum):
        return value.name if isinstance(value, int) else value.value
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Sighting):
        return {
            "trace_type": value.trace_ctx.trace_type.value,
            "dialect": nearest_dialect(value.dialect),
            **{name: _plain(getattr(value, name)) for name in ("written_by", "seen", "places")},
        }
    return {one.name: _plain(getattr(value, one.name)) for one in fields(value)} if is_dataclass(value) else value
