"""Loss groups: unexplained rows as a few counts for a budget, and which rows of a group it covers.

A group shares the side that lost, service, group, process and time. Within a group the earliest keys are covered
first, and of equal times those with the least hash.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.columns import apply_to_distinct, is_true
from spark_jobs.explain.drop_budget import CELL_MS, Loss, LossGroup
from spark_jobs.explain.keys import own_field
from spark_jobs.judging.columns import LATEST, NullableInts
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.explain.drop_budget import Allocation

MOST_GROUPS: Final = 50_000
"""The keys of groups beyond the largest ones stay unexplained, which is the stricter verdict."""

_MOST_STRETCHES: Final = 200  # beyond it, all cells from the first to the last are distinguished
_ID_DIGITS: Final = (32, 56)  # RocketMQ's unique ids, with an address of IPv4 or IPv6
_TAIL_DIGITS: Final = 24  # process id and what follows it
# Java's $ also matches before a final line end: it makes no difference.
_HEX: Final = re.compile(r"[0-9A-Fa-f]+(?:\r\n|[\n\r\u0085\u2028\u2029])?")
_HASHED: Final = ("kind", "msg_id", "group", "attempt_id", "native.raw_hash", "otlp.raw_hash", "event_ms")


class GroupedRows(NamedTuple):
    """Rows by loss group: the distinct groups, each row's place among them, and when each event was over."""

    groups: Sequence[LossGroup]
    group_of: Ints
    when_ms: NullableInts


def group_residue(rows: Mapping[str, Column], near: Sequence[range] = ()) -> GroupedRows:
    """Return the loss groups of ``RESIDUE`` rows; keys outside the cells of ``near`` are grouped without their time."""
    lost = pa.array(np.where(is_true(rows["on_native"]), "otlp", "native"))
    columns = {name: own_field(rows, name) for name in ("service", "group_name", "start_ms", "end_ms")}
    return group_rows(lost, rows, columns, near)


def group_rows(
    lost: Column, rows: Mapping[str, Column], own: Mapping[str, Column], near: Sequence[range]
) -> GroupedRows:
    """Return the loss groups of rows, each with the side that ``lost`` it.

    ``rows`` are ``kind``, ``msg_id`` and ``attempt_id`` of each, ``own`` are ``service``, ``group_name``, ``start_ms``
    and ``end_ms`` of the other side's record.
    """
    when_ms = NullableInts.of(own["end_ms"]).believable().coalesce(NullableInts.of(own["start_ms"]).believable())
    cells = when_ms.values // CELL_MS
    cell = NullableInts(cells, when_ms.known & _is_inside(cells, near)).to_arrow()
    made = [_process_in(*row) for row in zip(*(rows[name].to_pylist() for name in _OF_PROCESS), strict=True)]
    process = pa.array(made, pa.string())
    groups, group_of = apply_to_distinct(LossGroup, lost, own["service"], own["group_name"], process, cell)
    return GroupedRows(groups, group_of, when_ms)


def _is_inside(cells: Ints, near: Sequence[range]) -> Mask:
    stretches = near if len(near) <= _MOST_STRETCHES else [range(near[0].start, near[-1].stop)]
    inside = np.zeros(len(cells), bool)
    for stretch in stretches:
        inside |= (cells >= stretch.start) & (cells < stretch.stop)
    return inside


_OF_PROCESS: Final = ("kind", "msg_id", "attempt_id")


def _process_in(kind: str, msg_id: str | None, attempt_id: str | None) -> str | None:
    """Return the process id in the id that the losing process generated: a send's message id, a delivery's request."""
    made = {Kind.PUBLISH.value: msg_id, Kind.CONSUME.value: attempt_id}.get(kind)
    if made is None or len(made) not in _ID_DIGITS or not _HEX.fullmatch(made):
        return None
    begin = len(made) - _TAIL_DIGITS
    return made[begin : begin + 4].upper()


def count_losses(
    grouped: GroupedRows,
    is_open: Mask,
    lost_ends: Mapping[LossGroup, int],
    services_of: Mapping[str | None, frozenset[str]],
) -> list[Loss]:
    """Return the largest ``MOST_GROUPS`` groups of the open keys as losses.

    ``lost_ends`` are deliveries by group whose native end alone is lost; they come first, and their drops are used.
    ``services_of`` are the services that spans show for a native record's group.
    """
    counts = np.bincount(grouped.group_of[is_open], minlength=len(grouped.groups)).tolist()
    found = [(False, -count, of.name, of) for of, count in zip(grouped.groups, counts, strict=True) if count]
    found += [(True, -count, of.name, of) for of, count in lost_ends.items()]
    return [
        Loss(of, -count, services_of.get(of.group) if of.service is None else frozenset({of.service}), known)
        for known, count, _, of in sorted(found, key=lambda each: (not each[0], *each[1:3]))[:MOST_GROUPS]
    ]


