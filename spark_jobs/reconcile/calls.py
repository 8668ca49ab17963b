"""This module knows which deliveries RocketMQ leaves out because of their message, or of what else was in the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import believable
from spark_jobs.reconcile.profiles import CALL_WITHOUT_REGION, TRACE_OFF
from spark_jobs.reconcile.testimony import heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.policy import Policy

__all__ = ["call_without_region", "trace_switched_off", "within_gaps"]

_LINE_MS: Final = 3_600_000  # of one group's time is put in order by one task


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
    property itself is in no record, so one group is not enough to tell it from a loss; nor are several in whose line
    of messages the next one is missing too (``within_gaps``).
    """
    if not TRACE_OFF.holds(policy.profile.name, policy.native_writer):
        return F.lit(None).cast("string")
    # Groups that record others' deliveries: of one that records none the absence says nothing.
    recording = F.when(_is_lost_delivery() & (heard("name", "native") > 0), F.col("group"))
    # Rows without an id are asked for nothing: each apart, since one task would take all that share a null.
    row = F.xxhash64("kind", "event_ms", F.col("otlp")["raw_hash"], F.col("native")["raw_hash"]).cast("string")
    message = Window.partitionBy(F.coalesce("msg_id", row))
    several = F.min(recording).over(message) < F.max(recording).over(message)
    unrecorded = recording.isNotNull() & (heard("message", "native_deliveries") == 0)
    in_a_gap = F.coalesce(F.max("is_in_gap").over(message), F.lit(False))
    return F.when(F.col("msg_id").isNotNull() & unrecorded & several & ~in_a_gap, TRACE_OFF.rule)


def within_gaps(residue: DataFrame, verdicts: DataFrame, policy: Policy) -> DataFrame:
    """Return ``residue`` with ``is_in_gap``: true where the message its group had just before or after is missing too.

    That is how an outage looks, whatever was switched off. Only the deliveries of groups with a lost one are read, and
    only where ``trace_switched_off`` asks.
    """
    if not TRACE_OFF.holds(policy.profile.name, policy.native_writer):
        return residue.withColumn("is_in_gap", F.lit(False))
    groups = residue.where(_is_lost_delivery()).select("group").distinct()
    delivered = verdicts.where((F.col("kind") == Kind.CONSUME.value) & F.col("msg_id").isNotNull())
    messages = (
        delivered.join(groups, "group", "left_semi")
        .groupBy("group", "msg_id")
        .agg(F.min(believable(F.col("event_ms"))).alias("at_ms"), F.max(F.col("native").isNotNull()).alias("recorded"))
    )
    line = Window.partitionBy("group", F.floor(F.col("at_ms") / _LINE_MS)).orderBy("at_ms", "msg_id")
    before, after = (step("recorded", 1, True).over(line) for step in (F.lag, F.lead))  # noqa: FBT003 - their default
    gaps = messages.withColumn("is_in_gap", ~(F.col("recorded") | (before & after))).where("is_in_gap")
    # Messages spread well, and a broadcast would be a job more.
    return residue.join(gaps.select("group", "msg_id", "is_in_gap").hint("shuffle_hash"), ["group", "msg_id"], "left")


def _is_lost_delivery() -> Column:
    return (F.col("status") == Status.OTLP_ONLY.value) & (F.col("kind") == Kind.CONSUME.value)
