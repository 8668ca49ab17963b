"""This module knows how the fields of events are found among the attributes of many spans at once.

The attributes of a batch are two long columns, names and values; those that ``aliases`` knows are put in order once, so
that a name costs a look where a span has it and nothing where none has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.otlp.aliases import ALIASES
from spark_jobs.normalise.columns import coalesced, is_there, opened, taken
from spark_jobs.normalise.text_rules import first_text, key_set

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.normalise.columns import Column

__all__ = ["Attributes"]

_NAMES: Final = sorted({name for alias in ALIASES.values() for name in (*alias.names, *alias.arrays)})
_CODES: Final = {name: code for code, name in enumerate(_NAMES)}
_TEXTS: Final = pa.list_(pa.string())


class Attributes:
    """The attributes of the spans of a batch, or of their links: a column of maps, and texts found in it."""

    def __init__(self, maps: Column) -> None:
        bounds, (keys, self._values) = opened(maps, maps.keys, maps.items)
        codes: Column = pc.index_in(keys, pa.array(_NAMES, pa.string()))
        known = np.flatnonzero(is_there(codes) & is_there(self._values))
        found = codes.fill_null(0).to_numpy()[known]
        order = np.argsort(found, kind="stable")
        self._places = known[order]
        self._owners = np.repeat(np.arange(len(maps)), np.diff(bounds))[self._places]
        self._starts = np.searchsorted(found[order], np.arange(len(_NAMES) + 1)).tolist()
        self._count = len(maps)

    def text(self, field: str) -> Column:
        """Return a field as text: the first name that is there, else the first text in the first array that is."""
        firsts = (first_text(column) for column in self._named(ALIASES[field].arrays))
        return self._first([*self._named(ALIASES[field].names), *firsts], pa.string())

    def own_text(self, field: str) -> Column:
        """Return a field as text where it has an attribute of its own."""
        return self._first(self._named(ALIASES[field].names), pa.string())

    def keys(self) -> Column:
        """Return the keys of the message, the first array that is there, as a set; it may be empty."""
        found = self._named(ALIASES["keys"].arrays)
        return self._first([key_set(column) for column in found], _TEXTS)

    def _named(self, names: Iterable[str]) -> list[Column]:
        """Return a column for each of the names that occurs."""
        pieces = (slice(self._starts[code], self._starts[code + 1]) for code in map(_CODES.__getitem__, names))
        return [self._column(piece) for piece in pieces if piece.start < piece.stop]

    def _column(self, piece: slice) -> Column:
        rows = np.full(self._count, -1)
        rows[self._owners[piece]] = self._places[piece]
        return taken(self._values, rows)

    def _first(self, columns: list[Column], kind: Any) -> Column:
        return coalesced(*columns) if columns else pa.nulls(self._count, kind)
