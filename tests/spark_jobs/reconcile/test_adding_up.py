"""From verdicts to the numbers of a report: counts, durations, groups, samples, differing values."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_jobs.reconcile.durations import MEASURES, distinct_messages, durations, read_groups, read_latency
from spark_jobs.reconcile.evidence import PER_STRATUM, differing, read_differing, read_samples, sampled
from spark_jobs.reconcile.facts import Facts
from spark_jobs.reconcile.tally import patterns, read_tally
from tests.support.events import START_MS, consumed, delivery, publish
from tests.support.judging import judged

pytestmark = pytest.mark.spark

SENDS = 60
LOST = 55


@pytest.fixture(scope="module")
def answers(spark):
    """Sixty sends with one delivery each, redelivered once when odd; 55 spans lost; three topics told differently."""
    events = [publish("native", "END", at_ms=9_000_000), publish("otlp", "END", at_ms=9_000_000)]
    for number in range(SENDS):
        msg_id = f"M{number:02}"
        topic = "other" if number < 3 else "orders"
        events += [publish("native", msg_id, cost_ms=number), publish("otlp", msg_id, cost_ms=number, topic=topic)]
        events += delivery(msg_id, at_ms=100)
        events += [consumed(msg_id)] if number >= LOST else []
        if number % 2:
            failed = {"attempt": "A2", "at_ms": 5_000, "success": False, "context_code": "FAILED"}
            events += delivery(msg_id, **failed, retry_times=1)
            events += [consumed(msg_id, **failed, retry_times=1)]
    frame = judged(spark, events).cache()
    yield frame
    frame.unpersist()


def test_the_tally_agrees_with_counting_the_verdicts_one_by_one(answers):
    """Statuses, kinds, reasons, field verdicts, books and buckets, from one grouped frame."""
    counts = read_tally(patterns(answers, 600_000).collect(), Facts())
    rows = answers.collect()
    assert counts.status == Counter(row["status"] for row in rows)
    assert counts.status_by_kind["consume"] == Counter(row["status"] for row in rows if row["kind"] == "consume")
    assert counts.reason == {"UNEXPLAINED": LOST}
    assert counts.fields["topic"] == Counter(
        row["field_verdicts"]["topic"] for row in rows if "topic" in (row["field_verdicts"] or {})
    )
    assert counts.sums["native_records"] == sum(row["native_records"] for row in rows) == 60 * 3 + 30 * 2 + 1
    assert counts.sums["half_merged"] == 90
    assert counts.keys == {"native": len(rows), "otlp": len(rows) - LOST, "both": len(rows) - LOST}
    assert {start_ms: sum(found.values()) for start_ms, found in counts.buckets.items()} == {
        START_MS: len(rows) - 1,
        START_MS + 9_000_000: 1,
    }


def test_latencies_are_exact_on_a_small_input(answers):
    """Percentiles of four durations over the whole run; nothing about a side that was absent is made up."""
    latency = read_latency(durations(answers).collect())
    assert [*latency] == [*MEASURES]
    publishing = sorted([*range(SENDS), 10])
    assert (latency["publish"].count, latency["publish"].max) == (61, 59)
    assert latency["publish"].p50 == publishing[30]
    assert (latency["process"].count, latency["process"].p99) == (90, 10)
    assert latency["queue"].max == 5_000 - 1
    assert latency["end_to_end"].max == 5_010


def test_groups_say_who_consumed_what(answers):
    """Messages are distinct, deliveries are not; failures, redeliveries and one-sided ones are counted."""
    (group,) = read_groups(durations(answers).collect(), distinct_messages(answers).collect())
    assert (group.topic, group.group) == ("orders", "billing")
    assert (group.messages, group.deliveries, group.redeliveries, group.failures) == (60, 90, 30, 30)
    assert group.unmatched == LOST
    assert group.process.p50 == 10


def test_samples_are_stratified_capped_and_the_same_every_time(answers):
    """At most fifty of a stratum that is wrong, a few of one that is in order, the same ones on every run."""
    known = read_tally(patterns(answers, 600_000).collect(), Facts()).strata
    first, again = (read_samples(sampled(answers, known).collect()) for _ in range(2))
    assert first == again
    assert sum(known.values()) == answers.count()
    strata = Counter(sample.stratum for sample in first)
    assert strata["NATIVE_ONLY UNEXPLAINED consume"] == PER_STRATUM
    assert 0 < strata["MATCHED_EXACT publish"] < PER_STRATUM
    lost = next(sample for sample in first if sample.stratum == "NATIVE_ONLY UNEXPLAINED consume")
    assert lost.otlp is None
    assert lost.native["attempt_id"] == "A1"
    assert lost.verdict["msg_id"].startswith("M")
    assert not {"native", "otlp", "stratum", "nth"} & set(lost.verdict)


def test_a_large_stratum_is_thinned_out_before_it_is_ranked(answers):
    """Told that a stratum is huge, the sample is drawn from a share of it; the others stay whole."""
    huge = {("NATIVE_ONLY", "UNEXPLAINED", "consume"): 1_000_000}
    strata = Counter(row["stratum"] for row in sampled(answers, huge).collect())
    assert strata["NATIVE_ONLY UNEXPLAINED consume"] < 5
    assert strata["MATCHED_EXACT publish"] == PER_STRATUM


def test_the_most_frequent_differing_values_are_counted(answers):
    """Per field, the pairs of values that differ and how many keys have them."""
    assert read_differing(differing(answers).collect()) == {"topic": (("orders", "other", 3),)}
