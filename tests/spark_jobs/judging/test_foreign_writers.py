"""RocketMQ's own trace against OpenTelemetry's Java agent: weak keys, wide tolerances, gaps by design."""

from typing import Any

import pytest

from spark_jobs.policy.policy import read_policy
from tests.spark_jobs.judging.stories import END_MS, Story
from tests.support.events import START_MS, consumed, delivery, publish
from tests.support.kernel_runs import judge_events


def agent(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Strip a span of what OpenTelemetry's Java agent does not write."""
    unknown = ("attempt_id", "offset_msg_id", "retry_times", "region_id", "msg_type")
    return {**row, **dict.fromkeys(unknown), "writer": "java-agent-new", **fields}


def agent_stories() -> dict[str, Story]:
    def transaction_end(msg_id: str) -> dict[str, Any]:
        end = {"kind": "transaction_end", "transaction_state": "COMMIT_MESSAGE", "from_transaction_check": False}
        return {**publish("native", msg_id, transaction_id=msg_id, cost_ms=0), **end}

    return {
        "J01": Story(
            "a send pairs by its message alone",
            [publish("native", "J01"), agent(publish("otlp", "J01", at_ms=20), group_name=None)],
            "MATCHED_NORMALISED",
            kind="publish",
            also={"key_level": 3},
        ),
        "J02": Story(
            "deliveries of one group pair in the order they happened, each with its own span",
            [
                *delivery("J02"),
                *delivery("J02", attempt="A2", at_ms=9_000, success=False, context_code="FAILED"),
                agent(consumed("J02", at_ms=9_001, success=False, context_code="FAILED")),
                agent(consumed("J02", at_ms=101)),
            ],
            "MATCHED_NORMALISED",
            keys=2,
            also={"key_level": 2},
        ),
        "J03": Story(
            "a span without a group pairs by the message",
            [*delivery("J03"), agent(consumed("J03"), group_name=None)],
            "MATCHED_NORMALISED",
            also={"key_level": 3},
        ),
        "J05": Story(
            "a check that ends one transaction twice is two events",
            [transaction_end("J05"), {**transaction_end("J05"), "start_ms": START_MS + 70}],
            "NATIVE_ONLY",
            "BY_DESIGN",
            kind="transaction_end",
            keys=2,
        ),
        "J08": Story(
            "too late is a success to RocketMQ and an error to a span",
            [
                *delivery("J08", context_code="TIME_OUT"),
                agent(consumed("J08", success=False, context_code="TIME_OUT")),
            ],
            "MATCHED_NORMALISED",
        ),
        "END": Story(
            "the input goes on",
            [publish("native", "END", at_ms=END_MS), agent(publish("otlp", "END", at_ms=END_MS))],
            "MATCHED_EXACT",
            kind="publish",
        ),
    }


AGENT_STORIES = agent_stories()


@pytest.fixture(scope="module")
def agent_answers():
    events = [row for story in AGENT_STORIES.values() for row in story.events]
    policy = read_policy(None, profile="java-agent", native_writer="rocketmq-5.3.3")
    return judge_events(events, policy=policy)


@pytest.mark.parametrize("msg_id", [*AGENT_STORIES], ids=[story.says for story in AGENT_STORIES.values()])
def test_story_of_foreign_writers_gets_its_verdict(agent_answers, msg_id):
    story = AGENT_STORIES[msg_id]
    rows = [row for row in agent_answers if row["msg_id"] == msg_id and row["kind"] == story.kind]
    assert len(rows) == story.keys, rows
    for row in rows:
        assert (row["status"], row["reason"]) == (story.status, story.reason), row["field_verdicts"]
        assert {name: row[name] for name in story.also} == story.also


def _partners(row) -> tuple[int | None, ...]:
    return tuple(row[side] and row[side]["start_ms"] - START_MS for side in ("native", "otlp"))


@pytest.fixture(scope="module")
def partners():
    """Return, per message, when either side says each delivery began; some of their records are lost."""
    native = [row for at_ms in (10_000, 20_000) for row in delivery("N1", attempt=f"A{at_ms}", at_ms=at_ms)]
    spans = [agent(consumed("N1", at_ms=at_ms)) for at_ms in (0, 10_003, 20_200)]
    others = [row for at_ms in (0, 10_000, 20_000) for row in delivery("N2", attempt=f"A{at_ms}", at_ms=at_ms)]
    others += [agent(consumed("N2", at_ms=at_ms)) for at_ms in (10_003, 20_200)]
    near = [*delivery("N3", attempt="A", at_ms=0), *delivery("N3", attempt="B", at_ms=90)]
    near += [agent(consumed("N3", at_ms=at_ms)) for at_ms in (91, 400)]
    broadcast = [row for n in range(300) if n % 60 for row in delivery("B", attempt=f"A{n}", at_ms=3 * n)]
    broadcast += [agent(consumed("B", at_ms=3 * n + 1)) for n in range(300)]
    ends = [publish(side, "END", at_ms=END_MS) for side in ("native", "otlp")]
    policy = read_policy(None, profile="java-agent", native_writer="rocketmq")
    rows = judge_events([*native, *spans, *others, *near, *broadcast, *ends], policy=policy)
    return {name: [_partners(row) for row in rows if row["msg_id"] == name] for name in ("N1", "N2", "N3", "B")}


@pytest.mark.parametrize(
    ("msg_id", "pairs"),
    [
        ("N1", {(None, 0), (10_000, 10_003), (20_000, 20_200)}),
        ("N2", {(0, None), (10_000, 10_003), (20_000, 20_200)}),
        ("N3", {(90, 91), (0, 400)}),
    ],
)
def test_lost_delivery_does_not_shift_the_others(partners, msg_id, pairs):
    assert set(partners[msg_id]) == pairs


def test_message_delivered_hundreds_of_times_pairs_all_of_them(partners):
    """A broadcast to three hundred consumers of one group that began within a second; a few records of it are lost."""
    assert {pair for pair in partners["B"] if None in pair} == {(None, 3 * n + 1) for n in range(0, 300, 60)}
    assert len(partners["B"]) == 300


def test_events_of_clocks_apart_are_paired_in_order_and_never_across_retries():
    hour_ms = 3_600_000
    native = [row for at_ms in (0, 7_000) for row in delivery("C1", attempt=f"A{at_ms}", at_ms=at_ms)]
    spans = [agent(consumed("C1", at_ms=at_ms + hour_ms)) for at_ms in (0, 7_000)]
    retried = [row for n in (0, 1) for row in delivery("C2", attempt=f"A{n}", at_ms=100 * n, retry_times=n)]
    deliveries = [consumed("C2", attempt=None, at_ms=at_ms, retry_times=n) for n, at_ms in ((1, 0), (2, 100))]
    ends = [publish(side, "END", at_ms=3 * hour_ms) for side in ("native", "otlp")]
    rows = judge_events([*native, *spans, *retried, *deliveries, *ends])
    partners = {msg_id: {_partners(row) for row in rows if row["msg_id"] == msg_id} for msg_id in ("C1", "C2")}
    assert partners["C1"] == {(0, hour_ms), (7_000, 7_000 + hour_ms)}
    assert partners["C2"] == {(0, None), (100, 0), (None, 100)}
