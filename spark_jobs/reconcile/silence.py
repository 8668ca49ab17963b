"""This module knows how a writer that never speaks differs from one that lost a record: by all it should have said.

*Silent* is a topic (of publishes) or a consumer group of which the other side shows nothing at all while it does show
others; a service and its topic or group; or a service, a process, that is nowhere on the other side. Topics and groups
count from the policy's ``writer_silent_minimum`` on. The finer ones need more, since one lost record must not make a
service of one message look silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.profiles import LITE_PULL
from spark_jobs.reconcile.testimony import heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy

__all__ = ["lite_pull", "silent_writer"]

_ENOUGH: Final = 10  # keys of a service or process before its silence means something
_INSTANT_MS: Final = 1


def lite_pull(policy: Policy, facts: Facts) -> Column:
    """Return the rule's name where a group that never has a span took no time over any message.

    A lite pull consumer runs both hooks one after the other when ``poll`` returns; the agent instruments listeners.
    """
    if not LITE_PULL.holds(policy.profile.name, policy.native_writer) or not _speaks(facts, "otlp", Kind.CONSUME):
        return F.lit(None).cast("string")
    pulled = (F.col("status") == Status.NATIVE_ONLY.value) & (F.col("kind") == Kind.CONSUME.value)
    return F.when(pulled & (heard("name", "otlp") == 0) & (heard("name", "cost_ms") <= _INSTANT_MS), LITE_PULL.rule)


def silent_writer(policy: Policy, facts: Facts) -> Column:
    """Return what is silent on the other side: ``topic``, ``group``, ``service`` or ``process``."""
    found = F.lit(None).cast("string")
    for status, own, other in ((Status.OTLP_ONLY, "otlp", "native"), (Status.NATIVE_ONLY, "native", "otlp")):
        for kind, name in ((Kind.PUBLISH, "topic"), (Kind.CONSUME, "group")):
            here = (F.col("status") == status.value) & (F.col("kind") == kind.value)
            silent = _silent(name, own, other, policy.writer_silent_minimum, named=_speaks(facts, other, kind))
            found = F.when(here, silent).otherwise(found)
    return found


def _silent(name: str, own: str, other: str, minimum: int, *, named: bool) -> Column:
    finer = max(minimum, _ENOUGH)
    instance = {"otlp": "service", "native": "process"}[own]
    names = F.lit(named)
    return (
        F.when(names & _never("name", own, other, minimum), name)
        .when(names & _never("place", own, other, finer), f"service and {name}")
        .when(_never(instance, own, other, finer), instance)
    )


def _never(question: str, own: str, other: str, minimum: int) -> Column:
    return (heard(question, other) == 0) & (heard(question, own) >= minimum)


def _speaks(facts: Facts, side: str, kind: Kind) -> bool:
    """Say whether a side names any topic or group at all: one that names none proves nothing about one of them."""
    return facts.named.get((side, kind.value), 0) > 0
