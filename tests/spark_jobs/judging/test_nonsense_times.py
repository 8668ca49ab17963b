"""Times that no clock can have shown: one such record must cost its own verdict, never the run."""

from otel_mqtrace._clock import LAST_MS
from spark_jobs.judging.columns import flatten_sides
from spark_jobs.judging.counts import CountPlan, count_verdicts
from spark_jobs.judging.durations import measure
from spark_jobs.judging.kernel import judge
from spark_jobs.policy.policy import read_policy
from tests.spark_jobs.judging.stories import END_MS, both
from tests.support.events import START_MS, after, before, consumed, delivery, publish
from tests.support.kernel_runs import judge_events, plan_of, table_of

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
ENDS = [(LOWEST, HIGHEST), (HIGHEST, LOWEST), (LOWEST, LOWEST), (HIGHEST, -HIGHEST)]


def _poisoned():
    rows = []
    for number, (native_ms, otlp_ms) in enumerate(ENDS):
        native = {"start_ms": native_ms, "end_ms": otlp_ms, "cost_ms": native_ms, "arrival_ms": otlp_ms}
        otlp = {"start_ms": otlp_ms, "end_ms": native_ms, "cost_ms": HIGHEST, "arrival_ms": native_ms, "batch_size": 7}
        weak = {"attempt": None, "writer": "java-agent-old", "retry_times": None}
        msg_id = f"BAD{number}"
        rows += [publish("native", msg_id, **native), publish("otlp", msg_id, **otlp)]
        rows += [before(msg_id, start_ms=native_ms), after(msg_id, end_ms=otlp_ms, cost_ms=HIGHEST, batch_size=9)]
        rows += [consumed(msg_id, **otlp), *delivery(f"W{msg_id}"), consumed(f"W{msg_id}", **weak, **otlp)]
        rows += [after(f"A{msg_id}", end_ms=native_ms, cost_ms=otlp_ms), before(f"B{msg_id}", start_ms=native_ms)]
    return rows


def test_nonsense_times_cost_their_own_keys_only():
    good = [*both("GOOD"), publish("otlp", "LOST", at_ms=5), *both("END", at_ms=END_MS)]
    events = [*good, *_poisoned()]
    verdicts = judge(table_of(events), plan_of(events, read_policy(None))).verdicts
    statuses = {(row["msg_id"], row["kind"]): row["status"] for row in verdicts.to_pylist()}
    assert statuses["GOOD", "publish"] == "MATCHED_EXACT"
    assert statuses["LOST", "publish"] == "OTLP_ONLY"
    assert statuses["BAD0", "publish"] == "MISMATCHED"
    assert statuses["BBAD0", "consume"] == "NATIVE_ONLY"
    columns = flatten_sides(verdicts)
    how = CountPlan(width_ms=600_000, data_end_ms=None, grace_ms=0, per_stratum=1)
    width_ms = how.width_ms
    in_the_run = range(START_MS - START_MS % width_ms, START_MS + END_MS + 1, width_ms)
    assert set(count_verdicts(columns, how).buckets) <= {0, *in_the_run}
    assert measure(columns).latency()["publish"].count >= 2


def test_nonsense_times_do_not_move_the_horizon():
    """A record from the year ten thousand settles nothing, one from before 1970 widens no timeline."""
    sides = [
        publish(side, f"BAD{poison_ms}", start_ms=poison_ms, end_ms=poison_ms)
        for poison_ms in (LOWEST, -1, LAST_MS + 1, HIGHEST)
        for side in ("native", "otlp")
    ]
    young = publish("otlp", "YOUNG", at_ms=END_MS - 1)
    rows = judge_events([*both("A"), *both("END", at_ms=END_MS), *sides, young])
    assert {row["msg_id"]: row["status"] for row in rows}["YOUNG"] == "PENDING"


def test_record_without_a_time_is_not_the_earliest():
    timeless = publish("native", "T", start_ms=None, end_ms=None, raw_hash=-9)
    rows = judge_events([timeless, *both("T"), *both("END", at_ms=END_MS)])
    kept = next(row for row in rows if row["msg_id"] == "T")
    assert kept["native"]["start_ms"] == START_MS
