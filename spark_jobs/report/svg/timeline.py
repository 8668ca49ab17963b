"""The run over time: every bucket stacked by group of findings, and below it the problems alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.report.glossary import label_finding
from spark_jobs.report.palette import GROUP_COLOUR, PROBLEM, group_finding
from spark_jobs.report.svg.shapes import drawing, label, line, rect, titled
from spark_jobs.report.wording import count, duration, utc, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from spark_jobs.report.result import Finding, TimeBucket

__all__ = ["Bar", "bars_of", "counted_of", "timeline"]

_MOST_BARS = 96
_WIDTH, _LEFT, _RIGHT = 1000, 56, 12
_LABELS = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """One or more neighbouring buckets drawn as one; ``gap`` says that time is missing before it."""

    start_ms: int
    width_ms: int
    findings: dict[Finding, int]
    gap: bool = False

    @property
    def groups(self) -> dict[str, int]:
        """How many events of each of ``palette.GROUPS`` began in it."""
        found: Counter[str] = Counter()
        for finding, n in self.findings.items():
            found[group_finding(*finding)] += n
        return found


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    top: int
    height: int
    groups: tuple[str, ...]


_PANELS = (_Panel("all events", 22, 100, tuple(GROUP_COLOUR)), _Panel("problems only", 156, 56, (PROBLEM,)))
_HEIGHT = 242


def bars_of(buckets: Iterable[TimeBucket]) -> list[Bar]:
    """Return at most 96 bars, oldest first; a stretch without any bucket is a gap, not a row of empty bars.

    Gaps instead of a linear axis keep one record with a wild clock from squeezing everything else into a single bar.
    """
    ordered = sorted(buckets, key=lambda bucket: bucket.start_ms)
    chunk = -(-len(ordered) // _MOST_BARS) or 1
    bars: list[Bar] = []
    for at in range(0, len(ordered), chunk):
        merged = ordered[at : at + chunk]
        end_ms = merged[-1].start_ms + merged[-1].width_ms
        gap = bool(bars) and bars[-1].start_ms + bars[-1].width_ms < merged[0].start_ms
        bars.append(Bar(merged[0].start_ms, end_ms - merged[0].start_ms, _sum(merged), gap=gap))
    return bars


def timeline(buckets: Iterable[TimeBucket], counted: Iterable[tuple[int, str, int]] = ()) -> Markup:
    """Return both panels over one time axis, and over the problems the losses that a ledger ``counted``.

    ``counted`` is ``Ledger.over_time``: start of the counter's bucket, side, losses.
    """
    bars = bars_of(buckets)
    losses = counted_of(bars, counted)
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(bars), 1)
    marks = [mark for panel in _PANELS for mark in _panel(panel, bars, step)]
    marks += _axis(bars, step)
    marks += [_overlay(bars[at], losses[at], _LEFT + at * step, step, max(losses.values())) for at in losses]
    says = f"Events over time, {count(len(bars))} bars; the numbers are in the table below"
    return drawing(marks, width=_WIDTH, height=_HEIGHT, says=says, css="wide")


def counted_of(bars: Sequence[Bar], counted: Iterable[tuple[int, str, int]]) -> dict[int, int]:
    """Return how many losses were counted in the time of each bar, by its place; what lies outside is in none."""
    starts = [bar.start_ms for bar in bars]
    found: Counter[int] = Counter()
    for start_ms, _, losses in counted:
        at = bisect_right(starts, start_ms) - 1
        if at >= 0 and start_ms < bars[at].start_ms + bars[at].width_ms:
            found[at] += losses
    return dict(found)


def _overlay(bar: Bar, losses: int, x: float, step: float, highest: int) -> Markup:
    """Return what a ledger counted in a bar's time: a hollow column beside the problems, on a scale of its own."""
    panel = _PANELS[-1]
    tall = max(panel.height * losses / highest, 2.0)
    look = {"fill_opacity": 0, "stroke": "currentColor", "stroke_width": 1.5, "stroke_dasharray": "3 2"}
    box = rect(x + step * 0.04, panel.top + panel.height - tall, step * 0.92, tall, "none", **look)
    return titled(f"{utc(bar.start_ms)}, {duration(bar.width_ms)}: the ledger counted {count(losses)} lost", [box])


def _sum(buckets: Sequence[TimeBucket]) -> dict[Finding, int]:
    total: Counter[Finding] = Counter()
    for bucket in buckets:
        total.update(bucket.findings)
    return dict(total)


def _panel(panel: _Panel, bars: list[Bar], step: float) -> list[Markup]:
    highest = max((_shown(bar, panel) for bar in bars), default=0)
    bottom = panel.top + panel.height
    marks = [
        label(_LEFT, panel.top - 8, panel.title, font_weight=600),
        line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, stroke_opacity=0.4),
    ]
    if not highest:
        return [*marks, label(_LEFT + 8, bottom - 12, "none in any bucket")]
    for share in (0.5, 1.0):
        y = bottom - panel.height * share
        marks.append(line(_LEFT, y, _WIDTH - _RIGHT, y))
    ticks = {highest: panel.top, highest // 2: bottom - panel.height * (highest // 2) / highest, 0: bottom}
    marks += [label(_LEFT - 6, y + 4, count(n), text_anchor="end") for n, y in ticks.items()]
    return marks + [_stack(bar, panel, _LEFT + at * step, step, highest) for at, bar in enumerate(bars) if bar.findings]


def _shown(bar: Bar, panel: _Panel) -> int:
    return sum(bar.groups.get(name, 0) for name in panel.groups)


def _stack(bar: Bar, panel: _Panel, x: float, step: float, highest: int) -> Markup:
    y = float(panel.top + panel.height)
    rects, groups = [], bar.groups
    for name in panel.groups:
        if n := groups.get(name, 0):
            tall = panel.height * n / highest
            y -= tall
            rects.append(rect(x + step * 0.08, y, step * 0.84, tall, GROUP_COLOUR[name]))
    found = {one: n for one, n in bar.findings.items() if n and group_finding(*one) in panel.groups}
    said = ", ".join(f"{visible(label_finding(*one))} {count(n)}" for one, n in found.items())
    return titled(f"{utc(bar.start_ms)}, {duration(bar.width_ms)}: {said}", rects)


def _axis(bars: list[Bar], step: float) -> list[Markup]:
    """Return the times below the bars, the date where it changes, and where a stretch without events is left out."""
    every = max(-(-len(bars) // _LABELS), -(-90 // max(int(step), 1)))
    y = _PANELS[-1].top + _PANELS[-1].height
    marks, day = [], ""
    for at, bar in enumerate(bars):
        x, stamp = _LEFT + at * step, utc(bar.start_ms)
        if bar.gap:
            marks += [line(x, _PANELS[0].top, x, y, stroke_dasharray="2 3", stroke_opacity=0.6)]
            marks += [label(x, _PANELS[0].top - 8, "no events before", size=10, text_anchor="middle")]
        if at % every == 0:
            marks.append(label(x, y + 14, stamp[11:19]))
            marks += [label(x, y + 27, stamp[:10], size=10, fill_opacity=0.75)] if stamp[:10] != day else []
            day = stamp[:10]
    return marks
