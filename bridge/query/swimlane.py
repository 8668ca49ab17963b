"""This module knows the picture of a story: a lane for the producer, its transaction and every consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.page.lanes import Bar, Lane, draw_lanes, pack_rows, scale_of
from bridge.page.markup import Markup, element
from bridge.page.svg import AMBER, GREEN, RED, SLATE
from bridge.page.wording import duration, utc, visible
from bridge.query.details import UNKNOWN_GROUP
from bridge.query.timeline import Kind, Tone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.query.timeline import Event

__all__ = ["dot", "legend", "swimlane"]

_COLOURS: Final = {Tone.GOOD: GREEN, Tone.BAD: RED, Tone.CARE: AMBER, Tone.OPEN: SLATE}
_WORDS: Final = {
    Tone.GOOD: "success, commit",
    Tone.BAD: "failure, rollback",
    Tone.CARE: "success after the time-out",
    Tone.OPEN: "undecided, or no end in the trace",
}
_NAMES: Final = {Kind.SEND: "sent by", Kind.TRANSACTION_END: "transaction of", Kind.RECALL: "recalled by"}


def swimlane(timeline: Sequence[Event]) -> Markup:
    """Return the picture of ``timeline``; nothing where no event has a time."""
    lanes = _lanes(timeline)
    bars = [bar for each in lanes.values() for bar in each]
    if not bars:
        return Markup("")
    scale = scale_of(bars)
    first_ms, last_ms = scale.first_ms, max(bar.until_ms or bar.from_ms for bar in bars)
    says = f"{len(bars)} events over {duration(last_ms - first_ms)}; the table below has all of them"
    rows = {name: tuple(("", row) for row in pack_rows(each, scale)) for name, each in lanes.items()}
    return draw_lanes([Lane(name, row) for name, row in rows.items()], scale, text=says)


def legend(timeline: Sequence[Event]) -> Markup:
    """Return what the colours of ``timeline`` mean."""
    tones = [tone for tone in Tone if any(event.tone is tone for event in timeline)]
    items = [element("li", dot(tone), f" {_WORDS[tone]}") for tone in tones]
    cut = element("li", element("span", class_="dot cut"), " a pause that is cut short") if _is_cut(timeline) else None
    return element("ul", items, cut, class_="legend")


def dot(tone: Tone) -> Markup:
    """Return the round mark of a tone, to stand before its word; drawn, so that it needs no style."""
    circle = element("circle", cx=5, cy=5, r=5, fill=_COLOURS[tone])
    return element("svg", circle, class_="dot", width=10, height=10, aria_hidden="true")


def _is_cut(timeline: Sequence[Event]) -> bool:
    bars = [bar for each in _lanes(timeline).values() for bar in each]
    return bool(bars and scale_of(bars).gaps)


def _lanes(timeline: Sequence[Event]) -> dict[str, list[Bar]]:
    lanes: dict[str, list[Bar]] = {}
    rank = {kind: number for number, kind in enumerate(Kind)}
    for event in sorted(timeline, key=lambda one: rank[one.kind]):
        if event.from_ms is not None:
            group = visible(event.group or UNKNOWN_GROUP, limit=90)
            lanes.setdefault(f"{_NAMES.get(event.kind, 'consumed by')} {group}", []).append(_bar(event, event.from_ms))
    return lanes


def _bar(event: Event, from_ms: int) -> Bar:
    return Bar(
        from_ms=from_ms,
        until_ms=event.until_ms,
        colour=_COLOURS[event.tone],
        words=_words(event),
        title=_told(event),
        instant=event.took_ms is None and event.until_ms is not None,
        faint=not event.begin_known,
    )


def _words(event: Event) -> str:
    """Return the few words beside a bar."""
    if event.took_ms is None:
        return event.outcome
    return f"{duration(event.took_ms)}{'' if event.tone is Tone.GOOD else f', {event.outcome}'}"


def _told(event: Event) -> str:
    parts = (
        f"{event.name}: {event.outcome}",
        f"{'begin' if event.begin_known else 'begin (estimated)'} {utc(event.from_ms)}",
        f"end {utc(event.until_ms)}" if event.took_ms is not None and event.until_ms is not None else None,
        f"took {duration(event.took_ms)}" if event.took_ms is not None else None,
        f"store host {visible(event.store_host)}" if event.store_host else None,
        f"client host {visible(event.client_host)}" if event.client_host else None,
    )
    return "\n".join(part for part in parts if part)
