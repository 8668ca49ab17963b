"""Two real runs, recorded by both systems, with some records taken away: exactly those are left unexplained."""

import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.policy.policy import read_policy
from tests.spark_jobs.explain.explained_runs import explain_events
from tests.support.reading import events_of, native_side, otlp_side

DUAL = Path(__file__).parents[2] / "vectors" / "dual"
BY_DESIGN = {
    ("BY_DESIGN", rule)
    for rule in (
        "java_agent_makes_no_span_for_transaction_end",
        "producer_made_no_trace_context",
        "rocketmq_records_no_failed_send",
        "rocketmq_records_no_one_way_send",
    )
}
SCENARIO_RULES = {
    ("BY_DESIGN", "java_agent_makes_no_span_for_recall"),
    ("BY_DESIGN", "java_agent_makes_no_span_for_lite_pull"),
    ("BY_DESIGN", "rocketmq_records_no_delivery_of_batch_sent_messages"),
    ("BY_DESIGN", "rocketmq_skips_topics_named_like_the_trace_topic"),
    ("COUNTERPART_MALFORMED", None),
    ("WRITER_SILENT", "topic"),
}
OTHER = {"native": "otlp", "otlp": "native"}
ONE_IN = 12


def with_captured_headers(events):
    """Sends without an answer have their id from a captured message property."""
    for number, event in enumerate(events):
        if event["side"] == "otlp" and event["kind"] == "publish" and event["msg_id"] is None:
            yield {**event, "msg_id": f"C000020262BB60E53B936993FFFF{number:04X}", "id_source": "header"}
        else:
            yield event


def key_of(event):
    return event["kind"], event["msg_id"], event["group_name"] if event["kind"] == "consume" else None


def chance_of(key):
    return zlib.crc32(repr(key).encode())


def lose_some(events):
    """Take one side of some events away that both sides know once; return the rest, and the keys that lack a side."""
    inside = [event for event in events if event["scope"] is None and event["half"] != "before"]
    known = {side: Counter(key_of(event) for event in inside if event["side"] == side) for side in OTHER}
    once = [key for key, count in known["native"].items() if count == 1 == known["otlp"][key] and key[1]]
    unlucky = {key: chance_of(key) // ONE_IN % 2 for key in once if chance_of(key) % ONE_IN == 0}
    missing = {key: "native" if odd else "otlp" for key, odd in unlucky.items()}
    left = [event for event in events if missing.get(key_of(event)) != event["side"]]
    return left, {(f"{OTHER[side].upper()}_ONLY", *key) for key, side in missing.items()}


@pytest.mark.parametrize(
    ("name", "writer", "vary", "reasons", "excused", "malformed"),
    [
        ("app-4.9.8-dup", "rocketmq-4.9.8", list, BY_DESIGN, 0, []),
        ("app-4.9.8-dup", "rocketmq-4.9.8", with_captured_headers, BY_DESIGN, 0, []),
        # two are the only records of their topics: WRITER_SILENT, which warns
        (
            *("scenarios-5.3.3-old", "rocketmq-5.3.3", list, BY_DESIGN | SCENARIO_RULES, 2),
            [("native", "C000020276EE60E53B936997084C0058")],
        ),
    ],
    ids=["app", "app with captured headers", "scenarios"],
)
def test_exactly_the_silently_lost_records_are_unexplained(tmp_path, name, writer, vary, reasons, excused, malformed):
    sides = native_side(tmp_path, DUAL / name / "native.jsonl"), otlp_side(tmp_path, DUAL / name / "otlp.jsonl")
    events = [row if row["side"] == "otlp" else {**row, "writer": writer} for side in sides for row in events_of(side)]
    left, lost = lose_some(list(vary(events)))
    policy = replace(read_policy(None, profile="java-agent", native_writer=writer), grace_ms=0)
    found = {}
    for row in explain_events(left, policy=policy, malformed=malformed):
        key = row["status"], row["kind"], row["msg_id"], row["group"] if row["kind"] == "consume" else None
        found.setdefault((row["reason"], row["reason_detail"]), set()).add(key)
    unexplained = found.pop(("UNEXPLAINED", None))
    assert unexplained <= lost, sorted(unexplained - lost, key=str)
    assert (len(lost) > 5, len(lost - unexplained)) == (True, excused)
    assert {reason for reason in found if reason[0]} == reasons
