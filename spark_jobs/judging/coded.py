"""The columns of a table of verdicts, each encoded once for everything that is counted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from spark_jobs.judging.columns import NullableInts, encode, flatten_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from spark_jobs.judging.columns import Codes, Column, Mask

__all__ = ["CodedVerdicts"]

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
        """Tell in which rows a column has one of these texts."""
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
