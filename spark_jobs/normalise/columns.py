"""This module knows what is done to Arrow columns again and again: choose rows, fill gaps, make gaps."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Column", "coalesced", "equal", "greater", "is_there", "opened", "repeated", "taken", "where"]

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


def opened(lists: Column, *inner: Column) -> tuple[NDArray[np.int64], list[Column]]:
    """Return what is in the lists, or maps, of these rows, and where in it each begins and the last one ends.

    ``inner`` are the columns of their contents, which know nothing of the rows that were chosen.
    """
    bounds = lists.offsets.to_numpy().astype(np.int64)
    return bounds - bounds[0], [column.slice(bounds[0], bounds[-1] - bounds[0]) for column in inner]
