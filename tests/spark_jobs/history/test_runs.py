"""A history of runs: what one leaves open the next one carries over; counted losses cover no key twice."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from otel_mqtrace._clock import WallNs
from otel_mqtrace.testing import ManualClock
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.history.history import open_history
from spark_jobs.jobs.batch import conclude, reconcile
from spark_jobs.jobs.options import no_progress, no_report
from spark_jobs.jobs.reading import EventSide
from spark_jobs.jobs.workspace import open_workspace
from spark_jobs.judging.columns import identified_by_offset
from spark_jobs.judging.facts import survey
from spark_jobs.policy.policy import read_policy
from spark_jobs.report.result import Result
from spark_jobs.schemas import NORMALISED, CountedDrop, LedgerRead
from tests.support.events import START_MS, after, before, both, consumed, delivery, publish
from tests.support.reading import read_verdicts

MINUTE_MS, DAY_MS = 60_000, 86_400_000
NOON_NS = WallNs(START_MS * 1_000_000)


@dataclass(frozen=True)
class RunRows:
    """A run's result, and its verdicts below ``root``."""

    root: Path
    result: Result
    rows: list[dict[str, Any]]

    @property
    def verdicts(self) -> dict[str, dict[str, Any]]:
        """By message id; of a message with several, one that is or was open before others."""
        rows = sorted(self.rows, key=lambda row: row["lifecycle"] is not None)
        return {row["msg_id"]: row for row in rows}


def run(
    root: Path, events: list[dict[str, Any]], *, begin_ms: int | None = None, writer: str = "mqtrace", **how: Any
) -> RunRows:
    rules = replace(read_policy(None, native_writer=writer), begin_ms=begin_ms)
    with open_workspace(root, root / "history", LocalEngine, ManualClock(wall_ns=NOON_NS)) as place:
        sides = (
            replace(_side(place.work, events, "native"), trace_topics=("traces",)),
            _side(place.work, events, "otlp"),
        )
        reconciled = reconcile(place, sides, rules, progress=no_progress, **how)
        result = conclude(place, reconciled, no_report, out=root)
    return RunRows(root, result, read_verdicts(root))


def _side(work: Path, events: list[dict[str, Any]], name: str) -> EventSide:
    rows = pa.Table.from_pylist([{**row, "bad": None} for row in events if row["side"] == name], schema=NORMALISED)
    path = work / f"{name}.parquet"
    parquet.write_table(rows, path)
    columns = {column: rows[column].combine_chunks() for column in ("msg_id", "offset_msg_id")}
    by_place = int(identified_by_offset(columns).sum()) if name == "otlp" else 0
    return EventSide(files=(str(path),), records_read=len(rows), by_place=by_place, survey=survey(rows))


