"""Merge the halves of one event and count its copies.

Of one identity an **exact** copy has the same ``raw_hash``, an **equivalent** one the same content in other bytes, a
**conflicting** one other content. The earliest record is kept, ties broken by hash, arrival and position, never by row
order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import (
    as_scalars,
    begins_run,
    encode,
    find_groups,
    index_rows,
    is_known,
    join_codes,
    mark,
    take_rows,
)
from spark_jobs.judging.columns import (
    LATEST,
    NullableInts,
    coalesce_rows,
    is_equal,
    least_per_group,
    least_text_per_group,
    maximum,
    rank_texts,
)
from spark_jobs.judging.identity import KINDS, has_full_key
from spark_jobs.schemas import COMPARED_FIELDS, SIDE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column, Ints, Mask

BEFORE, AFTER, WHOLE, OTLP, _LATE = range(5)
"""The parts of an event: the halves of a native delivery, a whole native record, a span, its second half.

The forwarder sends a delivery as two spans where the second half comes too late. Any other spans are copies.
"""
_PARTS: Final = 5
_NATIVE: Final = slice(BEFORE, OTLP)
_SPANS: Final = slice(OTLP, _PARTS)
_TIMES: Final = ("start_ms", "end_ms", "arrival_ms")

COUNTS: Final = (
    *("native_count", "native_records", "native_exact_duplicates", "native_other_duplicates", "half_merged"),
    *("otlp_count", "otlp_records", "otlp_exact_duplicates", "otlp_other_duplicates"),
)
"""The numbers of one key that the balance is made of; all of them add up when keys are paired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The rows of a bucket: columns of ``EVENT``, the code of each row's message, kind and identity, and its side."""

    events: Mapping[str, Column]
    message_of: Ints
    messages: int
    kinds: Ints
    is_native: Mask
    identity_of: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSide:
    """The times of events on one side, and the least ``first_seen_run`` and ``left_as`` of its rows.

    The native times are those of both halves: the start from the one, the end from the other.
    """

    start: NullableInts
    end: NullableInts
    first_seen: NullableInts
    left_as: Column

    def take(self, rows: Ints) -> MergedSide:
        """Return some of the events."""
        numbers = {name: getattr(self, name).take(rows) for name in ("start", "end", "first_seen")}
        return MergedSide(**numbers, left_as=take_rows(self.left_as, rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One row per event: first of each message, kind and identity, and later of each canonical key.

    ``level`` is 1 where both sides met at their full identity, 2 or 3 where they were paired, 0 on one side only. By
    part there are the input row kept (-1 for none), how many records it has, and how many differ in bytes or content.
    """

    message: Ints
    kind: Ints
    any_row: Ints
    is_full: Mask
    level: Ints
    rows: Ints
    records: Ints
    versions: Ints
    contents: Ints
    native: MergedSide
    otlp: MergedSide

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def start(self) -> NullableInts:
        """When each event began, by its native record, else by its span."""
        return self.native.start.coalesce(self.otlp.start)

    @property
    def end(self) -> NullableInts:
        """When each event ended, by its native record, else by its span."""
        return self.native.end.coalesce(self.otlp.end)

    @property
    def on_native(self) -> Mask:
        """Which events have a native record."""
        return np.asarray((self.rows[:, _NATIVE] >= 0).any(axis=1))

    @property
    def on_otlp(self) -> Mask:
        """Which events have a span."""
        return np.asarray(self.rows[:, OTLP] >= 0)

    def native_rows(self) -> list[Ints]:
        """Return the input rows of the native parts, best first, missing ones last."""
        return self._rows_of(_NATIVE)

    def span_rows(self) -> list[Ints]:
        """Return the input rows of the spans, first halves before second ones."""
        return self._rows_of(_SPANS)

    def _rows_of(self, parts: slice) -> list[Ints]:
        rows = self.rows[:, parts]
        rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
        first, *others = (np.ascontiguousarray(column) for column in rows.T)
        return [first, *(column for column in others if (column >= 0).any())]

    def take(self, rows: Ints, spans: Ints | None = None) -> Merged:
        """Return some of the events; ``spans`` are those whose span they have, by default their own."""
        spans = rows if spans is None else spans
        parts = {name: getattr(self, name)[rows] for name in ("rows", "records", "versions", "contents")}
        for name, of_part in parts.items():
            of_part[:, _SPANS] = getattr(self, name)[spans, _SPANS]
        whole = {name: getattr(self, name)[rows] for name in ("message", "kind", "any_row", "is_full", "level")}
        return Merged(**whole, **parts, native=self.native.take(rows), otlp=self.otlp.take(spans))


def merge_records(given: Input) -> tuple[Merged, Ints]:
    """Return the events of a bucket, and of each row the number of its event."""
    identities = int(given.identity_of.max(initial=0)) + 1
    parts = ((given.message_of, given.messages), (given.kinds, len(KINDS)), (given.identity_of, identities))
    # 32 bits: these are held of every row until the last verdict is made.
    any_row, group_of = (each.astype(np.int32) for each in find_groups(join_codes(*parts)))
    part_of = _part_of(given, group_of, len(any_row))
    slot_of = group_of * _PARTS + part_of
    slots = len(any_row) * _PARTS
    records = np.bincount(slot_of, minlength=slots).astype(np.int32)
    kept = np.full(slots, -1, np.int32)
    kept[slot_of] = np.arange(len(slot_of), dtype=np.int32)
    different_bytes, different_values = records.copy(), records.copy()
    several = np.flatnonzero(records[slot_of] > 1)
    if len(several):
        _choose_among_copies(given.events, several, slot_of, kept)
        _count_versions(given.events, several, slot_of, different_bytes, different_values)
    is_full = np.ones(len(any_row), bool)
    is_full[group_of[~has_full_key(given.events, given.kinds)]] = False
    counts = {"rows": kept, "records": records, "versions": different_bytes, "contents": different_values}
    shaped: dict[str, Any] = {name: found.reshape(len(any_row), _PARTS) for name, found in counts.items()}
    merged = Merged(
        message=given.message_of[any_row],
        kind=given.kinds[any_row],
        any_row=any_row,
        is_full=is_full,
        level=np.zeros(len(any_row), np.int32),
        **shaped,
        **_merge_sides(given, group_of, shaped["rows"], shaped["records"]),
    )
    return merged, group_of


def _part_of(given: Input, group_of: Ints, groups: int) -> Ints:
    parts = np.where(given.is_native, WHOLE, OTLP).astype(np.int8)
    before, after = (is_equal(given.events["half"], half) for half in ("before", "after"))
    parts[given.is_native & before] = BEFORE
    parts[given.is_native & after] = AFTER
    late = ~given.is_native & after
    if late.any():
        first, whole = (mark(groups, group_of[~given.is_native & of_half]) for of_half in (before, ~(before | after)))
        parts[late & (first & ~whole)[group_of]] = _LATE
    return parts


def _choose_among_copies(events: Mapping[str, Column], several: Ints, slot_of: Ints, kept: Ints) -> None:
    """Put into ``kept`` the earliest of the rows that share a slot."""
    start, end, arrival = (NullableInts.of(take_rows(events[name], several)) for name in _TIMES)
    order = np.lexsort(
        (
            *(_null_first(take_rows(events[name], several)) for name in ("record_index", "line")),
            rank_texts(take_rows(events["path"], several)),
            arrival.filled(LATEST),
            _null_first(take_rows(events["raw_hash"], several)),
            start.coalesce(end).filled(LATEST),
            slot_of[several],
        )
    )
    rows = several[order]
    rows = rows[begins_run(slot_of[rows])]
    kept[slot_of[rows]] = rows


def _null_first(column: Column) -> Ints:
    return NullableInts.of(column).filled(np.iinfo(np.int64).min)


def _count_versions(
    events: Mapping[str, Column], several: Ints, slot_of: Ints, different_bytes: Ints, different_values: Ints
) -> None:
    hashes = encode(take_rows(events["raw_hash"], several).fill_null(0))
    contents = [encode(as_scalars(take_rows(events[name], several))) for name in COMPARED_FIELDS]
    _, value_of = find_groups(join_codes(*((one.values, one.room) for one in contents)))
    slots, slot_code = np.unique(slot_of[several], return_inverse=True)
    for counts, codes in ((different_bytes, hashes.values), (different_values, value_of)):
        pairs = np.unique(slot_code * (int(codes.max()) + 1) + codes)
        counts[slots] = np.bincount(pairs // (int(codes.max()) + 1), minlength=len(slots))


def count_records(merged: Merged) -> dict[str, Ints]:
    """Return ``COUNTS`` of each event."""
    counts: dict[str, Ints] = {"half_merged": np.zeros(len(merged), np.int32)}
    for side, parts in (("native", _NATIVE), ("otlp", _SPANS)):
        records, versions = (np.ascontiguousarray(one[:, parts].T) for one in (merged.records, merged.versions))
        counts |= {
            f"{side}_count": records.max(axis=0),
            f"{side}_records": records.sum(axis=0, dtype=np.int32),
            f"{side}_exact_duplicates": (records - versions).sum(axis=0, dtype=np.int32),
            f"{side}_other_duplicates": np.maximum(versions - 1, 0).sum(axis=0, dtype=np.int32),
        }
        counts["half_merged"] += np.maximum((records > 0).sum(axis=0, dtype=np.int32) - 1, 0)
    return counts


def _merge_sides(given: Input, group_of: Ints, rows: Ints, records: Ints) -> dict[str, Any]:
    """Return both sides; the time of a missing native half is computed from that of the other one and the cost."""
    events, runs = given.events, NullableInts.of(given.events["first_seen_run"])
    native, spans = ([rows[:, part] for part in parts] for parts in ((BEFORE, AFTER, WHOLE), (OTLP, _LATE)))

    def of_native(name: str) -> NullableInts:
        return NullableInts.of(coalesce_rows(events[name], native))

    def of_span(name: str) -> NullableInts:
        return NullableInts.of(coalesce_rows(events[name], spans))

    start, end = of_native("start_ms"), of_native("end_ms")
    sizes = of_native("batch_size").coalesce(of_span("batch_size")).coalesce(NullableInts.constant(1))
    elapsed = of_native("cost_ms") * sizes
    computed_end = (start + elapsed).where(records[:, AFTER] > 0)

    def make_side(on_side: Mask, start: NullableInts, end: NullableInts) -> MergedSide:
        first_seen = least_per_group(group_of, len(rows), runs.where(on_side))
        left_as = events["left_as"].filter(pa.array(on_side))
        left_as = least_text_per_group(group_of[on_side], len(rows), left_as)
        return MergedSide(start=start, end=end, first_seen=first_seen, left_as=left_as)

    return {
        "native": make_side(given.is_native, start.coalesce(end - elapsed), end.coalesce(computed_end)),
        "otlp": make_side(~given.is_native, of_span("start_ms"), of_span("end_ms")),
    }


class Sides:
    """Both sides of some events; a field is null where its side is absent."""

    def __init__(self, events: Mapping[str, Column], merged: Merged) -> None:
        self.kind, self.on_native, self.on_otlp = merged.kind, merged.on_native, merged.on_otlp
        self._events = events
        self._rows = {"native": merged.native_rows(), "otlp": merged.span_rows()}
        self._first = {side: index_rows(rows[0]) for side, rows in self._rows.items()}
        self._known: dict[tuple[str, str], Column] = {}
        for side, of_side in (("native", merged.native), ("otlp", merged.otlp)):
            numbers = {"start_ms": of_side.start, "end_ms": of_side.end, "first_seen_run": of_side.first_seen}
            self._known |= {(side, name): known.to_arrow(SIDE_FIELDS[name]) for name, known in numbers.items()}
            self._known[side, "left_as"] = of_side.left_as

    def __len__(self) -> int:
        return len(self.kind)

    def native(self, name: str) -> Column:
        """Return a field of the native side: the start of the first half, the outcome of the second."""
        return self._read("native", name)

    def has_native(self, name: str) -> Mask:
        """Return which native records hold a time; that of others is computed from the other end and the cost."""
        return is_known(coalesce_rows(self._events[name], self._rows["native"], self._first["native"]))

    def otlp(self, name: str) -> Column:
        """Return a field of the span, as of the native side where that is two halves."""
        return self._read("otlp", name)

    def _read(self, side: str, name: str) -> Column:
        if (side, name) not in self._known:
            column, rows = self._events[name], self._rows[side]
            if name == "arrival_ms":
                found = maximum(*(NullableInts.of(take_rows(column, part)) for part in rows)).to_arrow()
            else:
                found = coalesce_rows(column, rows, self._first[side])
            self._known[side, name] = found.cast(SIDE_FIELDS[name])
        return self._known[side, name]

    def either(self, name: str) -> Column:
        """Return a field of the native side, of the span where that has none."""
        native = self.native(name)
        return pc.coalesce(native, self.otlp(name)) if native.null_count else native
