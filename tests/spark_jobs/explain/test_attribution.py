"""Which keys of the residue a budget marks: by time and hash, in their own slot, on one run with many cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.drops import CountedDrop
from spark_jobs.explain.budgets import attribution, slots
from spark_jobs.explain.budgets.allocation import CELL_MS, allocate
from spark_jobs.explain.budgets.attribution import Attribution, SettledNotes, merge_settled, note_settled
from spark_jobs.explain.budgets.ledger import find_stretches, make_spendable, summarise_ledger
from spark_jobs.explain.residue import is_residue, narrow
from spark_jobs.judging.kernel import judge
from spark_jobs.policy.plan import make_plan
from spark_jobs.policy.policy import read_policy
from spark_jobs.schemas import EVENT
from spark_jobs.sources.ledger import LedgerRead
from tests.support.events import START_MS, before, consumed, delivery, publish
from tests.support.explained_runs import explain_buckets, facts_of, rows_with, split_by_message
from tests.support.kernel_runs import table_of

PROCESS = "0A0B"
MINUTE_MS = 60_000


def unique_id(number: int, process: str = PROCESS) -> str:
    return f"C0000201{process}00000001{0:08X}{number:04X}"


def both(msg_id: str, *, service: str, group: str, at_ms: int = 0) -> list[dict]:
    """Return a send that both sides recorded."""
    return [publish(side, msg_id, at_ms=at_ms, group_name=group, service=service) for side in ("native", "otlp")]


def spans_only(numbers, *, at_ms: int, service: str = "shop", process: str = PROCESS) -> list[dict]:
    """Return sends whose native record is missing."""
    return [publish("otlp", unique_id(number, process), at_ms=at_ms + number, service=service) for number in numbers]


def records_only(numbers, *, group: str, at_ms: int) -> list[dict]:
    """Return deliveries whose span is missing."""
    return [
        row
        for number in numbers
        for row in delivery(f"D{group}{number}", group=group, at_ms=at_ms + number, attempt=unique_id(number))
    ]


def drop(side: str, count: int, *, at_ms: int | None = None, **fields) -> CountedDrop:
    bucket = {} if at_ms is None else {"bucket_start_ms": START_MS + at_ms, "bucket_ms": CELL_MS}
    return CountedDrop(
        **{"side": side, "component": "queue", "cause": "queue_full", "count": count, **bucket, **fields}
    )


EVENTS = [
    *both("END", service="shop", group="producers", at_ms=60 * MINUTE_MS),
    *both("BILL", service="billing-app", group="billing-senders"),
    *(row for at in (0, 1) for row in [*delivery("MET", group="billing"), consumed("MET", service="billing-app")][at:]),
    *both(unique_id(900), service="shop", group="producers", at_ms=59 * MINUTE_MS),  # no process ends before
    *both(unique_id(901, "0A0C"), service="shop", group="producers", at_ms=59 * MINUTE_MS),
    *spans_only(range(12), at_ms=10 * MINUTE_MS),  # counted exactly
    *spans_only(range(20, 30), at_ms=20 * MINUTE_MS),  # four of ten were counted
    *spans_only(range(40, 43), at_ms=30 * MINUTE_MS, service="cart"),  # only another service counted at that time
    *spans_only(range(50, 52), at_ms=40 * MINUTE_MS, process="0A0C"),  # only another process counted
    *(record("MET2", group="billing", at_ms=50 * MINUTE_MS) for record in (before, consumed)),  # its end was counted
    consumed("GONE", group="billing", at_ms=50 * MINUTE_MS + 1),  # and nothing else at that time
    *records_only(range(5), group="billing", at_ms=10 * MINUTE_MS),  # its spans are of billing-app
    *records_only(range(10, 13), group="unknown", at_ms=10 * MINUTE_MS),  # nobody knows its service
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


@dataclass(frozen=True)
class Outcome:
    """A run whose budgets are spent."""

    attribution: Attribution
    rows: list[dict[str, Any]]
    before: list[dict[str, Any]]


def spend(buckets: list[pa.Table], drops: list[CountedDrop]) -> Outcome:
    policy, facts = read_policy(None), facts_of(EVENTS, read_policy(None))
    given = explain_buckets(buckets, pa.Table.from_pylist([], schema=EVENT), policy, facts)
    attribution = Attribution(LedgerRead(drops=tuple(drops)), policy=policy, facts=facts)
    residue = pa.concat_tables([narrow(bucket) for bucket in buckets])
    settled = merge_settled([note_settled(settled_of(bucket), attribution.notes) for bucket in buckets])
    paid = attribution.spend(residue, given, settled)
    verdicts = pa.concat_tables(buckets)
    return Outcome(attribution, rows_with(verdicts, paid), rows_with(verdicts, given))


def settled_of(bucket: pa.Table) -> pa.Table:
    return bucket.filter(pa.array(~is_residue(bucket)))


@pytest.fixture(scope="module")
def verdicts():
    policy = read_policy(None)
    facts = facts_of(EVENTS, policy)
    return judge(
        table_of(EVENTS), make_plan(policy, data_end_ms=facts.data_end_ms, horizon_ms=facts.horizon_ms)
    ).verdicts


@pytest.fixture(scope="module")
def outcome(verdicts):
    return spend(split_by_message(verdicts), DROPS)


def reasons(rows, begin: str, *, otlp: bool = True) -> Counter[tuple[str, str | None]]:
    side = "otlp" if otlp else "native"
    return Counter(
        (row["reason"], row["reason_detail"])
        for row in rows
        if row["reason"] and row[side] and row["msg_id"].startswith(begin) and not (row["native"] and row["otlp"])
    )


def at_minute(rows, minute: int):
    return [row for row in rows if (row["event_ms"] - START_MS) // MINUTE_MS == minute]


def test_a_bucket_that_counted_exactly_its_losses_explains_exactly_them(outcome):
    """Twelve keys, twelve counted, all of them attributed with the counter's cause."""
    assert reasons(at_minute(outcome.rows, 10), "C0") == {("DROP_ATTRIBUTED", "queue_full"): 12}


