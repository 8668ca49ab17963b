"""Which keys of the residue budgets cover, what a ledger reports, and how many spans may be missing by sampling."""

import math
import random
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.explain import budgets
from spark_jobs.explain.drop_budget import CELL_MS, LossGroup, LostKeys
from spark_jobs.explain.explainers import NO_REASONS
from spark_jobs.explain.keys import RESIDUE, is_residue, narrow
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.policy import read_policy
from spark_jobs.schemas import EVENT, CountedDrop, LedgerRead
from spark_jobs.sums import sum_of
from tests.spark_jobs.explain.explained_runs import explain_buckets, rows_with, split_by_message
from tests.support.events import START_MS, before, both, consumed, delivery, publish
from tests.support.kernel_runs import facts_of, verdicts_on

PROCESS = "0A0B"
MINUTE_MS = 60_000


def unique_id(number: int, process: str = PROCESS) -> str:
    return f"C0000201{process}00000001{0:08X}{number:04X}"


def spans_only(numbers, *, at_ms: int, service: str = "shop", process: str = PROCESS) -> list[dict]:
    return [publish("otlp", unique_id(number, process), at_ms=at_ms + number, service=service) for number in numbers]


def records_only(numbers, *, group: str, at_ms: int) -> list[dict]:
    calls = [{"group": group, "at_ms": at_ms + number, "attempt": unique_id(number)} for number in numbers]
    return [row for number, call in zip(numbers, calls, strict=True) for row in delivery(f"D{group}{number}", **call)]


def drop(side: str, count: int, *, at_ms: int | None = None, **fields) -> CountedDrop:
    bucket = {} if at_ms is None else {"bucket_start_ms": START_MS + at_ms, "bucket_ms": CELL_MS}
    counted = {"side": side, "component": "queue", "cause": "queue_full", "count": count}
    return CountedDrop(**{**counted, **bucket, **fields})


EVENTS = [
    *both("END", service="shop", group_name="producers", at_ms=60 * MINUTE_MS),
    *both("BILL", service="billing-app", group_name="billing-senders"),
    *(row for at in (0, 1) for row in [*delivery("MET", group="billing"), consumed("MET", service="billing-app")][at:]),
    *both(unique_id(900), service="shop", group_name="producers", at_ms=59 * MINUTE_MS),  # no process ends before
    *both(unique_id(901, "0A0C"), service="shop", group_name="producers", at_ms=59 * MINUTE_MS),
    *spans_only(range(12), at_ms=10 * MINUTE_MS),  # counted exactly
    *spans_only(range(20, 30), at_ms=20 * MINUTE_MS),  # four of ten were counted
    *spans_only(range(40, 43), at_ms=30 * MINUTE_MS, service="cart"),  # only another service counted at that time
    *spans_only(range(50, 52), at_ms=40 * MINUTE_MS, process="0A0C"),  # only another process counted
    *(record("MET2", group="billing", at_ms=50 * MINUTE_MS) for record in (before, consumed)),  # its end was counted
    consumed("GONE", group="billing", at_ms=50 * MINUTE_MS + 1),  # and nothing else at that time
    *records_only(range(5), group="billing", at_ms=10 * MINUTE_MS),  # its spans are of billing-app
    *records_only(range(10, 13), group="unknown", at_ms=10 * MINUTE_MS),  # of an unknown service
    consumed("SPAN", group="unknown"),  # though one of its spans is there
]
DROPS = [
    drop("native", 12, at_ms=10 * MINUTE_MS, service="shop", process=PROCESS, group="producers"),
    drop("native", 4, at_ms=20 * MINUTE_MS, service="shop", cause="export_failed"),
    drop("native", 1000, at_ms=30 * MINUTE_MS, service="shop"),
    drop("native", 1000, at_ms=40 * MINUTE_MS, process=PROCESS),
    drop("native", 1, at_ms=50 * MINUTE_MS, group="billing"),
    drop("otlp", 3, service="billing-app"),
    drop("otlp", 900, service="stranger", group="billing"),
    drop("otlp", 2, service="stranger"),
]


def spend(buckets: list[pa.Table], drops: list[CountedDrop]) -> SimpleNamespace:
    """Return the spent ``budgets`` of a run and its ``rows``."""
    policy, facts = read_policy(None), facts_of(EVENTS, read_policy(None))
    given = explain_buckets(buckets, pa.Table.from_pylist([], schema=EVENT), policy, facts)
    spent = budgets.Budgets(LedgerRead(drops=tuple(drops)), policy=policy, facts=facts)
    residue = pa.concat_tables([narrow(bucket) for bucket in buckets])
    closed = (bucket.filter(pa.array(~is_residue(bucket))) for bucket in buckets)
    settled = sum_of(budgets.Settled, [budgets.note_settled(rows, spent.near) for rows in closed])
    paid = spent.spend(residue, given, settled)
    return SimpleNamespace(budgets=spent, rows=rows_with(pa.concat_tables(buckets), paid))


@pytest.fixture(scope="module")
def outcome():
    return spend(split_by_message(verdicts_on(EVENTS)), DROPS)


def reasons(rows, begin: str, *, otlp: bool = True) -> Counter[tuple[str, str | None]]:
    side = "otlp" if otlp else "native"
    return Counter(
        (row["reason"], row["reason_detail"])
        for row in rows
        if row["reason"] and row[side] and row["msg_id"].startswith(begin) and not (row["native"] and row["otlp"])
    )


def test_lost_span_belongs_to_the_service_that_its_group_shows(outcome):
    """Three of five by billing-app's counter; none by another service's, which may cover the group of an unknown service."""
    of_billing = reasons(outcome.rows, "Dbilling", otlp=False)
    assert of_billing == {("DROP_ATTRIBUTED", "queue_full"): 3, ("UNEXPLAINED", None): 2}
    assert reasons(outcome.rows, "Dunknown", otlp=False)["DROP_ATTRIBUTED", "queue_full"] == 2