UNKNOWN_SEND = publish("otlp", "C", at_ms=1, path="monday.jsonl", line=7)
WAITING = publish("native", "B", at_ms=10 * MINUTE_MS, path="monday.jsonl")
MONDAY = [
    *both("A", at_ms=0),
    *both("Z", at_ms=10 * MINUTE_MS),  # how far the data reaches
    publish("native", "F", at_ms=0, path="monday.jsonl"),
    UNKNOWN_SEND,
    WAITING,
    before("D", at_ms=10 * MINUTE_MS, path="monday.jsonl"),
    before("E", at_ms=10 * MINUTE_MS, path="monday.jsonl"),
    consumed("E", at_ms=10 * MINUTE_MS, path="monday.jsonl"),
    publish("native", "G", at_ms=10 * MINUTE_MS, path="monday.jsonl", line=3),
    publish("native", "G", at_ms=10 * MINUTE_MS, path="monday.jsonl", line=4),
    consumed("orders-0@K", attempt=None, at_ms=10 * MINUTE_MS, offset_msg_id="orders-0@K", path="monday.jsonl"),
]
TUESDAY = [
    *both("Y", at_ms=30 * MINUTE_MS, path="tuesday.jsonl"),
    publish("native", "O", at_ms=5 * MINUTE_MS, path="tuesday.jsonl"),  # before Tuesday's window
    publish("otlp", "B", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    UNKNOWN_SEND,  # its file was given again
    after("D", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    consumed("D", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    after("E", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    publish("otlp", "G", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    *both("K", at_ms=10 * MINUTE_MS, path="tuesday.jsonl", offset_msg_id="orders-0@K"),
    *delivery("K", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    publish("otlp", "I", at_ms=11 * MINUTE_MS, path="tuesday.jsonl"),
    *both("P", at_ms=11 * MINUTE_MS, path="tuesday.jsonl"),
    *delivery("P", at_ms=12 * MINUTE_MS, path="tuesday.jsonl"),
    consumed("P", at_ms=12 * MINUTE_MS, path="tuesday.jsonl"),
]
THURSDAY = [*both("X", at_ms=2 * DAY_MS, path="thursday.jsonl"), WAITING]
LAST = [*both("W", at_ms=9 * DAY_MS, path="last.jsonl")]


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    root = tmp_path_factory.mktemp("history")
    window = {"begin_ms": START_MS + 11 * MINUTE_MS}
    stories = {"monday": (MONDAY, {}), "tuesday": (TUESDAY, window), "thursday": (THURSDAY, {}), "last": (LAST, {})}
    return {day: run(root, events, **policy) for day, (events, policy) in stories.items()}


def lifecycle_of(run):
    return {
        msg_id: (row["lifecycle"], row["first_seen_run"]) for msg_id, row in run.verdicts.items() if row["lifecycle"]
    }


def test_send_to_a_topic_named_like_the_trace_topic_that_was_read_is_by_design(tmp_path):
    sends = [publish("otlp", "T", topic="traces-2"), *both("A"), *both("Z", at_ms=10 * MINUTE_MS)]
    assert run(tmp_path, sends, writer="rocketmq-5.3.3").verdicts["T"]["reason"] == "BY_DESIGN"


def test_key_that_the_first_run_leaves_open_is_new(days):
    monday = days["monday"]
    assert lifecycle_of(monday) == dict.fromkeys([*"BCDEFG", "orders-0@K"], ("new", 1))
    statuses = {"B": "PENDING", "C": "OTLP_ONLY", "E": "MISMATCHED", "F": "NATIVE_ONLY", "G": "PENDING"}
    assert {name: monday.verdicts[name]["status"] for name in statuses} == statuses
    assert monday.verdicts["D"]["reason"] == "IN_FLIGHT"
    assert monday.result.lifecycle == {"new": 7}
    assert monday.result.open_break_age == {"0-1x": 5, ">5x": 2}
    assert (monday.result.run, len(monday.result.trend)) == (1, 1)


def test_key_left_open_is_resolved_by_a_later_run(days):
    tuesday = days["tuesday"]
    old = {**dict.fromkeys("BDEGK", ("resolved", 1)), **dict.fromkeys("CF", ("still_open", 1))}
    assert lifecycle_of(tuesday) == {**old, "I": ("new", 2)}
    statuses = {**dict.fromkeys("BDE", "MATCHED_EXACT"), "G": "DUPLICATED_NATIVE"}
    assert {name: tuesday.verdicts[name]["status"] for name in statuses} == statuses
    assert tuesday.verdicts["G"]["native_count"] == 2
    assert tuesday.result.to_json()["resolved_since_last_run"] == 5
    assert tuesday.result.open_break_age == {">5x": 3}


def test_span_identified_by_position_meets_its_message_when_the_send_is_read(days):
    """Its position on the topic was all it had on Monday; Tuesday's send has the id of that position."""
    tuesday = days["tuesday"]
    (met,) = (row for row in tuesday.rows if row["msg_id"] == "K" and row["kind"] == "consume")
    assert (met["status"].partition("_")[0], met["lifecycle"], met["first_seen_run"]) == ("MATCHED", "resolved", 1)
    assert met["native_count"] == met["otlp_count"] == 1
    assert "orders-0@K" not in tuesday.verdicts


def test_event_read_again_from_its_position_counts_once(days):
    tuesday = days["tuesday"]
    assert (tuesday.verdicts["C"]["otlp_count"], tuesday.verdicts["C"]["duplicates"]) == (1, None)
    native, otlp = tuesday.result.inputs.native, tuesday.result.inputs.otlp
    assert (native.carried, native.read_again, otlp.carried, otlp.read_again) == (6, 0, 3, 1)
    assert tuesday.result.conservation.holds, tuesday.result.conservation


def test_span_that_a_send_named_counts_once_when_its_file_is_read_again_without_the_send(tmp_path):
    """The carried copy has the send's id, the one just read only its position: they meet by their place alone."""
    span = consumed("orders-0@K", attempt=None, offset_msg_id="orders-0@K", path="monday.jsonl")
    run(tmp_path, [*both("K", offset_msg_id="orders-0@K"), span, *both("Z", at_ms=10 * MINUTE_MS)])
    again = run(tmp_path, [span, *both("Y", at_ms=30 * MINUTE_MS)])
    assert lifecycle_of(again) == {"K": ("still_open", 1)}
    assert (again.result.inputs.otlp.read_again, {row["msg_id"] for row in again.rows}) == (1, {"K", "Y"})


def test_resolved_key_that_is_one_sided_again_has_regressed(days):
    thursday = days["thursday"]
    still_open = {**dict.fromkeys("CF", ("still_open", 1)), "I": ("still_open", 2)}
    assert lifecycle_of(thursday) == {"B": ("regressed", 1), **still_open}
    assert thursday.result.conservation.holds, thursday.result.conservation


def test_key_older_than_the_policy_is_expired_once_and_forgotten(days):
    last = days["last"]
    assert {msg_id: flag for msg_id, (flag, _) in lifecycle_of(last).items()} == dict.fromkeys("BCFI", "expired")
    assert last.result.lifecycle == {"expired": 4}
    assert last.result.open_break_age == {}
    assert not list((last.root / "history" / "open").glob("run=*/events/*"))


QUIET = [publish("native", f"Q{n}", topic="quiet", at_ms=10 * MINUTE_MS + n, path="monday.jsonl") for n in range(20)]
FIRST = [*both("A", at_ms=0), *both("Z", at_ms=10 * MINUTE_MS), *QUIET]
NEWS = both("Y", at_ms=60 * MINUTE_MS, path="tuesday.jsonl")


@pytest.mark.parametrize(
    ("given", "reason"), [([*FIRST, *NEWS], "WRITER_SILENT"), (NEWS, "UNEXPLAINED")], ids=["everything again", "news"]
)
def test_pending_key_of_a_silent_topic_is_excused_only_where_it_is_read_again(tmp_path, given, reason):
    """With everything read again, as a stream does, the reasons are those of one batch."""
    assert run(tmp_path / "history", FIRST).result.status["PENDING"] == len(QUIET)
    assert reasons(run(tmp_path / "history", given)) == {reason: len(QUIET)}
    assert reasons(run(tmp_path / "batch", [*FIRST, *NEWS])) == {"WRITER_SILENT": len(QUIET)}


@pytest.mark.parametrize(("has_earlier_input", "reason"), [(True, "LATE_BEYOND_RETENTION"), (False, "UNEXPLAINED")])
def test_pending_key_from_before_the_other_side_began_is_late_where_all_is_read_again(
    tmp_path, has_earlier_input, reason
):
    """A stream reads all again in each of its rounds; another run may leave out what began earlier."""
    spans = [publish("otlp", f"E{number}", at_ms=number) for number in range(5)]
    later = [event for number in range(20) for event in both(f"L{number}", at_ms=(30 + number) * MINUTE_MS)]
    assert run(tmp_path, spans).result.status == {"PENDING": 5}
    rounds = [run(tmp_path, [*spans, *later], has_earlier_input=has_earlier_input) for _ in range(2)]
    assert [reasons(one) for one in rounds] == [{reason: 5}] * 2


LOST = [publish("native", f"L{number}", at_ms=number, path="monday.jsonl") for number in range(8)]
COUNTED = CountedDrop(side="otlp", component="queue", cause="queue_full", count=5)
LEDGER = LedgerRead(files=("ledger.json",), drops=(COUNTED,))


@pytest.fixture(scope="module")
def covered(tmp_path_factory):
    """Eight spans lost, five of them counted; one comes late; a week later others are lost, and no ledger is given."""
    root, late = tmp_path_factory.mktemp("covered"), publish("otlp", "L0", at_ms=0, path="tuesday.jsonl")
    later = [publish("native", f"M{number}", at_ms=9 * DAY_MS + number, path="next.jsonl") for number in range(5)]
    stories = [
        ([*both("A", at_ms=0), *LOST, *both("Z", at_ms=30 * MINUTE_MS)], LEDGER),
        ([late, *both("Y", at_ms=60 * MINUTE_MS, path="tuesday.jsonl")], LEDGER),
        (both("X", at_ms=9 * DAY_MS, path="last.jsonl"), None),
        ([*later, *(row for at in (0, 30) for row in both(f"N{at}", at_ms=9 * DAY_MS + at * MINUTE_MS))], None),
    ]
    return [run(root, events, ledger=ledger) for events, ledger in stories]


def reasons(run):
    return Counter(row["reason"] for row in run.rows if row["reason"])


def test_five_counted_losses_cover_five_keys_and_no_others_in_the_next_runs(covered):
    assert reasons(covered[0]) == {"DROP_ATTRIBUTED": 5, "UNEXPLAINED": 3}
    assert reasons(covered[1]) == reasons(covered[2]) == {"DROP_ATTRIBUTED": 5, "UNEXPLAINED": 2}
    assert reasons(covered[3]) == {"UNEXPLAINED": 5}
    assert [one.result.ledger.attributed["otlp"] for one in covered[:3]] == [5, 5, 5]
    assert [one.result.ledger and one.result.ledger.files for one in covered] == [("ledger.json",)] * 2 + [(), None]
    assert [one.result.exit_code for one in covered] == [1, 1, 1, 1]


def test_covered_key_is_resolved_when_its_span_comes(covered):
    """A counter says how many were lost, not which: a covered key is waited for, and its count then covers another."""
    assert (covered[0].verdicts["L0"]["reason"], covered[0].verdicts["L0"]["lifecycle"]) == ("DROP_ATTRIBUTED", None)
    verdict = covered[1].verdicts["L0"]
    assert (verdict["status"], verdict["lifecycle"], verdict["first_seen_run"]) == ("MATCHED_EXACT", "resolved", 1)
    assert covered[1].verdicts["L5"]["reason"] == "DROP_ATTRIBUTED"
    assert covered[1].verdicts["L1"]["lifecycle"] == "explained"
    assert all(one.result.conservation.holds for one in covered)


def test_count_that_no_key_uses_any_more_is_forgotten(tmp_path):
    run(tmp_path, [*both("A", at_ms=0), LOST[0], *both("Z", at_ms=30 * MINUTE_MS)], ledger=LEDGER)
    run(tmp_path, [publish("otlp", "L0", at_ms=0, path="tuesday.jsonl"), *both("Y", at_ms=60 * MINUTE_MS)])
    with open_history(tmp_path / "history") as history:
        assert history.used_drops() == ()


def test_covered_key_is_forgotten_with_the_rest(covered):
    assert Counter(row["lifecycle"] for row in covered[2].rows if row["lifecycle"]) == {"expired": 7}
    with open_history(covered[2].root / "history") as history:
        assert history.used_drops() == ()
    assert {row["msg_id"][0] for row in covered[3].rows} == {"M", "N"}


@pytest.mark.parametrize(("from_ms", "covered"), [(0, 5), (START_MS + MINUTE_MS, 0), (None, 0)])
def test_count_of_an_old_key_is_forgotten_where_no_later_run_reads_it_again(tmp_path, from_ms, covered):
    """A stream reads its batches again until they are dropped; its ledger may be gone by then."""
    week = [*both("A", at_ms=0), *LOST, *both("Z", at_ms=9 * DAY_MS)]
    assert reasons(run(tmp_path, week, ledger=LEDGER, read_again_from_ms=from_ms))["DROP_ATTRIBUTED"] == 5
    assert reasons(run(tmp_path, week, read_again_from_ms=from_ms))["DROP_ATTRIBUTED"] == covered


def test_count_of_an_expired_key_of_another_stream_is_forgotten(tmp_path):
    run(tmp_path, [*both("A", at_ms=0), *LOST, *both("Z", at_ms=30 * MINUTE_MS)], ledger=LEDGER)
    run(tmp_path, both("X", at_ms=9 * DAY_MS, path="last.jsonl"), read_again_from_ms=0)
    with open_history(tmp_path / "history") as history:
        assert history.used_drops() == ()


@pytest.mark.parametrize(
    ("given", "status", "lost"),
    [
        ([publish("native", "N", at_ms=60 * MINUTE_MS, path="tuesday.jsonl")], {"PENDING": 9}, 4),
        (both("O", at_ms=-60 * MINUTE_MS, path="sunday.jsonl"), {"MATCHED_EXACT": 1, "PENDING": 8}, 3),
    ],
    ids=["empty side", "older data"],
)
def test_run_that_cannot_judge_forgets_neither_what_was_lost_nor_what_is_covered(tmp_path, given, status, lost):
    first = run(tmp_path, [*both("A", at_ms=0), *LOST, *both("Z", at_ms=30 * MINUTE_MS)], ledger=LEDGER)
    undecided = run(tmp_path, given)
    third = run(tmp_path, both("Y", at_ms=90 * MINUTE_MS, path="thursday.jsonl"))
    assert reasons(first) == {"DROP_ATTRIBUTED": 5, "UNEXPLAINED": 3}
    assert (undecided.result.verdict, undecided.result.status) == ("INCONCLUSIVE", status)
    assert reasons(third) == {"DROP_ATTRIBUTED": 5, "UNEXPLAINED": lost}
    assert third.verdicts["L0"]["native"]["left_as"] in {"DROP_ATTRIBUTED", "UNEXPLAINED"}


HALF = [before("H", path="monday.jsonl"), consumed("H", path="monday.jsonl")]
WHOLE = [*delivery("K", path="monday.jsonl"), consumed("K", path="monday.jsonl")]
ONE_COUNTED = LedgerRead(files=("ledger.json",), drops=(replace(COUNTED, side="native", count=1),))


def test_half_of_a_delivery_uses_a_counted_loss_where_no_key_is_lost(tmp_path):
    result = run(tmp_path, [*HALF, *WHOLE, *both("Z", at_ms=30 * MINUTE_MS)], ledger=ONE_COUNTED).result
    assert result.reason == {"HALF_RECORD": 1}
    assert (result.ledger.attributed["native"], result.ledger.surplus["native"]) == (1, 0)


@pytest.mark.parametrize(("reach_ms", "remembered"), [(30 * MINUTE_MS, 0), (0, 1)], ids=["settled", "may get its end"])
def test_count_spent_on_half_a_delivery_covers_no_key_of_the_next_run(tmp_path, reach_ms, remembered):
    """The next run sees a half again that may still get its end, and spends the count on it again."""
    lost = consumed("L", path="monday.jsonl")
    run(tmp_path, [*HALF, *WHOLE, lost, *both("Z", at_ms=reach_ms)], ledger=ONE_COUNTED)
    with open_history(tmp_path / "history") as history:
        assert sum(drop.count for drop in history.used_drops()) == remembered
    second = run(tmp_path, both("Y", at_ms=60 * MINUTE_MS, path="tuesday.jsonl"))
    assert second.verdicts["L"]["reason"] == "UNEXPLAINED"
