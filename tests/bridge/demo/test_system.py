"""One run of the order system leaves exactly the records and spans that the book and the plan foretell."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from bridge.demo.faults import FaultKind, FaultPlan, plan_faults
from bridge.demo.orders import BILLING, CONSUME, PUBLISH, SHIPPING, Event, Order, OrderKind, events_of, order_book
from bridge.demo.run import TRACE_TOPIC, create_topics, run_orders
from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOOK = order_book(120, seed=3)
PLAN = plan_faults(BOOK, seed=3)

# What each fault makes of one record: how many are left, and whether they can be read.
NATIVE_COPIES = {FaultKind.DROPPED_NATIVE: 0, FaultKind.DUPLICATED_NATIVE: 2, FaultKind.MALFORMED_NATIVE: 0}
OTLP_COPIES = {
    FaultKind.DROPPED_OTLP: 0,
    FaultKind.DUPLICATED_OTLP: 2,
    FaultKind.MALFORMED_OTLP: 0,
    FaultKind.CRASHED: 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], Path, list[int]]:
    otlp = tmp_path_factory.mktemp("system") / "traces.jsonl"
    advanced: list[int] = []
    with EmbeddedKafka() as kafka:
        create_topics(kafka, len(BOOK))
        run_orders(kafka.bootstrap_servers, BOOK, PLAN, otlp=otlp, advance=advanced.append)
        kafka.assert_untrimmed(TRACE_TOPIC)
        with KafkaTraceSource(kafka.bootstrap_servers, TRACE_TOPIC) as source:
            bodies = [message.body for batch in source.drain() for message in batch]
    return bodies, otlp, advanced


def kind_of(plan: FaultPlan, event: Event) -> FaultKind | None:
    fault = plan.get(event)
    return None if fault is None else fault.kind


def halves(event: Event) -> Iterator[str]:
    if event.kind != CONSUME:
        yield "whole"
        return
    kind = kind_of(PLAN, event)
    if kind is not FaultKind.BEFORE_LOST:
        yield "SubBefore"
    if kind not in {FaultKind.AFTER_LOST, FaultKind.CRASHED}:
        yield "SubAfter"


def events(book: list[Order]) -> Iterator[Event]:
    for order in book:
        yield from events_of(order)


def test_the_trace_topic_holds_every_record_of_the_plan(run: tuple[list[bytes], Path, list[int]]) -> None:
    expected = Counter[tuple[str, str, str]]()
    for event in events(BOOK):
        for half in halves(event):
            copies = NATIVE_COPIES.get(kind_of(PLAN, event), 1)
            expected[(event.kind, event.msg_id, half)] += copies
    found, bad = Counter[tuple[str, str, str]](), 0
    names = {"Pub": (PUBLISH, "whole"), "EndTransaction": ("transaction_end", "whole")}
    for body in run[0]:
        decoded = decode_body(body)
        bad += len(decoded.errors)
        for trace_ctx in decoded.contexts:
            name = trace_ctx.trace_type.value
            kind, half = names.get(name, (CONSUME, name))
            found[(kind, trace_ctx.beans[0].msg_id or "", half)] += 1
    assert found == +expected
    damaged = [event for event in PLAN if kind_of(PLAN, event) is FaultKind.MALFORMED_NATIVE]
    assert bad == sum(2 if event.kind == CONSUME else 1 for event in damaged)


def test_the_span_file_holds_every_span_of_the_plan(run: tuple[list[bytes], Path, list[int]]) -> None:
    expected = Counter({event: OTLP_COPIES.get(kind_of(PLAN, event), 1) for event in events(BOOK)})
    spans, damaged = spans_in(run[1])
    assert Counter(map(event_of_span, spans)) == +expected
    assert damaged == sum(fault.kind is FaultKind.MALFORMED_OTLP for fault in PLAN.values())


def test_outcomes_are_the_books(run: tuple[list[bytes], Path, list[int]]) -> None:
    outcomes = {event_of_span(span): attributes_of(span) for span in spans_in(run[1])[0]}
    altered = {event for event, fault in PLAN.items() if fault.field == "context_code"}
    for order in BOOK:
        for attempt in range(3):
            said = outcomes.get(Event(CONSUME, order.msg_id, BILLING, attempt))
            if said is not None and Event(CONSUME, order.msg_id, BILLING, attempt) not in altered:
                declined = "EXCEPTION" if order.number % 2 else "FAILED"
                assert said["mqtrace.context_code"] == (declined if attempt < order.declines else "SUCCESS")
    assert {outcomes[event]["mqtrace.success"] for event in outcomes if event.where == SHIPPING} == {True}
    refused = [said for event, said in outcomes.items() if event.kind == PUBLISH and not said["mqtrace.success"]]
    oversize = sum(order.kind is OrderKind.OVERSIZE for order in BOOK)
    assert [said["error.type"] for said in refused] == ["MSG_SIZE_TOO_LARGE"] * oversize


def test_progress_adds_up_and_the_last_order_is_alone(run: tuple[list[bytes], Path, list[int]]) -> None:
    assert sum(run[2]) == len(BOOK)
    assert run[2][-1] == 1


def spans_in(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the spans of the lines that can be read, and how many lines cannot."""
    spans: list[dict[str, Any]] = []
    damaged = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            request = json.loads(line)
        except json.JSONDecodeError:
            damaged += 1
            continue
        for resource in request["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                spans.extend(scope["spans"])
    return spans, damaged


def attributes_of(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def event_of_span(span: dict[str, Any]) -> Event:
    said = attributes_of(span)
    msg_id = said["messaging.message.id"]
    if said["mqtrace.trace_type"] == "Sub":
        return Event(CONSUME, msg_id, said["messaging.consumer.group.name"], int(said["mqtrace.retry_times"]))
    if said["mqtrace.trace_type"] == "Pub":
        return Event(PUBLISH, msg_id, said["messaging.destination.name"])
    return Event("transaction_end", msg_id, "")
