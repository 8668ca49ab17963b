"""From verdicts to the numbers of a report: counts, durations, groups, samples, differing values."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_jobs.reconcile.durations import (
    MEASURES,
    distinct_messages,
    durations,
    read_arrival,
    read_groups,
    read_latency,
    read_topics,
)
from spark_jobs.reconcile.evidence import (
    PER_STRATUM,
    differing,
    read_differing,
    read_samples,
    read_slowest,
    sampled,
    slow_from_ms,
)
from spark_jobs.reconcile.facts import Facts
from spark_jobs.reconcile.instances import instances, read_instances
from spark_jobs.reconcile.lives import lives, read_lives
from spark_jobs.reconcile.tally import patterns, read_tally
from spark_jobs.reconcile.together import apart, together
from spark_jobs.report.measured import Latency, Stay
from tests.support.events import START_MS, before, consumed, delivery, publish
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
    return judged(spark, events)


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


def test_the_distribution_of_a_latency_is_a_rising_curve(answers):
    """From the fastest to the slowest, its percentiles on it; groups have percentiles alone."""
    timed = durations(answers).collect()
    publish = read_latency(timed)["publish"]
    shares, values = zip(*publish.curve, strict=True)
    assert list(shares) == sorted(shares)
    assert list(values) == sorted(values)
    assert (dict(publish.curve)[0.5], dict(publish.curve)[0.99]) == (publish.p50, publish.p99)
    (group,) = read_groups(timed, ())
    assert group.process.curve == ()


def test_topics_say_what_was_sent_and_arrivals_how_late_records_came(answers):
    """Sends by topic, apart from the deliveries; arrivals only of a side that tells them."""
    timed = durations(answers).collect()
    topics = {topic.topic: topic for topic in read_topics(timed)}
    assert sum(topic.sends for topic in topics.values()) == SENDS + 1
    assert topics["orders"].publish.max == SENDS - 1
    assert topics["orders"].unmatched == 0
    assert set(read_arrival(timed)) <= {"native", "otlp"}


def _collected(frame):
    """Return the rows as a run gets them: with those of other frames, each as JSON."""
    return apart(together({"samples": frame}).collect())["samples"]


def test_the_slowest_are_the_slowest(answers):
    """Five by each measure, slowest first, each with its message; a large run is searched from its last percent on."""
    latency = read_latency(durations(answers).collect())
    samples = read_samples(_collected(sampled(answers, {}, slow_from_ms(latency))))
    found = read_slowest(samples)
    assert [one.took_ms for one in found["publish"]] == [59, 58, 57, 56, 55]
    assert [one.msg_id for one in found["publish"]] == [f"M{number}" for number in (59, 58, 57, 56, 55)]
    assert {len(each) for each in found.values()} == {5}
    large = Latency(count=10**7, p99=40, max=900, curve=((0.99, 40), (0.9999, 500)))
    flat = Latency(count=10**7, p99=40, max=40, curve=((0.99, 40), (0.9999, 40)))
    assert slow_from_ms({"publish": large, "queue": flat, "process": Latency()}) == {"publish": 500, "queue": 41}


def test_the_whole_message_of_a_sample_is_told_by_both_sides(answers):
    """Its send and every delivery, earliest first, a side without a record as such."""
    (told,) = read_lives(lives(answers, ["M01"]).collect()).values()
    assert [(life.kind, life.retry_times) for life in told] == [("publish", None), ("consume", 0), ("consume", 1)]
    assert [life.otlp is None for life in told] == [False, True, False]
    assert told[2].native == Stay(START_MS + 5_000, START_MS + 5_010, success=False)


def test_losses_are_counted_by_the_host_they_come_from(answers):
    """Every settled event of a host is counted, lost or not."""
    rows = apart(together({"instances": instances(answers), "distinct": distinct_messages(answers)}).collect())
    (only,), left_off = read_instances(rows["instances"])
    assert (only.lost_otlp, only.lost_native, only.attributed, left_off) == (LOST, 0, 0, 0)
    assert only.events == answers.count()
    assert only.first_ms == START_MS + 100
    assert rows["distinct"] == [{"of_topic": "orders", "of_group": "billing", "messages": SENDS}]


def test_what_is_open_has_an_age_before_the_end_of_the_data(spark):
    """Deliveries without an end and keys that wait for their other half, in bands; what is settled has none."""
    minute = 60_000
    ends = [publish(side, "END", at_ms=30 * minute) for side in ("native", "otlp")]
    began = [before(f"B{at}", at_ms=at * minute) for at in (2, 20, 27)]
    fresh = [publish("native", "NEW", at_ms=30 * minute - 5)]
    frame = judged(spark, [*ends, *began, *fresh, publish("native", "OLD"), publish("otlp", "OLD")])
    counts = read_tally(patterns(frame, 600_000, START_MS + 30 * minute).collect(), Facts())
    assert counts.ageing == {
        "PENDING": {"under 1 min": 1},
        "IN_FLIGHT": {"5 to 15 min": 1, "1 to 5 min": 1},
        "ABANDONED": {"15 to 60 min": 1},
    }


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
    first, again = (read_samples(_collected(sampled(answers, known))) for _ in range(2))
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
