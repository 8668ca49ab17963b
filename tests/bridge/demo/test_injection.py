"""Each planned fault hits exactly its event on exactly its side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from bridge.demo.faults import Fault, FaultKind, FaultyEncoder, FaultySpanExporter
from bridge.demo.orders import Event
from otel_mqtrace.model import ContextCode, MessageType, TraceBean, TraceContext, TraceType, TransactionState
from otel_mqtrace.spans.mapping import OPERATIONS, span_attributes
from otel_mqtrace.wire.native import decode_body, encode_context

if TYPE_CHECKING:
    from pathlib import Path

MSG_ID = "7F00000100073047478A0000000500AB"
BEAN = TraceBean(
    topic="orders",
    msg_id=MSG_ID,
    offset_msg_id="orders-0@5",
    tags="生鲜",
    keys="订单-1 🧾-1",
    store_host="127.0.0.1:9092",
    body_length=70,
    retry_times=0,
    msg_type=MessageType.NORMAL,
)
TIMES = {"timestamp_ms": 1_700_000_000_000, "region_id": "DefaultRegion"}
PUB = TraceContext(trace_type=TraceType.PUB, group_name="p", cost_ms=3, success=True, beans=(BEAN,), **TIMES)
BEFORE = TraceContext(trace_type=TraceType.SUB_BEFORE, group_name="billing", request_id="R1", beans=(BEAN,), **TIMES)
AFTER = TraceContext(
    trace_type=TraceType.SUB_AFTER,
    group_name="billing",
    request_id="R1",
    cost_ms=3,
    success=True,
    context_code=ContextCode.SUCCESS,
    beans=(BEAN,),
    **TIMES,
)
END = TraceContext(
    trace_type=TraceType.END_TRANSACTION,
    group_name="p",
    beans=(
        TraceBean(
            topic="payments",
            msg_id=MSG_ID,
            tags="生鲜",
            keys="k",
            store_host="127.0.0.1:9092",
            msg_type=MessageType.TRANS_COMMIT,
            transaction_id="t",
            transaction_state=TransactionState.COMMIT_MESSAGE,
            from_transaction_check=False,
        ),
    ),
    **TIMES,
)
PUBLISHED = Event("publish", MSG_ID, "orders")
CONSUMED = Event("consume", MSG_ID, "billing")
ENDED = Event("transaction_end", MSG_ID, "")
SIDES = [(PUB, PUBLISHED), (BEFORE, CONSUMED), (AFTER, CONSUMED), (END, ENDED)]


def encoder(kind: FaultKind, event: Event, field: str | None = None) -> FaultyEncoder:
    return FaultyEncoder({event: Fault(kind, event, field)})


@pytest.mark.parametrize(("trace_ctx", "event"), SIDES)
def test_an_event_without_a_fault_is_encoded_untouched(trace_ctx: TraceContext, event: Event) -> None:
    other = Event(event.kind, event.msg_id, event.where + "x", event.attempt)
    for faulty in (encoder(FaultKind.DROPPED_NATIVE, other), encoder(FaultKind.DROPPED_OTLP, event)):
        assert faulty(trace_ctx) == encode_context(trace_ctx)


@pytest.mark.parametrize(("trace_ctx", "event"), SIDES)
def test_dropped_and_doubled_records(trace_ctx: TraceContext, event: Event) -> None:
    assert encoder(FaultKind.DROPPED_NATIVE, event)(trace_ctx).body == b""
    doubled = decode_body(encoder(FaultKind.DUPLICATED_NATIVE, event)(trace_ctx).body)
    assert doubled.contexts == decode_body(encode_context(trace_ctx).body).contexts * 2


@pytest.mark.parametrize(("trace_ctx", "event"), SIDES)
def test_damaged_records_are_bad_and_still_name_their_message(trace_ctx: TraceContext, event: Event) -> None:
    body = encoder(FaultKind.MALFORMED_NATIVE, event)(trace_ctx).body
    decoded = decode_body(body + encode_context(PUB).body)
    assert (len(decoded.contexts), len(decoded.errors)) == (1, 1)
    assert MSG_ID.encode() in body


@pytest.mark.parametrize(
    ("trace_ctx", "event", "field"),
    [
        *((PUB, PUBLISHED, field) for field in ("body_length", "store_host", "tags", "keys")),
        *((AFTER, CONSUMED, field) for field in ("context_code", "keys")),
        *((END, ENDED, field) for field in ("tags", "keys")),
    ],
)
def test_an_altered_record_differs_in_one_field(trace_ctx: TraceContext, event: Event, field: str) -> None:
    (altered,) = decode_body(encoder(FaultKind.ALTERED_NATIVE, event, field)(trace_ctx).body).contexts
    (original,) = decode_body(encode_context(trace_ctx).body).contexts
    names = [name for name in TraceContext.__slots__ if name != "beans"]
    differing = {name for name in names if getattr(altered, name) != getattr(original, name)}
    pairs = zip(altered.beans, original.beans, strict=True)
    differing |= {name for a, b in pairs for name in TraceBean.__slots__ if getattr(a, name) != getattr(b, name)}
    assert differing == {field}


def test_a_lost_half_leaves_the_other() -> None:
    assert encoder(FaultKind.AFTER_LOST, CONSUMED)(AFTER).body == b""
    assert encoder(FaultKind.AFTER_LOST, CONSUMED)(BEFORE) == encode_context(BEFORE)
    assert encoder(FaultKind.BEFORE_LOST, CONSUMED)(BEFORE).body == b""
    assert encoder(FaultKind.BEFORE_LOST, CONSUMED)(AFTER) == encode_context(AFTER)


def exported(path: Path, kind: FaultKind, event: Event, trace_ctx: TraceContext, field: str | None = None) -> list[str]:
    exporter = FaultySpanExporter(path, {event: Fault(kind, event, field)})
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("tests")
    operation = OPERATIONS[trace_ctx.trace_type]
    attributes = span_attributes(trace_ctx).span
    tracer.start_span("before").end()
    tracer.start_span(operation.name, kind=operation.kind, attributes=attributes).end()
    tracer.start_span("after").end()
    assert provider.force_flush()
    provider.shutdown()
    return path.read_text(encoding="utf-8").splitlines()


def spans_of(lines: list[str]) -> list[dict[str, object]]:
    return [
        span
        for line in lines
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


@pytest.mark.parametrize(("trace_ctx", "event"), [(PUB, PUBLISHED), (AFTER, CONSUMED), (END, ENDED)])
@pytest.mark.parametrize(("kind", "copies"), [(FaultKind.DROPPED_OTLP, 0), (FaultKind.DUPLICATED_OTLP, 2)])
def test_dropped_and_doubled_spans(
    tmp_path: Path, kind: FaultKind, copies: int, trace_ctx: TraceContext, event: Event
) -> None:
    spans = spans_of(exported(tmp_path / "spans.jsonl", kind, event, trace_ctx))
    names = [span["name"] for span in spans]
    assert (names[0], names[-1], len(names)) == ("before", "after", copies + 2)
    assert all(span == spans[1] for span in spans[1:-1])


def test_an_altered_span_differs_in_one_attribute(tmp_path: Path) -> None:
    clean = spans_of(exported(tmp_path / "clean.jsonl", FaultKind.DROPPED_NATIVE, PUBLISHED, PUB))[1]
    altered = spans_of(exported(tmp_path / "altered.jsonl", FaultKind.ALTERED_OTLP, PUBLISHED, PUB, "store_host"))[1]
    differing = [
        one["key"] for one, other in zip(clean["attributes"], altered["attributes"], strict=True) if one != other
    ]
    assert differing == ["mqtrace.store_host"]
    assert altered.keys() == clean.keys()


def test_a_damaged_line_is_no_json_and_still_names_its_message(tmp_path: Path) -> None:
    lines = exported(tmp_path / "spans.jsonl", FaultKind.MALFORMED_OTLP, PUBLISHED, PUB)
    assert len(lines) == 3
    assert [span["name"] for span in spans_of([lines[0], lines[2]])] == ["before", "after"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[1])
    assert MSG_ID in lines[1]
