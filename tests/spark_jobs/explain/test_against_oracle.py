"""Verdicts against a plain Python reconciliation, on made-up inputs with everything wrong at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from spark_jobs.policy.policy import read_policy
from tests.support import oracle, oracle_reasons
from tests.support.drawn_runs import runs
from tests.support.events import START_MS
from tests.support.explained_runs import explain_events

GRACE_MS = 200_000
BEGIN_MS = START_MS + 5
NAMES = (*("msg_id", "kind", "status", "reason", "key_level", "native_count", "otlp_count", "duplicates", "timing"),)


def first_ms(events, side):
    starts = (row["end_ms"] if row["start_ms"] is None else row["start_ms"] for row in events if row["side"] == side)
    return min(starts, default=None)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=runs())
def test_kernel_and_rules_agree_with_the_plain_python_oracle(made):
    events, malformed = made
    damaged = {side: {msg_id for where, msg_id in malformed if where == side} for side in ("native", "otlp")}
    expected = oracle.verdicts(events, grace_ms=GRACE_MS, damaged=damaged, begin_ms=BEGIN_MS) if events else []
    oracle_reasons.explain(
        expected,
        oracle_reasons.Tolerated(
            horizon_ms=oracle.horizon(events, GRACE_MS),
            first_ms={side: first_ms(events, side) for side in ("native", "otlp")},
        ),
    )
    policy = replace(read_policy(None), grace_ms=GRACE_MS, begin_ms=BEGIN_MS)
    found = [[row[name] for name in NAMES] for row in explain_events(events, policy=policy, malformed=malformed)]
    assert sorted(map(tuple, found), key=repr) == sorted((key.said() for key in expected), key=repr)
