"""Losses that are perhaps none: a record, and a span without an id that may be its pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.judging.columns import NullableInts, encode, equals, find_groups, is_known, is_true, join_codes
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = ["find_nameless", "is_beside_nameless"]


def find_nameless(msg_ids: Column, on_native: Mask) -> npt.NDArray[np.int8]:
    """Return 1 for keys that may be one half of a pair without a common id: native records, and spans without one."""
    return (~is_known(msg_ids) | on_native).astype(np.int8)


def is_beside_nameless(residue: Mapping[str, Column], tolerance_ms: int) -> Mask:
    """Tell around which residue keys spans without an id are at least as many as native records.

    Those are of one topic (or group) and kind, and start within the tolerance. Where there are fewer spans than
    records, some are lost for certain and all stay unexplained.

    Args:
        residue: columns of the whole residue.
        tolerance_ms: by how much two starts of one event may differ.
    """
    is_consume = equals(residue["kind"], Kind.CONSUME.value)
    is_named = is_consume | equals(residue["kind"], Kind.PUBLISH.value)
    name = pc.if_else(pa.array(is_consume), residue["group"], residue["topic"])
    near_ms = NullableInts.of(residue["event_ms"]).believable()
    rows = np.flatnonzero(is_named & is_known(name) & near_ms.known)
    kinds, names = encode(residue["kind"]), encode(name)
    _, group_of = find_groups(join_codes((kinds.values, kinds.room), (names.values, names.room))[rows])
    nameless, lonely = ~is_known(residue["msg_id"])[rows], is_true(residue["on_native"])[rows]
    return _spread(rows, _is_matched(group_of, near_ms.values[rows], nameless, lonely, tolerance_ms), len(is_named))


def _is_matched(groups: Ints, near_ms: Ints, nameless: Mask, lonely: Mask, tolerance_ms: int) -> Mask:
    """Tell around which rows of a group are at least as many nameless as lonely, ``tolerance_ms`` before to behind."""
    found = np.zeros(len(groups), bool)
    order = np.lexsort((near_ms, groups))
    bounds = np.flatnonzero(np.diff(groups[order])) + 1
    for rows in np.split(order, bounds):
        times = near_ms[rows]
        first = np.searchsorted(times, times - tolerance_ms, side="left")
        behind = np.searchsorted(times, times + tolerance_ms, side="right")
        sums = [np.concatenate([[0], np.cumsum(mask[rows])]) for mask in (nameless, lonely)]
        without_id, records = (total[behind] - total[first] for total in sums)
        found[rows] = (without_id >= records) & (records > 0)
    return found


def _spread(rows: Ints, values: Mask, length: int) -> Mask:
    mask = np.zeros(length, bool)
    mask[rows] = values
    return mask
