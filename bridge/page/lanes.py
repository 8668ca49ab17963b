"""Draw the events of a message as bars in lanes, on one time axis that cuts idle stretches short.

A send of 20 ms and a retry ten minutes later do not fit one linear axis. Busy stretches and short pauses share one
linear scale; a pause longer than all of them together becomes a gap of fixed width, labelled with its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from bridge.page.markup import drawing, label, line, path, rect, titled
from bridge.page.wording import duration, offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from markupsafe import Markup


_WIDTH, _LEFT, _RIGHT, _TOP = 960.0, 16.0, 130.0, 40.0
_NAME_HEIGHT, _ROW_HEIGHT, _BAR_HEIGHT = 24.0, 22.0, 14.0
_GAP_WIDTH: Final = 60.0
_THINNEST: Final = 4.0
_OPEN_END: Final = 40.0
_LETTER: Final = 6.4  # the width of a character, at most about
_TICK: Final = 70  # the width of the label of a tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One event of a lane.

    Attributes:
        from_ms, until_ms: epoch milliseconds; ``until_ms`` of ``None`` is an end that was not recorded.
        words: the text beside the bar.
        title: its tooltip.
        instant: a moment instead of a stretch.
        ghost: the place of an event that is not recorded here.
        faint: the begin is estimated.
        outline: a colour around the bar.
    """

    from_ms: int
    until_ms: int | None
    colour: str
    words: str
    title: str
    instant: bool = False
    ghost: bool = False
    faint: bool = False
    outline: str | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end; the end never precedes the begin."""
        return self.from_ms, self.from_ms if self.until_ms is None else max(self.until_ms, self.from_ms)


@dataclass(frozen=True, slots=True)
class Lane:
    """A name and its rows of bars, each with the word at its left, if any."""

    name: str
    rows: tuple[tuple[str, tuple[Bar, ...]], ...]


def draw_lanes(lanes: Sequence[Lane], scale: Scale, *, text: str) -> Markup:
    """Return the drawing; screen readers read ``text`` in its place."""
    marks: list[Markup] = []
    y = _TOP
    for lane in lanes:
        marks += _lane(lane, scale, y)
        y += _NAME_HEIGHT + _ROW_HEIGHT * len(lane.rows) + 10
    bars = [bar for lane in lanes for _, row in lane.rows for bar in row]
    return drawing([*_axis(bars, scale, y + 6), *marks], width=_WIDTH, height=y + 6, text=text, css="lanes")


def pack_rows(bars: Iterable[Bar], scale: Scale) -> list[tuple[Bar, ...]]:
    """Return ``bars``, which are in order of time, in as few rows as possible without overlap of bars and words."""
    rows: list[list[Bar]] = []
    for bar in bars:
        for row in rows:
            if _edges(row[-1], scale)[1] + 6 + _LETTER * len(row[-1].words) < _edges(bar, scale)[0]:
                row.append(bar)
                break
        else:
            rows.append([bar])
    return [tuple(row) for row in rows]


def _lane(lane: Lane, scale: Scale, y: float) -> Iterator[Markup]:
    height = _NAME_HEIGHT + _ROW_HEIGHT * len(lane.rows)
    yield rect(2, y, _WIDTH - 4, height, "currentColor", rx=6, fill_opacity=0.05)
    yield label(_LEFT + 6, y + 16, lane.name, size=12, font_weight=600)
    for number, (word, row) in enumerate(lane.rows):
        top = y + _NAME_HEIGHT + number * _ROW_HEIGHT
        if word:
            yield label(_LEFT, top + 11, word, fill_opacity=0.85)
        yield from (_bar(bar, scale, top) for bar in row)


def _bar(bar: Bar, scale: Scale, y: float) -> Markup:
    start, end = _edges(bar, scale)
    outline: dict[str, Any] = {"stroke": bar.outline, "stroke_width": 2} if bar.outline else {}
    box = (start, y, end - start, _BAR_HEIGHT)
    if bar.instant:
        shape = path(f"M{start:.1f} {y:.1f}l6 7l-6 7l-6 -7z", bar.colour, **outline)
    elif bar.ghost:
        shape = rect(*box, "none", rx=2, stroke=bar.colour, stroke_dasharray="2 3")
    elif bar.until_ms is None:
        shape = rect(*box, bar.colour, rx=2, stroke=bar.colour, stroke_dasharray="4 3", fill_opacity=0.15)
    else:
        shape = rect(*box, bar.colour, rx=2, fill_opacity=0.45 if bar.faint else 1, **outline)
    room, length = _WIDTH - 10 - end, _LETTER * len(bar.words)
    compressed: dict[str, Any] = {"textLength": room, "lengthAdjust": "spacingAndGlyphs"} if length > room else {}
    return titled(bar.title, shape, label(end + 6, y + 11, bar.words, fill_opacity=0.85, **compressed))


def _edges(bar: Bar, scale: Scale) -> tuple[float, float]:
    start, end = (scale.x(instant_ms) for instant_ms in bar.span)
    if bar.instant:
        return start, start + 6
    return start, max(end, start + (_OPEN_END if bar.until_ms is None else _THINNEST))


def _axis(bars: Sequence[Bar], scale: Scale, height: float) -> Iterator[Markup]:
    """Yield a tick where events begin and the last one ends, as far as there is room, and every gap with its length."""
    last_ms = max(bar.span[1] for bar in bars)
    last_x = -1e9
    for instant_ms in sorted({scale.first_ms, *(bar.from_ms for bar in bars), last_ms}):
        x = scale.x(instant_ms)
        if x - last_x >= _TICK:
            last_x = x
            yield line(x, 24, x, height)
            yield label(x + 3, 18, offset(instant_ms - scale.first_ms))
    for gap in scale.gaps:
        length = duration(gap.to_ms - gap.from_ms)
        box = rect(gap.x + 1, 24, _GAP_WIDTH - 2, height - 24, "currentColor", fill_opacity=0.05)
        text = label(gap.x + _GAP_WIDTH / 2, 35, length, size=10, text_anchor="middle", fill_opacity=0.85)
        yield titled(f"{length} without an event, not to scale", box, text)


# -- the scale ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Gap:
    """A pause that is cut short: ``[from_ms, to_ms]`` is drawn from ``x`` on."""

    from_ms: int
    to_ms: int
    x: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Instants to x, from ``left``; ``gaps`` are in order, ``per_ms`` is the width of a millisecond everywhere else."""

    first_ms: int
    left: float
    per_ms: float
    gaps: tuple[Gap, ...]

    def x(self, instant_ms: int) -> float:
        """Return the position of ``instant_ms``; within a gap, its share of the gap."""
        x, since = self.left, self.first_ms
        for gap in self.gaps:
            if instant_ms <= gap.from_ms:
                break
            if instant_ms < gap.to_ms:
                return gap.x + _GAP_WIDTH * (instant_ms - gap.from_ms) / (gap.to_ms - gap.from_ms)
            x, since = gap.x + _GAP_WIDTH, gap.to_ms
        return x + (instant_ms - since) * self.per_ms


