"""Draw the events of one message in lanes: each sender and consumer group, by the native trace and by OTLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.page.lanes import Bar, Lane, draw_lanes, pack_rows, scale_of
from bridge.page.markup import Markup
from bridge.page.svg import RED, SIDE_COLOUR, SLATE
from spark_jobs.report.wording import ABSENT, duration, utc, visible
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_jobs.report.result import Interval, MessageEvent

__all__ = ["swimlane"]

_PARTY: Final = {
    Kind.PUBLISH.value: "sent by",
    Kind.TRANSACTION_END.value: "transaction of",
    Kind.RECALL.value: "recalled by",
    Kind.CONSUME.value: "consumed by",
}
_SIDES: Final = (("native", "native"), ("otlp", "OTLP"))
_BROKER: Final = "broker"


def swimlane(events: Sequence[MessageEvent], this: MessageEvent | None = None) -> Markup:
    """Return the drawing with ``this`` event outlined, or an empty one where no side has a time.

    An event that one side did not record is a dotted box in its row; a failure has a red outline.
    """
    lanes = {name: rows for name, rows in _lanes(events, this).items() if any(rows.values())}
    bars = [bar for rows in lanes.values() for row in rows.values() for bar in row]
    if not bars:
        return Markup("")
    scale = scale_of(bars, words_at_left=True)
    packed = [
        Lane(name, tuple((word, row) for word, bars in rows.items() for row in pack_rows(bars, scale)))
        for name, rows in lanes.items()
    ]
    return draw_lanes(packed, scale, text="; ".join(map(_describe, events)))


def _lanes(events: Sequence[MessageEvent], this: MessageEvent | None) -> dict[str, dict[str, list[Bar]]]:
    """Return lane → row → bars: sends, then the answer of the broker, then deliveries."""
    lanes: dict[str, dict[str, list[Bar]]] = {}
    rank = {kind: at for at, kind in enumerate(_PARTY)}
    for event in sorted(events, key=lambda one: rank.get(one.kind, len(rank))):
        rows = lanes.setdefault(_name(event), {word: [] for _, word in _SIDES})
        for side, word in _SIDES:
            rows[word] += _bars(event, side, outlined=event is this)
        if event.kind == Kind.PUBLISH.value:
            lanes.setdefault(_BROKER, {"stored": []})["stored"] += _stored(event)
    return lanes


def _name(event: MessageEvent) -> str:
    return f"{_PARTY.get(event.kind, visible(event.kind, limit=40))} {visible(event.group or ABSENT, limit=60)}"


def _describe(event: MessageEvent) -> str:
    sides = [word for word, interval in (("native", event.native), ("OTLP", event.otlp)) if interval]
    return f"{_name(event)}: recorded by {' and '.join(sides) or 'neither side'}"


def _bars(event: MessageEvent, side: str, *, outlined: bool) -> Iterator[Bar]:
    own, other = (event.native, event.otlp) if side == "native" else (event.otlp, event.native)
    if own and (times := _times(own)):
        red = RED if own.success is False else None
        yield Bar(
            from_ms=times[0],
            until_ms=own.end_ms,
            colour=SIDE_COLOUR[side],
            words=f"{'≠ ' if other and _differ(own, other) else ''}{_words(own)}",
            title=_title(event, own),
            instant=own.start_ms is None,
            outline=red or ("currentColor" if outlined else None),
        )
    elif not own and other and (times := _times(other)):
        yield Bar(
            from_ms=times[0],
            until_ms=times[-1],
            colour="currentColor",
            words="not recorded",
            title=f"not recorded by this side: {event.status}",
            ghost=True,
        )


def _times(interval: Interval) -> list[int]:
    return [ms for ms in (interval.start_ms, interval.end_ms) if ms is not None]


def _differ(one: Interval, other: Interval) -> bool:
    pairs = ((one.start_ms, other.start_ms), (one.end_ms, other.end_ms), (one.success, other.success))
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _words(interval: Interval) -> str:
    failed = ", failed" if interval.success is False else ""
    if interval.start_ms is None:
        return f"end only{failed}"
    return f"{'no end' if interval.end_ms is None else duration(interval.end_ms - interval.start_ms)}{failed}"


def _title(event: MessageEvent, interval: Interval) -> str:
    outcome = {True: ", success", False: ", failed", None: ""}[interval.success]
    attempt = f"\nattempt {visible(event.attempt_id, limit=60)}" if event.attempt_id else ""
    retry = f"\nretry {event.retry_times}" if event.retry_times else ""
    return f"{utc(interval.start_ms)} to {utc(interval.end_ms)}{outcome}{attempt}{retry}"


def _stored(event: MessageEvent) -> Iterator[Bar]:
    """Yield the moment at which the broker answered a successful send, if a side recorded it."""
    intervals = [interval for interval in (event.native, event.otlp) if interval]
    end_ms = next((interval.end_ms for interval in intervals if interval.end_ms is not None), None)
    failed = any(interval.success is False for interval in intervals)
    if end_ms is not None and event.store_host and not failed:
        host = visible(event.store_host, limit=60)
        yield Bar(from_ms=end_ms, until_ms=end_ms, colour=SLATE, words=host, title=f"stored by {host}", instant=True)
