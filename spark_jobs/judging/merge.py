"""Merge the halves of one event and count its copies.

Of one identity an **exact** copy has the same ``raw_hash``, an **equivalent** one the same content in other bytes, a
**conflicting** one other content. The earliest record is kept, ties broken by hash, arrival and position, never by row
order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import encode, find_groups, index_rows, join_codes, take_rows
from spark_jobs.judging.columns import LATEST, NullableInts, coalesce_rows, equals, least_per_group, rank_words
from spark_jobs.judging.identity import KINDS, has_full_key
from spark_jobs.schemas import COMPARED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column, Ints, Mask

BEFORE, AFTER, WHOLE, OTLP = range(4)
"""The parts of an event: the halves of a native delivery, a whole native record, a span."""
_PARTS: Final = 4
_NATIVE: Final = slice(BEFORE, OTLP)
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
class Merged:
    """One row per message, kind and identity. ``rows`` has a column per part: the input row kept, -1 for none.

    ``counts`` are ``COUNTS``; ``first_seen`` and ``left_as`` (ranks of ``left_words``) are the least of each side's.
    The native times are those of both halves: the start from the one, the end from the other.
    """

    group_of: Ints
    message: Ints
    kind: Ints
    any_row: Ints
    rows: Ints
    records: Ints
    counts: Mapping[str, Ints]
    is_full: Mask
    is_conflicting: Mask
    is_equivalent: Mask
    first_seen: Mapping[str, NullableInts]
    left_as: Mapping[str, NullableInts]
    left_words: tuple[str, ...]
    native_start: NullableInts
    native_end: NullableInts
    otlp_start: NullableInts
    otlp_end: NullableInts

    def native_rows(self, groups: Ints) -> list[Ints]:
        """Return the input rows of the native parts of ``groups`` (-1 for no group), best first, missing ones last."""
        rows = np.where((groups >= 0)[:, None], self.rows[groups, _NATIVE], -1)
        rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
        first, *others = (np.ascontiguousarray(column) for column in rows.T)
        return [first, *(column for column in others if (column >= 0).any())]

    def otlp_rows(self, groups: Ints) -> Ints:
        """Return the input rows of the spans of ``groups`` (-1 for no group)."""
        return np.where(groups >= 0, self.rows[groups, OTLP], -1)


def merge_records(given: Input) -> Merged:
    """Return the merged rows of a bucket."""
    identities = int(given.identity_of.max(initial=0)) + 1
    parts = ((given.message_of, given.messages), (given.kinds, len(KINDS)), (given.identity_of, identities))
    # 32 bits: these are held of every row until the last verdict is made.
    any_row, group_of = (each.astype(np.int32) for each in find_groups(join_codes(*parts)))
    part_of = _part_of(given)
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
    shape = (len(any_row), _PARTS)
    rows, records, versions = kept.reshape(shape), records.reshape(shape), different_bytes.reshape(shape)
    is_full = np.ones(len(any_row), bool)
    is_full[group_of[~has_full_key(given.events, given.kinds)]] = False
    values = different_values.reshape(shape)
    left_words, left_ranks = _rank_left_as(given.events["left_as"])
    first_seen = NullableInts.of(given.events["first_seen_run"])
    sides = {"native": given.is_native, "otlp": ~given.is_native}
    return Merged(
        group_of=group_of,
        message=given.message_of[any_row],
        kind=given.kinds[any_row],
        any_row=any_row,
        rows=rows,
        records=records,
        counts=_count(records, versions),
        is_full=is_full,
        is_conflicting=np.asarray((values > 1).any(axis=1)),
        is_equivalent=np.asarray(((versions > 1) & (values == 1)).any(axis=1)),
        first_seen={side: least_per_group(group_of, len(any_row), first_seen.where(on)) for side, on in sides.items()},
        left_as={side: least_per_group(group_of, len(any_row), left_ranks.where(on)) for side, on in sides.items()},
        left_words=left_words,
        **_merge_times(given.events, rows, records),
    )


def _part_of(given: Input) -> Ints:
    parts = np.where(given.is_native, WHOLE, OTLP).astype(np.int8)
    parts[given.is_native & equals(given.events["half"], "before")] = BEFORE
    parts[given.is_native & equals(given.events["half"], "after")] = AFTER
    return parts


def _choose_among_copies(events: Mapping[str, Column], several: Ints, slot_of: Ints, kept: Ints) -> None:
    """Put into ``kept`` the earliest of the rows that share a slot."""
    start, end, arrival = (NullableInts.of(take_rows(events[name], several)) for name in _TIMES)
    paths = encode(take_rows(events["path"], several))
    order = np.lexsort(
        (
            *(_null_first(take_rows(events[name], several)) for name in ("record_index", "line")),
            rank_words(paths.words)[paths.values],
            arrival.filled(LATEST),
            _null_first(take_rows(events["raw_hash"], several)),
            start.coalesce(end).filled(LATEST),
            slot_of[several],
        )
    )
    rows = several[order]
    slots = slot_of[rows]
    is_first = np.r_[True, slots[1:] != slots[:-1]]
    kept[slots[is_first]] = rows[is_first]


def _null_first(column: Column) -> Ints:
    return NullableInts.of(column).filled(np.iinfo(np.int64).min)


def _count_versions(
    events: Mapping[str, Column], several: Ints, slot_of: Ints, different_bytes: Ints, different_values: Ints
) -> None:
    hashes = encode(take_rows(events["raw_hash"], several).fill_null(0))
    contents = [encode(_as_scalar(take_rows(events[name], several))) for name in COMPARED_FIELDS]
    _, value_of = find_groups(join_codes(*((one.values, one.room) for one in contents)))
    slots, slot_code = np.unique(slot_of[several], return_inverse=True)
    for counts, codes in ((different_bytes, hashes.values), (different_values, value_of)):
        pairs = np.unique(slot_code * (int(codes.max()) + 1) + codes)
        counts[slots] = np.bincount(pairs // (int(codes.max()) + 1), minlength=len(slots))


def _as_scalar(column: Column) -> Column:
    return pc.binary_join(column, "\x00") if pa.types.is_list(column.type) else column


def _rank_left_as(column: Column) -> tuple[tuple[str, ...], NullableInts]:
    codes = encode(column)
    ranks = rank_words(codes.words)[codes.values]
    return tuple(sorted(codes.words)), NullableInts(ranks, ranks >= 0)


def _count(records: Ints, versions: Ints) -> dict[str, Ints]:
    native, native_versions = records[:, _NATIVE], versions[:, _NATIVE]
    spans, span_versions = records[:, OTLP], versions[:, OTLP]
    return {
        "native_count": native.max(axis=1),
        "native_records": native.sum(axis=1, dtype=np.int32),
        "native_exact_duplicates": (native - native_versions).sum(axis=1, dtype=np.int32),
        "native_other_duplicates": np.maximum(native_versions - 1, 0).sum(axis=1, dtype=np.int32),
        "half_merged": np.maximum((native > 0).sum(axis=1, dtype=np.int32) - 1, 0),
        "otlp_count": spans,
        "otlp_records": spans,
        "otlp_exact_duplicates": spans - span_versions,
        "otlp_other_duplicates": np.maximum(span_versions - 1, 0),
    }


def _merge_times(events: Mapping[str, Column], rows: Ints, records: Ints) -> dict[str, NullableInts]:
    """Return start and end per side; a missing native half is computed from the other one and the cost."""
    native, spans = [rows[:, part] for part in (BEFORE, AFTER, WHOLE)], index_rows(rows[:, OTLP])

    def of_native(name: str) -> NullableInts:
        return NullableInts.of(coalesce_rows(events[name], native))

    def of_span(name: str) -> NullableInts:
        return NullableInts.of(take_rows(events[name], spans))

    start, end = of_native("start_ms"), of_native("end_ms")
    one = NullableInts.constant(len(rows), 1)
    elapsed = of_native("cost_ms") * of_native("batch_size").coalesce(of_span("batch_size")).coalesce(one)
    return {
        "native_start": start.coalesce(end - elapsed),
        "native_end": end.coalesce((start + elapsed).where(records[:, AFTER] > 0)),
        "otlp_start": of_span("start_ms"),
        "otlp_end": of_span("end_ms"),
    }
