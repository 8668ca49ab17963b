"""Arrow and numpy columns: nullable 64-bit integers, codes of distinct values, the sides of a verdict laid flat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace._clock import LAST_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Column: TypeAlias = Any
"""An Arrow array of any type."""
Ints: TypeAlias = npt.NDArray[Any]
"""64-bit integers; row numbers and counts may have 32 bits."""
Mask: TypeAlias = npt.NDArray[np.bool_]

LATEST: Final = (1 << 63) - 1
"""Sorts behind every time: stands for an unknown one."""
_EARLIEST: Final = -(1 << 63)
_MOST_CODES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class NullableInts:
    """64-bit integers that may be unknown. Sums that overflow are unknown: a damaged clock costs only its field."""

    values: Ints
    known: Mask

    @classmethod
    def of(cls, column: Column) -> NullableInts:
        """Return the values of an Arrow column of integers."""
        return cls(np.asarray(column.fill_null(0).cast(pa.int64())), is_known(column))

    @classmethod
    def constant(cls, rows: int, value: int | None) -> NullableInts:
        """Return the same value in every row."""
        return cls(np.full(rows, 0 if value is None else value, np.int64), np.full(rows, value is not None))

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
            return NullableInts.constant(len(rows), None)
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


def greatest(*columns: NullableInts) -> NullableInts:
    """Return the greatest known value of each row."""
    values = np.maximum.reduce([column.filled(_EARLIEST) for column in columns])
    return NullableInts(values, np.logical_or.reduce([column.known for column in columns]))


def is_near(one: NullableInts, other: NullableInts, most: int | Ints) -> Mask:
    """Return where two known values lie no more than ``most`` apart."""
    ahead, behind = one - other, other - one
    return ahead.known & behind.known & (ahead.values <= most) & (behind.values <= most)


def is_known(column: Column) -> Mask:
    """Return which rows of an Arrow column are not null."""
    if column.null_count == 0:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid())


def as_rows(rows: Ints | Mask) -> Any:
    """Return row numbers, or a mask, as Arrow takes them."""
    return pa.array(rows)


def is_true(column: Column) -> Mask:
    """Return which rows of a boolean column are true; null is not."""
    return np.asarray(column.fill_null(False))  # noqa: FBT003 - Arrow's own signature


def equals(column: Column, value: object) -> Mask:
    """Return which rows of a column are ``value``; null is not."""
    if column.null_count == len(column):
        return np.zeros(len(column), bool)
    if isinstance(column, pa.DictionaryArray):
        return np.append(equals(column.dictionary, value), False)[encode(column).values]
    return is_true(pc.equal(column, pa.scalar(value, column.type)))


def index_rows(rows: Ints) -> Column:
    """Return row numbers as ``take_rows`` takes them, null for a negative one."""
    missing = rows < 0
    return pa.array(rows, mask=missing) if missing.any() else pa.array(rows)


def take_rows(column: Column, rows: Ints | Column) -> Column:
    """Return rows of a column by number, null for a negative one; ``rows`` may come from ``index_rows``."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    return column.take(index_rows(rows) if isinstance(rows, np.ndarray) else rows)


def coalesce_rows(column: Column, choices: Sequence[Ints], first: Column | None = None) -> Column:
    """Return of each row the first known value among the rows of ``column`` that ``choices`` name, best first.

    Args:
        column: what is read.
        choices: row numbers, negative for none.
        first: ``index_rows`` of the best ones, where it is known.
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


@dataclass(frozen=True)
class Codes:
    """A small number for each distinct value of a column: ``values < room``; null has the last one."""

    values: Ints
    room: int
    distinct: Column

    @cached_property
    def words(self) -> list[Any]:
        """The distinct values in the order of their codes, null not among them."""
        found: list[Any] = self.distinct.to_pylist()
        return found


def encode(column: Column) -> Codes:
    """Return the codes of an Arrow column."""
    if column.null_count == len(column):
        return Codes(np.zeros(len(column), np.int64), 1, pa.nulls(0))
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    size, codes = len(coded.dictionary), coded.indices.cast(pa.int64())
    return Codes(np.asarray(codes.fill_null(size) if codes.null_count else codes), size + 1, coded.dictionary)


def rank_words(words: Sequence[Any]) -> Ints:
    """Return the place of each word in the order of its characters, and behind them -1 for null, which sorts first."""
    order = sorted(range(len(words)), key=words.__getitem__)
    ranks = np.empty(len(words) + 1, np.int64)
    ranks[order] = np.arange(len(words))
    ranks[-1] = -1
    return ranks


def find_groups(codes: Ints) -> tuple[Ints, Ints]:
    """Return an example row of each distinct code, in the order of the codes, and of each row its group's number."""
    _, examples, group_of = np.unique(codes, return_index=True, return_inverse=True)
    return examples, group_of


