"""This module knows which deliveries RocketMQ leaves out because of their message, or of what else was in the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.profiles import parse_native_writer
from spark_jobs.reconcile.testimony import heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.reconcile.policy import Policy

__all__ = ["CALL_WITHOUT_REGION", "TRACE_OFF", "call_without_region", "trace_switched_off"]

CALL_WITHOUT_REGION: Final = "rocketmq_records_no_call_that_ends_with_a_batch_sent_message"
TRACE_OFF: Final = "rocketmq_4_records_no_delivery_of_messages_with_trace_off"
"""The rules' names in ``reason_detail``."""

_SINCE: Final = (5, 3, 1)
_UNTIL: Final = (5,)


def call_without_region(policy: Policy) -> Column:
    """Return ``CALL_WITHOUT_REGION`` where a call has no native record and its last message was sent in a batch.

    Clients since 5.3.1 group trace records by region, which they take from the last message of the call; messages that
    were sent in a batch have none, and a record without a region is dropped.
    """
    version = _version(policy)
    if version is None or (version and version < _SINCE):
        return F.lit(None).cast("string")
    return F.when(_is_lost_delivery() & heard("span", "closing") & (heard("span", "native") == 0), CALL_WITHOUT_REGION)


def trace_switched_off(policy: Policy) -> Column:
    """Return ``TRACE_OFF`` where no delivery of a message was recorded by anybody, although several groups had it.

    Clients before 5 pass over messages with the property ``TRACE_ON=false`` when they are consumed, and only then. The
    property itself is in no record, so one group is not enough to tell it from a loss.
    """
    version = _version(policy)
    if not version or version >= _UNTIL:
        return F.lit(None).cast("string")
    several = heard("message", "one_group") < heard("message", "other_group")
    return F.when(_is_lost_delivery() & (heard("message", "native_deliveries") == 0) & several, TRACE_OFF)


def _is_lost_delivery() -> Column:
    return (F.col("status") == Status.OTLP_ONLY.value) & (F.col("kind") == Kind.CONSUME.value)


def _version(policy: Policy) -> tuple[int, ...] | None:
    """Return the version of RocketMQ's client, empty for the newest; ``None`` where another writer made the records."""
    name, version = parse_native_writer(policy.native_writer) or ("", ())
    return version if name == "rocketmq" else None
