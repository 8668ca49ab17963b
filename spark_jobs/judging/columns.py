"""Arrow and numpy columns: nullable 64-bit integers, codes of distinct values, the sides of a verdict laid flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace._clock import LAST_MS
from otel_mqtrace.model import strip_prefixes
from spark_jobs.columns import begins_run, encode, is_known, is_true, map_values, mark, take_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask

LATEST: Final = (1 << 63) - 1
"""Sorts behind every time: stands for an unknown one."""
_EARLIEST: Final = -(1 << 63)


@dataclass(frozen=True, slots=True)
class NullableInts:
    """64-bit integers that may be unknown. Sums that overflow are unknown: a damaged clock costs only its field.

    A constant stands for a column of any length beside another one.
    """

    values: Ints
    known: Mask

    @classmethod
    def of(cls, column: Column) -> NullableInts:
        """Return the values of an Arrow column of integers."""
        return cls(np.asarray(column.fill_null(0).cast(pa.int64())), is_known(column))

    @classmethod
    def constant(cls, value: int | None) -> NullableInts:
        """Return the same value for every row."""
        return cls(np.array(value or 0, np.int64), np.array(value is not None))

    @classmethod
    def unknown(cls, rows: int) -> NullableInts:
        """Return so many unknown values."""
        return cls(np.zeros(rows, np.int64), np.zeros(rows, bool))

    def __add__(self, other: NullableInts) -> NullableInts:
        with np.errstate(over="ignore"):
            total = self.values + other.values
        overflows = ((self.values ^ total) & (other.values ^ total)) < 0
        return NullableInts(total, self.known & other.known & ~overflows)

    def __sub__(self, other: NullableInts) -> NullableInts:
        with np.errstate(over="ignore"):
            difference = self.values - other.values
        overflows = ((self.values ^ other.values) & (self.values ^ difference)) < 0
        return NullableInts(difference, self.known & other.known & ~overflows)

    def __mul__(self, other: NullableInts) -> NullableInts:
        with np.errstate(over="ignore"):
            product = self.values * other.values
            divisor = np.where(other.values == 0, 1, other.values)
            fits = (other.values == 0) | ((product // divisor == self.values) & (product % divisor == 0))
            fits &= (self.values != np.iinfo(np.int64).min) | (other.values != -1)  # the quotient overflows as well
        return NullableInts(product, self.known & other.known & fits)

    def coalesce(self, other: NullableInts) -> NullableInts:
        """Return the other's value wherever this one's is unknown."""
        return NullableInts(np.where(self.known, self.values, other.values), self.known | other.known)

    def where(self, mask: Mask) -> NullableInts:
        """Return the values where ``mask`` holds, unknown elsewhere."""
        return NullableInts(self.values, self.known & mask)

    def take(self, rows: Ints) -> NullableInts:
        """Return the values of these rows, unknown for a negative row."""
        if not len(self.values):
            return NullableInts.unknown(len(rows))
        return NullableInts(self.values[rows], self.known[rows] & (rows >= 0))

    def believable(self) -> NullableInts:
        """Return the times from 1970 to the year 9999; any other is a writer's junk."""
        return self.where((self.values >= 0) & (self.values <= LAST_MS))

    def exceeds(self, bound: int) -> Mask:
        """Return which values are known and greater than ``bound``."""
        return self.known & (self.values > bound)

    def filled(self, value: int) -> Ints:
        """Return the values, ``value`` where unknown."""
        return np.where(self.known, self.values, value)

    def to_arrow(self, kind: Any = None) -> Column:
        """Return an Arrow column of 64-bit integers, or of another type."""
        column = pa.array(self.values, mask=~self.known)
        return column if kind is None else column.cast(kind)


def maximum(*columns: NullableInts) -> NullableInts:
    """Return the greatest known value of each row."""
    values = np.maximum.reduce([column.filled(_EARLIEST) for column in columns])
    return NullableInts(values, np.logical_or.reduce([column.known for column in columns]))


def is_near(one: NullableInts, other: NullableInts, most: int | Ints) -> Mask:
    """Return where two known values lie no more than ``most`` apart."""
    ahead, behind = one - other, other - one
    return ahead.known & behind.known & (ahead.values <= most) & (behind.values <= most)


