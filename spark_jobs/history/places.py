"""Find pieces of input again: the same side, file, content and index, exactly and in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_jobs.judging.columns import NullableInts, encode, equals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = ["PLACE", "Places"]

PLACE: Final = ("side", "path", "record_index", "raw_hash")
"""The columns of ``EVENT`` that tell one piece of input from all others."""

_INDEXES: Final = (1 << 32) + 1  # every 32-bit number, and null
_LEAST_INDEX: Final = -(1 << 31)
_MULTIPLIER: Final = np.uint64(0x9E37_79B9_7F4A_7C15)  # golden ratio: spreads neighbouring numbers over 64 bits


@dataclass(frozen=True, slots=True)
class Places:
    """Distinct places, numbered from 0; 24 bytes each. A null equals a null.

    ``hashes`` and ``others`` together are a place; ``mixed``, which they are sorted by, may be equal for two.
    """

    path_codes: Mapping[str, int]
    mixed: npt.NDArray[np.uint64]
    hashes: Ints
    others: Ints

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Column]]) -> tuple[Places, Ints]:
        """Return the distinct places among rows, and of each row, through all parts, the number of its place.

        Args:
            parts: columns ``PLACE`` of some rows at a time.
        """
        codes: dict[str, int] = {}
        packed = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for columns in parts:
            for path in encode(columns["path"]).words:
                codes.setdefault(path, len(codes) + 1)
            packed.append(_pack(columns, _code_paths(columns["path"], codes)))
        hashes, others = (np.concatenate(some) for some in zip(*packed, strict=True))
        mixed = _mix(hashes, others)
        order = np.lexsort((others, hashes, mixed))
        hashes, others, mixed = hashes[order], others[order], mixed[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (hashes[1:] != hashes[:-1]) | (others[1:] != others[:-1])
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(is_first) - 1
        return cls(codes, mixed[is_first], hashes[is_first], others[is_first]), numbers

    def __len__(self) -> int:
        return len(self.mixed)

    def has_path(self, paths: Column) -> Mask:
        """Tell which rows come from a file of any of the places: all others need not be read further."""
        return _code_paths(paths, self.path_codes) >= 0

    def find(self, columns: Mapping[str, Column]) -> Ints:
        """Return the number of each row's place, -1 where it is none of these; ``columns`` are ``PLACE``."""
        codes = _code_paths(columns["path"], self.path_codes)
        found = np.full(len(codes), -1, np.int64)
        if not len(self):
            return found
        hashes, others = _pack(columns, codes)
        rows = np.flatnonzero(codes >= 0)
        hashes, others = hashes[rows], others[rows]
        mixed = _mix(hashes, others)
        at = np.searchsorted(self.mixed, mixed)
        sought = np.arange(len(rows))
        while len(sought):
            sought = sought[at[sought] < len(self)]
            candidate = at[sought]
            is_same = (self.hashes[candidate] == hashes[sought]) & (self.others[candidate] == others[sought])
            found[rows[sought[is_same]]] = candidate[is_same]
            # Another place may have the same mixed number; it follows this one.
            sought = sought[~is_same & (self.mixed[candidate] == mixed[sought])]
            at[sought] += 1
        return found


def _code_paths(paths: Column, codes: Mapping[str, int]) -> Ints:
    """Return the code of each path: 0 for null, -1 for one without a code."""
    coded = encode(paths)
    return np.array([*(codes.get(word, -1) for word in coded.words), 0], np.int64)[coded.values]


def _pack(columns: Mapping[str, Column], path_codes: Ints) -> tuple[Ints, Ints]:
    """Return two numbers for each place; no two places have both in common."""
    hashes, indexes = NullableInts.of(columns["raw_hash"]), NullableInts.of(columns["record_index"])
    index = np.where(indexes.known, indexes.values - _LEAST_INDEX + 1, 0)
    others = (path_codes * _INDEXES + index) * 4 + hashes.known * 2 + equals(columns["side"], "native")
    return hashes.filled(0), others


def _mix(hashes: Ints, others: Ints) -> npt.NDArray[np.uint64]:
    return hashes.view(np.uint64) + others.view(np.uint64) * _MULTIPLIER
