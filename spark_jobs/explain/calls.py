"""Deliveries that RocketMQ leaves out because of their message, or because of what else was in the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_jobs.judging.columns import encode, find_groups, is_known, join_codes
from spark_jobs.policy.profiles import CALL_WITHOUT_REGION, TRACE_OFF

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from spark_jobs.explain.answered import AnsweredRows
    from spark_jobs.judging.columns import Column, Mask

__all__ = ["find_calls_without_region", "find_unrecorded_messages", "has_several_groups"]


def find_calls_without_region(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return 1 for deliveries of a call without any native record whose last message was sent in a batch.

    Clients since 5.3.1 group trace records by region, which they take from the last message of the call. Messages that
    were sent in a batch have none, and a record without a region is dropped. Where several messages are the last of a
    call, all of them must have been sent in a batch.
    """
    if not rows.holds(CALL_WITHOUT_REGION):
        return rows.none().astype(np.int8)
    call = rows.hear("span")
    is_closed_by_batch = call.has_none("native") & call.has_none("place_recorded")
    return (rows.is_lost_delivery & is_closed_by_batch & rows.may_concern(CALL_WITHOUT_REGION)).astype(np.int8)


def find_unrecorded_messages(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return 1 for deliveries of messages that no group recorded, in groups that do record others.

    Clients before 5 pass over messages with the property ``TRACE_ON=false`` when they are consumed, and only then. The
    property itself is in no record. So one group is not enough to tell it from a loss (``has_several_groups``), nor
    are several in whose line of messages the next one is missing too (``gaps``). Of a group that records no delivery
    at all the absence says nothing.
    """
    if not rows.holds(TRACE_OFF):
        return rows.none().astype(np.int8)
    is_unrecorded = rows.hear("message").has_none("native_deliveries") & (rows.hear("name").count("native") > 0)
    return (rows.is_lost_delivery & is_unrecorded & rows.may_concern(TRACE_OFF)).astype(np.int8)


def has_several_groups(residue: Mapping[str, Column], is_unrecorded: Mask) -> Mask:
    """Tell which of the unrecorded deliveries are of a message that others in other groups are of, too."""
    rows = np.flatnonzero(is_unrecorded & is_known(residue["msg_id"]) & is_known(residue["group"]))
    found = np.zeros(len(is_unrecorded), bool)
    if len(rows):
        messages, groups = (encode(residue[name].take(pa.array(rows))) for name in ("msg_id", "group"))
        pairs, _ = find_groups(join_codes((messages.values, messages.room), (groups.values, groups.room)))
        groups_of = np.bincount(messages.values[pairs], minlength=messages.room)
        found[rows] = groups_of[messages.values] > 1
    return found
