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
_WORDS: Final = {Tone.GOOD: "success", Tone.BAD: "failed", Tone.CARE: "success, but late", Tone.OPEN: "no end known"}

_WIDTH: Final = 960.0
_LEFT: Final = 16.0
_RIGHT: Final = 64.0
_TOP: Final = 40.0
_NAME_HEIGHT: Final = 24.0
_ROW: Final = 22.0
_BAR: Final = 14.0
_THINNEST: Final = 4.0
_OPEN_END: Final = 40.0
_NAMES: Final = {Kind.SEND: "sent by", Kind.TRANSACTION_END: "transaction of", Kind.RECALL: "recalled by"}


def swimlane(timeline: Sequence[Event]) -> Markup:
    """Return the picture of ``timeline``; nothing where no event has a time."""
    timed = [event for event in timeline if event.from_ms is not None]
    if not timed:
        return Markup("")
    scale = scale_for((_span(event) for event in timed), left=_LEFT, width=_WIDTH - _LEFT - _RIGHT)
    marks: list[Markup] = []
    y = _TOP
    for name, rows in _lanes(timed).items():
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
    return element("ul", items, class_="legend")


def _lanes(timed: Sequence[Event]) -> dict[str, list[list[Event]]]:
    """Return the events of each lane in rows, so that bars that overlap in time lie below each other."""
    lanes: dict[str, list[list[Event]]] = {}
    rank = {kind: number for number, kind in enumerate(Kind)}
    for event in sorted(timed, key=lambda one: rank[one.kind]):
        group = visible(event.group or UNKNOWN_GROUP, limit=90)
        rows = lanes.setdefault(f"{_NAMES.get(event.kind, 'consumed by')} {group}", [])
        for row in rows:
            if _span(row[-1])[1] < _span(event)[0] and row[-1].until_ms is not None:
                row.append(event)
                break
        else:
            rows.append([event])
    return lanes


def _lane(name: str, rows: Sequence[Sequence[Event]], scale: Scale, y: float) -> Iterator[Markup]:
    height = _NAME_HEIGHT + _ROW * len(rows)
    yield element("rect", x=2, y=y, width=_WIDTH - 4, height=height, rx=6, fill="currentColor", fill_opacity=0.045)
    yield element("text", name, x=10, y=y + 16, font_size=12, font_weight=600, fill="currentColor")
    for number, row in enumerate(rows):
        for event in row:
            yield _bar(event, scale, y + _NAME_HEIGHT + number * _ROW)


def _bar(event: Event, scale: Scale, y: float) -> Markup:
    colour = COLOURS[event.tone]
    start, end = (scale.x(instant_ms) for instant_ms in _span(event))
    if event.took_ms is None and event.until_ms is not None:
        shapes = [_diamond(start, y + _BAR / 2, colour)]
        end = start + 8
    elif event.until_ms is None:
        end = start + _OPEN_END
        dashed = {"stroke": colour, "stroke_dasharray": "4 3", "fill": colour, "fill_opacity": 0.15}
        shapes = [element("rect", x=start, y=y, width=_OPEN_END, height=_BAR, rx=3, **dashed)]
    else:
        end = max(end, start + _THINNEST)
        solid = 1 if event.begin_known else 0.45
        shapes = [element("rect", x=start, y=y, width=end - start, height=_BAR, rx=2, fill=colour, fill_opacity=solid)]
    return element("g", element("title", _says(event)), shapes, _beside(event, end + 6, y))


def _beside(event: Event, x: float, y: float) -> Markup:
    """Return the few words next to a bar; at the right edge they stand before it."""
    words = event.outcome if event.took_ms is None else f"{duration(event.took_ms)}{_short(event)}"
    beyond = x + 6.2 * len(words) > _WIDTH
    place = {"x": _WIDTH - 8, "text_anchor": "end", "dy": -1} if beyond else {"x": x}
    return element("text", words, y=y + 11, font_size=11, fill="currentColor", fill_opacity=0.85, **place)


def _short(event: Event) -> str:
    return "" if event.tone is Tone.GOOD else f", {event.outcome}"


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
    """Yield a tick where each busy stretch begins and the last ends, and every gap with its length."""
    edges = [scale.first_ms, *(gap.to_ms for gap in scale.gaps), _last_ms(timed)]
    last_x = -1e9
    for instant_ms in edges:
        x = scale.x(instant_ms)
        if x - last_x < 58:  # noqa: PLR2004 - the width of a label
            continue
        last_x = x
        line = {"x1": x, "x2": x, "y1": 24, "y2": height, "stroke": "currentColor", "stroke_opacity": 0.18}
        yield element("line", **line)
        yield element("text", offset(instant_ms - scale.first_ms), x=x + 3, y=18, font_size=11, fill="currentColor")
    for gap in scale.gaps:
        middle = gap.x + GAP_WIDTH / 2
        title = element("title", f"{duration(gap.to_ms - gap.from_ms)} without an event, not to scale")
        hatch = {"fill": "currentColor", "fill_opacity": 0.06}
        rect = element("rect", x=gap.x + 3, y=24, width=GAP_WIDTH - 6, height=height - 24, **hatch)
        dots = element("text", "⋯", x=middle, y=36, font_size=13, text_anchor="middle", fill="currentColor")
        yield element("g", title, rect, dots)


def _span(event: Event) -> tuple[int, int]:
    start = event.from_ms or 0
    return start, start if event.until_ms is None else max(event.until_ms, start)


def _last_ms(timed: Sequence[Event]) -> int:
    return max(_span(event)[1] for event in timed)