def choose_rows(
    rows: Mapping[str, Column], grouped: GroupedRows, is_open: Mask, allocations: Iterable[Allocation]
) -> list[tuple[int, str]]:
    """Return the covered rows of ``RESIDUE``, each with the cause, from ``allocations`` of keys by loss group."""
    by_group: defaultdict[LossGroup, list[Allocation]] = defaultdict(list)
    for allocation in allocations:
        by_group[allocation.group].append(allocation)
    wanted = {place: by_group[group] for place, group in enumerate(grouped.groups) if group in by_group}
    chosen = np.flatnonzero(is_open & np.isin(grouped.group_of, list(wanted)))
    when_ms, group_of = grouped.when_ms.take(chosen), grouped.group_of[chosen]
    order = chosen[np.lexsort((when_ms.filled(LATEST), ~when_ms.known, group_of))]
    found: list[tuple[int, str]] = []
    for members in np.split(order, np.flatnonzero(np.diff(grouped.group_of[order])) + 1):
        if len(members):
            allocated = wanted[int(grouped.group_of[members[0]])]
            found += _choose_members(rows, grouped.when_ms, members.tolist(), allocated)
    return found


def _choose_members(
    rows: Mapping[str, Column], when_ms: NullableInts, members: list[int], allocations: Sequence[Allocation]
) -> Iterator[tuple[int, str]]:
    """Yield the covered ones of a group's rows, which are in order but for equal times."""
    bounds = list(accumulate(each.count for each in allocations))
    times = [int(when_ms.values[row]) if when_ms.known[row] else None for row in members]
    for bound in bounds:
        if 0 < bound < len(members) and times[bound - 1] == times[bound]:
            begin, end = times.index(times[bound]), len(times) - times[::-1].index(times[bound])
            members[begin:end] = sorted(
                members[begin:end], key=lambda row: spark_hash(*(rows[name][row].as_py() for name in _HASHED))
            )
    for each, begin, end in zip(allocations, [0, *bounds], bounds, strict=False):
        for row in members[begin:end]:
            yield row, each.cause


# -- Spark's xxhash64 of a row: XXH64 chained over the columns. It decides between keys of equal times ----------------
# Algorithm: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
_SEED: Final = 42
_BITS: Final = (1 << 64) - 1
_PRIMES: Final = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_STRIPE, _WORD, _HALF = 32, 8, 4


def spark_hash(*values: str | int | None) -> int:
    """Return Spark's ``xxhash64`` of strings and longs, as a signed 64-bit integer; nulls are skipped."""
    found = _SEED
    for value in values:
        if value is not None:
            data = value.encode() if isinstance(value, str) else (value & _BITS).to_bytes(_WORD, "little")
            found = _xxh64(data, found)
    return found - (1 << 64) if found >> 63 else found


def _xxh64(data: bytes, seed: int) -> int:
    one, two, three, four, five = _PRIMES
    stripes, words = (len(data) // size * size for size in (_STRIPE, _WORD))
    found = _hash_stripes(data[:stripes], seed) if stripes else seed + five
    found = found + len(data) & _BITS
    for place in range(stripes, words, _WORD):
        found = _rotate(found ^ _round(0, data[place : place + _WORD]), 27) * one + four & _BITS
    if len(data) - words >= _HALF:
        half = int.from_bytes(data[words : words + _HALF], "little")
        found = _rotate(found ^ (half * one & _BITS), 23) * two + three & _BITS
        words += _HALF
    for byte in data[words:]:
        found = _rotate(found ^ (byte * five & _BITS), 11) * one & _BITS
    found = (found ^ found >> 33) * two & _BITS
    found = (found ^ found >> 29) * three & _BITS
    return found ^ found >> 32


def _hash_stripes(data: bytes, seed: int) -> int:
    one, two, _, four, _ = _PRIMES
    lanes = [seed + one + two & _BITS, seed + two & _BITS, seed, seed - one & _BITS]
    for place in range(0, len(data), _WORD):
        lane = place // _WORD % len(lanes)
        lanes[lane] = _round(lanes[lane], data[place : place + _WORD])
    found = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _BITS
    for value in lanes:
        found = (found ^ _round(0, value.to_bytes(_WORD, "little"))) * one + four & _BITS
    return found


def _round(lane: int, word: bytes) -> int:
    return _rotate(lane + int.from_bytes(word, "little") * _PRIMES[1] & _BITS, 31) * _PRIMES[0] & _BITS


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _BITS
