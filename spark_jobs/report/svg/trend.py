"""The last runs side by side: what each lacked without explanation, and its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bridge.page.palette import SIDE_COLOUR, SLATE
from spark_jobs.report.palette import VERDICT_COLOUR
from spark_jobs.report.svg.shapes import drawing, label, line, rect, titled
from spark_jobs.report.wording import count, percent, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

__all__ = ["trend"]

_WIDTH, _LEFT, _RIGHT, _TOP, _TALL, _HEIGHT = 1000, 56, 12, 24, 120, 196
_WIDEST: Final = 64.0
_SQUARE: Final = 12


def trend(points: Sequence[dict[str, Any]]) -> Markup:
    """Return a column for every run of ``Result.trend``, oldest at the left: what each side lacked, and the verdict."""
    step = min((_WIDTH - _LEFT - _RIGHT) / max(len(points), 1), _WIDEST)
    highest = max((sum(_unexplained(point).values()) for point in points), default=0)
    bottom = _TOP + _TALL
    marks: list[Markup] = [
        label(_LEFT, _TOP - 8, "unexplained loss", font_weight=600),
        line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, stroke_opacity=0.4),
        label(_LEFT - 6, bottom + 4, "0", text_anchor="end"),
    ]
    if highest:
        marks += [label(_LEFT - 6, _TOP + 4, count(highest), text_anchor="end"), line(_LEFT, _TOP, _WIDTH, _TOP)]
    marks += [_column(point, _LEFT + at * step, step, max(highest, 1)) for at, point in enumerate(points)]
    says = f"Unexplained loss of the last {count(len(points))} runs; the numbers are in the table below"
    return drawing(marks, width=_WIDTH, height=_HEIGHT, says=says, css="wide")


def _column(point: dict[str, Any], x: float, step: float, highest: int) -> Markup:
    y = float(_TOP + _TALL)
    parts = []
    for side, lost in _unexplained(point).items():
        tall = _TALL * lost / highest
        y -= tall
        if lost:
            parts.append(rect(x + step * 0.15, y, step * 0.7, tall, SIDE_COLOUR.get(side, SLATE)))
    verdict, middle = str(point.get("verdict")), x + step / 2
    square = rect(middle - _SQUARE / 2, _TOP + _TALL + 8, _SQUARE, _SQUARE, VERDICT_COLOUR.get(verdict, SLATE), rx=3)
    letter = label(middle, _TOP + _TALL + 36, visible(verdict, limit=1)[:1], text_anchor="middle", size=10)
    number = label(middle, _TOP + _TALL + 50, str(point.get("run")), text_anchor="middle", size=10)
    matched = point.get("match_rate")
    rate = "" if matched is None else f", matched {percent(matched, 1)}"
    said = ", ".join(f"{side} lacks {count(lost)}" for side, lost in _unexplained(point).items())
    return titled(f"run {point.get('run')}: {visible(verdict)}{rate}; {said}", [*parts, square, letter, number])


def _unexplained(point: dict[str, Any]) -> dict[str, int]:
    return {str(side): int(lost or 0) for side, lost in (point.get("unexplained") or {}).items()}
