"""The second half of the plain reconciliation: what explains a one-sided key when nothing of its own message does.

It asks the whole run, in loops, for each such key. Only what both sides' writer being ours needs: silence, endings,
beginnings, and events without an id. Rules of foreign writers, sampling and ledgers are proven elsewhere.
"""

from dataclasses import dataclass
from typing import Any

from tests.spark_jobs.explain.oracle import Judged

ENOUGH = 10  # keys of a service or a process before its silence means anything
SEVERAL = 2  # keys before a process is one
JITTER_MS = 20
ID_DIGITS, OWN_DIGITS = 32, 12
OTHER = {"NATIVE_ONLY": "otlp", "OTLP_ONLY": "native"}


@dataclass(frozen=True, kw_only=True)
class Tolerated:
    """What the policy says of it; milliseconds."""

    horizon_ms: int | None
    first_ms: dict[str, int | None]  # of each side's input
    late_after_ms: int = 60_000
    shutdown_window_ms: int = 5_000
    silent_minimum: int = 1


def explain(run: list[Judged], tolerated: Tolerated) -> None:
    open_keys = [key for key in run if key.reason == "UNEXPLAINED"]
    reasons = [
        next((word for word, applies in RULES.items() if applies(key, run, open_keys, tolerated)), "UNEXPLAINED")
        for key in open_keys
    ]
    for key, word in zip(open_keys, reasons, strict=True):
        key.reason = word


def _silent(key: Judged, run: list[Judged], _open: list[Judged], tolerated: Tolerated) -> bool:
    own, other = _sides(key)
    if key.kind not in {"publish", "consume"} or not any(_name(one) and one.side(other) for one in _alike(key, run)):
        return False
    instance = _service if own == "otlp" else _process
    finer = max(ENOUGH, tolerated.silent_minimum)
    same_name = [one for one in _alike(key, run) if _name(one) == _name(key)]
    asked = [
        (same_name, _name(key), tolerated.silent_minimum),
        ([one for one in same_name if _service(one) == _service(key)], _service(key) and _name(key), finer),
        ([one for one in run if instance(one) == instance(key)], instance(key), finer),
    ]
    return any(
        known and not any(one.side(other) for one in rows) and sum(bool(one.side(own)) for one in rows) >= minimum
        for rows, known, minimum in asked
    )


def _at_an_end(key: Judged, run: list[Judged], _open: list[Judged], tolerated: Tolerated) -> bool:
    own, other = _sides(key)
    instance = _service if own == "otlp" and key.kind == "consume" else _process
    rows = [one for one in run if instance(key) and instance(one) == instance(key)]
    if len(rows) < SEVERAL or tolerated.horizon_ms is None:
        return False
    over_ms = _over(key, own)
    if instance is _service:  # native records name no service: none of the group's may have ended later
        of_group = [_over(one, "native") for one in _alike(key, run) if one.native and _name(one) == _name(key)]
        end_ms = key.otlp["end_ms"]
        if end_ms is None or not of_group or end_ms + JITTER_MS < max(of_group):
            return False
    ends = {side: [_over(one, side) for one in rows if one.side(side)] for side in ("native", "otlp")}
    last_ms = max(end for of_side in ends.values() for end in of_side)
    if ends[other]:
        nothing_later = over_ms + JITTER_MS >= max(ends[other])
    else:
        nothing_later = last_ms - min(one.event_ms for one in rows) <= tolerated.shutdown_window_ms
    return last_ms < tolerated.horizon_ms and last_ms - over_ms <= tolerated.shutdown_window_ms and nothing_later


def _before_the_input(key: Judged, _run: list[Judged], _open: list[Judged], tolerated: Tolerated) -> bool:
    own, other = _sides(key)
    first_ms = tolerated.first_ms[other]
    return first_ms is not None and _over(key, own) < first_ms - tolerated.late_after_ms


def _without_id(key: Judged, _run: list[Judged], open_keys: list[Judged], _tolerated: Tolerated) -> bool:
    """One of our events shares its start with its span: the tolerance is nothing."""
    if key.msg_id is not None and key.native is None:
        return False
    near = [one for one in open_keys if (one.kind, _name(one), one.event_ms) == (key.kind, _name(key), key.event_ms)]
    nameless = sum(one.msg_id is None for one in near)
    lonely = sum(one.native is not None for one in near)
    return _name(key) is not None and nameless >= lonely > 0


RULES = {
    "WRITER_SILENT": _silent,
    "SHUTDOWN_WINDOW": _at_an_end,
    "LATE_BEYOND_RETENTION": _before_the_input,
    "KEY_DEGRADED": _without_id,
}
"""Reason → whether it applies, in the order they are tried."""


def _sides(key: Judged) -> tuple[str, str]:
    other = OTHER[key.status]
    return ("otlp" if other == "native" else "native"), other


def _alike(key: Judged, run: list[Judged]) -> list[Judged]:
    return [one for one in run if one.kind == key.kind]


def _either(key: Judged, name: str) -> Any:
    return next((side[name] for side in (key.native, key.otlp) if side and side[name] is not None), None)


def _name(key: Judged) -> str | None:
    return _either(key, {"publish": "topic", "consume": "group_name"}[key.kind]) if key.kind in NAMED else None


NAMED = {"publish", "consume"}


def _service(key: Judged) -> str | None:
    return key.otlp["service"] if key.otlp else None


def _process(key: Judged) -> str | None:
    text = (key.native or {}).get("attempt_id") if key.kind == "consume" else key.msg_id
    return text[:-OWN_DIGITS] if text and len(text) == ID_DIGITS else None


def _over(key: Judged, side: str) -> int:
    row = key.side(side)
    return row["start_ms"] if row["end_ms"] is None else row["end_ms"]
