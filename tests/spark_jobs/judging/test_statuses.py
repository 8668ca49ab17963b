"""Statuses that depend on more than one rule, one small story each, all judged in one run; the rest: tests/faults."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spark_jobs.policy.policy import read_policy
from tests.support.events import START_MS, after, agent, before, both, consumed, delivery, halves_of, publish
from tests.support.kernel_runs import judge_events

HOUR_MS = 3_600_000
LATE = {"context_code": "TIME_OUT"}
ENDS = both("END", at_ms=3 * HOUR_MS)
"""How long the input goes on after the stories, so that they are settled."""


@dataclass(frozen=True)
class Story:
    """Events of one message, and the one verdict that its key of ``kind`` must get."""

    events: list[dict[str, Any]]
    status: str
    reason: str | None = None
    kind: str = "consume"
    also: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    keys: int = 1


WHOLE = consumed("M")
FIRST, SECOND = halves_of(WHOLE)
STORIES = {
    **{
        f"{len(spans)} spans, {duplicates} copies of a {name}, {halves} halves merged": Story(
            [*delivery("M"), *spans],
            status,
            also={"duplicates": duplicates, "half_merged": halves, "otlp_count": len(spans) - halves + 1},
        )
        for name, spans, status, duplicates, halves in (
            ("half", [FIRST, SECOND], "MATCHED_EXACT", None, 2),
            ("half", [SECOND, FIRST], "MATCHED_EXACT", None, 2),
            ("first half", [FIRST], "MISMATCHED", None, 1),
            ("second half", [SECOND], "MISMATCHED", None, 1),
            ("first half", [FIRST, FIRST], "DUPLICATED_OTLP", "exact", 1),
            ("second half", [SECOND, SECOND], "DUPLICATED_OTLP", "exact", 1),
            ("half", [FIRST, SECOND, SECOND], "DUPLICATED_OTLP", "exact", 2),
            ("half", [FIRST, SECOND, {**SECOND, "raw_hash": 7, "success": False}], "DUPLICATED_OTLP", "conflicting", 2),
            ("span", [WHOLE, FIRST], "DUPLICATED_OTLP", "conflicting", 1),
            ("span", [WHOLE, FIRST, SECOND], "DUPLICATED_OTLP", "conflicting", 1),
            ("span", [WHOLE, WHOLE], "DUPLICATED_OTLP", "exact", 1),
        )
    },
    "two spans of halves are one where no record is": Story(
        [FIRST, SECOND], "OTLP_ONLY", "UNEXPLAINED", also={"half_merged": 1, "otlp_count": 1, "end_to_end_ms": None}
    ),
    "copies win over a mismatch, whose field verdicts stay": Story(
        [publish("native", "M"), *[publish("otlp", "M", topic="other")] * 2],
        "DUPLICATED_OTLP",
        kind="publish",
        fields={"topic": "DIFFERENT"},
    ),
    "the end lost while the span is whole is half a record": Story(
        [before("M"), consumed("M")],
        "MISMATCHED",
        "HALF_RECORD",
        also={"reason_detail": "before"},
        fields={"start_ms": "EQUAL", "success": "MISSING_NATIVE"},
    ),
    "one request id in two groups is two keys": Story(
        [row for group in ("billing", "shipping") for row in (*delivery("M", group=group), consumed("M", group=group))],
        "MATCHED_EXACT",
        keys=2,
    ),
    "one request id in a group whose namespace a side cuts off is one key": Story(
        [*delivery("M"), consumed("M", group="ns1%billing")],
        "MATCHED_NORMALISED",
        also={"key_level": 1},
        fields={"group_name": "EQUAL_NORMALISED"},
    ),
    "a recall from a topic whose namespace a side cuts off is one key": Story(
        [publish("native", "M") | {"kind": "recall"}, publish("otlp", "M", topic="ns1%orders") | {"kind": "recall"}],
        "MATCHED_NORMALISED",
        kind="recall",
        also={"key_level": 1},
    ),
    "the native wire carries no topic of a delivery: not comparable, and taken from the send": Story(
        [*both("M"), *delivery("M"), consumed("M", topic=None)],
        "MATCHED_EXACT",
        also={"topic": "orders", "queue_ms": 90, "end_to_end_ms": 110},
    ),
    "a listener's cost is its batch's, divided and rounded down": Story(
        [*delivery("M", cost_ms=3, end_ms=START_MS + 110), consumed("M", batch_size=3)], "MATCHED_NORMALISED"
    ),
    "an outcome that our span contradicts, though the listener took too long": Story(
        [*delivery("M", success=False, **LATE), consumed("M", **LATE)], "MISMATCHED", fields={"success": "DIFFERENT"}
    ),
    **{
        f"an end that no record holds, {took_ms} ms after the begin in a span of {writer}": Story(
            [
                before("M"),
                after("M", end_ms=None, cost_ms=20, batch_size=40),
                consumed("M", cost_ms=took_ms, writer=writer),
            ],
            "MATCHED_NORMALISED" if verdict == "WITHIN_TOLERANCE" else "MISMATCHED",
            fields={"end_ms": verdict, "cost_ms": "EQUAL" if took_ms == 20 else "WITHIN_TOLERANCE"},
        )
        for took_ms, writer, verdict in (
            (20, "mqtrace", "WITHIN_TOLERANCE"),  # as the forwarder computes it
            (20, "other", "DIFFERENT"),
            (844, "other", "WITHIN_TOLERANCE"),  # as a listener takes it: each of 40 shares lost less than 1 ms
            (845, "other", "DIFFERENT"),
        )
    },
    "an end that the record of a large batch holds is compared as any other": Story(
        [before("M"), after("M", cost_ms=20, batch_size=40), consumed("M", cost_ms=40)],
        "MISMATCHED",
        fields={"end_ms": "DIFFERENT"},
    ),
    "a begin that no record holds is computed as the forwarder does": Story(
        [after("M", cost_ms=20, batch_size=40), consumed("M", cost_ms=20)],
        "MISMATCHED",
        "HALF_RECORD",
        fields={"start_ms": "WITHIN_TOLERANCE"},
    ),
}
AGENT_STORIES = {
    "a send pairs by its message alone": Story(
        [publish("native", "M"), agent(publish("otlp", "M", at_ms=20, topic="ns1%orders"), group_name=None)],
        "MATCHED_NORMALISED",
        kind="publish",
        also={"key_level": 3},
    ),
    "a span without a group pairs by the message": Story(
        [*delivery("M"), agent(consumed("M"), group_name=None)], "MATCHED_NORMALISED", also={"key_level": 3}
    ),
    "a group whose namespace the record cuts off is the same one": Story(
        [*delivery("M"), agent(consumed("M", group="ns1%billing"))],
        "MATCHED_NORMALISED",
        also={"key_level": 2},
        fields={"group_name": "EQUAL_NORMALISED"},
    ),
    "the agent does not say what a listener answered that took too long": Story(
        [*delivery("M", success=False, **LATE), agent(consumed("M", **LATE))],
        "MATCHED_NORMALISED",
        fields={"success": "EQUAL_NORMALISED"},
    ),
    "the agent says that a listener succeeded in time, whose record says that it failed late": Story(
        [*delivery("M", success=False, **LATE), agent(consumed("M"))], "MISMATCHED", fields={"success": "DIFFERENT"}
    ),
    "the span of a message of a batch ends before the send": Story(
        [publish("native", "M", batch_size=2, cost_ms=900), agent(publish("otlp", "M", cost_ms=0))],
        "MATCHED_EXACT",
        kind="publish",
        fields={"end_ms": "NOT_COMPARABLE", "cost_ms": "NOT_COMPARABLE"},
    ),
    "the span of a single send has a length": Story(
        [publish("native", "M", cost_ms=900), agent(publish("otlp", "M", cost_ms=0), batch_size=1)],
        "MISMATCHED",
        kind="publish",
        fields={"end_ms": "DIFFERENT", "cost_ms": "DIFFERENT"},
    ),
    "a failed delivery is no error by the old convention": Story(
        [*delivery("M", success=False), agent(consumed("M"), writer="java-agent-old")],
        "MATCHED_EXACT",
        fields={"success": "NOT_COMPARABLE"},
    ),
    "no delivery of a message is recorded whose record alone shows that it was sent in a batch": Story(
        [publish("native", "M", batch_size=2), agent(consumed("M"))], "OTLP_ONLY", "BY_DESIGN"
    ),
    **{
        f"RocketMQ records {name}": Story(
            [agent(publish("otlp", "M", success=False), **own)], "OTLP_ONLY", reason, kind="publish"
        )
        for name, own, reason in (
            ("no failed send", {"id_source": "header", "batch_size": 1}, "BY_DESIGN"),
            ("no failed send of a batch", {"id_source": "own"}, "BY_DESIGN"),
            ("a send that was stored, though on no slave", {"id_source": "own", "batch_size": 1}, "UNEXPLAINED"),
        )
    },
}
AGENT_POLICY, MIXED_POLICY, MIXED_SPANS_POLICY = (
    read_policy(None, profile=f"{spans}java-agent", native_writer=f"{records}rocketmq-5.3.3")
    for spans, records in (("", ""), ("", "mqtrace+"), ("mqtrace+", "mqtrace+"))
)


@pytest.mark.parametrize(
    ("story", "policy"),
    [
        *((story, None) for story in STORIES.values()),
        *((story, policy) for policy in (AGENT_POLICY, MIXED_POLICY) for story in AGENT_STORIES.values()),
        (AGENT_STORIES["a send pairs by its message alone"], MIXED_SPANS_POLICY),
    ],
    ids=[*STORIES, *AGENT_STORIES, *(f"{name}, records mixed" for name in AGENT_STORIES), "both sides mixed"],
)
def test_story_gets_its_verdict(story, policy):
    judged = judge_events([*story.events, *ENDS], policy=policy)
    rows = [row for row in judged if (row["msg_id"], row["kind"]) == ("M", story.kind)]
    assert len(rows) == story.keys, rows
    for row in rows:
        assert (row["status"], row["reason"]) == (story.status, story.reason), row["field_verdicts"]
        assert {name: row[name] for name in story.also} == story.also
        assert row["field_verdicts"].items() >= story.fields.items()


def test_window_leaves_out_whole_keys():
    policy = replace(read_policy(None), begin_ms=START_MS, end_ms=START_MS + 1_000, grace_ms=0)
    straddling = [publish("native", "W1", at_ms=1_000), publish("otlp", "W1", at_ms=1_001)]
    events = [*straddling, *both("W2", at_ms=-1), *both("W3", at_ms=500), publish("native", "W4", at_ms=5_000)]
    statuses = {row["msg_id"]: (row["status"], row["reason_detail"]) for row in judge_events(events, policy=policy)}
    outside = dict.fromkeys(("W2", "W4"), ("OUT_OF_SCOPE", "WINDOW"))
    assert statuses == {"W1": ("MISMATCHED", None), "W3": ("MATCHED_EXACT", None), **outside}


def test_key_carried_from_an_earlier_run_is_in_every_window():
    policy = replace(read_policy(None), begin_ms=START_MS + 1, grace_ms=0)
    carried = [publish("native", "C1", first_seen_run=3, left_as="PENDING"), publish("otlp", "C1")]
    row_of_c1 = next(row for row in judge_events([*carried, *ENDS], policy=policy) if row["msg_id"] == "C1")
    assert (row_of_c1["status"], row_of_c1["first_seen_run"]) == ("MATCHED_EXACT", 3)
    assert (row_of_c1["native"]["left_as"], row_of_c1["otlp"]["left_as"]) == ("PENDING", None)


def test_complete_data_settles_a_record_of_a_clock_that_is_ahead():
    ahead = publish("native", "F", at_ms=10 * HOUR_MS, arrival_ms=START_MS)
    rows = judge_events([ahead, *ENDS], policy=replace(read_policy(None), is_complete=True))
    assert [row["status"] for row in rows if row["msg_id"] == "F"] == ["NATIVE_ONLY"]


def test_empty_side_settles_nothing():
    assert {row["status"] for row in judge_events(delivery("E1"))} == {"PENDING"}


def partners(*events: dict[str, Any], policy=AGENT_POLICY) -> list[tuple[int | None, int | None]]:
    """Return when either side says that each key of message ``M`` began."""
    rows = judge_events([*events, *ENDS], policy=policy)
    sides = ([row[side] for side in ("native", "otlp")] for row in rows if row["msg_id"] == "M")
    return [tuple(side and side["start_ms"] - START_MS for side in pair) for pair in sides]


@pytest.mark.parametrize(
    ("native", "spans", "pairs"),
    [
        ([10_000, 20_000], [0, 10_003, 20_200], {(None, 0), (10_000, 10_003), (20_000, 20_200)}),
        ([0, 10_000, 20_000], [10_003, 20_200], {(0, None), (10_000, 10_003), (20_000, 20_200)}),
        ([0, 90], [91, 400], {(90, 91), (0, 400)}),
        ([0, 7_000], [HOUR_MS, HOUR_MS + 7_000], {(0, HOUR_MS), (7_000, HOUR_MS + 7_000)}),
    ],
    ids=["a record lost", "a span lost", "near ones first", "clocks an hour apart"],
)
def test_lost_delivery_does_not_shift_the_others(native, spans, pairs):
    records = [row for at_ms in native for row in delivery("M", attempt=f"A{at_ms}", at_ms=at_ms)]
    assert set(partners(*records, *(agent(consumed("M", at_ms=at_ms)) for at_ms in spans))) == pairs


def test_events_of_different_retries_are_never_paired():
    retried = [row for n in (0, 1) for row in delivery("M", attempt=f"A{n}", at_ms=100 * n, retry_times=n)]
    spans = [consumed("M", attempt=None, at_ms=at_ms, retry_times=n) for n, at_ms in ((1, 0), (2, 100))]
    assert set(partners(*retried, *spans, policy=None)) == {(0, None), (100, 0), (None, 100)}


def test_span_of_the_same_group_is_paired_before_a_nearer_one_without_a_group():
    spans = [agent(consumed("M", at_ms=101), group_name=None), agent(consumed("M", at_ms=9_000))]
    assert set(partners(*delivery("M", at_ms=100), *spans)) == {(100, 9_000), (None, 101)}


def test_equally_good_partners_are_taken_in_the_order_of_their_identities():
    """One span may name a message twice: the order of the rows decides nothing."""
    spans = [publish("otlp", "M", at_ms=5, offset_msg_id=offset, raw_hash=7) for offset in "ab"]
    for some in (spans, spans[::-1]):
        rows = judge_events([publish("native", "M", offset_msg_id=None), *some, *ENDS])
        assert [row["otlp"]["offset_msg_id"] for row in rows if row["key_level"] == 2] == ["a"]
