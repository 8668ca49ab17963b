"""Events as the normaliser hands them over, with defaults that make a clean send or delivery."""

import zlib
from typing import Any

from spark_jobs.schemas import EVENT

START_MS = 1_795_262_400_000
"""2026-11-21T12:00:00Z, when every story in the tests begins."""

_COMMON: dict[str, Any] = {"writer": "mqtrace", "path": "input.jsonl", "line": 1, "record_index": 0, "region_id": "R"}


def event(side: str, kind: str, msg_id: str | None, **fields: Any) -> dict[str, Any]:
    """Return an ``EVENT`` row; ``raw_hash`` follows from the content unless given."""
    row = {**dict.fromkeys(EVENT.names), **_COMMON, "half": "whole", "side": side, "kind": kind, "msg_id": msg_id}
    row.update(fields)
    if row["raw_hash"] is None:
        row["raw_hash"] = zlib.crc32(repr(sorted(row.items(), key=str)).encode())
    return row


def publish(side: str, msg_id: str | None, *, at_ms: int = 0, cost_ms: int = 10, **fields: Any) -> dict[str, Any]:
    """Return one side's record of a send that began ``at_ms`` after ``START_MS``."""
    start_ms = START_MS + at_ms
    message = {"topic": "orders", "offset_msg_id": f"orders-0@{msg_id}", "body_length": 12, "msg_type": "Normal_Msg"}
    call = {"group_name": "producers", "start_ms": start_ms, "end_ms": start_ms + cost_ms, "cost_ms": cost_ms}
    own = {**_with_span(side, f"p{msg_id}"), **message, **call, "success": True}
    return event(side, "publish", msg_id, **{**own, **fields})


def both(msg_id: str, **fields: Any) -> list[dict[str, Any]]:
    return [publish(side, msg_id, **fields) for side in ("native", "otlp")]


def consumed(
    msg_id: str,
    *,
    group: str = "billing",
    attempt: str | None = "A1",
    at_ms: int = 100,
    cost_ms: int = 10,
    **fields: Any,
) -> dict[str, Any]:
    """Return the span of one delivery."""
    own = _with_span("otlp", f"c{msg_id}{group}{attempt}{at_ms}")
    own |= {"topic": "orders", "start_ms": START_MS + at_ms, "retry_times": 0}
    return event("otlp", "consume", msg_id, **{**own, **_end_of_delivery(group, attempt, at_ms, cost_ms), **fields})


def halves_of(span: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the two spans that the forwarder makes of a delivery where its second record comes too late."""
    without = {"before": ("end_ms", "cost_ms", "success", "context_code"), "after": ("region_id", "retry_times")}
    spans = ({**span, **dict.fromkeys(names), "half": half} for half, names in without.items())
    return [{**half, "raw_hash": span["raw_hash"] + 100 * number} for number, half in enumerate(spans, start=1)]


def _end_of_delivery(group: str | None, attempt: str | None, at_ms: int, cost_ms: int) -> dict[str, Any]:
    ended = {"group_name": group, "attempt_id": attempt, "end_ms": START_MS + at_ms + cost_ms, "cost_ms": cost_ms}
    return {**ended, "success": True, "context_code": "SUCCESS"}


def agent(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a span without what OpenTelemetry's Java agent does not write."""
    unknown = ("attempt_id", "offset_msg_id", "retry_times", "region_id", "msg_type")
    return {**row, **dict.fromkeys(unknown), "writer": "java-agent-new", **fields}


def before(
    msg_id: str, *, group: str | None = "billing", attempt: str | None = "A1", at_ms: int = 100, **fields: Any
) -> dict[str, Any]:
    defaults = {"group_name": group, "attempt_id": attempt, "start_ms": START_MS + at_ms, "retry_times": 0}
    return event("native", "consume", msg_id, **{"half": "before", **defaults, **fields})


def after(
    msg_id: str,
    *,
    group: str | None = "billing",
    attempt: str | None = "A1",
    at_ms: int = 100,
    cost_ms: int = 10,
    **fields: Any,
) -> dict[str, Any]:
    """Return the SubAfter of a delivery that began ``at_ms`` after ``START_MS``."""
    defaults = {"half": "after", "region_id": None, **_end_of_delivery(group, attempt, at_ms, cost_ms)}
    return event("native", "consume", msg_id, **{**defaults, **fields})


def delivery(msg_id: str, **fields: Any) -> list[dict[str, Any]]:
    only_after = {"cost_ms", "success", "context_code"}
    shared = {name: value for name, value in fields.items() if name not in only_after}
    only_before = {"retry_times"}
    return [before(msg_id, **shared), after(msg_id, **{k: v for k, v in fields.items() if k not in only_before})]


def _with_span(side: str, seed: str) -> dict[str, Any]:
    if side == "native":
        return {}
    return {"trace_id": f"{zlib.crc32(seed.encode()):032x}", "span_id": f"{zlib.crc32(seed.encode()):016x}"}
