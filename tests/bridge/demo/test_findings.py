"""Seeded faults and found ones agree exactly: one missing, wrong, doubled or unexpected verdict is a disagreement."""

import pytest

from bridge.demo.faults import FaultKind, compare, describe_discrepancies, plan_faults, tabulate_findings
from bridge.demo.shop import CONSUME, PUBLISH, events_of, order_book

BOOK = order_book(120, seed=7)
PLAN = plan_faults(BOOK, seed=7)
EVENTS = [event for order in BOOK for event in events_of(order)]
HALVES = [2 if event.kind == CONSUME else 1 for event in PLAN if PLAN[event].kind is FaultKind.MALFORMED_NATIVE]
SPANS = [event for event in PLAN if PLAN[event].kind is FaultKind.MALFORMED_OTLP]
RESULT = {
    "inputs": {"native": {"malformed": sum(HALVES)}, "otlp": {"malformed": len(SPANS)}},
    "conservation": {"holds": True},
    "exit_code": 1,
    "verdict": "FAIL",
}


def row_of(event):
    fault = PLAN.get(event)
    status, reason = ("MATCHED_EXACT", None) if fault is None else fault.kind.value.verdict
    return {
        "kind": event.kind,
        "msg_id": event.msg_id,
        "topic": event.where if event.kind == PUBLISH else None,
        "group": event.where if event.kind == CONSUME else None,
        "retry_times": event.attempt if event.kind == CONSUME else None,
        "status": status,
        "reason": reason,
        "field_verdicts": [("topic", "EQUAL"), *([(fault.field, "DIFFERENT")] if fault and fault.field else [])],
    }


ROWS = [row_of(event) for event in EVENTS]


def place_of(kind):
    return next(at for at, event in enumerate(EVENTS) if getattr(PLAN.get(event), "kind", None) is kind)


def changed(kind, **fields):
    at = place_of(kind)
    return [*ROWS[:at], {**ROWS[at], **fields}, *ROWS[at + 1 :]]


def judged(rows, **result):
    return compare(BOOK, PLAN, rows, RESULT | result)


def test_perfect_reconciliation_agrees():
    findings = judged(ROWS)
    assert findings.agree
    assert sum(len(findings.seeded(kind)) for kind in FaultKind) == len(PLAN)
    assert list(describe_discrepancies(findings)) == []
    assert tabulate_findings(findings).row_count == len(FaultKind) + 2


@pytest.mark.parametrize("kind", [*FaultKind, None])
def test_missing_or_wrong_verdict_disagrees(kind):
    at = place_of(kind)
    findings = judged([*ROWS[:at], *ROWS[at + 1 :]])
    assert not findings.agree
    assert [one.as_expected for one in findings.seeded(kind)].count(False) == 1
    assert "found nothing" in next(describe_discrepancies(findings))
    assert not any(judged(changed(kind, **field)).agree for field in ({"status": "PENDING"}, {"reason": "BY_DESIGN"}))


@pytest.mark.parametrize("fields", [["topic"], ["altered", "topic"], [], None])
def test_wrong_field_disagrees(fields):
    own = ROWS[place_of(FaultKind.ALTERED_NATIVE)]["field_verdicts"][-1][0]
    verdicts = fields and [(own if name == "altered" else name, "DIFFERENT") for name in fields]
    assert not judged(changed(FaultKind.ALTERED_NATIVE, field_verdicts=verdicts)).agree


def test_second_verdict_and_a_stranger_disagree():
    assert not judged([*ROWS, ROWS[0]]).agree
    stranger = judged([*ROWS, {**ROWS[0], "msg_id": "F" * 32}])
    assert (len(stranger.surprises), stranger.agree) == (1, False)


@pytest.mark.parametrize(
    "change",
    [
        *({"conservation": {"holds": False}}, {"exit_code": 0}, {"exit_code": 4}),
        {"inputs": {"native": {"malformed": 0}, "otlp": {"malformed": 0}}},
    ],
)
def test_wrong_counts_or_exit_code_disagree(change):
    assert not judged(ROWS, **change).agree
