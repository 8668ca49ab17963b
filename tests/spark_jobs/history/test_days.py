"""A history of days: what one leaves open the next one carries over, and how each key ends."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_jobs.drops import CountedDrop
from spark_jobs.history.history import RUNS, open_history, read_rows
from spark_jobs.schemas import EVENT
from tests.support.events import START_MS, after, before, consumed, delivery, publish
from tests.support.history_days import DAY_MS, MINUTE_MS, both, run_day

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


def cut_off(row):
    """Explain what began before Tuesday's own data as lying before the input; of what is new there, nothing."""
    return ("LATE_BEYOND_RETENTION", "before the input") if row["msg_id"] in {"C", "F"} else None


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def monday(root):
    return run_day(root, MONDAY)


@pytest.fixture(scope="module")
def tuesday(root, monday):
    """The second run, after one that ended without a commit, its state already written."""
    before = (root / "history" / RUNS).read_bytes()
    run_day(root, TUESDAY, commits=False)
    assert (root / "history" / RUNS).read_bytes() == before
    return run_day(root, TUESDAY, explain=cut_off, begin_ms=START_MS + 11 * MINUTE_MS)


@pytest.fixture(scope="module")
def thursday(root, tuesday):
    return run_day(root, THURSDAY)


@pytest.fixture(scope="module")
def last(root, thursday):
    return run_day(root, LAST)


def test_key_that_the_first_run_leaves_open_is_new(monday):
    """Pending, in flight, half recorded a moment ago, lost without a reason; not what met."""
    assert monday.lifecycle_of == dict.fromkeys([*"BCDEFG", "orders-0@K"], ("new", 1))
    assert {name: monday.verdicts[name]["status"] for name in "BCEFG"} == {
        "B": "PENDING",
        "C": "OTLP_ONLY",
        "E": "MISMATCHED",
        "F": "NATIVE_ONLY",
        "G": "PENDING",
    }
    assert monday.verdicts["D"]["reason"] == "IN_FLIGHT"
    assert monday.lifecycles == {"new": 7}


def test_every_event_of_an_open_key_is_left_with_its_run_and_reason(monday):
    """Copies and halves too, each with what the verdict says."""
    left = Counter((row["side"], row["msg_id"], row["half"], row["first_seen_run"]) for row in monday.left)
    assert left == {
        ("native", "B", "whole", 1): 1,
        ("otlp", "C", "whole", 1): 1,
        ("native", "D", "before", 1): 1,
        ("native", "E", "before", 1): 1,
        ("otlp", "E", "whole", 1): 1,
        ("native", "F", "whole", 1): 1,
        ("native", "G", "whole", 1): 2,
        ("otlp", "orders-0@K", "whole", 1): 1,
    }
    assert {row["msg_id"]: row["left_as"] for row in monday.left} == {
        **dict.fromkeys(["B", "G", "orders-0@K"], "PENDING"),
        **dict.fromkeys("CF", "UNEXPLAINED"),
        "D": "IN_FLIGHT",
        "E": "HALF_RECORD",
    }


