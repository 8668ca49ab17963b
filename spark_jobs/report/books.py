"""The balance sheet: how many records came in on each side, and where every one of them went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jobs.report.result import Inputs, SideInputs

__all__ = ["Line", "balance", "gap"]

_COMING_IN = (
    ("records_read", "Records read"),
    ("exploded", "plus rows made of batch ids and links"),
    ("carried", "plus events an earlier run left open"),
)
_GOING_OUT = (
    ("malformed", "less malformed"),
    ("out_of_scope", "less out of scope"),
    ("half_merged", "less halves folded into one consume"),
    ("exact_duplicates", "less exact duplicates"),
    ("other_duplicates", "less other duplicates"),
    ("read_again", "less carried events read again"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the sheet; ``name`` is the field of the books it shows, ``total`` marks a sum."""

    name: str
    label: str
    native: int
    otlp: int
    total: bool = False


def balance(inputs: Inputs) -> tuple[Line, ...]:
    """Return the sheet from records read to canonical keys; the last line, what is not accounted for, is 0 or a bug."""
    entries = [_line(inputs, name, label) for name, label in (*_COMING_IN, *_GOING_OUT)]
    keys = _line(inputs, "canonical_keys", "Canonical keys", total=True)
    return (*entries, keys, Line("gap", "Not accounted for", gap(inputs.native), gap(inputs.otlp)))


def gap(side: SideInputs) -> int:
    """Return how many records of ``side`` are in no place of the sheet (negative: in two places)."""
    coming_in: int = sum(getattr(side, name) for name, _ in _COMING_IN)
    going_out: int = sum(getattr(side, name) for name, _ in _GOING_OUT)
    return coming_in - going_out - side.canonical_keys


def _line(inputs: Inputs, name: str, label: str, *, total: bool = False) -> Line:
    return Line(name, label, getattr(inputs.native, name), getattr(inputs.otlp, name), total=total)
