"""Events in, verdict rows out, by the kernel alone: no Spark, no files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from otel_mqtrace._clock import LAST_MS
from spark_jobs.judging.kernel import judge
from spark_jobs.policy.policy import make_plan, read_policy
from spark_jobs.schemas import EVENT, MENTION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.judging.plan import Plan
    from spark_jobs.policy.policy import Policy


def judge_events(
    events: list[dict[str, Any]], *, policy: Policy | None = None, malformed: Iterable[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """Return the kernel's verdicts on ``events``; ``malformed`` names side and message id of bad records."""
    verdicts = judge(table_of(events, malformed), plan_of(events, policy or read_policy(None))).verdicts
    return [{**row, "field_verdicts": dict(row["field_verdicts"] or ())} for row in verdicts.to_pylist()]


def table_of(events: Iterable[dict[str, Any]], malformed: Iterable[tuple[str, str]] = ()) -> pa.Table:
    """Return events in scope, and the mentions of bad records, as the kernel takes them."""
    mentions = [
        {"side": side, "kind": MENTION, "msg_id": msg_id, "path": "input.jsonl", "line": 9}
        for side, msg_id in malformed
    ]
    return pa.Table.from_pylist([*(row for row in events if row["scope"] is None), *mentions], schema=EVENT)


def plan_of(events: list[dict[str, Any]], policy: Policy) -> Plan:
    """Return the plan of a run over ``events``: a side ends where its last believable time is."""
    ends_ms = [_end_ms(row for row in events if row["side"] == side) for side in ("native", "otlp")]
    known = [end_ms for end_ms in ends_ms if end_ms is not None]
    horizon_ms = min(known) - policy.grace_ms if len(known) == len(ends_ms) else None
    return make_plan(policy, data_end_ms=max(known, default=None), horizon_ms=horizon_ms)


def _end_ms(rows: Iterable[dict[str, Any]]) -> int | None:
    ends = []
    for row in rows:
        times = [row[name] for name in ("start_ms", "end_ms") if row[name] is not None and 0 <= row[name] <= LAST_MS]
        if times and row["scope"] is None:
            arrival_ms = row["arrival_ms"]
            ends.append(max(times) if arrival_ms is None else min(max(times), arrival_ms))
    return max(ends, default=None)
