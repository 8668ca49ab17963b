"""Choose rows of Arrow columns, fill gaps, make gaps, open lists and bytes."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Column",
    "binary_bytes",
    "coalesced",
    "equal",
    "flags",
    "greater",
    "is_there",
    "opened",
    "repeated",
    "taken",
    "where",
]

Column: TypeAlias = Any
"""A column of a batch. ``pyarrow`` has a type for each kind and for what each operation makes of it: not told apart."""


def equal(column: Column, value: object) -> Column:
    """Say of each row whether it is ``value``; null stays null."""
    return pc.equal(column, pa.scalar(value, column.type))


def greater(column: Column, number: int) -> Column:
    """Say of each row whether it is greater than ``number``; null stays null."""
    return pc.greater(column, pa.scalar(number, column.type))


def where(condition: Column, column: Column) -> Column:
    """Return the column where the condition holds, null elsewhere."""
    return pc.if_else(condition, column, pa.scalar(None, column.type))


def coalesced(first: Column, *others: Column) -> Column:
    """Return in each row the first value that is there; a column that has them all is left as it is."""
    return reduce(lambda one, other: pc.coalesce(one, other) if one.null_count else one, others, first)


def taken(column: Column, rows: NDArray[np.int64]) -> Column:
    """Return rows of a column by number; null for a negative one."""
    return column.take(pa.array(rows, mask=rows < 0))


def repeated(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for so many copies of each row which row each copy is of, and which of its copies it is."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def is_there(column: Column) -> NDArray[np.bool_]:
    """Say of each row whether it has a value."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def flags(condition: Column) -> NDArray[np.bool_]:
    """Return where a condition holds; it does not where it is null."""
    return np.asarray(pc.fill_null(condition, pa.scalar(value=False)).to_numpy(zero_copy_only=False))


def opened(lists: Column, *inner: Column) -> tuple[NDArray[np.int64], list[Column]]:
    """Return what is in the lists, or maps, of these rows, and where in it each begins and the last one ends.

    ``inner`` are the columns of their contents, which know nothing of the rows that were chosen.
    """
    bounds = lists.offsets.to_numpy().astype(np.int64)
    return bounds - bounds[0], [column.slice(bounds[0], bounds[-1] - bounds[0]) for column in inner]


def binary_bytes(column: Column) -> tuple[bytes, NDArray[np.int64]]:
    """Return all bytes of a column of texts or bytes, and where each value begins and the last one ends."""
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return b"", np.zeros(len(column) + 1, np.int64)
    at = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return data.slice(at[0], at[-1] - at[0]).to_pybytes(), at - at[0]
