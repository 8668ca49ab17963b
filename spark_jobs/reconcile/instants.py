"""This module knows how to count with times that may be nonsense: a damaged clock must cost its field, not the run.

Spark's arithmetic raises on overflow; these sums are ``null`` there, which every caller reads as "not so".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from otel_mqtrace._clock import LAST_MS

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["LATEST", "believable", "between", "minus", "plus", "times"]

LATEST: Final = (1 << 63) - 1
"""Sorts behind every time: stands for a time nobody knows."""


def believable(instant_ms: Column) -> Column:
    """Return the time, or null before 1970 or after the year 9999: no writer meant that."""
    return F.when(instant_ms.between(0, LAST_MS), instant_ms)


def plus(one: Column, other: Column) -> Column:
    """Add two longs; null when the sum is none."""
    return F.try_add(one.cast("long"), other.cast("long"))


def minus(one: Column, other: Column) -> Column:
    """Subtract two longs; null when the difference is none."""
    return F.try_subtract(one.cast("long"), other.cast("long"))


def times(one: Column, other: Column) -> Column:
    """Multiply two longs; null when the product is none."""
    return F.try_multiply(one.cast("long"), other.cast("long"))


def between(one: Column, other: Column, most: int | Column) -> Column:
    """Say whether two longs lie no more than ``most`` apart."""
    apart = minus(one, other)
    return F.coalesce((apart <= most) & (minus(other, one) <= most), F.lit(False))
