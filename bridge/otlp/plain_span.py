"""This module knows what a plain span is, whatever it was read from, and how its small parts are told."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["KINDS", "LONG_MAX", "NOT_A_SPAN", "STATUSES", "Span", "enum_name", "long_or_none", "parent_or_none"]

Span = dict[str, Any]
"""The columns of ``schemas.SPAN`` with attributes as Python values, plus ``status_message``, ``events`` and ``bad``."""

NOT_A_SPAN: Final = "not a span"
LONG_MAX: Final = 2**63 - 1
"""The latest time that a column can hold; protobuf's are unsigned."""

KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUSES: Final = ("UNSET", "OK", "ERROR")


def parent_or_none(span_id: str | None) -> str | None:
    """Return the id of a parent, ``None`` where it is missing, empty or all zeros."""
    return span_id if span_id and span_id.strip("0") else None


def enum_name(value: object, names: tuple[str, ...], prefix: str) -> str:
    """Return the name of an enumeration's value, given by number or name; the first one for what is neither."""
    text, number = str(value or 0).removeprefix(prefix), long_or_none(value or 0)
    if number is not None:
        return names[number] if 0 <= number < len(names) else names[0]
    return text if text in names else names[0]


def long_or_none(value: object) -> int | None:
    """Return a number of 64 bits that may be written as a text, ``None`` for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None
