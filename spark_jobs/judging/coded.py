"""The columns of a table of verdicts, each encoded or hashed once for everything that is counted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from spark_jobs.hashing import hash_texts
from spark_jobs.judging.columns import NullableInts, encode, find_groups, flatten_sides, join_codes
from spark_jobs.taxonomy import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from spark_jobs.judging.columns import Codes, Column, Ints, Mask

__all__ = ["CodedVerdicts", "encode_maps"]

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

    def hashes(self, name: str) -> npt.NDArray[np.uint64]:
        """Return the hash of each text of a column."""
        return self._make("hashes", name, lambda: hash_texts(self.columns[name]))

    def hashed_words(self, name: str) -> npt.NDArray[np.uint64]:
        """Return what ``hashes`` returns, faster for a column of few distinct texts."""
        codes = self.codes(name)
        words = pa.array([*codes.words, None], pa.string())
        return hash_texts(words)[codes.values]

    def matches(self, name: str, *words: str) -> Mask:
        """Tell in which rows a column has one of these texts."""
        codes = self.codes(name)
        wanted = np.array([word in words for word in codes.words] + [False])
        found: Mask = wanted[codes.values]
        return found

    def has_side(self, side: str) -> Mask:
        """Tell which rows have a record of this side."""
        return np.asarray(self.columns[f"on_{side}"])

    @property
    def inside(self) -> Mask:
        """Tell which rows are in scope."""
        return self._make("inside", "", lambda: ~self.matches("status", Status.OUT_OF_SCOPE.value))

    @property
    def field_patterns(self) -> tuple[list[dict[str, str]], Ints]:
        """The distinct maps of field verdicts, and of each row which is its own: a run shows dozens; -1 is null."""
        return self._make("maps", "", lambda: encode_maps(self.columns["field_verdicts"]))

    def _make(self, form: str, name: str, make: Callable[[], _Found]) -> _Found:
        key = (form, name)
        if key not in self._made:
            self._made[key] = make()
        found: _Found = self._made[key]
        return found


def encode_maps(maps: Column) -> tuple[list[dict[str, str]], Ints]:
    """Return the distinct maps of a column of ``map<string, string>``, and of each row which is its own; -1 is null.

    Rows are compared by their keys and items as they lie in memory, one after the other: no word is looked at alone.
    """
    if maps.null_count == len(maps):
        return [], np.full(len(maps), -1)
    offsets = np.asarray(maps.offsets)
    parts = [encode(_join_words(child, offsets)) for child in (maps.keys, maps.items)]
    sizes = np.diff(offsets)
    examples, pattern = find_groups(
        join_codes(*((part.values, part.room) for part in parts), (sizes, int(sizes.max()) + 1))
    )
    found = [dict(row or ()) for row in maps.take(pa.array(examples)).to_pylist()]
    is_null = np.asarray(maps.is_null())
    return found, np.where(is_null, -1, pattern)


def _join_words(child: Column, offsets: Ints) -> Column:
    """Return of each row the text of all its words, without copying any: ``offsets`` says where its words begin."""
    if not len(child):
        return pa.array([b""] * (len(offsets) - 1), pa.binary())
    _, begins, data = child.buffers()
    bounds = np.frombuffer(begins, np.int32)[child.offset :][offsets]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(bounds.tobytes()), data])