def is_equal(column: Column, value: object) -> Mask:
    """Return which rows of a column are ``value``; null is not."""
    if column.null_count == len(column):
        return np.zeros(len(column), bool)
    if isinstance(column, pa.DictionaryArray):
        return np.append(is_equal(column.dictionary, value), False)[encode(column).values]
    return is_true(pc.equal(column, pa.scalar(value, column.type)))


def identified_by_offset(columns: Mapping[str, Column]) -> Mask:
    """Return which events (``msg_id``, ``offset_msg_id``) have the position of their message as its only id."""
    return is_true(pc.equal(columns["msg_id"], columns["offset_msg_id"]))


def is_any_of(column: Column, words: Collection[str]) -> Mask:
    """Return which rows of a column are one of ``words``; null is not."""
    codes = encode(column)
    return np.isin(codes.values, [code for code, word in enumerate(codes.words) if word in words])


def bare_names(column: Column) -> Column:
    """Return topics or groups as they are compared."""
    return map_values(column, strip_prefixes, pa.string())


def coalesce_rows(column: Column, choices: Sequence[Ints], first: Column | None = None) -> Column:
    """Return for each row the first known value among the rows of ``column`` that ``choices`` name, best first.

    ``choices`` are row numbers, negative for none; ``first`` is ``index_rows`` of the best ones, if known.
    """
    found = take_rows(column, choices[0] if first is None else first)
    best = choices[0]
    for rows in choices[1:]:
        if not found.null_count or column.null_count == len(column):
            break
        lacking = (rows >= 0) & ~is_known(found)
        if lacking.any():
            best = np.where(lacking, rows, best)
            found = take_rows(column, best)
    return found


def rank_texts(texts: Column) -> Ints:
    """Return the place of each text among the distinct ones, ordered by characters; -1 for null, which sorts first."""
    coded = encode(texts)
    order = sorted(range(len(coded.words)), key=coded.words.__getitem__)
    ranks = np.full(coded.room, -1, np.int64)
    ranks[order] = np.arange(len(order))
    return ranks[coded.values]


def least_per_group(groups: Ints, size: int, values: NullableInts) -> NullableInts:
    """Return the least known value of each of ``size`` groups; ``groups`` names the group of each value."""
    least = np.full(size, LATEST, np.int64)
    np.minimum.at(least, groups[values.known], values.values[values.known])
    return NullableInts(least, mark(size, groups[values.known]))


def least_text_per_group(groups: Ints, size: int, texts: Column) -> Column:
    """Return the least known text of each of ``size`` groups, null where none is known; as ``least_per_group``."""
    if texts.null_count == len(texts):
        return pa.nulls(size, pa.string())
    ranks = rank_texts(texts)
    least = least_per_group(groups, size, NullableInts(ranks, ranks >= 0))
    return take_rows(pa.array(sorted(encode(texts).words), pa.string()), least.filled(-1))


def number_in_runs(ordered: Ints) -> Ints:
    """Return how many equal codes lie before each; those that are equal lie together."""
    places = np.arange(len(ordered))
    return places - np.maximum.accumulate(np.where(begins_run(ordered), places, 0))


def single_arrays(table: pa.Table) -> dict[str, Column]:
    """Return the columns of a table by name, each as one array."""
    return {name: single_array(table[name]) for name in table.column_names}


def single_array(column: Column) -> Column:
    """Return the chunks of a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)  # combine_chunks() would copy it
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def flatten_sides(verdicts: pa.Table) -> dict[str, Column]:
    """Return the columns of ``VERDICT`` (or of some of it) by name, each one array.

    ``native.topic`` is a field of a side, null where the side is absent; ``on_native`` and ``on_otlp`` (never null)
    show its presence.
    """
    sides = [name for name in ("native", "otlp") if name in verdicts.column_names]
    presence = {f"on_{name}": single_array(verdicts[name].is_valid()) for name in sides}
    return single_arrays(verdicts.flatten()) | presence


def either(verdicts: Mapping[str, Column], name: str) -> Column:
    """Return a field of the native side, of the other where that has none; ``verdicts`` are from ``flatten_sides``."""
    native, otlp = verdicts[f"native.{name}"], verdicts[f"otlp.{name}"]
    return pc.coalesce(native, otlp) if native.null_count and otlp.null_count < len(otlp) else native
