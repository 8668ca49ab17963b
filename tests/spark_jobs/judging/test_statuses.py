"""Statuses that depend on more than one rule, one small story each, all judged in one run; the rest: tests/faults."""

from dataclasses import replace

import pytest

from spark_jobs.policy.policy import read_policy
from tests.spark_jobs.judging.stories import END_MS, Story, both
from tests.support.events import START_MS, after, before, consumed, delivery, publish
from tests.support.kernel_runs import judge_events


def mqtrace_stories() -> dict[str, Story]:
    return {
        "M02": Story(
            "two halves and a span are one delivery",
            [*delivery("M02"), consumed("M02")],
            "MATCHED_EXACT",
            also={"native_records": 2, "half_merged": 1, "key_level": 1},
        ),
        "M06": Story(
            "the same native record twice is an exact duplicate",
            [*delivery("M06"), after("M06"), consumed("M06")],
            "DUPLICATED_NATIVE",
            also={"duplicates": "exact", "native_count": 2, "native_exact_duplicates": 1},
        ),
        "M09": Story(
            "copies win over a mismatch, whose field verdicts stay",
            [publish("native", "M09"), *[publish("otlp", "M09", topic="other")] * 2],
            "DUPLICATED_OTLP",
            kind="publish",
        ),
        "M14": Story(
            "the end lost while the span is whole is half a record",
            [before("M14"), consumed("M14")],
            "MISMATCHED",
            "HALF_RECORD",
            also={"reason_detail": "before"},
        ),
        "M16": Story(
            "an end alone, with no span, is a lost span",
            [after("M16")],
            "NATIVE_ONLY",
            "UNEXPLAINED",
            also={"event_ms": START_MS + 100},
        ),
        "M20": Story(
            "one request id in two groups is two keys",
            [
                *(*delivery("M20"), *delivery("M20", group="shipping")),
                *(consumed("M20"), consumed("M20", group="shipping")),
            ],
            "MATCHED_EXACT",
            keys=2,
        ),
        "M23": Story(
            "attempts that differ on both sides never pair, however alike",
            [*delivery("M23", attempt="A1"), consumed("M23", attempt="A2")],
            "NATIVE_ONLY",
            "UNEXPLAINED",
            keys=2,
        ),
        "M26": Story(
            "the native wire carries no topic of a delivery: not comparable, and taken from the send",
            [*both("M26"), *delivery("M26"), consumed("M26", topic=None)],
            "MATCHED_EXACT",
            also={"topic": "orders", "queue_ms": 90, "end_to_end_ms": 110},
        ),
        "M27": Story(
            "of copies on one side only, the loss is what counts",
            [*delivery("M27"), *delivery("M27")],
            "NATIVE_ONLY",
            "UNEXPLAINED",
            also={"native_count": 2, "duplicates": "exact"},
        ),
        "M28": Story(
            "a listener's cost is its batch's, divided and rounded down",
            [*delivery("M28", cost_ms=3, end_ms=START_MS + 110), consumed("M28", batch_size=3)],
            "MATCHED_NORMALISED",
        ),
        "M29": Story(
            "a second recall of one message is another event",
            [
                {**publish(side, "M29", at_ms=at_ms, offset_msg_id=None, success=at_ms == 0), "kind": "recall"}
                for side in ("native", "otlp")
                for at_ms in (0, 40)
            ],
            "MATCHED_EXACT",
            kind="recall",
            keys=2,
        ),
        "END": Story("the input goes on", both("END", at_ms=END_MS), "MATCHED_EXACT", kind="publish"),
    }


STORIES = mqtrace_stories()


@pytest.fixture(scope="module")
def answers():
    events = [row for story in STORIES.values() for row in story.events]
    return judge_events(events)


@pytest.mark.parametrize("msg_id", [*STORIES], ids=[story.says for story in STORIES.values()])
def test_story_gets_its_verdict(answers, msg_id):
    story = STORIES[msg_id]
    rows = [row for row in answers if row["msg_id"] == msg_id and row["kind"] == story.kind]
    assert len(rows) == story.keys, rows
    mine = [row for row in rows if (row["status"], row["reason"]) == (story.status, story.reason)]
    assert mine, [(row["status"], row["reason"], row["field_verdicts"]) for row in rows]
    for name, expected in story.also.items():
        assert expected in [row[name] for row in mine], name


@pytest.mark.parametrize(
    ("msg_id", "fields"),
    [("M09", {"topic": "DIFFERENT"}), ("M14", {"start_ms": "EQUAL", "success": "MISSING_NATIVE"})],
    ids=["duplicate", "half a record"],
)
def test_field_verdicts_stay_beside_the_status(answers, msg_id, fields):
    row = next(row for row in answers if row["msg_id"] == msg_id)
    assert row["field_verdicts"].items() >= fields.items()


def test_window_leaves_out_whole_keys():
    policy = replace(read_policy(None), begin_ms=START_MS, end_ms=START_MS + 1_000, grace_ms=0)
    straddling = [publish("native", "W1", at_ms=1_000), publish("otlp", "W1", at_ms=1_001)]
    events = [*straddling, *both("W2", at_ms=-1), *both("W3", at_ms=500), publish("native", "W4", at_ms=5_000)]
    statuses = {row["msg_id"]: (row["status"], row["reason_detail"]) for row in judge_events(events, policy=policy)}
    assert statuses == {
        "W1": ("MISMATCHED", None),
        "W2": ("OUT_OF_SCOPE", "WINDOW"),
        "W3": ("MATCHED_EXACT", None),
        "W4": ("OUT_OF_SCOPE", "WINDOW"),
    }


def test_key_carried_from_an_earlier_run_is_in_every_window():
    policy = replace(read_policy(None), begin_ms=START_MS + 1, grace_ms=0)
    events = [
        publish("native", "C1", first_seen_run=3, left_as="PENDING"),
        publish("otlp", "C1"),
        *both("END", at_ms=9),
    ]
    row_of_c1 = next(row for row in judge_events(events, policy=policy) if row["msg_id"] == "C1")
    assert (row_of_c1["status"], row_of_c1["first_seen_run"]) == ("MATCHED_EXACT", 3)
    assert (row_of_c1["native"]["left_as"], row_of_c1["otlp"]["left_as"]) == ("PENDING", None)


def test_empty_side_settles_nothing():
    assert {row["status"] for row in judge_events(delivery("E1"))} == {"PENDING"}
