"""A history of runs: what one leaves open the next one takes over, and says what became of it."""

from __future__ import annotations

import json

import pytest

from otel_mqtrace.testing import ManualClock
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.history.history import RUNS
from spark_jobs.jobs.workspace import open_workspace
from tests.support.events import START_MS, after, before, consumed, delivery, publish
from tests.support.history_runs import DAY_MS, MINUTE_MS, both, run

LOST_SPAN = publish("native", "F", at_ms=0, path="monday.jsonl")
UNKNOWN_SEND = publish("otlp", "C", at_ms=1, path="monday.jsonl", line=7)
WAITING = publish("native", "B", at_ms=10 * MINUTE_MS, path="monday.jsonl")
MONDAY = [
    *both("A", 0),
    *both("Z", 10 * MINUTE_MS),  # how far the data reaches
    LOST_SPAN,
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
    *both("Y", 30 * MINUTE_MS, path="tuesday.jsonl"),
    publish("native", "O", at_ms=5 * MINUTE_MS, path="tuesday.jsonl"),  # before Tuesday's window
    publish("otlp", "B", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    UNKNOWN_SEND,  # its file was given again
    after("D", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    consumed("D", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    after("E", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    publish("otlp", "G", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    *both("K", 10 * MINUTE_MS, path="tuesday.jsonl", offset_msg_id="orders-0@K"),
    *delivery("K", at_ms=10 * MINUTE_MS, path="tuesday.jsonl"),
    publish("otlp", "I", at_ms=11 * MINUTE_MS, path="tuesday.jsonl"),
    *both("P", 11 * MINUTE_MS, path="tuesday.jsonl"),
    *delivery("P", at_ms=12 * MINUTE_MS, path="tuesday.jsonl"),
    consumed("P", at_ms=12 * MINUTE_MS, path="tuesday.jsonl"),
]
THURSDAY = [*both("X", 2 * DAY_MS, path="thursday.jsonl"), WAITING]
LAST = [*both("W", 9 * DAY_MS, path="last.jsonl")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def monday(root):
    return run(root, MONDAY)


@pytest.fixture(scope="module")
def tuesday(root, monday):
    """The second run, after one that failed with its state already written."""
    before = (root / "history" / RUNS).read_bytes()
    with pytest.raises(ZeroDivisionError):
        failing(root)
    assert (root / "history" / RUNS).read_bytes() == before
    return run(root, TUESDAY, begin_ms=START_MS + 11 * MINUTE_MS)


@pytest.fixture(scope="module")
def thursday(root, tuesday):
    return run(root, THURSDAY)


@pytest.fixture(scope="module")
def last(root, thursday):
    return run(root, LAST)


def failing(root):
    """Write a state, and fail before it is committed."""
    with open_workspace(root, root / "history", LocalEngine, ManualClock()) as place:
        place.past.make_events_directory()
        raise ZeroDivisionError


def lives(told):
    """What is told of each key that is or was open: its flag and the run that first reported it."""
    return {
        msg_id: (row["lifecycle"], row["first_seen_run"]) for msg_id, row in told.verdicts.items() if row["lifecycle"]
    }


def test_a_first_run_calls_new_what_it_leaves_open(monday):
    """Pending, in flight, half recorded a moment ago, lost without a reason; not what met."""
    assert lives(monday) == dict.fromkeys([*"BCDEFG", "orders-0@K"], ("new", 1))
    assert {name: monday.verdicts[name]["status"] for name in "BCEFG"} == {
        "B": "PENDING",
        "C": "OTLP_ONLY",
        "E": "MISMATCHED",
        "F": "NATIVE_ONLY",
        "G": "PENDING",
    }
    assert monday.verdicts["D"]["reason"] == "IN_FLIGHT"
    assert monday.result.lifecycle == {"new": 7}
    assert monday.result.open_break_age == {"0-1x": 5, ">5x": 2}
    assert (monday.result.run, len(monday.result.trend)) == (1, 1)


def test_what_a_later_run_brings_resolves_what_an_earlier_one_left_open(tuesday):
    """The other side, the other half, of one message and of two copies; each knows the run that first reported it."""
    assert lives(tuesday) == {
        **dict.fromkeys("BDEGK", ("resolved", 1)),
        **dict.fromkeys("CF", ("still_open", 1)),
        "I": ("new", 2),
    }
    assert {name: tuesday.verdicts[name]["status"] for name in "BDEG"} == {
        "B": "MATCHED_EXACT",
        "D": "MATCHED_EXACT",
        "E": "MATCHED_EXACT",
        "G": "DUPLICATED_NATIVE",
    }
    assert tuesday.verdicts["G"]["native_count"] == 2
    assert tuesday.result.to_json()["resolved_since_last_run"] == 5
    assert tuesday.result.open_break_age == {">5x": 3}


def test_a_span_that_waited_by_its_place_meets_its_message_when_the_send_is_read(tuesday):
    """Its place on the topic was all it knew on Monday; Tuesday's send says whose place that is."""
    (met,) = (row for row in tuesday.rows if row["msg_id"] == "K" and row["kind"] == "consume")
    assert (met["status"].partition("_")[0], met["lifecycle"], met["first_seen_run"]) == ("MATCHED", "resolved", 1)
    assert met["native_count"] == met["otlp_count"] == 1
    assert "orders-0@K" not in tuesday.verdicts


def test_what_this_input_lacks_does_not_explain_what_an_earlier_run_could_not(tuesday):
    """Tuesday's files begin after Monday's losses, which is no reason: they were read by a run that knew Monday."""
    assert {name: tuesday.verdicts[name]["reason"] for name in "CFI"} == dict.fromkeys("CFI", "UNEXPLAINED")


def test_an_event_read_again_from_its_place_is_no_duplicate(tuesday):
    """It counts once, as carried, and the books say so."""
    assert (tuesday.verdicts["C"]["otlp_count"], tuesday.verdicts["C"]["duplicates"]) == (1, None)
    native, otlp = tuesday.result.inputs.native, tuesday.result.inputs.otlp
    assert (native.carried, native.read_again, otlp.carried, otlp.read_again) == (6, 0, 3, 1)
    assert tuesday.result.conservation.holds, tuesday.result.conservation


def test_the_window_of_a_run_does_not_shut_out_what_is_carried_over(tuesday):
    """A key was in the window of the run that first saw it; one read only now is not."""
    assert tuesday.verdicts["O"]["status"] == "OUT_OF_SCOPE"
    assert tuesday.verdicts["F"]["status"] == "NATIVE_ONLY"


def test_a_key_that_was_resolved_and_is_one_sided_again_has_regressed(thursday):
    """Half of what resolved it was not given again."""
    assert lives(thursday) == {
        "B": ("regressed", 1),
        **dict.fromkeys("CF", ("still_open", 1)),
        "I": ("still_open", 2),
    }
    assert thursday.result.conservation.holds, thursday.result.conservation


def test_what_is_older_than_the_policy_waits_for_is_told_once_more_and_forgotten(root, last):
    """After seven days the open keys are expired, counted, and carried no further."""
    assert {msg_id: flag for msg_id, (flag, _) in lives(last).items()} == dict.fromkeys("BCFI", "expired")
    assert last.result.lifecycle == {"expired": 4}
    assert last.result.open_break_age == {}
    assert not list((root / "history" / "open").glob("run=*/events/*"))


def test_a_history_holds_one_line_a_run_and_the_trend_is_made_of_them(root, last):
    """Numbered, stamped with the injected time, with verdict, counts, gates and what was read."""
    lines = [json.loads(line) for line in (root / "history" / RUNS).read_text().splitlines()]
    assert [line["run"] for line in lines] == [1, 2, 3, 4]
    assert {line["time"] for line in lines} == {"2026-11-21T12:00:00.000Z"}
    assert [line["lifecycle"] for line in lines] == [point["lifecycle"] for point in last.result.trend]
    assert lines[1]["inputs"]["otlp"]["read_again"] == 1
    assert lines[1]["gates"]["malformed"] == {"value": 0, "outcome": "pass"}
    assert 0 < lines[0]["match_rate"] < 1
