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
from bridge.query.timeline import STEP_FIELDS, Kind, Step, describe_end, events
from otel_mqtrace.wire.native import absent
from otel_mqtrace.wire.native.dialects import nearest_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bridge.query.matching import Place
    from bridge.query.search import Answer, Row, Searched
    from bridge.query.timeline import Event, MessageTimeline

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
    by_group: dict[str | None, list[Step]] = {}
    for send in story.sends:
        by_group.setdefault(send.group, []).append(send)
    for group, sends in by_group.items():
        yield title_of(Kind.SEND, group), _describe_steps(sends)
    if story.transaction_ends:
        yield "Transaction", _describe_steps(story.transaction_ends)
    if story.recalls:
        yield "Recall", _describe_steps(story.recalls)
    for consumer in story.groups:
        yield title_of(Kind.CONSUME, consumer.group), _describe_steps(consumer.attempts)


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


def _describe_steps(steps: Sequence[Step]) -> list[Detail]:
    return [(_describe_step(number, step), tuple(_facts(step))) for number, step in enumerate(steps, start=1)]


def _describe_step(number: int, step: Step) -> str:
    if step.kind is Kind.TRANSACTION_END:
        return describe_end(step)
    if step.kind is Kind.SEND:
        return f"attempt {number}: {step.outcome.value}"
    missing = "" if step.missing is None else f", no {step.missing.value} in the trace"
    return f"delivery {number}: {step.outcome.value}{missing}" if step.kind is Kind.CONSUME else step.outcome.value


def _facts(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of what is known of an event."""
    is_send, is_consume = step.kind is Kind.SEND, step.kind is Kind.CONSUME
    took_ms, cost_ms = step.elapsed_ms, step.cost_ms
    # where the listener was given several messages, the cost is a share of what it took
    is_share = cost_ms is not None and took_ms is not None and took_ms > cost_ms + 1
    estimated = " (begin + cost)" if step.end_estimated else ""
    places = [place for sighting in step.evidence for place in sighting.places]
    known = [sighting.written_by for sighting in step.evidence if sighting.written_by]
    first, *others = min(known, key=len, default=("",))  # the record with the fewest possible writers
    seen = sum(sighting.seen - 1 for sighting in step.evidence)
    facts: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
        ("begin", step.begin_ms, utc),
        ("end", step.end_ms, lambda end_ms: f"{utc(end_ms)}{estimated}"),
        ("at", step.at_ms, utc),
        ("state", step.state, attrgetter("value")),
        ("cost" if is_send else "took", took_ms, duration),
        ("cost per message", cost_ms if is_share else None, duration),
        ("topic", step.topic if is_send else None, str),
        ("type", step.msg_type, attrgetter("value")),
        ("group", None if is_send or is_consume else step.group, str),
        ("transaction id", step.transaction_id, str),
        ("code", step.context_code, attrgetter("name")),
        ("retry", step.retry_times, str),
        ("store host", step.store_host, str),
        ("client host", step.client_host, str),
        ("request id", step.request_id, str),
        ("offset id", step.offset_msg_id, str),
        ("batch", step.of_batch if step.of_batch > 1 else None, lambda number: plural(number, "message")),
        ("region", step.region_id, str),
        ("record", places_of(places) or None, str),
        ("seen again", plural(seen, "time") if seen else None, str),
        ("layout of", f"{first} or {plural(len(others), 'other')}" if others else first or None, str),
    )
    return ((name, show(value)) for name, value, show in facts if value is not None)


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
    if isinstance(value, Step):
        return {name: _plain(getattr(value, name)) for name in (*STEP_FIELDS[value.kind], "evidence")}
    return {one.name: _plain(getattr(value, one.name)) for one in fields(value)} if is_dataclass(value) else value
