"""Runs that hypothesis makes up: many messages of a few processes, with everything wrong at once."""

from typing import Any

from hypothesis import strategies as st

from tests.support.events import after, before, consumed, publish

Rows = list[dict[str, Any]]
MINUTES_MS = [0, 1, 7, 60_000, 300_000, 1_000_000]
APART_MS = 1_200_000
"""So much later each process starts than the one before: each has its own end."""
SOME_ID = "7F000001{process:04X}60E53B93{at_ms:08X}{number:04X}"

ARRIVALS_MS = [None, 5, 50_000, 90_000, -90_000]

_copies = st.sampled_from([1, 1, 1, 1, 1, 2, 3])
_there = st.sampled_from([True, True, True, True, False])


def _id(process: int, number: int, at_ms: int = 0) -> str:
    return SOME_ID.format(process=process, at_ms=at_ms, number=number)


def _seldom(number: int) -> list[str]:
    """Name a topic or group of one message in seven: a side that lost its one record looks silent."""
    return [] if number % 7 else [f"seldom-{number}"]


def _doubled(draw: st.DrawFn, row: dict[str, Any]) -> Rows:
    """Return copies of a row: exact ones, ones in other bytes, ones that contradict."""
    late_ms = draw(st.sampled_from(ARRIVALS_MS)) if row["side"] == "native" else None
    over_ms = row["start_ms"] if row["end_ms"] is None else row["end_ms"]
    row = {**row, "arrival_ms": None if late_ms is None else over_ms + late_ms}
    rows = [row]
    for number in range(draw(_copies) - 1):
        how = draw(st.sampled_from(["exact", "equivalent", "conflicting"]))
        other = {"raw_hash": row["raw_hash"] + number + 1} if how != "exact" else {}
        rows.append({**row, **other, **({"success": not row["success"]} if how == "conflicting" else {})})
    return rows


@st.composite
def _deliveries(draw: st.DrawFn, msg_id: str, begin_ms: int, number: int) -> Rows:
    rows: Rows = []
    for retry in range(draw(st.integers(0, 3))):
        group = draw(st.sampled_from(["billing", "shipping", *_seldom(number)]))
        at_ms = begin_ms + draw(st.sampled_from(MINUTES_MS)) + retry
        known = {"group": group, "attempt": _id(100 + len(group), 4 * number + retry), "at_ms": at_ms}
        good = draw(st.booleans())
        if draw(_there):
            rows += _doubled(draw, before(msg_id, **known))
        if draw(_there):
            code = "SUCCESS" if good else "FAILED"
            rows += _doubled(draw, after(msg_id, **known, success=good, context_code=code))
        if draw(_there):
            off_ms = draw(st.sampled_from([0, 0, 0, 0, 1, 6]))
            attempt = draw(st.sampled_from([known["attempt"], known["attempt"], None]))
            code = "SUCCESS" if good else draw(st.sampled_from(["FAILED", "FAILED", None]))
            own = {"attempt": attempt, "at_ms": at_ms + off_ms, "span_id": f"{msg_id}{retry}", "service": f"{group}er"}
            rows += _doubled(draw, consumed(msg_id, **{**known, **own}, success=good, context_code=code))
    return rows


@st.composite
def _sends(draw: st.DrawFn, msg_id: str, begin_ms: int, number: int) -> Rows:
    rows: Rows = []
    topic = draw(st.sampled_from(["orders", *_seldom(number)]))
    for send in range(draw(st.integers(0, 2))):
        at_ms = begin_ms + draw(st.sampled_from(MINUTES_MS)) + 100 * send
        offset = draw(st.sampled_from([f"orders-0@{msg_id}{send}", None]))
        if draw(_there):
            rows += _doubled(draw, publish("native", msg_id, at_ms=at_ms, offset_msg_id=offset, topic=topic))
        if draw(_there):
            shown = draw(st.sampled_from([offset, offset, None]))
            off_ms = draw(st.sampled_from([0, 0, 0, 3]))
            span = {"at_ms": at_ms, "offset_msg_id": shown, "cost_ms": 10 + off_ms, "span_id": f"{msg_id}p{send}"}
            rows += _doubled(draw, publish("otlp", msg_id, **span, topic=topic, service="shop"))
        elif draw(st.booleans()):  # its span is there, and does not say whose it is
            span = publish("otlp", None, at_ms=at_ms, offset_msg_id=None, span_id=f"{msg_id}n{send}", topic=topic)
            rows.append({**span, "service": "shop"})
    return rows


@st.composite
def _others(draw: st.DrawFn, msg_id: str, begin_ms: int) -> Rows:
    """Return ends of a transaction and recalls of one message; a span of another writer is like nothing but itself."""
    rows: Rows = []
    for number in range(draw(st.integers(0, 2))):
        at_ms = begin_ms + draw(st.sampled_from(MINUTES_MS)) + 50 * number
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
def runs(draw: st.DrawFn) -> tuple[Rows, list[tuple[str, str]]]:
    """Return the events of many messages, and which messages a damaged record of which side names."""
    events: Rows = []
    damaged = []
    for number in range(draw(st.integers(60, 120))):
        process = number % 4
        msg_id, begin_ms = _id(process, number), process * APART_MS
        events += draw(_sends(msg_id, begin_ms, number)) + draw(_deliveries(msg_id, begin_ms, number))
        events += draw(_others(msg_id, begin_ms))
        damaged += [(side, msg_id) for side in ("native", "otlp") if draw(st.integers(0, 9)) == 0]
    return draw(st.permutations(events)), damaged
