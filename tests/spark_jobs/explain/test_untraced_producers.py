"""Producers that are proven not to trace: which of their other sends that excuses, and which it does not."""

from dataclasses import replace
from typing import Any

import pytest

from spark_jobs.policy.policy import read_policy
from tests.support.events import consumed, delivery, publish
from tests.support.explained_runs import explain_events

HOST, GROUP = "10.0.0.7", "PG_mute"
PROVEN = ("BY_DESIGN", "producer_made_no_trace_context")
NOT_TRACED = ("BY_DESIGN", "producer_not_traced")
UNEXPLAINED = ("UNEXPLAINED", None)


def uid(counter: int, at_ms: int, process: str = "62BB60E53B93") -> str:
    return f"C0000202{process}{0x69939000 + at_ms:08X}{counter:04X}"


def span(counter: int, at_ms: int, **fields: Any) -> dict[str, Any]:
    """Return the span of a send that names its producer."""
    named = {"client_host": HOST, "group_name": GROUP, "offset_msg_id": None, "writer": "other", "service": "shop"}
    own = {"batch_size": 1, "record_index": 0, "id_source": "own"}
    return publish("otlp", uid(counter, at_ms), at_ms=at_ms, **{**named, **own, **fields})


def mute(sends: int = 3, **fields: Any) -> list[dict[str, Any]]:
    """Return spans of sends with consecutive ids: each but the last proves that its producer made no context."""
    return [span(0x10 + number, 100 * number, **fields) for number in range(sends)]


def recorded(at_ms: int, *, host: str | None, group: str, process: str = "0E0E0E0E0E0E") -> list[dict[str, Any]]:
    """Return both sides of a traced send, by default from another process."""
    msg_id = uid(7, at_ms, process)
    native = publish("native", msg_id, at_ms=at_ms, writer="rocketmq", batch_size=1, group_name=group)
    return [native, publish("otlp", msg_id, at_ms=at_ms, client_host=host, group_name=group, writer="other")]


def explain(*events: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    """Return reason and detail of each send by its message id."""
    policy = replace(read_policy(None, profile="java-agent", native_writer="rocketmq-5.3.3"), grace_ms=0)
    traced = recorded(300_000, host=HOST, group="PG_traced", process="62BB60E53B93")  # the process goes on
    others = [*traced, *recorded(400_000, host="10.0.0.9", group="PG_other"), *delivery("D", at_ms=0)]
    rows = explain_events([*events, *others, consumed("D", at_ms=0)], policy=policy)
    return {row["msg_id"]: (row["reason"], row["reason_detail"]) for row in rows if row["reason"]}


def reason_of(found: dict[str, tuple[str, str | None]], number: int) -> tuple[str, str | None]:
    return found[uid(0x10 + number, 100 * number)]


def test_last_send_of_a_producer_with_two_proven_sends_is_not_traced_either():
    found = explain(*mute())
    assert [reason_of(found, number) for number in range(3)] == [PROVEN, PROVEN, NOT_TRACED]


def test_one_proven_send_does_not_explain_the_others():
    found = explain(*mute(2))
    assert [reason_of(found, number) for number in range(2)] == [PROVEN, UNEXPLAINED]


@pytest.mark.parametrize("missing", ["client_host", "group_name"])
def test_send_whose_span_does_not_name_the_producer_stays_unexplained(missing):
    assert reason_of(explain(*mute(**{missing: None})), 2) == UNEXPLAINED


@pytest.mark.parametrize(
    ("host", "group", "reason"),
    [
        (HOST, GROUP, UNEXPLAINED),
        (f"shop-1/{HOST}", f"ns1%{GROUP}", UNEXPLAINED),
        (None, GROUP, UNEXPLAINED),  # it may be of this very producer
        ("10.0.0.8", GROUP, NOT_TRACED),
        (HOST, "PG_else", NOT_TRACED),
        (None, "PG_else", NOT_TRACED),
    ],
)
def test_one_native_record_of_the_producer_leaves_its_sends_unexplained(host, group, reason):
    assert reason_of(explain(*mute(), *recorded(200_000, host=host, group=group)), 2) == reason


def test_another_producer_of_the_same_process_is_not_excused():
    found = explain(*mute(), span(0x90, 900, group_name="PG_traced"))
    assert found[uid(0x90, 900)] == UNEXPLAINED


def test_send_that_an_earlier_run_left_open_is_not_excused_by_this_input():
    assert reason_of(explain(*mute(2), span(0x12, 200, first_seen_run=1)), 2) == UNEXPLAINED


def test_native_delivery_of_the_producers_group_name_is_no_record_of_it():
    taken = [*delivery("E", group=GROUP, at_ms=1_000), consumed("E", group=GROUP, at_ms=1_000)]
    assert reason_of(explain(*mute(), *taken), 2) == NOT_TRACED
