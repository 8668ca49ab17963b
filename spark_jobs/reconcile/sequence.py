"""This module knows what the ids of a process tell of a send without a native record: that its producer never made one.

RocketMQ's client draws message ids, the ids of its own trace messages and one id per trace context from one counter of
the JVM (``MessageClientIDSetter``, clients 4.4 to 5.5). A traced send with counter c makes its context before it
leaves, which takes a later number; that is a request id nobody ever sees as the id of a message. So when c + 1, drawn
after this send was over, *is* the id of another message (or of a listener call), this send made no context: native
trace is switched off in its producer. Sends without an id and ends of transactions in between are counted: the first
take two numbers (their own id and a context), the second one.

What the rule cannot see it leaves unexplained: sends that overlap, batches of the agent's new convention, sends after
which the process drew many ids nobody knows. It would excuse a record that is really lost only where the send's context
was drawn late, behind another thread's id (the first send of a JVM, while it loads the classes of the hook), or where
an id-less send of a producer without trace, or of another instance of the service, followed directly.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.ids import COUNTER_VALUES, drawn_ms
from spark_jobs.reconcile.instants import minus, plus
from spark_jobs.reconcile.profiles import NO_TRACE_CONTEXT
from spark_jobs.reconcile.testimony import NEXT_IDS, heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.reconcile.policy import Policy

__all__ = ["untraced_send"]

_IDS_PER_KEY: Final = 4  # a message, its context, its share of a trace message, and one to spare
_BUSY_MS: Final = 1_000  # in which not even a busy process draws 65 536 ids


def untraced_send(policy: Policy) -> Column:
    """Return the rule's name where the ids around a send show that its producer does not trace."""
    if not NO_TRACE_CONTEXT.holds(policy.profile.name, policy.native_writer):
        return F.lit(None).cast("string")
    next_id = F.coalesce(*(_known(step) for step in range(1, NEXT_IDS + 1)))
    after_ms, between = next_id["after_ms"], next_id["between"]
    otlp = F.col("otlp")
    over = after_ms >= minus(otlp["end_ms"], otlp["start_ms"])
    until_ms = plus(otlp["start_ms"], after_ms)
    idless, ends = (_count_within(what, otlp["end_ms"], until_ms) for what in ("idless", "end"))
    sent = (F.col("status") == Status.OTLP_ONLY.value) & (F.col("kind") == Kind.PUBLISH.value)
    return F.when(sent & over & _is_near(after_ms) & (between == 2 * idless + ends), NO_TRACE_CONTEXT.rule)


def _known(step: int) -> Column:
    """Return how long after this send's id the one ``step`` further on was drawn, if anybody knows that one."""
    own_ms = drawn_ms(F.col("msg_id"))
    later = F.filter(F.coalesce(heard(f"next{step}", "moments"), F.array()), lambda moment: moment >= own_ms)
    after_ms = F.array_min(later) - own_ms
    return F.when(after_ms.isNotNull(), F.struct(after_ms.alias("after_ms"), F.lit(step - 1).alias("between")))


def _is_near(after_ms: Column) -> Column:
    """Say whether the counter cannot have come round in between."""
    few = heard("process", "keys") * _IDS_PER_KEY < COUNTER_VALUES
    return few | (after_ms <= _BUSY_MS)


def _count_within(what: str, first_ms: Column, last_ms: Column) -> Column:
    """Return how many there are; null where there are too many around to tell."""
    moments = F.concat(*(F.coalesce(heard(f"{what}{step}", "moments"), F.array()) for step in (0, 1)))
    crowded = reduce(or_, (F.coalesce(heard(f"{what}{step}", "crowded"), F.lit(False)) for step in (0, 1)))
    return F.when(~crowded, F.size(F.filter(moments, lambda moment: moment.between(first_ms, last_ms))))
