"""Distributions as curves: which share of the events took how long at most, on a logarithmic axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from bridge.page.palette import BLUE, GREEN, ORANGE, VIOLET
from spark_jobs.report.svg.shapes import drawing, element, label, line
from spark_jobs.report.wording import count, duration, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from markupsafe import Markup

    from spark_jobs.report.measured import Latency

__all__ = ["LOOKS", "curves"]

LOOKS: Final = ((BLUE, None), (ORANGE, "7 4"), (GREEN, "2 3"), (VIOLET, "9 3 2 3"))
"""Colour and dashes of the first, second … curve: told apart without colours, too."""

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 300, 56, 16, 14, 40
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 0.95)
_FLOOR_MS: Final = 0.5  # what a clock of milliseconds calls 0


def curves(rows: Mapping[str, Latency]) -> Markup:
    """Return the curves of those ``rows`` that have one, at most as many as there are ``LOOKS``."""
    drawable = {name: _steps(row) for name, row in rows.items() if row.curve and row.max is not None}
    top_ms = max((ms for steps in drawable.values() for _, ms in steps), default=10.0)
    axis = (math.log10(_FLOOR_MS), math.log10(max(top_ms, 10)))
    marks = list(_grid(axis))
    for (name, steps), (colour, dashes) in zip(drawable.items(), LOOKS, strict=False):
        marks.append(_curve(_told(name, rows[name]), steps, axis, colour, dashes))
    said = "; ".join(_told(name, rows[name]) for name in drawable)
    return drawing(marks, width=_WIDTH, height=_HEIGHT, says=said or "no durations", css="wide")


def _steps(row: Latency) -> list[tuple[float, float]]:
    """Return the staircase from the fastest event to the slowest, without what is no number."""
    every = [(0.0, row.curve[0][1]), *row.curve, (1.0, row.max or 0)]
    return [(share, ms) for share, ms in every if math.isfinite(ms)]


def _curve(
    told: str, steps: Sequence[tuple[float, float]], axis: tuple[float, float], colour: str, dashes: str | None
) -> Markup:
    places = [f"{_x(ms, axis):.1f} {_y(share):.1f}" for share, ms in steps]
    dashed = {"stroke_dasharray": dashes} if dashes else {}
    path = element(
        "path", d=f"M{'L'.join(places)}" if places else "", fill="none", stroke=colour, stroke_width=2.5, **dashed
    )
    return element("g", [element("title", [told]), path])


def _told(name: str, row: Latency) -> str:
    within = f"half within {duration(row.p50)}, 99 % within {duration(row.p99)}"
    return f"{_said(name)}: {count(row.count)} events, {within}"


def _said(name: str) -> str:
    return visible(name.replace("_", " "), limit=40)


def _grid(axis: tuple[float, float]) -> Iterator[Markup]:
    for share in (*_SHARES, 1.0):
        yield line(_LEFT, _y(share), _WIDTH - _RIGHT, _y(share))
        yield label(_LEFT - 6, _y(share) + 4, f"{share:.0%}", text_anchor="end")
    for power in range(math.ceil(axis[0]), math.floor(axis[1]) + 1):
        x = _x(10.0**power, axis)
        yield line(x, _TOP, x, _HEIGHT - _BOTTOM)
        yield label(x, _HEIGHT - _BOTTOM + 16, duration(10.0**power), text_anchor="middle")
    yield label(_WIDTH - _RIGHT, _HEIGHT - 6, "took at most", text_anchor="end", fill_opacity=0.75)


def _x(ms: float, axis: tuple[float, float]) -> float:
    share = (math.log10(max(ms, _FLOOR_MS)) - axis[0]) / (axis[1] - axis[0])
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(max(share, 0.0), 1.0)


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)
