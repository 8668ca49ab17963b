"""This module knows the small bars that stand in a table's cell: shares of a whole, and the range of a latency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spark_jobs.report.svg.shapes import drawing, element, line, rect, titled
from spark_jobs.report.wording import count, duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from markupsafe import Markup

    from spark_jobs.report.measured import Latency

__all__ = ["latency_range", "latency_scale", "stacked"]

_BAR_HEIGHT = 14
_THINNEST = 1.5


def stacked(parts: Mapping[str, int], colours: Mapping[str, str], *, width: int = 260) -> Markup:
    """Return one bar for ``parts`` in the order of ``colours``; nothing that exists is drawn too thin to be seen."""
    present = {name: parts[name] for name in colours if parts.get(name)}
    total = sum(present.values())
    says = ", ".join(f"{name} {count(n)}" for name, n in present.items()) or "nothing"
    marks: list[Markup] = [rect(0, 0, width, _BAR_HEIGHT, "currentColor", fill_opacity=0.07, rx=2)]
    x = 0.0
    room = width - _THINNEST * len(present)
    for name, n in present.items():
        thick = _THINNEST + room * n / total
        marks.append(
            titled(f"{name}: {count(n)} ({percent(n, total)})", [rect(x, 0, thick, _BAR_HEIGHT, colours[name])])
        )
        x += thick
    return drawing(marks, width=width, height=_BAR_HEIGHT, says=says)


def latency_scale(rows: Iterable[Latency]) -> tuple[float, float]:
    """Return the range, milliseconds, that holds every percentile of ``rows`` on one logarithmic axis."""
    values = [value or 0 for row in rows for value in (row.p50, row.p95, row.p99, row.max)]
    drawable = [value for value in values if 0 < value < math.inf]
    low, high = min(drawable, default=1.0), max(drawable, default=10.0)
    return max(low * 0.8, 0.01), max(high * 1.1, low * 2, 0.02)


def latency_range(row: Latency, scale: tuple[float, float], *, width: int = 220) -> Markup:
    """Return p50 (tall mark) to p95 (thick bar) to p99 (short mark) to max (ring) on the logarithmic ``scale``."""
    middle = _BAR_HEIGHT / 2
    marks = [line(0, middle, width, middle)]
    p50, p95, p99, top = (_at(value, scale, width) for value in (row.p50, row.p95, row.p99, row.max))
    if p50 is not None and p95 is not None:
        marks.append(rect(p50, middle - 3, max(p95 - p50, _THINNEST), 6, "#3f7fc4", rx=2))
    if p95 is not None and top is not None:
        marks.append(line(p95, middle, top, middle, stroke="#3f7fc4", stroke_opacity=1))
    marks += [
        line(x, middle - tall, x, middle + tall, stroke="currentColor", stroke_opacity=0.9, stroke_width=1.5)
        for x, tall in ((p50, 6), (p99, 3))
        if x is not None
    ]
    if top is not None:
        marks.append(element("circle", cx=top, cy=middle, r=3, fill="none", stroke="#d14343", stroke_width=1.5))
    said = ", ".join(f"{name} {duration(getattr(row, name))}" for name in ("p50", "p95", "p99", "max"))
    return drawing([titled(said, marks)], width=width, height=_BAR_HEIGHT, says=said)


def _at(value: float | None, scale: tuple[float, float], width: int) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    low, high = (math.log10(end) for end in scale)
    share = (math.log10(max(value, scale[0])) - low) / (high - low)
    return 4 + (width - 8) * min(max(share, 0.0), 1.0)
