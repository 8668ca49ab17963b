"""This module knows one message's life as lanes: one per publish or consumer group, native above, OTLP below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.report.palette import SIDE_COLOUR
from spark_jobs.report.svg.shapes import drawing, label, line, rect, titled
from spark_jobs.report.wording import duration, utc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

__all__ = ["MOST_LANES", "Lane", "Stay", "swimlane"]

_WIDTH, _LEFT, _ROW, _TOP = 760, 210, 34, 18
MOST_LANES = 8
_LONGEST_NAME = 30


@dataclass(frozen=True, slots=True)
class Stay:
    """When one side says it began and ended, epoch milliseconds; either may be unknown."""

    start_ms: int | None
    end_ms: int | None
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """One event of the message; ``None`` for a side that has no record of it."""

    name: str
    native: Stay | None
    otlp: Stay | None
    this: bool = False


def swimlane(lanes: Iterable[Lane]) -> Markup:
    """Return up to eight lanes on one linear axis that starts at the earliest moment any side names."""
    shown = list(lanes)[:MOST_LANES]
    moments = [ms for lane in shown for stay in (lane.native, lane.otlp) if stay for ms in _known(stay)]
    first, last = min(moments, default=0), max(moments, default=0)
    height = _TOP + _ROW * len(shown) + 18
    marks: list[Markup] = []
    for at, lane in enumerate(shown):
        marks += _draw(lane, _TOP + at * _ROW, first, max(last - first, 1))
    if moments:
        marks += [
            label(_LEFT, height - 4, utc(first), size=10),
            label(_WIDTH, height - 4, f"+{duration(last - first)}", size=10, text_anchor="end"),
        ]
    marks.append(label(_LEFT, 11, "N native trace above, O OTLP below", size=10))
    return drawing(marks, width=_WIDTH, height=height, says=_says(shown), css="lane")


def _known(stay: Stay) -> list[int]:
    return [ms for ms in (stay.start_ms, stay.end_ms) if ms is not None]


def _draw(lane: Lane, top: float, first: int, whole: int) -> list[Markup]:
    name = lane.name if len(lane.name) <= _LONGEST_NAME else lane.name[: _LONGEST_NAME - 1] + "…"
    weight = {"font_weight": 700} if lane.this else {}
    marks = [label(0, top + 17, name, **weight), line(_LEFT, top + _ROW - 4, _WIDTH, top + _ROW - 4)]
    for letter, side, stay, y in (("N", "native", lane.native, top + 4), ("O", "otlp", lane.otlp, top + 16)):
        marks += [label(_LEFT - 14, y + 8, letter, size=9), _bar(stay, SIDE_COLOUR[side], y, first, whole)]
    return marks


def _bar(stay: Stay | None, colour: str, y: float, first: int, whole: int) -> Markup:
    known = _known(stay) if stay else []
    if not stay or not known:
        return label(_LEFT, y + 8, "no time recorded" if stay else "not recorded", size=10, font_style="italic")
    scale = (_WIDTH - _LEFT) / whole
    x, end = _LEFT + (known[0] - first) * scale, _LEFT + (known[-1] - first) * scale
    x = min(x, _WIDTH - 3)
    look = {"stroke": "#d14343", "stroke_width": 2} if stay.success is False else {}
    half = {"stroke": "currentColor", "stroke_dasharray": "2 2"} if len(known) == 1 else {}
    return titled(_told(stay), [rect(x, y, max(end - x, 3), 9, colour, rx=2, **half, **look)])


def _told(stay: Stay) -> str:
    outcome = {True: ", success", False: ", failed", None: ""}[stay.success]
    return f"{utc(stay.start_ms)} to {utc(stay.end_ms)}{outcome}"


def _says(lanes: list[Lane]) -> str:
    told = []
    for lane in lanes:
        sides = [name for name, stay in (("native", lane.native), ("OTLP", lane.otlp)) if stay]
        told.append(f"{lane.name} recorded by {' and '.join(sides) or 'neither side'}")
    return "; ".join(told)
