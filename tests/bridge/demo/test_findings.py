"""Seeded against found is exact: one missing, wrong, doubled or unexpected verdict is enough to disagree."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.demo.faults import EXPECTED, FaultKind, plan_faults
from bridge.demo.findings import Findings, Row, compare, discrepancies, seeded_against_found
from bridge.demo.orders import CONSUME, PUBLISH, Event, events_of, order_book

BOOK = order_book(120, seed=7)
PLAN = plan_faults(BOOK, seed=7)


def row_of(event: Event) -> Row:
    fault = PLAN.get(event)
    expectation = None if fault is None else EXPECTED[fault.kind]
    return {
        "kind": event.kind,
        "msg_id": event.msg_id,
        "topic": event.where if event.kind == PUBLISH else None,
        "group": event.where if event.kind == CONSUME else None,
        "retry_times": event.attempt if event.kind == CONSUME else None,
        "status": "MATCHED_EXACT" if expectation is None else next(iter(expectation.statuses)),
        "reason": None if expectation is None else expectation.reason,
        "field_verdicts": [("topic", "EQUAL"), *([(fault.field, "DIFFERENT")] if fault and fault.field else [])],
    }


@pytest.fixture
def rows() -> list[Row]:
    return [row_of(event) for order in BOOK for event in events_of(order)]


@pytest.fixture
def result() -> dict[str, Any]:
    native = sum(
        2 if event.kind == CONSUME else 1 for event, fault in PLAN.items() if fault.kind is FaultKind.MALFORMED_NATIVE
    )
    otlp = sum(fault.kind is FaultKind.MALFORMED_OTLP for fault in PLAN.values())
    return {
        "inputs": {"native": {"malformed": native}, "otlp": {"malformed": otlp}},
        "conservation": {"holds": True},
        "exit_code": 1,
        "verdict": "FAIL",
    }


def judged(rows: list[Row], result: dict[str, Any]) -> Findings:
    return compare(BOOK, PLAN, rows, result)


def index_of(kind: FaultKind | None, rows: list[Row]) -> int:
    wanted = {
        event
        for event in (e for order in BOOK for e in events_of(order))
        if getattr(PLAN.get(event), "kind", None) is kind
    }
    return next(i for i, row in enumerate(rows) if any(row == row_of(event) for event in wanted))


def test_a_perfect_reconciliation_agrees(rows: list[Row], result: dict[str, Any]) -> None:
    findings = judged(rows, result)
    assert findings.agree
    assert sum(len(findings.seeded(kind)) for kind in FaultKind) == len(PLAN)
    assert list(discrepancies(findings)) == []


@pytest.mark.parametrize("kind", [*FaultKind, None])
def test_a_missing_verdict_disagrees(kind: FaultKind | None, rows: list[Row], result: dict[str, Any]) -> None:
    del rows[index_of(kind, rows)]
    findings = judged(rows, result)
    assert not findings.agree
    assert [one.as_expected for one in findings.seeded(kind)].count(False) == 1
    assert "found nothing" in next(discrepancies(findings))


@pytest.mark.parametrize("kind", [*FaultKind, None])
def test_a_wrong_verdict_disagrees(kind: FaultKind | None, rows: list[Row], result: dict[str, Any]) -> None:
    place = index_of(kind, rows)
    for change in ({"status": "PENDING"}, {"reason": "BY_DESIGN"}):
        assert not judged([*rows[:place], {**rows[place], **change}, *rows[place + 1 :]], result).agree


def test_the_wrong_field_disagrees(rows: list[Row], result: dict[str, Any]) -> None:
    place = index_of(FaultKind.ALTERED_NATIVE, rows)
    for fields in ([("topic", "DIFFERENT")], [*rows[place]["field_verdicts"], ("topic", "DIFFERENT")], [], None):
        assert not judged([*rows[:place], {**rows[place], "field_verdicts": fields}, *rows[place + 1 :]], result).agree


def test_a_second_verdict_and_a_stranger_disagree(rows: list[Row], result: dict[str, Any]) -> None:
    assert not judged([*rows, rows[0]], result).agree
    stranger = judged([*rows, {**rows[0], "msg_id": "F" * 32}], result)
    assert len(stranger.surprises) == 1
    assert not stranger.agree


@pytest.mark.parametrize(
    "change",
    [
        {"conservation": {"holds": False}},
        {"exit_code": 0},
        {"exit_code": 4},
        {"inputs": {"native": {"malformed": 0}, "otlp": {"malformed": 0}}},
    ],
)
def test_the_books_must_be_right_too(change: dict[str, Any], rows: list[Row], result: dict[str, Any]) -> None:
    assert not judged(rows, result | change).agree


def test_the_table_has_a_row_per_fault_and_one_for_the_rest(rows: list[Row], result: dict[str, Any]) -> None:
    assert seeded_against_found(judged(rows, result)).row_count == len(FaultKind) + 2