def scale_of(bars: Iterable[Bar], *, words_at_left: bool = False) -> Scale:
    """Return the axis of ``bars``, of at least one."""
    left = _LEFT + (50 if words_at_left else 0)
    return scale_spans((bar.span for bar in bars), left=left, width=_WIDTH - left - _RIGHT)


def scale_spans(spans: Iterable[tuple[int, int]], *, left: float, width: float) -> Scale:
    """Return the scale that shows all of ``spans`` (begin and end, epoch ms) between ``left`` and ``left + width``."""
    busy = _unite(spans)
    pauses = [(end, start) for (_, end), (start, _) in pairwise(busy)]
    lengths = sorted(start - end for end, start in pauses)
    kept_ms = max(sum(end - start for start, end in busy), 1)
    most_gaps = int(width / 2 / _GAP_WIDTH)
    while lengths and (lengths[0] <= kept_ms or len(lengths) > most_gaps):
        kept_ms += lengths.pop(0)
    cut = [pause for pause in pauses if lengths and pause[1] - pause[0] >= lengths[0]]
    kept_ms = max((busy[-1][1] - busy[0][0]) - sum(start - end for end, start in cut), 1)
    per_ms = (width - _GAP_WIDTH * len(cut)) / kept_ms
    gaps: list[Gap] = []
    x, since = left, busy[0][0]
    for from_ms, to_ms in cut:
        x += (from_ms - since) * per_ms
        gaps.append(Gap(from_ms, to_ms, x))
        x, since = x + _GAP_WIDTH, to_ms
    return Scale(busy[0][0], left, per_ms, tuple(gaps))


def _unite(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for start, end in sorted((start, max(start, end)) for start, end in spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united
