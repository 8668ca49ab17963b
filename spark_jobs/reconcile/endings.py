"""This module knows what is lost where something ends: at an instance's last moments, and before an input's beginning.

An *instance* is the process that drew an id (a sender by its messages, a consumer by its request ids), or the service
where only spans are left. Both exporters hand on in the order in which calls ended, so what dies with an instance is
the end of its line: the missing side shows nothing of it that ended later, not even a send of its trace messages. A gap
with records behind it is no ending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import minus, plus
from spark_jobs.reconcile.testimony import heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy

__all__ = ["before_the_input", "shutdown"]

_SEVERAL: Final = 2  # keys before a name shared by ids is an instance and no accident
_JITTER_MS: Final = 20  # between the ends the two hooks of one call see


def shutdown(policy: Policy, facts: Facts) -> Column:
    """Return ``process`` or ``service``: the instance in whose last ``shutdown_window`` this key lies.

    The instance must have ended before the horizon: of one that goes on, what is missing may still arrive or is lost.
    """
    if facts.horizon_ms is None:
        return F.lit(None).cast("string")
    native_only = F.col("status") == Status.NATIVE_ONLY.value
    by_service = ~native_only & (F.col("kind") == Kind.CONSUME.value)
    ended = {
        (instance, own): _is_last_of(instance, own, missing, policy, facts.horizon_ms)
        for instance, own, missing in (
            ("process", "native", "otlp"),
            ("process", "otlp", "native"),
            ("service", "otlp", "native"),
        )
    }
    # Native records name no service: that none of the group's ended later holds for its processes as well.
    none_later = plus(F.col("otlp")["end_ms"], F.lit(_JITTER_MS)) >= heard("name", "native_ms")
    return (
        F.when(native_only & ended["process", "native"], "process")
        .when(by_service & ended["service", "otlp"] & none_later, "service")
        .when(~native_only & ~by_service & ended["process", "otlp"], "process")
    )


def _is_last_of(instance: str, own: str, missing: str, policy: Policy, horizon_ms: int) -> Column:
    over_ms = F.coalesce(F.col(own)["end_ms"], F.col(own)["start_ms"])
    last_ms, first_ms, shown_ms = (heard(instance, name) for name in ("last_ms", "first_ms", f"{missing}_ms"))
    short = minus(last_ms, first_ms) <= policy.shutdown_window_ms
    nothing_later = F.when(shown_ms.isNull(), short).otherwise(plus(over_ms, F.lit(_JITTER_MS)) >= shown_ms)
    at_the_end = minus(last_ms, over_ms) <= policy.shutdown_window_ms
    return (heard(instance, "keys") >= _SEVERAL) & (last_ms < horizon_ms) & at_the_end & nothing_later


def before_the_input(policy: Policy, facts: Facts) -> Column:
    """Return ``before_first_native`` or ``before_first_otlp`` where the other side's input begins later.

    By more than ``late_after``: a record that late would still have been in the input. What a side lost of its very
    beginning cannot be told from what it no longer kept.
    """
    found = F.lit(None).cast("string")
    for status, own, other in ((Status.OTLP_ONLY, "otlp", "native"), (Status.NATIVE_ONLY, "native", "otlp")):
        first_ms = facts.first.get(other)
        if first_ms is not None:
            over_ms = F.coalesce(F.col(own)["end_ms"], F.col(own)["start_ms"])
            before = (F.col("status") == status.value) & (over_ms < first_ms - policy.late_after_ms)
            found = F.when(before, f"before_first_{other}").otherwise(found)
    return found