def test_a_bucket_that_counted_a_part_explains_the_first_of_them(outcome):
    """Four of ten: those that ended first, whatever the order of the rows."""
    rows = at_minute(outcome.rows, 20)
    found = [row["event_ms"] for row in rows if row["reason"] == "DROP_ATTRIBUTED"]
    assert sorted(found) == sorted(row["event_ms"] for row in rows)[:4]
    assert reasons(rows, "C0") == {("DROP_ATTRIBUTED", "export_failed"): 4, ("UNEXPLAINED", None): 6}


@pytest.mark.parametrize("minute", [30, 40])
def test_a_large_counter_elsewhere_excuses_nothing(outcome, minute):
    """A thousand drops of another service, or of another process, at the same time."""
    assert set(reasons(at_minute(outcome.rows, minute), "C0")) == {("UNEXPLAINED", None)}


def test_a_native_record_is_of_the_service_whose_spans_its_group_shows(outcome):
    """Three of five by billing-app's counter; not one by a stranger's, who may pay for the group nobody knows."""
    assert reasons(outcome.rows, "Dbilling", otlp=False) == {
        ("DROP_ATTRIBUTED", "queue_full"): 3,
        ("UNEXPLAINED", None): 2,
    }
    assert reasons(outcome.rows, "Dunknown", otlp=False)["DROP_ATTRIBUTED", "queue_full"] == 2


def test_the_lost_end_of_a_delivery_spends_what_was_counted_for_it(outcome):
    """The delivery is on both sides, half; another one that nobody counted stays unexplained."""
    found = {row["msg_id"]: row["reason"] for row in at_minute(outcome.rows, 50)}
    assert found == {"MET2": "HALF_RECORD", "GONE": "UNEXPLAINED"}


