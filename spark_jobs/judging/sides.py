"""The fields of both sides of some keys: halves merged, copies chosen, a column at a time and only when wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_jobs.judging.columns import NullableInts, coalesce_rows, greatest, index_rows, take_rows
from spark_jobs.schemas import SIDE_FIELDS

if TYPE_CHECKING:
    from spark_jobs.judging.columns import Column
    from spark_jobs.judging.folding import Folded, Input
    from spark_jobs.judging.surroundings import Keys

__all__ = ["Sides"]

_CARRIED: Final = frozenset({"first_seen_run", "left_as"})


class Sides:
    """Both sides of the keys in ``chosen``; a field is null where its side is absent."""

    def __init__(self, given: Input, folded: Folded, keys: Keys, chosen: slice) -> None:
        self._events = given.events
        self._folded = folded
        self._native = keys.native[chosen]
        self._otlp = keys.otlp[chosen]
        self._native_rows = folded.native_rows(self._native)
        self._first_native, self._span = index_rows(self._native_rows[0]), index_rows(folded.otlp_rows(self._otlp))
        self._known: dict[tuple[str, str], Column] = {}
        self.kind = keys.kind[chosen]
        self.on_native = self._native >= 0
        self.on_otlp = self._otlp >= 0

    def __len__(self) -> int:
        return len(self.kind)

    def native(self, name: str) -> Column:
        """Return a field of the native side: the start of the first half, the outcome of the second."""
        if ("native", name) not in self._known:
            self._known["native", name] = self._read_native(name).cast(SIDE_FIELDS[name])
        return self._known["native", name]

    def otlp(self, name: str) -> Column:
        """Return a field of the span."""
        if ("otlp", name) not in self._known:
            found = self._read_carried("otlp", name) if name in _CARRIED else take_rows(self._events[name], self._span)
            self._known["otlp", name] = found.cast(SIDE_FIELDS[name])
        return self._known["otlp", name]

    def _read_native(self, name: str) -> Column:
        if name == "start_ms":
            return self._folded.native_start.take(self._native).to_arrow()
        if name == "end_ms":
            return self._folded.native_end.take(self._native).to_arrow()
        if name == "arrival_ms":
            parts = (NullableInts.of(take_rows(self._events[name], rows)) for rows in self._native_rows)
            return greatest(*parts).to_arrow()
        if name in _CARRIED:
            return self._read_carried("native", name)
        return coalesce_rows(self._events[name], self._native_rows, self._first_native)

    def _read_carried(self, side: str, name: str) -> Column:
        groups = self._native if side == "native" else self._otlp
        if name == "first_seen_run":
            return self._folded.first_seen[side].take(groups).to_arrow()
        ranks = self._folded.left_as[side].take(groups).filled(-1)
        return take_rows(pa.array(self._folded.left_words, pa.string()), ranks)
