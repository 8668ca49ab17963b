"""This module knows the picture of a message's life: lanes of bars on one axis, in rows where bars would overlap.

Time runs to the right and long pauses are cut short. Every bar has its words beside it and as a tooltip; a page says
all of it again in a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.page.markup import Markup, element
from bridge.page.scale import GAP_WIDTH, scale_for
from bridge.page.wording import duration, offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bridge.page.scale import Scale

__all__ = ["Bar", "Lane", "drawn", "packed", "scale_of"]

_WIDTH: Final = 960.0
_LEFT: Final = 16.0
_RIGHT: Final = 130.0
_TOP: Final = 40.0
_NAME_HEIGHT: Final = 24.0
_ROW: Final = 22.0
_HEIGHT: Final = 14.0
_THINNEST: Final = 4.0
_OPEN_END: Final = 40.0
_LETTER: Final = 6.4  # the width of one, at most about
_TICK: Final = 70  # the width of a tick's label


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One event: epoch milliseconds, its colour, the ``words`` beside it and what a resting pointer is ``told``.

    ``until_ms`` of ``None`` is an end nobody recorded. ``instant`` is a moment rather than a stretch; ``ghost`` is the
    place of an event that is not recorded here; ``faint`` one whose begin is estimated; ``outline`` a colour around it.
    """

    from_ms: int
    until_ms: int | None
    colour: str
    words: str
    told: str
    instant: bool = False
    ghost: bool = False
    faint: bool = False
    outline: str | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """A name and its rows of bars, each with the word at its left (or none)."""

    name: str
    rows: tuple[tuple[str, tuple[Bar, ...]], ...]


def scale_of(bars: Iterable[Bar], *, words_at_left: bool = False) -> Scale:
    """Return the one axis for ``bars``, of at least one."""
    left = _LEFT + (50 if words_at_left else 0)
    return scale_for((_span(bar) for bar in bars), left=left, width=_WIDTH - left - _RIGHT)


def packed(bars: Iterable[Bar], scale: Scale) -> list[tuple[Bar, ...]]:
    """Return ``bars``, in order of time, in as few rows as leave every bar and its words free."""
    rows: list[list[Bar]] = []
    for bar in bars:
        for row in rows:
            if _words_end(row[-1], scale) < _edges(bar, scale)[0]:
                row.append(bar)
                break
        else:
            rows.append([bar])
    return [tuple(row) for row in rows]


def drawn(lanes: Sequence[Lane], scale: Scale, *, says: str) -> Markup:
    """Return the picture; ``says`` is what a screen reader reads in its place."""
    marks: list[Markup] = []
    y = _TOP
    for lane in lanes:
        marks += _lane(lane, scale, y)
        y += _NAME_HEIGHT + _ROW * len(lane.rows) + 10
    height = y + 6
    bars = [bar for lane in lanes for _, row in lane.rows for bar in row]
    return element(
        "svg",
        [*_axis(bars, scale, height), *marks],
        role="img",
        aria_label=says,
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        width=_WIDTH,
        height=height,
        font_family="system-ui, sans-serif",
        class_="lanes",
    )


def _lane(lane: Lane, scale: Scale, y: float) -> Iterator[Markup]:
    height = _NAME_HEIGHT + _ROW * len(lane.rows)
    yield element("rect", x=2, y=y, width=_WIDTH - 4, height=height, rx=6, fill="currentColor", fill_opacity=0.05)
    yield element("text", lane.name, x=_LEFT + 6, y=y + 16, font_size=12, font_weight=600, fill="currentColor")
    for number, (word, row) in enumerate(lane.rows):
        top = y + _NAME_HEIGHT + number * _ROW
        if word:
            yield element("text", word, x=_LEFT, y=top + 11, font_size=11, fill="currentColor", fill_opacity=0.85)
        for bar in row:
            yield _drawn_bar(bar, scale, top)


def _drawn_bar(bar: Bar, scale: Scale, y: float) -> Markup:
    start, end = _edges(bar, scale)
    around = {"stroke": bar.outline, "stroke_width": 2} if bar.outline else {}
    box = {"x": start, "y": y, "width": end - start, "height": _HEIGHT, "rx": 2}
    if bar.instant:
        shape = element("path", d=_diamond(start, y + _HEIGHT / 2), fill=bar.colour, **around)
    elif bar.ghost:
        shape = element("rect", **box, fill="none", stroke=bar.colour, stroke_dasharray="2 3")
    elif bar.until_ms is None:
        shape = element("rect", **box, stroke=bar.colour, stroke_dasharray="4 3", fill=bar.colour, fill_opacity=0.15)
    else:
        shape = element("rect", **box, fill=bar.colour, fill_opacity=0.45 if bar.faint else 1, **around)
    return element("g", element("title", bar.told), shape, _beside(bar, end + 6, y))


def _edges(bar: Bar, scale: Scale) -> tuple[float, float]:
    """Return where a bar begins and ends, as it is drawn."""
    start, end = (scale.x(instant_ms) for instant_ms in _span(bar))
    if bar.instant:
        return start, start + 6
    return start, max(end, start + (_OPEN_END if bar.until_ms is None else _THINNEST))


def _words_end(bar: Bar, scale: Scale) -> float:
    return _edges(bar, scale)[1] + 6 + _LETTER * len(bar.words)


def _beside(bar: Bar, x: float, y: float) -> Markup:
    """Return the words beside a bar, pressed together where they would leave the picture."""
    room = _WIDTH - 4 - x
    too_long = _LETTER * len(bar.words) > room
    pressed = {"textLength": room, "lengthAdjust": "spacingAndGlyphs"} if too_long else {}
    return element("text", bar.words, x=x, y=y + 11, font_size=11, fill="currentColor", fill_opacity=0.85, **pressed)


def _diamond(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 7:.1f}l6 7l-6 7l-6 -7z"


def _axis(bars: Sequence[Bar], scale: Scale, height: float) -> Iterator[Markup]:
    """Yield a tick where events begin and the last one ends, as far as there is room, and every gap with its length."""
    last_ms = max(_span(bar)[1] for bar in bars)
    last_x = -1e9
    for instant_ms in sorted({scale.first_ms, *(bar.from_ms for bar in bars), last_ms}):
        x = scale.x(instant_ms)
        if x - last_x < _TICK:
            continue
        last_x = x
        line = {"x1": x, "x2": x, "y1": 24, "y2": height, "stroke": "currentColor", "stroke_opacity": 0.18}
        yield element("line", **line)
        yield element("text", offset(instant_ms - scale.first_ms), x=x + 3, y=18, font_size=11, fill="currentColor")
    for gap in scale.gaps:
        length = duration(gap.to_ms - gap.from_ms)
        title = element("title", f"{length} without an event, not to scale")
        hatch = {"fill": "currentColor", "fill_opacity": 0.05}
        rect = element("rect", x=gap.x + 1, y=24, width=GAP_WIDTH - 2, height=height - 24, **hatch)
        told = {"font_size": 10, "text_anchor": "middle", "fill": "currentColor", "fill_opacity": 0.85}
        yield element("g", title, rect, element("text", length, x=gap.x + GAP_WIDTH / 2, y=35, **told))


def _span(bar: Bar) -> tuple[int, int]:
    return bar.from_ms, bar.from_ms if bar.until_ms is None else max(bar.until_ms, bar.from_ms)