def test_nothing_but_reason_and_detail_changes(outcome):
    """Every row of the residue comes back, in the same order."""

    def rest(rows):
        return [{**row, "reason": None, "reason_detail": None} for row in rows]

    assert rest(outcome.before) == rest(outcome.rows)


def test_the_order_and_the_buckets_of_the_rows_decide_nothing(verdicts, outcome):
    """The same keys are marked when they come in another order."""
    turned = verdicts.take(pa.array(range(len(verdicts) - 1, -1, -1)))

    def marked(rows):
        return sorted((row["msg_id"], row["kind"], str(row["reason"])) for row in rows)

    assert marked(spend(split_by_message(turned, 5), DROPS).rows) == marked(outcome.rows)


def test_of_too_many_slots_the_lost_ends_stay_whatever_the_order_of_rows(verdicts, monkeypatch):
    monkeypatch.setattr(slots, "MOST_SLOTS", 1)
    found = spend(split_by_message(verdicts), DROPS)
    assert found.attribution.summarise().attributed == {"native": 1, "otlp": 0}
    assert not any(row["reason"] == "DROP_ATTRIBUTED" for row in found.rows)


def test_of_too_many_groups_those_first_by_name_keep_their_services(verdicts, monkeypatch):
    monkeypatch.setattr(attribution, "_MOST_HOMES", 1)
    wanted = SettledNotes(homes=True)
    notes = [note_settled(settled_of(bucket), wanted) for bucket in split_by_message(verdicts)]
    assert merge_settled(notes).homes == {("billing", "billing-app")}
    assert merge_settled(notes[::-1]).homes == {("billing", "billing-app")}


def test_what_is_left_of_a_counter_is_reported(outcome):
    """Per side, cause and service: counted is attributed and surplus."""
    report = outcome.attribution.summarise()
    assert report.attributed == {"native": 17, "otlp": 5}
    assert report.surplus == {"native": 2000, "otlp": 900}
    assert sum(row["reason"] == "DROP_ATTRIBUTED" for row in outcome.rows) == 21
    assert all(line.counted == line.attributed + line.surplus for line in report.lines)
    assert sum(drop.count for drop in outcome.attribution.spent()) == 22


def test_notes_of_a_ledger_name_what_its_counts_cannot_pay_for():
    starts = summarise_ledger([], [drop("native", 4, of_start=True)], allocate([], [drop("native", 4)]), scopes={})
    assert (starts.surplus["native"], "4 records of a delivery's start" in starts.notes[0]) == (4, True)
    report = summarise_ledger(["l.json"], DROPS, allocate([], DROPS), scopes={"otlp": {"TRACE_TRAFFIC": 15}}, own=2)
    assert "905 spans were counted as lost that nothing misses; 15 spans of the trace topic" in report.notes[0]
    assert "2 counters of mqtrace's own processor" in report.notes[1]


def test_what_a_counter_had_counted_before_the_data_pays_for_nothing():
    """A Collector up for weeks: its first reading is told and not spent, how it grew from there is."""
    began = {"before": True, "bucket_ms": 60 * MINUTE_MS}
    drops = [
        drop("otlp", 700, bucket_start_ms=START_MS - 1, **began),
        drop("otlp", 40, **{**began, "bucket_ms": None}),
        drop("otlp", 5, bucket_start_ms=START_MS, **began),
        drop("otlp", 3, service="shop"),
    ]
    paying = make_spendable(drops, START_MS)
    assert [each.count for each in paying] == [0, 0, 5, 3]
    told = summarise_ledger([], drops, allocate([], paying), scopes={}, begin_ms=START_MS, again=6)
    assert (told.lines[0].counted, told.lines[0].surplus, told.surplus["otlp"]) == (745, 745, 748)
    assert [note.split()[0] for note in told.notes] == ["740", "6", "745"]


def test_stretches_join_where_they_touch():
    """A day of neighbouring buckets is one condition of the plan."""
    drops = [drop("native", 1, at_ms=number * CELL_MS) for number in range(100)]
    assert [len(stretch) for stretch in find_stretches([*drops, drop("native", 1)])] == [102]