def test_key_left_open_is_resolved_by_a_later_run(tuesday):
    """The other side, the other half, of one message and of two copies; each has the run that first reported it."""
    assert tuesday.lifecycle_of == {
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
    assert tuesday.lifecycles["resolved"] == 5


def test_span_identified_by_position_meets_its_message_when_the_send_is_read(tuesday):
    """Its place on the topic was all it had on Monday; Tuesday's send says whose place that is."""
    (met,) = (row for row in tuesday.rows if row["msg_id"] == "K" and row["kind"] == "consume")
    assert (met["status"].partition("_")[0], met["lifecycle"], met["first_seen_run"]) == ("MATCHED", "resolved", 1)
    assert met["native_count"] == met["otlp_count"] == 1
    assert "orders-0@K" not in tuesday.verdicts
    assert tuesday.carried.by_position == 1


def test_reason_of_this_input_alone_does_not_explain_an_older_key(tuesday):
    """Tuesday's files begin after Monday's losses, which is no reason: Monday's run read what was before them."""
    assert {name: tuesday.verdicts[name]["reason"] for name in "CFI"} == dict.fromkeys("CFI", "UNEXPLAINED")
    assert {tuesday.verdicts[name]["reason_detail"] for name in "CF"} == {None}


def test_event_read_again_from_its_position_counts_once(tuesday):
    """As carried, and the books say so."""
    assert (tuesday.verdicts["C"]["otlp_count"], tuesday.verdicts["C"]["duplicates"]) == (1, None)
    assert tuesday.carried.counts == {"native": 6, "otlp": 3}
    assert tuesday.carried.read_again == {"otlp": 1}


def test_carried_key_outside_the_window_is_judged(tuesday):
    """A key was in the window of the run that first saw it; one read only now is not."""
    assert tuesday.verdicts["O"]["status"] == "OUT_OF_SCOPE"
    assert tuesday.verdicts["F"]["status"] == "NATIVE_ONLY"


def test_resolved_key_that_is_one_sided_again_has_regressed(thursday):
    """Half of what resolved it was not given again."""
    assert thursday.lifecycle_of == {
        "B": ("regressed", 1),
        **dict.fromkeys("CF", ("still_open", 1)),
        "I": ("still_open", 2),
    }


def test_key_older_than_the_policy_is_expired_once_and_forgotten(root, last):
    """After seven days the open keys are expired, counted, and carried no further."""
    assert {msg_id: flag for msg_id, (flag, _) in last.lifecycle_of.items()} == dict.fromkeys("BCFI", "expired")
    assert last.lifecycles == {"expired": 4}
    with open_history(root / "history") as past:
        assert past.run == 5
        assert past.carried_files() == []


LOST = [publish("native", f"L{number}", at_ms=number, path="monday.jsonl") for number in range(8)]


def cover(*ids):
    return lambda row: ("DROP_ATTRIBUTED", "queue_full") if row["msg_id"] in ids else None


@pytest.fixture(scope="module")
def covered_root(tmp_path_factory):
    return tmp_path_factory.mktemp("covered")


@pytest.fixture(scope="module")
def covered_days(covered_root):
    """Eight spans lost of which five were counted; one of them comes late; a week later all is old."""
    late = publish("otlp", "L0", at_ms=0, path="tuesday.jsonl")
    used = (CountedDrop(side="otlp", component="queue", cause="queue_full", count=5),)
    stories = [
        ([*both("A", 0), *LOST, *both("Z", 30 * MINUTE_MS)], cover("L0", "L1", "L2", "L3", "L4")),
        ([late, *both("Y", 60 * MINUTE_MS, path="tuesday.jsonl")], cover("L1", "L2", "L3", "L4", "L5")),
        (both("X", 9 * DAY_MS, path="last.jsonl"), cover("L1", "L2", "L3", "L4", "L5")),
    ]
    return [run_day(covered_root, events, explain=explain, used=used) for events, explain in stories]


def test_covered_key_is_carried_and_resolved_when_its_span_comes(covered_days):
    """A counter says how many were lost, not which: what it covered is waited for, and what it counted goes to another."""
    first, second, _ = covered_days
    assert (first.verdicts["L0"]["reason"], first.verdicts["L0"]["lifecycle"]) == ("DROP_ATTRIBUTED", None)
    assert first.verdicts["L0"]["first_seen_run"] == 1
    found = second.verdicts["L0"]
    assert (found["status"], found["lifecycle"], found["first_seen_run"]) == ("MATCHED_EXACT", "resolved", 1)
    assert second.verdicts["L5"]["reason"] == "DROP_ATTRIBUTED"
    assert second.verdicts["L1"]["lifecycle"] == "explained"
    assert {row["left_as"] for row in first.left} == {"DROP_ATTRIBUTED", "UNEXPLAINED"}
    assert len(first.left) == 8


def test_covered_key_is_forgotten_with_the_rest(covered_root, covered_days):
    """After seven days it is reported once more, as expired, and carried no further."""
    assert covered_days[2].lifecycles == {"expired": 7}
    with open_history(covered_root / "history") as past:
        assert past.carried_files() == []
        assert [drop.count for drop in past.used_drops()] == [5]


def test_state_written_by_spark_is_read_as_ours(tmp_path):
    """Files of any name, and what Spark writes beside them."""
    run_day(tmp_path, MONDAY)
    with open_history(tmp_path / "history") as past:
        (ours,) = past.carried_files()
        directory = tmp_path / "history" / "open" / "run=1" / "events"
        (directory / "part-00000.parquet").rename(directory / "part-00007-c000.zstd.parquet")
        (directory / "_SUCCESS").touch()
        (directory / ".part-00007-c000.zstd.parquet.crc").touch()
        (theirs,) = past.carried_files()
        assert ours != theirs
        assert len(read_rows(theirs, EVENT)) == 9