def join_codes(*parts: tuple[Ints, int]) -> Ints:
    """Return one code for several of each row; each part is ``(codes, room)``."""
    codes, room = parts[0]
    codes = codes.astype(np.int64, copy=False)
    for other, size in parts[1:]:
        if room * size > _MOST_CODES:
            examples, codes = find_groups(codes)
            room = len(examples)
        codes, room = codes * size + other, room * size
    return codes


def least_per_group(groups: Ints, size: int, values: NullableInts) -> NullableInts:
    """Return the least known value of each of ``size`` groups; ``groups`` names the group of each value."""
    least = np.full(size, LATEST, np.int64)
    found = np.zeros(size, bool)
    np.minimum.at(least, groups[values.known], values.values[values.known])
    found[groups[values.known]] = True
    return NullableInts(least, found)


def apply_to_distinct(rule: Callable[..., Any], *columns: Column) -> tuple[list[Any], Ints]:
    """Call ``rule`` once for each distinct row of ``columns``; return the answers, and of each row which is its own."""
    coded = [encode(column) for column in columns]
    examples, answer_of = find_groups(join_codes(*((one.values, one.room) for one in coded)))
    words = [[*one.words, None] for one in coded]
    places = [one.values[examples].tolist() for one in coded]
    values = ([names[place] for place in at] for names, at in zip(words, places, strict=True))
    return [rule(*row) for row in zip(*values, strict=True)], answer_of


def single_arrays(table: pa.Table) -> dict[str, Column]:
    """Return the columns of a table by name, each as one array."""
    return {name: _single_array(table[name]) for name in table.column_names}


def _single_array(column: Column) -> Column:
    if column.num_chunks == 1:
        return column.chunk(0)  # combine_chunks() would copy it
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def flatten_sides(verdicts: pa.Table) -> Mapping[str, Column]:
    """Return the columns of ``VERDICT`` (or of some of it) by name, each one array, made on first use.

    ``native.topic`` is a field of a side, null where the side is absent; ``on_native`` and ``on_otlp`` (never null)
    show its presence.
    """
    return _FlatSides(single_arrays(verdicts))


class _FlatSides(Mapping[str, Any]):
    def __init__(self, columns: dict[str, Column]) -> None:
        self._sides: dict[str, Column] = {name: columns.pop(name) for name in ("native", "otlp") if name in columns}
        self._columns = columns
        self._names = [*columns]
        for name, side in self._sides.items():
            self._names += [f"on_{name}", *(f"{name}.{field.name}" for field in side.type)]

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            side, _, field = name.partition(".")
            if field:
                self._columns[name] = pc.struct_field(self._sides[side], field)
            else:
                self._columns[name] = self._sides[name.removeprefix("on_")].is_valid()
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_Found = TypeVar("_Found")


class CodedVerdicts:
    """``VERDICT`` rows, or some of its columns, in the forms that counting needs; every form is made on first use.

    Attributes:
        table: the rows, whole.
        columns: ``flatten_sides`` of them.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns: Mapping[str, Column] = flatten_sides(table)
        self._made: dict[tuple[str, str], Any] = {}

    def __len__(self) -> int:
        return len(self.table)

    def codes(self, name: str) -> Codes:
        """Return the codes of a column of texts."""
        return self._make("codes", name, lambda: encode(self.columns[name]))

    def ints(self, name: str) -> NullableInts:
        """Return a column of integers."""
        return self._make("ints", name, lambda: NullableInts.of(self.columns[name]))

    def matches(self, name: str, *words: str) -> Mask:
        """Return in which rows a column has one of these texts."""
        codes = self.codes(name)
        wanted = np.array([word in words for word in codes.words] + [False])
        found: Mask = wanted[codes.values]
        return found

    def _make(self, form: str, name: str, make: Callable[[], _Found]) -> _Found:
        key = (form, name)
        if key not in self._made:
            self._made[key] = make()
        found: _Found = self._made[key]
        return found
