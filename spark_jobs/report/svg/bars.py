"""The small bar of a table's cell: shares of a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_jobs.report.svg.shapes import drawing, rect, titled
from spark_jobs.report.wording import count, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

__all__ = ["stacked"]

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
