"""Numbers, times and untrusted texts for readers, the same in every report."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from bridge.page.wording import ABSENT, in_unit, plural, utc
from bridge.page.wording import visible as spell_out

__all__ = ["ABSENT", "count", "duration", "number", "percent", "plural", "ppm", "utc", "value_text", "visible"]

GATE_HEADS = ("Gate", "Outcome", "Value", "Must be", "Explanation")
LATENCY_HEADS = ("Stage", "Events", "p50", "p95", "p99", "Maximum")
LOSS_HEADS = ("Side", "Component", "Cause", "Service", "Counted", "Attributed", "Surplus")
NO_LOSS = "Nothing was counted as lost."

# Controls, lone surrogates and noncharacters cannot be shown or are illegal in XML; line separators and everything that
# turns the writing direction can make one message id look like another.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def visible(text: str, *, limit: int = 300) -> str:
    r"""Return ``text`` with every invisible or direction-changing character spelled out, cut to ``limit`` characters.

    A tab or newline becomes ``\t`` or ``\n``; a cut text shows its whole length. The result still has to be escaped
    for its format.
    """
    shown = spell_out(text, limit=limit, unseen=_UNSEEN)
    return shown.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def count(value: int) -> str:
    """Return a whole number with separated thousands."""
    return f"{value:,}"


def number(value: float | None) -> str:
    """Return a measured value with at most six significant digits."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return count(int(value)) if value == int(value) else f"{value:,.6g}"


def duration(ms: float | None) -> str:
    """Return milliseconds in a suitable unit."""
    if ms is None or not math.isfinite(ms):
        return ABSENT
    return in_unit(ms)


def percent(part: float, whole: float) -> str:
    """Return a share; ``0 %`` and ``100 %`` are exact."""
    if not whole:
        return ABSENT
    share = 100 * part / whole
    if share in (0, 100):
        return f"{share:.0f} %"
    return "< 0.01 %" if share < 0.01 else "> 99.99 %" if share > 99.99 else f"{share:.2f} %"  # noqa: PLR2004


def ppm(rate: float | None) -> str:
    """Return parts per million, in percent from one per mille on."""
    if rate is None:
        return ABSENT
    return f"{rate / 10_000:.2f} %" if rate >= 1000 else f"{rate:,.3g} ppm"  # noqa: PLR2004


def value_text(name: str, value: Any) -> str | None:
    """Return one field of one side, ``None`` if it is absent; ``*_ms`` instants are shown in UTC."""
    if value is None:
        return None
    if name in _STAMPS and isinstance(value, int):
        return utc(value)
    if isinstance(value, (list, tuple)):
        return visible(" ".join(map(str, value)))
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


_STAMPS = frozenset({"start_ms", "end_ms", "arrival_ms", "event_ms"})
