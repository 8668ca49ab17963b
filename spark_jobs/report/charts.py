"""Charts of a run: a bar of shares, events over time, the last runs, and distributions of durations."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge.page.markup import (
    BLUE,
    GREEN,
    ORANGE,
    SIDE_COLOUR,
    SLATE,
    VIOLET,
    drawing,
    element,
    icon,
    label,
    line,
    path,
    rect,
    titled,
)
from spark_jobs.report.glossary import GROUP_COLOUR, PROBLEM, VERDICT_COLOUR, group_finding, label_finding
from spark_jobs.report.result import TimeBucket
from spark_jobs.report.wording import count, duration, percent, plural, utc, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from markupsafe import Markup

    from spark_jobs.report.result import Finding, Latency

_WIDTH, _LEFT, _RIGHT = 1000, 56, 12


# -- the marks beside words --------------------------------------------------------------------------------------------
_SIGNS: Final = {
    "PASS": "M12 24 l8 9 16 -19",
    "WARN": "M24 11 v16 M24 34 v3",
    "FAIL": "M15 15 l18 18 M33 15 l-18 18",
    "INCONCLUSIVE": "M17 18 a7 7 0 1 1 9 7 q-2 1 -2 4 M24 35 v2",
}


def swatch(colour: str) -> Markup:
    """Return a small square."""
    return icon(rect(0, 0, 10, 10, colour, rx=2))


def dash(colour: str, dashes: str | None) -> Markup:
    """Return a short stroke in the style of a curve."""
    look = {"stroke": colour, "stroke_opacity": 1, "stroke_width": 3, "stroke_dasharray": dashes}
    return icon(line(0, 5, 30, 5, **look), width=30)


def sign(verdict: str) -> Markup:
    """Return the large sign of a verdict; its shape has the meaning of its colour."""
    circle = element("circle", cx=24, cy=24, r=23, fill=VERDICT_COLOUR.get(verdict, SLATE))
    shape = path(_SIGNS.get(verdict, ""), stroke="#fff", stroke_width=5, stroke_linecap="round")
    return icon(circle, shape, width=44, height=44, viewBox="0 0 48 48")


# -- shares of a whole: the bar in a cell of a table -------------------------------------------------------------------
_BAR_HEIGHT: Final = 14
_THINNEST: Final = 1.5


def stacked(parts: Mapping[str, int], colours: Mapping[str, str], *, width: int) -> Markup:
    """Return one bar of ``parts`` in the order of ``colours``; the smallest part stays visible."""
    present = {name: parts[name] for name in colours if parts.get(name)}
    total = sum(present.values())
    text = ", ".join(f"{name} {count(n)}" for name, n in present.items()) or "nothing"
    marks: list[Markup] = [rect(0, 0, width, _BAR_HEIGHT, "currentColor", fill_opacity=0.07, rx=2)]
    x = 0.0
    room = width - _THINNEST * len(present)
    for name, n in present.items():
        thick = _THINNEST + room * n / total
        title = f"{name}: {count(n)} ({percent(n, total)})"
        marks.append(titled(title, rect(x, 0, thick, _BAR_HEIGHT, colours[name])))
        x += thick
    return drawing(marks, width=width, height=_BAR_HEIGHT, text=text)


def _column(
    parts: Mapping[str, int], colours: Mapping[str, str], place: tuple[float, float, float], per_unit: float
) -> list[Markup]:
    """Return ``parts`` that are not 0 on top of each other; ``place`` is x, bottom and width."""
    x, bottom, width = place
    rects = []
    for name, n in parts.items():
        if n:
            bottom -= per_unit * n
            rects.append(rect(x, bottom, width, per_unit * n, colours.get(name, SLATE)))
    return rects


# -- events over time: all of them, and below the problems alone -------------------------------------------------------
_MOST_BARS: Final = 96
_TIME_LABELS: Final = 8
_LABEL_WIDTH, _GAP_WIDTH = 90, 150
_TIMELINE_HEIGHT: Final = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar(TimeBucket):
    """One or more neighbouring buckets drawn as one, after ``gap_ms`` without any event."""

    gap_ms: int = 0

    @property
    def groups(self) -> dict[str, int]:
        """The number of events by ``glossary.GROUPS``."""
        groups: Counter[str] = Counter()
        for finding, n in self.findings.items():
            groups[group_finding(*finding)] += n
        return groups


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    top: int
    height: int
    groups: tuple[str, ...]

    @property
    def bottom(self) -> int:
        return self.top + self.height

    def counts(self, bar: TimelineBar) -> dict[str, int]:
        groups = bar.groups
        return {name: groups.get(name, 0) for name in self.groups}


_PANELS: Final = (_Panel("all events", 22, 100, tuple(GROUP_COLOUR)), _Panel("problems only", 164, 56, (PROBLEM,)))


def merge_buckets(buckets: Iterable[TimeBucket]) -> list[TimelineBar]:
    """Return at most 96 bars, oldest first; missing time is a gap, so that one wild clock does not squeeze the rest."""
    ordered = sorted(buckets, key=lambda bucket: bucket.start_ms)
    chunk = -(-len(ordered) // _MOST_BARS) or 1
    bars: list[TimelineBar] = []
    for at in range(0, len(ordered), chunk):
        merged = ordered[at : at + chunk]
        findings: Counter[Finding] = Counter()
        for bucket in merged:
            findings.update(bucket.findings)
        start_ms, end_ms = merged[0].start_ms, merged[-1].start_ms + merged[-1].width_ms
        gap_ms = max(start_ms - bars[-1].start_ms - bars[-1].width_ms, 0) if bars else 0
        bars.append(TimelineBar(start_ms=start_ms, width_ms=end_ms - start_ms, findings=dict(findings), gap_ms=gap_ms))
    return bars


def assign_losses(bars: Sequence[TimelineBar], counted: Iterable[tuple[int, str, int]]) -> dict[int, int]:
    """Return the losses in ``counted`` (``Ledger.over_time``) by the index of the bar they fall into."""
    starts = [bar.start_ms for bar in bars]
    losses: Counter[int] = Counter()
    for start_ms, _, lost in counted:
        at = bisect_right(starts, start_ms) - 1
        if at >= 0 and start_ms < bars[at].start_ms + bars[at].width_ms:
            losses[at] += lost
    return dict(losses)


def timeline(bars: Sequence[TimelineBar], losses: Mapping[int, int]) -> Markup:
    """Return both panels over one time axis; ``losses`` (``assign_losses``) are drawn over the problems."""
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(bars), 1)
    marks = [mark for panel in _PANELS for mark in _panel(panel, bars, step)]
    marks += _time_axis(bars, step)
    marks += [_loss_column(bars[at], losses[at], _LEFT + at * step, step, max(losses.values())) for at in losses]
    text = f"Events over time, {plural(len(bars), 'bar')}; the numbers are in the table below"
    return drawing(marks, width=_WIDTH, height=_TIMELINE_HEIGHT, text=text, css="wide")


def _panel(panel: _Panel, bars: Sequence[TimelineBar], step: float) -> list[Markup]:
    highest = max((sum(panel.counts(bar).values()) for bar in bars), default=0)
    bottom = panel.bottom
    marks = _base(panel.title, panel.top, bottom)
    if not highest:
        return [*marks, label(_LEFT + 8, bottom - 12, "none in any bucket")]
    per_unit = panel.height / highest
    for share in (0.5, 1.0):
        y = bottom - panel.height * share
        marks.append(line(_LEFT, y, _WIDTH - _RIGHT, y))
    for n in sorted({highest, highest // 2, 0}, reverse=True):
        marks.append(label(_LEFT - 6, bottom - per_unit * n + 4, count(n), text_anchor="end"))
    for at, bar in enumerate(bars):
        findings = {one: n for one, n in bar.findings.items() if n and group_finding(*one) in panel.groups}
        text = ", ".join(f"{visible(label_finding(*one))} {count(n)}" for one, n in findings.items())
        place = (_LEFT + (at + 0.08) * step, bottom, step * 0.84)
        column = _column(panel.counts(bar), GROUP_COLOUR, place, per_unit)
        marks += [titled(f"{utc(bar.start_ms)}, {duration(bar.width_ms)}: {text}", *column)] if bar.findings else []
    return marks


def _base(title: str, top: float, bottom: float) -> list[Markup]:
    base = line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, stroke_opacity=0.4)
    return [label(_LEFT, top - 8, title, font_weight=600), base]


def _loss_column(bar: TimelineBar, losses: int, x: float, step: float, highest: int) -> Markup:
    panel = _PANELS[-1]
    tall = max(panel.height * losses / highest, 2.0)
    look = {"fill_opacity": 0, "stroke": "currentColor", "stroke_width": 1.5, "stroke_dasharray": "3 2"}
    box = rect(x + step * 0.04, panel.bottom - tall, step * 0.92, tall, "none", **look)
    return titled(f"{utc(bar.start_ms)}, {duration(bar.width_ms)}: the ledger counted {count(losses)} lost", box)


def _time_axis(bars: Sequence[TimelineBar], step: float) -> list[Markup]:
    """Return the times below the bars, the date where it changes, and a dashed line at every gap."""
    every = max(-(-len(bars) // _TIME_LABELS), -(-_LABEL_WIDTH // max(int(step), 1)))
    bottom = _PANELS[-1].bottom
    marks, day, free = [], "", 0.0
    for at, bar in enumerate(bars):
        x, stamp = _LEFT + at * step, utc(bar.start_ms)
        if bar.gap_ms:
            dashes = {"stroke_dasharray": "2 3", "stroke_opacity": 0.6}
            marks += [line(x, panel.top, x, panel.bottom, **dashes) for panel in _PANELS]
            middle = min(max(x, _LEFT + _GAP_WIDTH / 2), _WIDTH - _GAP_WIDTH / 2)
            if middle >= free:  # between the panels; of close gaps the first is named
                words = f"{duration(bar.gap_ms)} without events"
                marks.append(label(middle, _PANELS[0].bottom + 14, words, text_anchor="middle"))
                free = middle + _GAP_WIDTH
        if at % every == 0:
            is_cut = x + _LABEL_WIDTH > _WIDTH
            x, anchor = (_WIDTH, "end") if is_cut else (x, None)
            marks.append(label(x, bottom + 14, stamp[11:19], text_anchor=anchor))
            if stamp[:10] != day:
                marks.append(label(x, bottom + 27, stamp[:10], size=10, fill_opacity=0.75, text_anchor=anchor))
            day = stamp[:10]
    return marks


# -- the last runs: what each lacked without explanation, and its verdict ----------------------------------------------
_RUNS_TOP, _RUNS_BOTTOM, _RUNS_HEIGHT = 24, 144, 196
_WIDEST: Final = 64.0
_SQUARE: Final = 12


def trend(points: Sequence[dict[str, Any]]) -> Markup:
    """Return a column for every run of ``Result.trend``, oldest at the left."""
    step = min((_WIDTH - _LEFT - _RIGHT) / max(len(points), 1), _WIDEST)
    highest = max((sum(_unexplained(point).values()) for point in points), default=0)
    marks = _base("unexplained loss", _RUNS_TOP, _RUNS_BOTTOM)
    marks.append(label(_LEFT - 6, _RUNS_BOTTOM + 4, "0", text_anchor="end"))
    if highest:
        marks.append(label(_LEFT - 6, _RUNS_TOP + 4, count(highest), text_anchor="end"))
        marks.append(line(_LEFT, _RUNS_TOP, _WIDTH - _RIGHT, _RUNS_TOP))
    marks += [_run_column(point, _LEFT + at * step, step, max(highest, 1)) for at, point in enumerate(points)]
    text = f"Unexplained loss of the last {plural(len(points), 'run')}; the numbers are in the table below"
    return drawing(marks, width=_WIDTH, height=_RUNS_HEIGHT, text=text, css="wide")


def _run_column(point: dict[str, Any], x: float, step: float, highest: int) -> Markup:
    lost, per_unit = _unexplained(point), (_RUNS_BOTTOM - _RUNS_TOP) / highest
    parts = _column(lost, SIDE_COLOUR, (x + step * 0.15, _RUNS_BOTTOM, step * 0.7), per_unit)
    verdict, middle = str(point.get("verdict")), x + step / 2
    colour = VERDICT_COLOUR.get(verdict, SLATE)
    parts += [
        rect(middle - _SQUARE / 2, _RUNS_BOTTOM + 8, _SQUARE, _SQUARE, colour, rx=3),
        label(middle, _RUNS_BOTTOM + 36, visible(verdict, limit=1)[:1], text_anchor="middle", size=10),
        label(middle, _RUNS_BOTTOM + 50, str(point.get("run")), text_anchor="middle", size=10),
    ]
    matched = point.get("match_rate")
    rate = "" if matched is None else f", matched {percent(matched, 1)}"
    lacks = ", ".join(f"{side} lacks {count(n)}" for side, n in lost.items())
    return titled(f"run {point.get('run')}: {visible(verdict)}{rate}; {lacks}", *parts)


def _unexplained(point: dict[str, Any]) -> dict[str, int]:
    return {str(side): int(lost or 0) for side, lost in (point.get("unexplained") or {}).items()}


# -- distributions: the share of events that took at most so long, on a logarithmic axis -------------------------------
CURVE_STYLES: Final = ((BLUE, None), (ORANGE, "7 4"), (GREEN, "2 3"), (VIOLET, "9 3 2 3"))
"""Colour and dashes of the first, second … curve."""

_CURVES_TOP, _CURVES_BOTTOM, _CURVES_HEIGHT = 14, 260, 300
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
_FLOOR_MS: Final = 0.5  # a clock of milliseconds records less as 0


def curves(rows: Mapping[str, Latency]) -> Markup:
    """Return the curves of ``rows`` that have one, at most as many as there are ``CURVE_STYLES``."""
    drawable = {  # the finite points of each curve from the fastest event to the slowest
        name: [point for point in ((0.0, row.curve[0][1]), *row.curve, (1.0, row.max)) if math.isfinite(point[1])]
        for name, row in rows.items()
        if row.curve and row.max is not None
    }
    top_ms = max((ms for steps in drawable.values() for _, ms in steps), default=10.0)
    axis = (math.log10(_FLOOR_MS), math.log10(max(top_ms, 10)))
    marks = list(_grid(axis))
    for (name, steps), (colour, dashes) in zip(drawable.items(), CURVE_STYLES, strict=False):
        points = [f"{_x(ms, axis):.1f} {_y(share):.1f}" for share, ms in steps]
        d = f"M{'L'.join(points)}" if points else ""
        curve = path(d, stroke=colour, stroke_width=2.5, stroke_dasharray=dashes)
        marks.append(titled(_curve_text(name, rows[name]), curve))
    text = "; ".join(_curve_text(name, rows[name]) for name in drawable)
    return drawing(marks, width=_WIDTH, height=_CURVES_HEIGHT, text=text or "no durations", css="wide")


def _curve_text(name: str, row: Latency) -> str:
    within = f"half within {duration(row.p50)}, 99 % within {duration(row.p99)}"
    return f"{visible(name.replace('_', ' '), limit=40)}: {plural(row.count, 'event')}, {within}"


def _grid(axis: tuple[float, float]) -> Iterator[Markup]:
    for share in _SHARES:
        yield line(_LEFT, _y(share), _WIDTH - _RIGHT, _y(share))
        yield label(_LEFT - 6, _y(share) + 4, f"{share:.0%}", text_anchor="end")
    for power in range(math.ceil(axis[0]), math.floor(axis[1]) + 1):
        x = _x(10.0**power, axis)
        yield line(x, _CURVES_TOP, x, _CURVES_BOTTOM)
        yield label(x, _CURVES_BOTTOM + 16, duration(10.0**power), text_anchor="middle")
    yield label(_WIDTH - _RIGHT, _CURVES_HEIGHT - 6, "took at most", text_anchor="end", fill_opacity=0.75)


def _x(ms: float, axis: tuple[float, float]) -> float:
    share = (math.log10(max(ms, _FLOOR_MS)) - axis[0]) / (axis[1] - axis[0])
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(max(share, 0.0), 1.0)


def _y(share: float) -> float:
    return _CURVES_TOP + (_CURVES_BOTTOM - _CURVES_TOP) * (1 - share)
