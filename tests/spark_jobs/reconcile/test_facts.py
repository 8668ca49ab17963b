"""What is known of the whole input before any key is judged, folded from a few counted rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.policy.policy import read_policy
from spark_jobs.reconcile.facts import overview, read_facts
from spark_jobs.spark_schemas import EVENT, MALFORMED
from tests.support.events import START_MS, publish, rows_of

POLICY = replace(read_policy(None), grace_ms=10)


def counted(side: str, **fields) -> dict:
    """Return one row of the survey."""
    row = {"side": side, "kind": "publish", "scope": None, "named": 3, "rows": 3, "first_ms": 100, "last_ms": 900}
    return {**row, "lacks_key": False, "lacks_group": False, **fields}


def test_the_horizon_is_the_earlier_end_of_the_two_sides_less_the_grace():
    """Nothing newer can be called lost; ages count from the later end."""
    facts = read_facts([counted("native"), counted("otlp", last_ms=700, first_ms=50)], POLICY)
    assert (facts.first_ms, facts.data_end_ms, facts.horizon_ms) == (50, 900, 690)


def test_an_empty_side_leaves_no_horizon():
    """Records out of scope and malformed ones do not make a side less empty."""
    rows = [counted("native"), counted("otlp", scope="TRACE_TRAFFIC"), counted("otlp", kind=None, scope="MALFORMED")]
    facts = read_facts(rows, POLICY)
    assert facts.horizon_ms is None
    assert facts.in_scope == {"native": 3, "otlp": 0}
    assert facts.malformed == {"native": 0, "otlp": 3}
    assert facts.scopes["otlp"] == {"TRACE_TRAFFIC": 3}


def test_no_rows_at_all_are_two_empty_sides():
    """Nothing is known, and nothing breaks."""
    facts = read_facts([], POLICY)
    assert (facts.first_ms, facts.data_end_ms, facts.horizon_ms) == (None, None, None)


def test_a_side_is_asked_how_many_of_its_events_name_their_topic_or_group():
    """A side that names none proves nothing about one of them; the survey itself brings no name to the driver."""
    rows = [counted("native"), counted("otlp", named=0), counted("otlp", kind="consume", named=2)]
    named = read_facts(rows, POLICY).named
    assert named == {("native", "publish"): 3, ("otlp", "publish"): 0, ("otlp", "consume"): 2}


def test_each_side_has_a_beginning_of_its_own():
    """What was lost before it can be told from what is missing within."""
    assert read_facts([counted("native"), counted("otlp", first_ms=50)], POLICY).first == {"native": 100, "otlp": 50}


@pytest.mark.spark
def test_a_clock_that_is_ahead_ends_no_side_later_than_its_record_arrived(spark):
    """One host ten minutes ahead would settle what is still on its way; without an arrival its word is all there is."""
    ahead, now_ms = 600_000, START_MS + 1_000
    events = [
        publish("native", "A", at_ms=0, arrival_ms=now_ms),
        publish("native", "B", at_ms=ahead, arrival_ms=now_ms),
        {**publish("native", "C", arrival_ms=now_ms + ahead), "start_ms": None, "end_ms": None},
        publish("otlp", "B", at_ms=ahead),
    ]
    native, otlp = (spark.createDataFrame(rows_of(events, side), EVENT) for side in ("native", "otlp"))
    facts = read_facts(overview(native, otlp, spark.createDataFrame([], MALFORMED)).collect(), POLICY)
    assert facts.horizon_ms == now_ms - POLICY.grace_ms
    assert facts.data_end_ms == START_MS + ahead + 10
