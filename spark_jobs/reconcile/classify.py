"""This module knows which status and which reason a key gets: two when-chains whose order is the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import believable, minus
from spark_jobs.reconcile.profiles import by_design_rules
from spark_jobs.taxonomy import Kind, Reason, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy

__all__ = ["classified"]

_ONE_SIDED: Final = (Status.NATIVE_ONLY, Status.OTLP_ONLY)


def classified(rows: DataFrame, policy: Policy, facts: Facts) -> DataFrame:
    """Add ``event_ms``, ``timing``, ``status``, ``reason`` and ``reason_detail`` to compared rows."""
    timed = rows.withColumns({"event_ms": _event_ms(), "last_ms": _last_ms(), "timing": _timing(policy)})
    sided = timed.withColumns(
        {
            "own": F.coalesce("native", "otlp"),
            "has_id": F.col("msg_id").isNotNull(),
            "sided": _sided(policy),
        }
    )
    ruled = sided.withColumn("rule", _by_design(policy))
    explained = ruled.withColumn("why", _why(policy, facts))
    return explained.withColumns({"status": _status(facts), "reason": _reason(facts), "reason_detail": _detail()})


def _event_ms() -> Column:
    return F.coalesce(*(F.col(side)[name] for name in ("start_ms", "end_ms") for side in ("native", "otlp")))


def _last_ms() -> Column:
    """Return the latest time that is believable: a nonsensical one would keep its key pending for ever."""
    return F.greatest(
        *(believable(F.col(side)[name]) for name in ("start_ms", "end_ms") for side in ("native", "otlp"))
    )


def _timing(policy: Policy) -> Column:
    """Say whether the records arrived soon after their event's end; ``no_time`` when no side knows."""

    def late(side: str) -> Column:
        record = F.col(side)
        return minus(record["arrival_ms"], F.coalesce(record["end_ms"], record["start_ms"])) > policy.late_after_ms

    def future(side: str) -> Column:
        record = F.col(side)
        return minus(record["start_ms"], record["arrival_ms"]) > policy.late_after_ms

    native, otlp = (F.coalesce(late(side), F.lit(False)) for side in ("native", "otlp"))
    return (
        F.when(F.coalesce(F.col("native")["arrival_ms"], F.col("otlp")["arrival_ms"]).isNull(), "no_time")
        .when(F.coalesce(future("native"), F.lit(False)) | F.coalesce(future("otlp"), F.lit(False)), "future")
        .when(native & otlp, "late_both")
        .when(native, "late_native")
        .when(otlp, "late_otlp")
        .otherwise("on_time")
    )


def _sided(policy: Policy) -> Column:
    """Return the status as far as the key itself decides it."""
    outside = F.lit(False)
    if policy.begin_ms is not None:
        outside = outside | (F.col("event_ms") < policy.begin_ms)
    if policy.end_ms is not None:
        outside = outside | (F.col("event_ms") > policy.end_ms)
    return (
        F.when(F.coalesce(outside & ~_is_carried(), F.lit(False)), Status.OUT_OF_SCOPE.value)
        .when(F.col("otlp").isNull(), Status.NATIVE_ONLY.value)
        .when(F.col("native").isNull(), Status.OTLP_ONLY.value)
        .when((_excess("native") > 0) & (_excess("otlp") > 0), Status.DUPLICATED_BOTH.value)
        .when(_excess("native") > 0, Status.DUPLICATED_NATIVE.value)
        .when(_excess("otlp") > 0, Status.DUPLICATED_OTLP.value)
        .when(F.col("differs") | _is_half(), Status.MISMATCHED.value)
        .when(F.col("all_equal"), Status.MATCHED_EXACT.value)
        .otherwise(Status.MATCHED_NORMALISED.value)
    )


def _is_carried() -> Column:
    """Say whether an earlier run left this key open: it was in that run's window, whatever this one's is."""
    return F.coalesce(*(F.col(side)["first_seen_run"] for side in ("native", "otlp"))).isNotNull()


def _excess(side: str) -> Column:
    return F.col(f"{side}_exact_duplicates") + F.col(f"{side}_other_duplicates")


def _is_half() -> Column:
    consume = F.col("kind") == Kind.CONSUME.value
    return consume & F.col("native").isNotNull() & (F.col("has_before") != F.col("has_after"))


def _by_design(policy: Policy) -> Column:
    rules = (*by_design_rules(policy.profile.name, policy.native_writer), *policy.declared)
    chosen = [F.when((F.col("sided") == rule.status.value) & F.expr(rule.when), rule.rule) for rule in rules]
    return F.coalesce(*chosen, F.lit(None).cast("string"))


def _why(policy: Policy, facts: Facts) -> Column:
    """Return the reason of a one-sided or half recorded key, before asking whether it is settled; first hit wins."""
    alone = F.col("sided").isin(*(status.value for status in _ONE_SIDED))
    unfinished = (F.col("sided") == Status.NATIVE_ONLY.value) & F.col("has_before") & ~F.col("has_after")
    age_ms = minus(F.lit(facts.data_end_ms), F.col("native")["start_ms"])
    damaged = F.when(F.col("native").isNull(), F.col("native_damaged")).otherwise(F.col("otlp_damaged"))
    return (
        F.when(alone & F.col("rule").isNotNull(), Reason.BY_DESIGN.value)
        .when(unfinished & (age_ms <= policy.consume_timeout_ms), Reason.IN_FLIGHT.value)
        .when(unfinished, Reason.ABANDONED.value)
        .when(_is_half() & ~alone & (F.col("sided") != Status.OUT_OF_SCOPE.value), Reason.HALF_RECORD.value)
        .when(alone & damaged, Reason.COUNTERPART_MALFORMED.value)
        .when(alone, Reason.UNEXPLAINED.value)
    )


_SETTLED_AT_ONCE: Final = (Reason.BY_DESIGN.value, Reason.IN_FLIGHT.value)


def _status(facts: Facts) -> Column:
    return F.when(_is_pending(facts), Status.PENDING.value).otherwise(F.col("sided"))


def _is_pending(facts: Facts) -> Column:
    alone = F.col("sided").isin(*(status.value for status in _ONE_SIDED))
    if facts.horizon_ms is None:
        unsettled = F.lit(True)
    else:
        unsettled = F.coalesce(F.col("last_ms") > facts.horizon_ms, F.lit(False))
    return alone & unsettled & ~F.col("why").isin(*_SETTLED_AT_ONCE)


def _reason(facts: Facts) -> Column:
    return F.when(~_is_pending(facts), F.col("why"))


def _detail() -> Column:
    return (
        F.when(F.col("reason") == Reason.BY_DESIGN.value, F.col("rule"))
        .when(F.col("sided") == Status.OUT_OF_SCOPE.value, "WINDOW")
        .when(F.col("reason") == Reason.HALF_RECORD.value, F.when(F.col("has_before"), "before").otherwise("after"))
    )