def test_lost_end_of_a_delivery_uses_its_drop(outcome):
    rows = [row for row in outcome.rows if (row["event_ms"] - START_MS) // MINUTE_MS == 50]
    assert {row["msg_id"]: row["reason"] for row in rows} == {"MET2": "HALF_RECORD", "GONE": "UNEXPLAINED"}


def test_surplus_of_a_counter_is_reported(outcome):
    report = outcome.budgets.summarise()
    assert outcome.budgets.is_wanted
    assert report.attributed == {"native": 17, "otlp": 5}
    assert report.surplus == {"native": 2000, "otlp": 900}
    assert sum(row["reason"] == "DROP_ATTRIBUTED" for row in outcome.rows) == 21
    assert all(line.counted == line.attributed + line.surplus for line in report.lines)
    assert sum(drop.count for drop in outcome.budgets.used()) == 21


@pytest.mark.parametrize(("waiting", "kept"), [(0, []), (1, [5])])
def test_unused_drops_of_an_earlier_run_are_kept_while_one_of_its_keys_waits(waiting, kept):
    read, earlier = LedgerRead(drops=(drop("otlp", 3),)), [drop("native", 5)]
    spent = budgets.Budgets(read, policy=read_policy(None), facts=Facts(), earlier=earlier)
    spent.spend(RESIDUE.empty_table(), NO_REASONS, budgets.Settled(waiting=waiting))
    assert [each.count for each in spent.used()] == kept


def test_notes_of_a_ledger_name_what_its_counts_cannot_cover():
    starts = budgets.summarise_ledger(LedgerRead(drops=(drop("native", 4, of_start=True),)), [0], scopes={})
    assert (starts.surplus["native"], "4 records of a delivery's start" in starts.notes[0]) == (4, True)
    read = LedgerRead(files=("l.json",), drops=tuple(DROPS), own=2)
    report = budgets.summarise_ledger(read, [0] * len(DROPS), scopes={"otlp": {"TRACE_TRAFFIC": 15}})
    assert "905 spans were counted as lost that nothing misses; 15 spans of the trace topic" in report.notes[0]
    assert "2 counters of mqtrace's own processor" in report.notes[1]


def test_drops_counted_before_the_data_cover_nothing():
    began = {"before": True, "bucket_ms": 60 * MINUTE_MS}
    drops = [
        drop("otlp", 700, bucket_start_ms=START_MS - 1, **began),
        drop("otlp", 40, **{**began, "bucket_ms": None}),
        drop("otlp", 5, bucket_start_ms=START_MS, **began),
        drop("otlp", 3, service="shop"),
    ]
    assert [each.count for each in budgets.make_spendable(drops, START_MS)] == [0, 0, 5, 3]
    read = LedgerRead(drops=tuple(drops), again=6, unusable=2)
    report = budgets.summarise_ledger(read, [0] * 4, scopes={}, begin_ms=START_MS)
    assert (report.lines[0].counted, report.lines[0].surplus, report.surplus["otlp"]) == (745, 745, 748)
    assert [note.split()[0] for note in report.notes] == ["740", "6", "2", "745"]


@pytest.mark.parametrize("keys", [50, 200, 800])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_bound_is_exceeded_by_chance_in_about_one_run_of_a_hundred(keys, ratio):
    beyond = range(budgets.allow_missing(keys, ratio) + 1, keys + 1)
    exact = sum(math.comb(keys, missing) * (1 - ratio) ** missing * ratio ** (keys - missing) for missing in beyond)
    assert 0.001 < exact < 0.025


def test_bound_is_wider_where_messages_have_several_keys():
    chance, messages, ratio = random.Random(7), 250, 0.5
    most = budgets.allow_missing(4 * messages, ratio, keys_per_message=4)
    missing = [4 * sum(chance.random() >= ratio for _ in range(messages)) for _ in range(2_000)]
    assert sum(count > most for count in missing) < 50
    assert sum(count > budgets.allow_missing(4 * messages, ratio) for count in missing) > 100


def test_bound_at_the_edges_of_the_ratio():
    assert budgets.allow_missing(1_000, 1.0) == 0
    assert budgets.allow_missing(10, 0.01) == 10
    assert budgets.allow_missing(0, 0.5) == 0


def test_keys_known_to_be_unsampled_count_against_the_bound():
    most = budgets.allow_missing(1_450, 0.5)
    assert budgets.limit_missing(500, 900, 50, 950, ratio=0.5) == most - 50
    assert budgets.limit_missing(500, 5, 50, 55, ratio=0.5) == 5
    assert budgets.limit_missing(0, 0, 0, 0, ratio=0.5) == 0


@given(
    counts=st.lists(st.tuples(st.integers(1, 500), st.sampled_from(["otlp", "native"])), max_size=12),
    most=st.integers(0, 3_000),
)
def test_bound_is_shared_out_to_the_last_key_and_no_group_gets_more_than_it_has(counts, most):
    losses = [LostKeys(LossGroup(side, f"s{number}"), count) for number, (count, side) in enumerate(counts)]
    covered = {each.group: each.count for each in budgets.share_out(losses, most)}
    whole = sum(loss.count for loss in losses if loss.group.lost == "otlp")
    assert sum(covered.values()) == min(most, whole)
    for loss in losses:
        share = loss.count * min(most, whole) / whole if loss.group.lost == "otlp" else 0
        assert abs(covered.get(loss.group, 0) - share) < 1
        assert covered.get(loss.group, 0) <= loss.count
