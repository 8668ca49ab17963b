"""From verdicts to the numbers of a report: counts, durations, groups, samples, differing values."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.columns import hash_texts
from spark_jobs.history.lifecycle import assign_lifecycle
from spark_jobs.jobs.judge_tasks import BucketPlan, Counted
from spark_jobs.jobs.summarise import read_samples, read_slowest
from spark_jobs.judging import durations as timing
from spark_jobs.judging.columns import NullableInts, flatten_sides
from spark_jobs.judging.counts import bucket_width_ms, count_verdicts
from spark_jobs.judging.durations import MEASURES, Durations, Histogram
from spark_jobs.judging.facts import Facts
from spark_jobs.judging.highlights import PER_STRATUM, count_differing, merge_differing, rank_differing, rank_hosts
from spark_jobs.policy.policy import make_plan, read_policy
from spark_jobs.report.result import Instance
from spark_jobs.sums import sum_of
from tests.support.events import START_MS, before, both, consumed, delivery, publish
from tests.support.kernel_runs import verdicts_on

SENDS = 60
LOST = 55
POLICY = read_policy(None)
PLAN = make_plan(POLICY, Facts())
HOW = BucketPlan(policy=POLICY, facts=Facts(), plan=PLAN, settled="", residue="")


def parts_of(verdicts, pieces=3):
    bucket = hash_texts(verdicts["msg_id"].combine_chunks()) % np.uint64(pieces)
    return [verdicts.filter(pa.array(bucket == number)) for number in range(pieces)]


@pytest.fixture(scope="module")
def verdicts():
    """Sixty sends with one delivery each, redelivered once when odd; 55 spans lost; three topics told differently."""
    events = both("END", at_ms=9_000_000)
    for number in range(SENDS):
        msg_id = f"M{number:02}"
        topic = "other" if number < 3 else "orders"
        events += [publish("native", msg_id, cost_ms=number), publish("otlp", msg_id, cost_ms=number, topic=topic)]
        events += delivery(msg_id, at_ms=100)
        events += [consumed(msg_id)] if number >= LOST else []
        if number % 2:
            failed = {"attempt": "A2", "at_ms": 5_000, "success": False, "group": "ns1%billing"}
            events += delivery(msg_id, **failed, retry_times=1)
            events += [consumed(msg_id, **failed, retry_times=1)]
    return verdicts_on(events)


@pytest.fixture(scope="module")
def durations(verdicts):
    durations = sum_of(Durations, (timing.measure(flatten_sides(part)) for part in parts_of(verdicts)))
    for part in parts_of(verdicts):
        timing.count_messages(
            durations, [timing.find_messages(flatten_sides(piece)) for piece in (part[:40], part[40:])]
        )
    return durations


@pytest.fixture(scope="module")
def counted(verdicts):
    return sum_of(Counted, [Counted.of(part, HOW) for part in parts_of(verdicts)])


def test_tally_equals_the_counted_verdicts(verdicts, counted):
    counts, rows = counted.tally, verdicts.to_pylist()
    assert counts.status == Counter(row["status"] for row in rows)
    assert counts.status_by_kind["consume"] == Counter(row["status"] for row in rows if row["kind"] == "consume")
    assert counts.reason == {"UNEXPLAINED": LOST}
    fields = [dict(row["field_verdicts"] or ()) for row in rows]
    assert counts.fields["topic"] == Counter(bucket["topic"] for bucket in fields if "topic" in bucket)
    assert counts.sums["native_records"] == sum(row["native_records"] for row in rows) == 60 * 3 + 30 * 2 + 1
    assert counts.sums["half_merged"] == 90
    assert counts.keys == {"native": len(rows), "otlp": len(rows) - LOST, "both": len(rows) - LOST}
    events = {start_ms: sum(bucket.values()) for start_ms, bucket in counts.buckets.items()}
    assert events == {START_MS: len(rows) - 1, START_MS + 9_000_000: 1}


def test_latencies_are_exact_on_a_small_input(durations):
    latency = durations.latency()
    assert [*latency] == [*MEASURES]
    publishing = sorted([*range(SENDS), 10])
    assert (latency["publish"].count, latency["publish"].max) == (61, 59)
    assert latency["publish"].p50 == publishing[30]
    assert (latency["process"].count, latency["process"].p99) == (90, 10)
    assert latency["queue"].max == 5_000 - 1
    assert latency["end_to_end"].max == 5_010


def test_distribution_of_a_latency_is_a_rising_curve(durations):
    latency = durations.latency()["publish"]
    shares, values = zip(*latency.curve, strict=True)
    assert list(shares) == sorted(shares)
    assert list(values) == sorted(values)
    assert (dict(latency.curve)[0.5], dict(latency.curve)[0.99]) == (latency.p50, latency.p99)
    (group,) = durations.groups()
    assert (group.process.curve, group.queue.curve, group.queue.max) == ((), (), 5_000 - 1)


def test_only_keys_in_scope_are_counted():
    sends = [("A", 0, True), ("LOST", 5, False), ("B", 10, False), ("OUT", -5_000, False)]
    events = [
        publish(side, msg_id, at_ms=at_ms, success=success, arrival_ms=START_MS + at_ms + 10 + way_ms)
        for msg_id, at_ms, success in sends
        for side, way_ms in (("native", 30), ("otlp", 7))
        if (side, msg_id) != ("native", "LOST")
    ]
    verdicts = verdicts_on(events, policy=replace(read_policy(None), begin_ms=START_MS, grace_ms=0))
    durations, counted = timing.measure(flatten_sides(verdicts)), Counted.of(verdicts, HOW)
    arrivals = {side: (one.count, one.max) for side, one in durations.arrival().items()}
    assert arrivals == {"native": (2, 30), "otlp": (3, 7)}
    (topic,) = durations.topics()
    assert (topic.sends, topic.failures, topic.unmatched) == (3, 2, 1)
    assert counted.tally.fields["topic"] == {"EQUAL": 2}
    assert {*counted.samples.rows["msg_id"].to_pylist()} == {"A", "B", "LOST"}
    assert counted.hosts == {
        None: Instance(host=None, events=3, lost_native=1, first_ms=START_MS + 5, last_ms=START_MS + 5)
    }


def test_groups_count_messages_once_and_deliveries_each_time(durations):
    (group,) = durations.groups()
    assert (group.topic, group.group) == ("orders", "billing")
    assert (group.messages, group.deliveries, group.redeliveries, group.failures) == (60, 90, 30, 30)
    assert group.unmatched == LOST
    assert group.process.p50 == 10


@given(
    parts=st.lists(st.lists(st.integers(-5, 50), min_size=1, max_size=40), min_size=1, max_size=5),
    share=st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]),
)
def test_merged_histogram_ranks_like_the_sorted_values(parts, share):
    merged = Histogram.merge([Histogram.of(np.array(part)) for part in parts])
    values = sorted(value for part in parts for value in part)
    assert merged.rank([share]) == [values[math.ceil(share * len(values)) - 1]]
    assert (merged.count, merged.least, merged.most) == (len(values), values[0], values[-1])
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    apart = dict(timing.group_histograms(numbers, NullableInts.of(pa.array(value for part in parts for value in part))))
    whole = {number: Histogram.of(np.array(part)) for number, part in enumerate(parts)}
    assert list(map(repr, apart.items())) == list(map(repr, whole.items()))


def test_histogram_of_many_values_stays_small_and_near():
    histogram = Histogram.of(np.arange(1, 200_001, dtype=np.int64) * 7)
    assert len(histogram.values) <= 40_000
    for share in (0.5, 0.99):
        assert histogram.rank([share])[0] == pytest.approx(share * 1_400_000, rel=2e-3)
    assert (histogram.count, histogram.most) == (200_000, 1_400_000)


@given(parts=st.lists(st.integers(1, 9_000), min_size=2, max_size=5), cuts=st.integers(1, 4))
def test_merged_histogram_is_the_same_in_any_order(parts, cuts):
    begins = np.cumsum([100_000, *parts]) * 11
    some = [Histogram.of(np.arange(begin, begin + 11 * size, 11)) for begin, size in zip(begins, parts, strict=False)]
    apart = Histogram.merge([Histogram.merge(some[:cuts]), *some[cuts:]])
    whole = Histogram.merge(some)
    assert (apart.values.tolist(), apart.counts.tolist()) == (whole.values.tolist(), whole.counts.tolist())


def test_slowest_samples_are_the_slowest_events(counted):
    slowest = read_slowest(read_samples(counted.samples.rows))
    assert [one.took_ms for one in slowest["publish"]] == [59, 58, 57, 56, 55]
    assert [one.msg_id for one in slowest["publish"]] == [f"M{number}" for number in (59, 58, 57, 56, 55)]
    assert {len(each) for each in slowest.values()} == {5}


def test_samples_are_stratified_capped_and_independent_of_tasks(verdicts, counted):
    first = read_samples(counted.samples.rows)
    assert first == read_samples(Counted.of(verdicts, HOW).samples.rows)
    strata = Counter(sample.stratum for sample in first)
    assert strata["NATIVE_ONLY UNEXPLAINED consume"] == PER_STRATUM
    assert 0 < strata["MATCHED_EXACT publish"] < PER_STRATUM
    lost = next(sample for sample in first if sample.stratum == "NATIVE_ONLY UNEXPLAINED consume")
    assert lost.otlp is None
    assert lost.native["attempt_id"] == "A1"
    assert lost.verdict["msg_id"].startswith("M")
    assert not {"native", "otlp", "stratum", "nth"} & set(lost.verdict)


def test_losses_are_counted_by_the_host_they_come_from(verdicts, counted):
    (only,), left_off = rank_hosts(counted.hosts)
    assert (only.lost_otlp, only.lost_native, only.attributed, left_off) == (LOST, 0, 0, 0)
    assert only.events == len(verdicts)
    assert only.first_ms == START_MS + 100
    hosts = [("b", 5, 1), (None, 5, 1), ("a", 5, 1), ("c", 9, 1), ("d", 1, 2), ("e", 9, 0)]
    losing, _ = rank_hosts({host: replace(only, host=host, events=n, lost_otlp=lost) for host, n, lost in hosts})
    assert [one.host for one in losing] == ["d", "c", None, "a", "b"]


def test_most_frequent_differing_values_are_counted(counted):
    assert rank_differing(counted.differing) == {"topic": (("orders", "other", 3),)}
    many = Counter({(name, "a", f"b{keys}"): keys for name in ("tags", "topic") for keys in range(1, 8)})
    five = tuple(("a", f"b{keys}", keys) for keys in (7, 6, 5, 4, 3))
    assert rank_differing(many) == {"tags": five, "topic": five}


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_differing_values_of_slices_add_up(verdicts, counted, cut):
    both_sides = verdicts.filter(verdicts["field_verdicts"].is_valid())  # where none is null a slice copies nothing
    parts = [count_differing(flatten_sides(part)) for part in (both_sides[:cut], both_sides[cut:])]
    assert merge_differing(parts) == counted.differing


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "width_ms"),
    [
        (0, 10_000, 1_000),
        (0, 100_000, 5_000),
        (0, 86_400_000, 600_000),
        (0, 0, 1_000),
        (0, 30 * 86_400_000, 10_800_000),
        (0, 289 * 86_400_000, 172_800_000),
        (None, None, 600_000),
    ],
)
def test_buckets_of_ten_minutes_are_narrower_in_a_short_run_and_wider_in_a_long_one(first_ms, last_ms, width_ms):
    assert bucket_width_ms(first_ms, last_ms) == width_ms


def test_open_events_have_an_age_before_the_end_of_the_data():
    minute = 60_000
    ends = both("END", at_ms=30 * minute)
    began = [before(f"B{at}", at_ms=at * minute) for at in (2, 20, 27)]
    verdicts = verdicts_on([*ends, *began, publish("native", "NEW", at_ms=30 * minute - 5), *both("OLD")])
    end_ms = START_MS + 30 * minute
    facts = Facts(data_end_ms=end_ms, horizon_ms=end_ms - minute)
    counts = count_verdicts(flatten_sides(assign_lifecycle(verdicts, POLICY, facts, run=None)), facts, grace_ms=minute)
    in_flight, abandoned = {"5 to 15 min": 1, "1 to 5 min": 1}, {"15 to 60 min": 1}
    assert counts.ageing == {"PENDING": {"under 1 min": 1}, "IN_FLIGHT": in_flight, "ABANDONED": abandoned}
    assert counts.lifecycle == {"new": 4}
    assert sum(counts.open_break_age.values()) == 4


@given(texts=st.lists(st.one_of(st.none(), st.text(max_size=30))))
def test_only_equal_texts_have_equal_hashes(texts):
    column = pa.array(texts, pa.string())
    hashes = hash_texts(column).tolist()
    assert len(set(hashes)) == len(set(texts))
    assert hash_texts(column.dictionary_encode()).tolist() == hashes
    if len(texts) > 1:
        assert hash_texts(column.slice(1)).tolist() == hashes[1:]
