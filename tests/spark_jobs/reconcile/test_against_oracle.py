"""Spark's verdicts against a plain Python reconciliation, on made-up inputs with everything wrong at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.reconcile.policy import read_policy
from tests.support import oracle
from tests.support.events import after, before, consumed, publish
from tests.support.judging import judged

pytestmark = pytest.mark.spark

GRACE_MS = 200_000
MINUTES_MS = [0, 1, 7, 60_000, 300_000, 1_000_000]

_copies = st.sampled_from([1, 1, 1, 1, 1, 2, 3])
_there = st.sampled_from([True, True, True, True, False])


def _doubled(draw: st.DrawFn, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return copies of a row: exact ones, ones in other bytes, ones that contradict."""
    rows = [row]
    for number in range(draw(_copies) - 1):
        how = draw(st.sampled_from(["exact", "equivalent", "conflicting"]))
        other = {"raw_hash": row["raw_hash"] + number + 1} if how != "exact" else {}
        rows.append({**row, **other, **({"success": not row["success"]} if how == "conflicting" else {})})
    return rows


@st.composite
def deliveries(draw: st.DrawFn, msg_id: str) -> list[dict[str, Any]]:
    rows = []
    for number in range(draw(st.integers(0, 3))):
        group = draw(st.sampled_from(["billing", "shipping"]))
        at_ms = draw(st.sampled_from(MINUTES_MS)) + number
        known = {"group": group, "attempt": f"A{number}", "at_ms": at_ms}
        good = draw(st.booleans())
        if draw(_there):
            rows += _doubled(draw, before(msg_id, **known))
        if draw(_there):
            code = "SUCCESS" if good else "FAILED"
            rows += _doubled(draw, after(msg_id, **known, success=good, context_code=code))
        if draw(_there):
            off_ms = draw(st.sampled_from([0, 0, 0, 0, 1, 6]))
            attempt = draw(st.sampled_from([f"A{number}", f"A{number}", None]))
            code = "SUCCESS" if good else draw(st.sampled_from(["FAILED", "FAILED", None]))
            span = {**known, "attempt": attempt, "at_ms": at_ms + off_ms, "span_id": f"{msg_id}{number}"}
            rows += _doubled(draw, consumed(msg_id, **span, success=good, context_code=code))
    return rows


@st.composite
def sends(draw: st.DrawFn, msg_id: str) -> list[dict[str, Any]]:
    rows = []
    for number in range(draw(st.integers(0, 2))):
        at_ms = draw(st.sampled_from(MINUTES_MS)) + 100 * number
        offset = draw(st.sampled_from([f"orders-0@{msg_id}{number}", None]))
        if draw(_there):
            rows += _doubled(draw, publish("native", msg_id, at_ms=at_ms, offset_msg_id=offset))
        if draw(_there):
            shown = draw(st.sampled_from([offset, offset, None]))
            off_ms = draw(st.sampled_from([0, 0, 0, 3]))
            span = {"at_ms": at_ms, "offset_msg_id": shown, "cost_ms": 10 + off_ms, "span_id": f"{msg_id}p{number}"}
            rows += _doubled(draw, publish("otlp", msg_id, **span))
    return rows


@st.composite
def others(draw: st.DrawFn, msg_id: str) -> list[dict[str, Any]]:
    """Return ends of a transaction and recalls of one message; a span of another writer is like nothing but itself."""
    rows = []
    for number in range(draw(st.integers(0, 2))):
        at_ms = draw(st.sampled_from(MINUTES_MS)) + 50 * number
        end = {"transaction_id": msg_id, "transaction_state": draw(st.sampled_from(["COMMIT_MESSAGE", "UNKNOW"]))}
        kind = draw(st.sampled_from(["transaction_end", "recall"]))
        only = {"from_transaction_check": draw(st.booleans()), **end} if kind == "transaction_end" else {}
        bare = dict.fromkeys(("offset_msg_id", "end_ms", "cost_ms", "body_length", "success"))
        for side in ("native", "otlp"):
            if draw(_there):
                own = {"writer": draw(st.sampled_from(["mqtrace", "mqtrace", "other"]))} if side == "otlp" else {}
                span = {"span_id": f"{msg_id}{kind}{number}"} if side == "otlp" else {}
                row = publish(side, msg_id, at_ms=at_ms, **{**only, **own, **span})
                rows.append({**row, **bare, "kind": kind})
    return rows


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return the events of many messages, and which messages a damaged record of which side names."""
    events: list[dict[str, Any]] = []
    damaged = []
    for number in range(draw(st.integers(60, 120))):
        msg_id = f"MSG{number}"
        events += draw(sends(msg_id)) + draw(deliveries(msg_id)) + draw(others(msg_id))
        damaged += [(side, msg_id) for side in ("native", "otlp") if draw(st.integers(0, 9)) == 0]
    return draw(st.permutations(events)), damaged


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(made=inputs())
def test_spark_and_plain_python_give_every_key_the_same_verdict(spark, made):
    """Status, reason, level of the key, copies and their kind agree for every key, whatever the row order."""
    events, malformed = made
    damaged = {side: {msg_id for where, msg_id in malformed if where == side} for side in ("native", "otlp")}
    expected = oracle.verdicts(events, grace_ms=GRACE_MS, damaged=damaged) if events else []
    policy = replace(read_policy(None), grace_ms=GRACE_MS, writer_silent_minimum=10_000)
    frame = judged(spark, events, policy=policy, malformed=malformed)
    names = ("msg_id", "kind", "status", "reason", "key_level", "native_count", "otlp_count", "duplicates")
    found = sorted((tuple(row) for row in frame.select(*names).collect()), key=repr)
    assert found == expected
