"""This module knows the picture of a story: a lane for the producer, its transaction and every consumer group.

Time runs to the right, long pauses are cut short. Every bar has its words as a tooltip; the page has all of it again as
a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.query.details import UNKNOWN_GROUP
from bridge.query.markup import Markup, element
from bridge.query.scale import GAP_WIDTH, scale_for
from bridge.query.timeline import Kind, Tone
from bridge.query.wording import duration, offset, utc, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.query.scale import Scale
    from bridge.query.timeline import Event

__all__ = ["COLOURS", "legend", "swimlane"]

COLOURS: Final = {Tone.GOOD: "#2f8f5b", Tone.BAD: "#d14343", Tone.CARE: "#b7791f", Tone.OPEN: "#7a8794"}
"""Each has at least 3:1 contrast on the light and on the dark page."""
_WORDS: Final = {
    Tone.GOOD: "success, commit",
    Tone.BAD: "failure, rollback",
    Tone.CARE: "success after the time-out",
    Tone.OPEN: "undecided, or no end in the trace",
}

_WIDTH: Final = 960.0
_LEFT: Final = 16.0
_RIGHT: Final = 130.0
_TOP: Final = 40.0
_NAME_HEIGHT: Final = 24.0
_ROW: Final = 22.0
_BAR: Final = 14.0
_THINNEST: Final = 4.0
_OPEN_END: Final = 40.0
_LETTER: Final = 6.4  # the width of one, at most about
_NAMES: Final = {Kind.SEND: "sent by", Kind.TRANSACTION_END: "transaction of", Kind.RECALL: "recalled by"}


def swimlane(timeline: Sequence[Event]) -> Markup:
    """Return the picture of ``timeline``; nothing where no event has a time."""
    timed = [event for event in timeline if event.from_ms is not None]
    if not timed:
        return Markup("")
    scale = _scale(timed)
    marks: list[Markup] = []
    y = _TOP
    for name, rows in _lanes(timed, scale).items():
        marks += _lane(name, rows, scale, y)
        y += _NAME_HEIGHT + _ROW * len(rows) + 10
    height = y + 6
    says = f"{len(timed)} events over {duration(_last_ms(timed) - scale.first_ms)}; the table below has all of them"
    return element(
        "svg",
        [*_axis(timed, scale, height), *marks],
        role="img",
        aria_label=says,
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        width=_WIDTH,
        height=height,
        font_family="system-ui, sans-serif",
        class_="lanes",
    )


def legend(timeline: Sequence[Event]) -> Markup:
    """Return what the colours of ``timeline`` mean."""
    items = [
        element("li", element("span", class_="dot", style=f"background:{COLOURS[tone]}"), f" {_WORDS[tone]}")
        for tone in Tone
        if any(event.tone is tone for event in timeline)
    ]
    cut = element("li", element("span", class_="dot cut"), " a pause that is cut short") if _is_cut(timeline) else None
    return element("ul", items, cut, class_="legend")


def _is_cut(timeline: Sequence[Event]) -> bool:
    timed = [event for event in timeline if event.from_ms is not None]
    return bool(timed and _scale(timed).gaps)


def _scale(timed: Sequence[Event]) -> Scale:
    return scale_for((_span(event) for event in timed), left=_LEFT, width=_WIDTH - _LEFT - _RIGHT)


def _lanes(timed: Sequence[Event], scale: Scale) -> dict[str, list[list[Event]]]:
    """Return the events of each lane in rows, so that no bar lies over another one or its words."""
    lanes: dict[str, list[list[Event]]] = {}
    rank = {kind: number for number, kind in enumerate(Kind)}
    for event in sorted(timed, key=lambda one: rank[one.kind]):
        group = visible(event.group or UNKNOWN_GROUP, limit=90)
        rows = lanes.setdefault(f"{_NAMES.get(event.kind, 'consumed by')} {group}", [])
        for row in rows:
            if _words_end(row[-1], scale) < _edges(event, scale)[0]:
                row.append(event)
                break
        else:
            rows.append([event])
    return lanes


def _lane(name: str, rows: Sequence[Sequence[Event]], scale: Scale, y: float) -> Iterator[Markup]:
    height = _NAME_HEIGHT + _ROW * len(rows)
    yield element("rect", x=2, y=y, width=_WIDTH - 4, height=height, rx=6, fill="currentColor", fill_opacity=0.05)
    yield element("text", name, x=_LEFT + 6, y=y + 16, font_size=12, font_weight=600, fill="currentColor")
    for number, row in enumerate(rows):
        for event in row:
            yield _bar(event, scale, y + _NAME_HEIGHT + number * _ROW)


def _bar(event: Event, scale: Scale, y: float) -> Markup:
    colour = COLOURS[event.tone]
    start, end = _edges(event, scale)
    if _is_instant(event):
        shapes = [_diamond(start, y + _BAR / 2, colour)]
    elif event.until_ms is None:
        dashed = {"stroke": colour, "stroke_dasharray": "4 3", "fill": colour, "fill_opacity": 0.15}
        shapes = [element("rect", x=start, y=y, width=_OPEN_END, height=_BAR, rx=3, **dashed)]
    else:
        solid = 1 if event.begin_known else 0.45
        shapes = [element("rect", x=start, y=y, width=end - start, height=_BAR, rx=2, fill=colour, fill_opacity=solid)]
    return element("g", element("title", _says(event)), shapes, _beside(event, end + 6, y))


def _is_instant(event: Event) -> bool:
    return event.took_ms is None and event.until_ms is not None


def _edges(event: Event, scale: Scale) -> tuple[float, float]:
    """Return where a bar begins and ends, as it is drawn."""
    start, end = (scale.x(instant_ms) for instant_ms in _span(event))
    if _is_instant(event):
        return start, start + 6
    return start, max(end, start + (_OPEN_END if event.until_ms is None else _THINNEST))


def _words(event: Event) -> str:
    """Return the few words beside a bar."""
    if event.took_ms is None:
        return event.outcome
    return f"{duration(event.took_ms)}{'' if event.tone is Tone.GOOD else f', {event.outcome}'}"


def _words_end(event: Event, scale: Scale) -> float:
    return _edges(event, scale)[1] + 6 + _LETTER * len(_words(event))


def _beside(event: Event, x: float, y: float) -> Markup:
    """Return the words beside a bar, pressed together where they would leave the picture."""
    words = _words(event)
    room = _WIDTH - 4 - x
    pressed = {"textLength": room, "lengthAdjust": "spacingAndGlyphs"} if _LETTER * len(words) > room else {}
    return element("text", words, x=x, y=y + 11, font_size=11, fill="currentColor", fill_opacity=0.85, **pressed)


def _diamond(x: float, y: float, colour: str) -> Markup:
    return element("path", d=f"M{x:.1f} {y - 7:.1f}l6 7l-6 7l-6 -7z", fill=colour)


def _says(event: Event) -> str:
    parts = (
        f"{event.name}: {event.outcome}",
        f"{'begin' if event.begin_known else 'begin (estimated)'} {utc(event.from_ms)}",
        f"end {utc(event.until_ms)}" if event.took_ms is not None and event.until_ms is not None else None,
        f"took {duration(event.took_ms)}" if event.took_ms is not None else None,
        f"store host {visible(event.store_host)}" if event.store_host else None,
        f"client host {visible(event.client_host)}" if event.client_host else None,
    )
    return "\n".join(part for part in parts if part)


def _axis(timed: Sequence[Event], scale: Scale, height: float) -> Iterator[Markup]:
    """Yield a tick where events begin and the last one ends, as far as there is room, and every gap with its length."""
    edges = sorted({scale.first_ms, *(_span(event)[0] for event in timed), _last_ms(timed)})
    last_x = -1e9
    for instant_ms in edges:
        x = scale.x(instant_ms)
        if x - last_x < 70:  # noqa: PLR2004 - the width of a label
            continue
        last_x = x
        line = {"x1": x, "x2": x, "y1": 24, "y2": height, "stroke": "currentColor", "stroke_opacity": 0.18}
        yield element("line", **line)
        yield element("text", offset(instant_ms - scale.first_ms), x=x + 3, y=18, font_size=11, fill="currentColor")
    for gap in scale.gaps:
        middle = gap.x + GAP_WIDTH / 2
        length = duration(gap.to_ms - gap.from_ms)
        title = element("title", f"{length} without an event, not to scale")
        hatch = {"fill": "currentColor", "fill_opacity": 0.05}
        rect = element("rect", x=gap.x + 1, y=24, width=GAP_WIDTH - 2, height=height - 24, **hatch)
        told = {"font_size": 10, "text_anchor": "middle", "fill": "currentColor", "fill_opacity": 0.85}
        yield element("g", title, rect, element("text", length, x=middle, y=35, **told))


def _span(event: Event) -> tuple[int, int]:
    start = event.from_ms or 0
    return start, start if event.until_ms is None else max(event.until_ms, start)


def _last_ms(timed: Sequence[Event]) -> int:
    return max(_span(event)[1] for event in timed)
