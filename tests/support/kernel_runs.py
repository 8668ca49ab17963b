"""Events in, verdict rows out, by the kernel alone: no Spark, no files."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_jobs.judging.facts import Facts, read_facts, survey
from spark_jobs.judging.kernel import JudgedSlice, judge_slices
from spark_jobs.judging.plan import Plan
from spark_jobs.policy.policy import Policy, make_plan, read_policy
from spark_jobs.schemas import EVENT, MENTION
from tests.support.reading import plain_rows


def judge_events(events: list[dict[str, Any]], *, policy: Policy | None = None) -> list[dict[str, Any]]:
    return plain_rows(verdicts_on(events, policy=policy))


def verdicts_on(
    events: list[dict[str, Any]], *, policy: Policy | None = None, malformed: Iterable[tuple[str, str]] = ()
) -> pa.Table:
    """Return the kernel's verdicts on ``events``; ``malformed`` names side and message id of bad records."""
    return judge(table_of(events, malformed), plan_of(events, policy or read_policy(None))).verdicts


def judge(events: pa.Table, plan: Plan) -> JudgedSlice:
    return next(judge_slices(events, plan, keys_per_slice=len(events) + 1))


def table_of(events: Iterable[dict[str, Any]], malformed: Iterable[tuple[str, str]] = ()) -> pa.Table:
    """Return events in scope, and the mentions of bad records, as the kernel takes them."""
    mentions = [
        {"side": side, "kind": MENTION, "msg_id": msg_id, "path": "input.jsonl", "line": 9}
        for side, msg_id in malformed
    ]
    return pa.Table.from_pylist([*(row for row in events if row["scope"] is None), *mentions], schema=EVENT)


def facts_of(events: list[dict[str, Any]], policy: Policy) -> Facts:
    return read_facts(survey(pa.Table.from_pylist(events, schema=EVENT)), policy.grace_ms)


def plan_of(events: list[dict[str, Any]], policy: Policy) -> Plan:
    return make_plan(policy, facts_of(events, policy))
