"""What the one keyed pass costs: the plan Spark makes of it."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from spark_jobs.reconcile.budget import Covered
from spark_jobs.reconcile.residue import is_residue
from spark_jobs.reconcile.slots import marked
from spark_jobs.reconcile.testimony import answered
from spark_jobs.schemas import EVENT
from spark_jobs.taxonomy import Reason
from tests.support.events import consumed, delivery, publish
from tests.support.judging import explaining, judged, keyed_verdicts
from tests.support.settings import configured

pytestmark = pytest.mark.spark


def _plan(frame) -> str:
    with configured(frame.sparkSession, {"spark.sql.maxPlanStringLength": "100000000"}):
        return frame._jdf.queryExecution().executedPlan().toString()


def _everything():
    sends = [publish("native", "A"), publish("otlp", "A", writer="java-agent-old", offset_msg_id=None)]
    return [*sends, *delivery("A"), *delivery("A", group=None), consumed("A", attempt=None)]


def _complete():
    return [publish("native", "A"), publish("otlp", "A"), *delivery("A"), consumed("A")]


def test_the_whole_reconciliation_needs_one_exchange(spark):
    """Weak keys, unknown groups and damaged records included, rows move between partitions once, and never join."""
    plan = _plan(keyed_verdicts(spark, _everything(), malformed=[("native", "A")]))
    assert plan.count("Exchange hashpartitioning") == 1
    assert plan.count("Exchange") == 1
    assert "Join" not in plan
    assert "Python" not in plan


def test_the_residue_is_explained_without_a_join_that_has_no_key(spark):
    """No row of the run meets a question but by an equal hash, and none leaves the JVM."""
    plan = _plan(explaining(spark, _everything()))
    assert "Join" in plan
    assert "NestedLoop" not in plan
    assert "Cartesian" not in plan
    assert "Python" not in plan


def test_what_a_burst_is_told_does_not_grow_with_its_square(spark):
    """Four hundred losses and as many sends without an id within a second: each asks, none is handed all the others."""
    size = 400
    lost = [publish("native", f"L{number}", at_ms=number) for number in range(size)]
    idless = [publish("otlp", None, at_ms=number, service="shop", span_id=f"{number:016x}") for number in range(size)]
    sends = [publish("otlp", f"S{number}", at_ms=number, service="shop") for number in range(20)]
    settled = [publish(side, "END", at_ms=400_000) for side in ("native", "otlp")]
    found = keyed_verdicts(spark, [*lost, *idless, *sends, *settled])
    traffic = spark.createDataFrame([], EVENT)
    rows = answered(found.where(is_residue()), found, traffic, asking=2 * size).select("heard").collect()
    told = [len(answer["moments"] or ()) for row in rows for answer in (row["heard"] or {}).values()]
    assert len(rows) == 2 * size + 20
    assert any(answer["crowded"] for row in rows for answer in (row["heard"] or {}).values())
    assert sum(told) < len(rows)


def test_rows_that_no_budget_is_asked_for_are_not_sorted_by_one_task(spark):
    """The part of a residue that is explained already has no slot, and stays spread."""
    events = [publish("native", f"M{number}") for number in range(40)]
    events += [publish(side, "END", at_ms=400_000) for side in ("native", "otlp")]
    explained = keyed_verdicts(spark, events).withColumn("reason", F.lit("NOT_SAMPLED"))
    with configured(spark, {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}):
        rows = marked(explained, [Covered("none", "queue_full", 1)], (), Reason.DROP_ATTRIBUTED)
        tasks = {row[0] for row in rows.select(F.spark_partition_id()).collect()}
    assert len(tasks) > 1


def test_pairing_by_weak_keys_is_left_out_when_no_row_lacks_its_key(spark):
    """An input whose events all carry their full key never gathers the events of a message."""
    assert "collect_list" not in _plan(keyed_verdicts(spark, _complete()))
    assert "collect_list" in _plan(keyed_verdicts(spark, _everything()))


def test_the_verdicts_do_not_depend_on_partitions_or_row_order(spark):
    """One partition or seven, forwards or backwards: the same rows."""
    events = [row for number in range(20) for row in [*delivery(f"M{number}"), *delivery(f"M{number}", at_ms=3)]]
    events += [consumed(f"M{number}", attempt=None, at_ms=number % 3) for number in range(20)]
    answers = []
    for partitions, ordered in (("1", events), ("7", events[::-1])):
        with configured(spark, {"spark.sql.shuffle.partitions": partitions}):
            frame = judged(spark, ordered).drop("field_verdicts")
            answers.append(sorted(map(repr, frame.collect())))
    assert answers[0] == answers[1]
