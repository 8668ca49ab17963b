"""Runs made up from a seed: many messages of a few processes, with everything wrong at once."""

from random import Random
from typing import Any

from tests.support.events import after, before, consumed, halves_of, publish

Rows = list[dict[str, Any]]
MINUTES_MS = [0, 1, 7, 60_000, 300_000, 1_000_000]
APART_MS = 1_200_000
"""So much later each process starts than the one before: each has its own end."""


_THERE = [True, True, True, True, False]


def _id(process: int, number: int, at_ms: int = 0) -> str:
    return f"7F000001{process:04X}60E53B93{at_ms:08X}{number:04X}"


def _seldom(number: int) -> list[str]:
    """Name a topic or group of one message in seven: a side that lost its one record looks silent."""
    return [] if number % 7 else [f"seldom-{number}"]


def _doubled(rng: Random, row: dict[str, Any]) -> Rows:
    """Return copies of a row: exact ones, ones in other bytes, ones that contradict."""
    late_ms = rng.choice([None, 5, 50_000, 90_000, -90_000]) if row["side"] == "native" else None
    over_ms = row["start_ms"] if row["end_ms"] is None else row["end_ms"]
    row = {**row, "arrival_ms": None if late_ms is None else over_ms + late_ms}
    rows = [row]
    for number in range(rng.choice([1, 1, 1, 1, 1, 2, 3]) - 1):
        how = rng.choice(["exact", "equivalent", "conflicting"])
        other = {"raw_hash": row["raw_hash"] + number + 1} if how != "exact" else {}
        if late_ms is not None and rng.random() < 0.5:
            other["arrival_ms"] = row["arrival_ms"] + 70_000
        rows.append({**row, **other, **({"success": not row["success"]} if how == "conflicting" else {})})
    return rows


def _deliveries(rng: Random, msg_id: str, begin_ms: int, number: int) -> Rows:
    rows: Rows = []
    for retry in range(rng.randint(0, 3)):
        group = rng.choice(["billing", "shipping", *_seldom(number)])
        at_ms = begin_ms + rng.choice(MINUTES_MS) + retry
        known = {"group": group, "attempt": _id(100 + len(group), 4 * number + retry), "at_ms": at_ms}
        good = rng.random() < 0.5
        if rng.choice(_THERE):
            rows += _doubled(rng, before(msg_id, **known))
        if rng.choice(_THERE):
            code = "SUCCESS" if good else "FAILED"
            rows += _doubled(rng, after(msg_id, **known, success=good, context_code=code))
        if rng.choice(_THERE):
            off_ms = rng.choice([0, 0, 0, 0, 1, 6])
            attempt = rng.choice([known["attempt"], known["attempt"], None])
            code = "SUCCESS" if good else rng.choice(["FAILED", "FAILED", None])
            own = {"attempt": attempt, "at_ms": at_ms + off_ms, "span_id": f"{msg_id}{retry}", "service": f"{group}er"}
            span = consumed(msg_id, **{**known, **own}, success=good, context_code=code)
            first, second = halves_of(span)
            for part in rng.choice([*[[span]] * 4, [first], [second], [first, second], [first, span]]):
                rows += _doubled(rng, part)
    return rows


def _sends(rng: Random, msg_id: str, begin_ms: int, number: int) -> Rows:
    rows: Rows = []
    for send in range(rng.randint(0, 2)):
        topic = rng.choice(["orders", "orders", "audit", *_seldom(number)])
        at_ms = begin_ms + rng.choice(MINUTES_MS) + 100 * send
        offset = rng.choice([f"orders-0@{msg_id}{send}", None])
        if rng.choice(_THERE):
            rows += _doubled(rng, publish("native", msg_id, at_ms=at_ms, offset_msg_id=offset, topic=topic))
        if rng.choice(_THERE):
            shown = rng.choice([offset, offset, None])
            off_ms = rng.choice([0, 0, 0, 3])
            span = {"at_ms": at_ms, "offset_msg_id": shown, "cost_ms": 10 + off_ms, "span_id": f"{msg_id}p{send}"}
            named = rng.choice([topic, topic, topic, None])
            rows += _doubled(rng, publish("otlp", msg_id, **span, topic=named, service="shop"))
        elif rng.random() < 0.5:  # its span is there, and does not say whose it is
            span = publish("otlp", None, at_ms=at_ms, offset_msg_id=None, span_id=f"{msg_id}n{send}", topic=topic)
            rows.append({**span, "service": "shop"})
    return rows


def _others(rng: Random, msg_id: str, begin_ms: int) -> Rows:
    """Return ends of a transaction and recalls of one message; a span of another writer is like nothing but itself."""
    rows: Rows = []
    for number in range(rng.randint(0, 2)):
        at_ms = begin_ms + rng.choice(MINUTES_MS) + 50 * number
        end = {"transaction_id": msg_id, "transaction_state": rng.choice(["COMMIT_MESSAGE", "UNKNOW"])}
        kind = rng.choice(["transaction_end", "recall"])
        only = {"from_transaction_check": rng.random() < 0.5, **end} if kind == "transaction_end" else {}
        bare = dict.fromkeys(("offset_msg_id", "end_ms", "cost_ms", "body_length", "success"))
        for side in ("native", "otlp"):
            if rng.choice(_THERE):
                own = {"writer": rng.choice(["mqtrace", "mqtrace", "other"])} if side == "otlp" else {}
                span = {"span_id": f"{msg_id}{kind}{number}"} if side == "otlp" else {}
                row = publish(side, msg_id, at_ms=at_ms, **{**only, **own, **span})
                rows.append({**row, **bare, "kind": kind})
    return rows


def runs(seed: int) -> tuple[Rows, list[tuple[str, str]]]:
    """Return the events of many messages, and which messages a damaged record of which side names."""
    rng = Random(seed)
    events: Rows = []
    damaged = []
    for number in range(rng.randint(40, 80)):
        process = number % 4
        msg_id, begin_ms = _id(process, number), process * APART_MS
        events += _sends(rng, msg_id, begin_ms, number) + _deliveries(rng, msg_id, begin_ms, number)
        events += _others(rng, msg_id, begin_ms)
        damaged += [(side, msg_id) for side in ("native", "otlp") if rng.randint(0, 9) == 0]
    rng.shuffle(events)
    return events, damaged
