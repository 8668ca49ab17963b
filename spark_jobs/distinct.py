"""This module knows how a plain function is asked of a column, or of a table, once per distinct value.

Most columns of spans repeat a handful of texts; what is said about a text need not be fast then, only clear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["distinct_rows", "each"]

_ROOM: Final = 1 << 62


def each(column: Any, function: Callable[[Any], Any], kind: Any) -> Any:
    """Return ``function`` of every value of an Arrow column as a column of type ``kind``; null stays null."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    is_double = pa.types.is_floating(column.type)  # their bits are told apart, not the numbers: -0.0 equals 0.0
    coded = (column.view(pa.int64()) if is_double else column).dictionary_encode()
    distinct = coded.dictionary.view(column.type) if is_double else coded.dictionary
    return pa.array(map(function, distinct.to_pylist()), kind).take(coded.indices)


def distinct_rows(columns: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """Return the distinct rows of columns of the same length, and for each row the index of its like."""
    coded = {name: column.dictionary_encode() for name, column in columns.items() if column.null_count < len(column)}
    codes, room = np.zeros(len(next(iter(columns.values()))), np.int64), 1
    for column in coded.values():
        size = len(column.dictionary) + 1
        if room * size > _ROOM:
            codes = np.unique(codes, return_inverse=True)[1]
            room = len(codes)
        codes, room = codes * size + column.indices.fill_null(size - 1).to_numpy(), room * size
    _, examples, like = np.unique(codes, return_index=True, return_inverse=True)
    rows = pa.array(examples)
    values = {name: column.take(rows).to_pylist() for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)], pa.array(like)
