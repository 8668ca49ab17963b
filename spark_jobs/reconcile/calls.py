"""This module knows which deliveries RocketMQ leaves out because of their message, or of what else was in the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.profiles import CALL_WITHOUT_REGION, TRACE_OFF
from spark_jobs.reconcile.testimony import heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.reconcile.policy import Policy

__all__ = ["call_without_region", "trace_switched_off"]


def call_without_region(policy: Policy) -> Column:
    """Return the rule's name where a call has no native record and its last message was sent in a batch.

    Clients since 5.3.1 group trace records by region, which they take from the last message of the call; messages that
    were sent in a batch have none, and a record without a region is dropped.
    """
    if not CALL_WITHOUT_REGION.holds(policy.profile.name, policy.native_writer):
        return F.lit(None).cast("string")
    whole = heard("span", "native") == 0
    return F.when(_is_lost_delivery() & heard("span", "closing") & whole, CALL_WITHOUT_REGION.rule)


def trace_switched_off(policy: Policy) -> Column:
    """Return the rule's name where nobody recorded a delivery of a message that several groups had.

    Clients before 5 pass over messages with the property ``TRACE_ON=false`` when they are consumed, and only then. The
    property itself is in no record, so one group is not enough to tell it from a loss.
    """
    if not TRACE_OFF.holds(policy.profile.name, policy.native_writer):
        return F.lit(None).cast("string")
    # Groups that record others' deliveries: of one that records none the absence says nothing.
    recording = F.when(_is_lost_delivery() & (heard("name", "native") > 0), F.col("group"))
    message = Window.partitionBy("msg_id")
    several = F.min(recording).over(message) < F.max(recording).over(message)
    unrecorded = recording.isNotNull() & (heard("message", "native_deliveries") == 0)
    return F.when(F.col("msg_id").isNotNull() & unrecorded & several, TRACE_OFF.rule)


def _is_lost_delivery() -> Column:
    return (F.col("status") == Status.OTLP_ONLY.value) & (F.col("kind") == Kind.CONSUME.value)
