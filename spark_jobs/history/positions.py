"""Positions of pieces of input: the same side, file, content and index is found again exactly, in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.judging.columns import NullableInts, encode, equals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = ["POSITION", "Positions"]

POSITION: Final = ("side", "path", "record_index", "raw_hash")
"""The columns of ``EVENT`` that tell one piece of input from all others."""

_PACKED: Final = pa.binary(16)
_INDEXES: Final = (1 << 32) + 1  # every 32-bit number, and null
_LEAST_INDEX: Final = -(1 << 31)


@dataclass(frozen=True, slots=True)
class Positions:
    """Distinct positions, numbered from 0, each packed into 16 bytes. A null equals a null."""

    path_codes: Mapping[str, int]
    packed: Column

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Column]]) -> tuple[Positions, Ints]:
        """Return the distinct positions among rows, and of each row, through all parts, the number of its position.

        Args:
            parts: columns ``POSITION`` of some rows at a time.
        """
        codes: dict[str, int] = {}
        packed = [pa.array([], _PACKED)]
        for columns in parts:
            for path in encode(columns["path"]).words:
                codes.setdefault(path, len(codes) + 1)
            packed.append(_pack(columns, _code_paths(columns["path"], codes)))
        coded = pa.concat_arrays(packed).dictionary_encode()
        return cls(codes, coded.dictionary), np.asarray(coded.indices.cast(pa.int64()))

    def __len__(self) -> int:
        return len(self.packed)

    def has_path(self, paths: Column) -> Mask:
        """Tell which rows come from a file of any of the positions: all others need not be read further."""
        return _code_paths(paths, self.path_codes) >= 0

    def find(self, columns: Mapping[str, Column]) -> Ints:
        """Return the number of each row's position, -1 where it is none of these; ``columns`` are ``POSITION``."""
        packed = _pack(columns, _code_paths(columns["path"], self.path_codes))
        found: Any = pc.index_in(packed, value_set=self.packed)
        return np.asarray(found.fill_null(-1).cast(pa.int64()))


def _code_paths(paths: Column, codes: Mapping[str, int]) -> Ints:
    """Return the code of each path: 0 for null, -1 for one without a code."""
    coded = encode(paths)
    return np.array([*(codes.get(word, -1) for word in coded.words), 0], np.int64)[coded.values]


def _pack(columns: Mapping[str, Column], path_codes: Ints) -> Column:
    """Return two numbers a row, as bytes; no two positions have both in common."""
    hashes, indexes = NullableInts.of(columns["raw_hash"]), NullableInts.of(columns["record_index"])
    index = np.where(indexes.known, indexes.values - _LEAST_INDEX + 1, 0)
    others = (path_codes * _INDEXES + index) * 4 + hashes.known * 2 + equals(columns["side"], "native")
    numbers: Any = np.stack([hashes.filled(0), others], axis=1)
    return pa.FixedSizeBinaryArray.from_buffers(_PACKED, len(numbers), [None, pa.py_buffer(numbers)])
