"""What is known of the whole input before any key is judged, folded from a few counted rows."""

from __future__ import annotations

from dataclasses import replace

from spark_jobs.reconcile.facts import read_facts
from spark_jobs.reconcile.policy import read_policy
from spark_jobs.taxonomy import Kind, Status

POLICY = replace(read_policy(None), grace_ms=10)


def counted(side: str, name: str | None = "orders", **fields) -> dict:
    """Return one row of the survey."""
    row = {"side": side, "kind": "publish", "scope": None, "name": name, "rows": 3, "first_ms": 100, "last_ms": 900}
    return {**row, "lacks_key": False, "lacks_group": False, **fields}


def test_the_horizon_is_the_earlier_end_of_the_two_sides_less_the_grace():
    """Nothing newer can be called lost; ages count from the later end."""
    facts = read_facts([counted("native"), counted("otlp", last_ms=700, first_ms=50)], POLICY)
    assert (facts.first_ms, facts.data_end_ms, facts.horizon_ms) == (50, 900, 690)


def test_an_empty_side_leaves_no_horizon():
    """Records out of scope and malformed ones do not make a side less empty."""
    rows = [counted("native"), counted("otlp", scope="TRACE_TRAFFIC"), counted("otlp", kind=None, scope="MALFORMED")]
    facts = read_facts(rows, POLICY)
    assert facts.horizon_ms is None
    assert facts.in_scope == {"native": 3, "otlp": 0}
    assert facts.malformed == {"native": 0, "otlp": 3}
    assert facts.scopes["otlp"] == {"TRACE_TRAFFIC": 3}


def test_no_rows_at_all_are_two_empty_sides():
    """Nothing is known, and nothing breaks."""
    facts = read_facts([], POLICY)
    assert (facts.first_ms, facts.data_end_ms, facts.horizon_ms) == (None, None, None)


def test_a_name_is_silent_only_beside_others_and_from_the_minimum_on():
    """A side that names no topic at all proves nothing about one of them."""
    seen = [counted("otlp", "silent"), counted("otlp"), counted("otlp", "billing", kind="consume")]
    key = (Status.OTLP_ONLY, Kind.PUBLISH)
    assert read_facts([*seen, counted("native")], POLICY).silent[key] == ("silent",)
    assert read_facts(seen, POLICY).silent[key] == ()
    assert read_facts([*seen, counted("native")], POLICY).silent[Status.OTLP_ONLY, Kind.CONSUME] == ()
    strict = replace(POLICY, writer_silent_minimum=4)
    assert read_facts([*seen, counted("native")], strict).silent[key] == ()


def test_of_very_many_silent_names_the_most_frequent_are_named():
    """A topic per user must not make the plan grow with the users."""
    rows = [counted("otlp", f"user-{n:04}", rows=1 + (n == 1_999)) for n in range(2_000)]
    silent = read_facts([*rows, counted("native")], POLICY).silent[Status.OTLP_ONLY, Kind.PUBLISH]
    assert len(silent) == 500
    assert {"user-0000", "user-1999"} <= set(silent)
