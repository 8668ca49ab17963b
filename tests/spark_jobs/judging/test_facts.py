"""What is known of the whole input before any key is judged, folded from a few counted rows."""

import json

import pyarrow as pa

from spark_jobs.judging.columns import flatten_sides
from spark_jobs.judging.counts import count_verdicts
from spark_jobs.judging.durations import measure
from spark_jobs.judging.facts import Facts, Survey, Surveyed, read_facts, survey
from spark_jobs.schemas import NORMALISED
from spark_jobs.sums import sum_of
from tests.support.events import START_MS, after, before, both, consumed, delivery, publish
from tests.support.kernel_runs import judge_events, verdicts_on

GRACE_MS = 10
END_MS = 30 * 60_000
YEAR_10000_MS = 253_402_300_800_000


def counted(side, kind="publish", scope=None, **fields):
    return (side, kind, scope), Surveyed(**{"rows": 3, "named": 3, "first_ms": 100, "last_ms": 900, **fields})


def facts_of(*rows, **malformed):
    return read_facts(Survey(dict(rows), malformed), GRACE_MS)


def surveyed(*rows, **options):
    return survey(pa.Table.from_pylist(list(rows), schema=NORMALISED), **options)


def event(side="native", kind="publish", **fields):
    return {"side": side, "kind": kind, **fields}


def bad(side):
    return {"side": side, "bad": {"field": None, "reason": "torn", "text": "{", "mentions": []}}


def test_horizon_is_the_earlier_end_of_the_two_sides_less_the_grace():
    """Nothing newer can be called lost; ages count from the later end."""
    facts = facts_of(counted("native"), counted("otlp", last_ms=700, first_ms=50))
    assert (facts.first_ms, facts.data_end_ms, facts.horizon_ms) == (50, 900, 690)
    assert facts.first == {"native": 100, "otlp": 50}


def test_empty_side_leaves_no_horizon():
    facts = facts_of(counted("native"), counted("otlp", scope="TRACE_TRAFFIC"), otlp=3)
    assert facts.horizon_ms is None
    assert facts.in_scope == {"native": 3, "otlp": 0}
    assert facts.malformed == {"native": 0, "otlp": 3}
    assert facts.scopes["otlp"] == {"TRACE_TRAFFIC": 3}


def test_events_that_name_their_topic_or_group_are_counted_per_side_and_kind():
    """A side that names none proves nothing about one of them."""
    facts = facts_of(counted("native"), counted("otlp", named=0), counted("otlp", kind="consume", named=2))
    assert facts.named == {("native", "publish"): 3, ("otlp", "publish"): 0, ("otlp", "consume"): 2}
    survey = surveyed(
        *(event(topic="t", group_name=None), event(topic=None, group_name="g")),
        *(event(kind="consume", topic="t"), event(kind="consume", group_name="g")),
        *(event(kind="recall", topic="t", group_name="g"), event(kind=None, topic="t", scope="POLL")),
    )
    counts = {kind: (row.rows, row.named) for (_, kind, _), row in survey.rows.items()}
    assert counts == {"publish": (2, 1), "consume": (2, 1), "recall": (1, 0), None: (1, 0)}


def test_side_ends_no_later_than_its_records_arrived():
    """One host ten minutes ahead would settle what is still on its way; without an arrival its word is all there is."""
    start_ms, ahead_ms = 1_700_000_000_000, 600_000
    now_ms = start_ms + 1_000
    survey = surveyed(
        event(start_ms=start_ms, end_ms=start_ms + 10, arrival_ms=now_ms),
        event(start_ms=start_ms + ahead_ms, end_ms=start_ms + ahead_ms + 10, arrival_ms=now_ms),
        event(arrival_ms=now_ms + ahead_ms),
        event("otlp", start_ms=start_ms + ahead_ms, end_ms=start_ms + ahead_ms + 10),
    )
    facts = read_facts(survey, GRACE_MS)
    assert facts.horizon_ms == now_ms - GRACE_MS
    assert facts.data_end_ms == start_ms + ahead_ms + 10


def test_time_before_1970_or_after_9999_is_no_end():
    facts = surveyed(
        *(event(start_ms=-1, end_ms=7), event(start_ms=YEAR_10000_MS)),
        *(event(start_ms=5, end_ms=YEAR_10000_MS, arrival_ms=-3), event(start_ms=3, end_ms=9, arrival_ms=0)),
    )
    (row,) = facts.rows.values()
    assert (row.first_ms, row.last_ms) == (3, 7)


def test_merged_surveys_equal_the_survey_of_all_rows():
    rows = [
        *(event(topic="t", start_ms=5, end_ms=9, arrival_ms=7), event(topic="t", start_ms=1), event(end_ms=12)),
        *(event("otlp", kind=None, scope="POLL", start_ms=3), event("otlp", "consume", start_ms=-1), event("otlp")),
        *(bad("native"), bad("otlp"), bad("native")),
    ]
    whole = surveyed(*rows)
    for cut in range(len(rows) + 1):
        for order in (rows, rows[::-1]):
            parts = sum_of(Survey, [surveyed(*order[:cut]), surveyed(*order[cut:])])
            assert (parts.rows, parts.malformed) == (whole.rows, whole.malformed)
            assert read_facts(parts, GRACE_MS) == read_facts(whole, GRACE_MS)
    assert Survey.from_plain(json.loads(json.dumps(whole.to_plain()))) == whole


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
    verdicts = verdicts_on([*good, *_poisoned()])
    statuses = {(row["msg_id"], row["kind"]): row["status"] for row in verdicts.to_pylist()}
    assert statuses["GOOD", "publish"] == "MATCHED_EXACT"
    assert statuses["LOST", "publish"] == "OTLP_ONLY"
    assert statuses["BAD0", "publish"] == "MISMATCHED"
    assert statuses["BBAD0", "consume"] == "NATIVE_ONLY"
    columns = flatten_sides(verdicts)
    in_the_run = range(START_MS - START_MS % 600_000, START_MS + END_MS + 1, 600_000)
    assert set(count_verdicts(columns, Facts(), grace_ms=0).buckets) <= {0, *in_the_run}
    assert measure(columns).latency()["publish"].count >= 2


def test_record_without_a_time_is_not_the_earliest():
    timeless = publish("native", "T", start_ms=None, end_ms=None, raw_hash=-9)
    rows = judge_events([timeless, *both("T"), *both("END", at_ms=END_MS)])
    kept = next(row for row in rows if row["msg_id"] == "T")
    assert kept["native"]["start_ms"] == START_MS
