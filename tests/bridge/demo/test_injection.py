"""Each planned fault hits exactly its event on exactly its side."""

import json
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from bridge.demo.faults import Fault, FaultKind, FaultySpanExporter, encode_with_faults
from bridge.demo.shop import Event
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import TraceBean, TraceContext, TransactionState
from otel_mqtrace.spans.mapping import OPERATIONS
from otel_mqtrace.wire.native import decode_body, encode_context
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT
from tests.support.archives import ID, T0, consume, end, pub
from tests.support.native_spans import span_attributes

PUB = pub(tags="生鲜", keys="订单-1 🧾-1", retry_times=0)
BEFORE, AFTER = consume("R1", T0, tags="生鲜", keys="订单-1 🧾-1")
END = end(T0, TransactionState.COMMIT_MESSAGE)
PUBLISHED = Event("publish", ID, "orders")
CONSUMED = Event("consume", ID, "billing")
SIDES = [(PUB, PUBLISHED), (BEFORE, CONSUMED), (AFTER, CONSUMED), (END, Event("transaction_end", ID, ""))]


def encoder(kind, event, field=None):
    return partial(encode_with_faults, {event: Fault(kind, field)}, dialect=DEFAULT_DIALECT)


@pytest.mark.parametrize(("trace_ctx", "event"), SIDES)
def test_record_is_left_alone_dropped_doubled_or_damaged(trace_ctx, event):
    other, clean = Event(event.kind, event.msg_id, event.where + "x", event.attempt), encode_context(trace_ctx)
    assert encoder(FaultKind.DROPPED_NATIVE, other)(trace_ctx) == clean
    assert encoder(FaultKind.DROPPED_OTLP, event)(trace_ctx) == clean
    assert encoder(FaultKind.DROPPED_NATIVE, event)(trace_ctx).body == b""
    doubled = decode_body(encoder(FaultKind.DUPLICATED_NATIVE, event)(trace_ctx).body)
    assert doubled.contexts == decode_body(clean.body).contexts * 2
    damaged = encoder(FaultKind.MALFORMED_NATIVE, event)(trace_ctx).body
    decoded = decode_body(damaged + encode_context(PUB).body)
    assert (len(decoded.contexts), len(decoded.errors), ID.encode() in damaged) == (1, 1, True)


ALTERED = (
    (SIDES[0], ("body_length", "store_host", "tags", "keys")),
    (SIDES[2], ("context_code", "keys")),
    (SIDES[3], ("tags", "keys")),
)


@pytest.mark.parametrize(("trace_ctx", "event", "field"), [(*side, name) for side, names in ALTERED for name in names])
def test_altered_record_differs_in_one_field(trace_ctx, event, field):
    (altered,) = decode_body(encoder(FaultKind.ALTERED_NATIVE, event, field)(trace_ctx).body).contexts
    (original,) = decode_body(encode_context(trace_ctx).body).contexts
    names = [name for name in TraceContext.__slots__ if name != "beans"]
    differing = {name for name in names if getattr(altered, name) != getattr(original, name)}
    pairs = zip(altered.beans, original.beans, strict=True)
    differing |= {name for a, b in pairs for name in TraceBean.__slots__ if getattr(a, name) != getattr(b, name)}
    assert differing == {field}


def test_lost_half_leaves_the_other():
    for kind in (FaultKind.AFTER_LOST, FaultKind.CRASHED):
        assert encoder(kind, CONSUMED)(AFTER).body == b""
        assert encoder(kind, CONSUMED)(BEFORE) == encode_context(BEFORE)
    assert encoder(FaultKind.BEFORE_LOST, CONSUMED)(BEFORE).body == b""
    assert encoder(FaultKind.BEFORE_LOST, CONSUMED)(AFTER) == encode_context(AFTER)


def exported(path, kind, event, trace_ctx, field=None):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FaultySpanExporter(path, {event: Fault(kind, field)})))
    tracer = provider.get_tracer("tests")
    operation = OPERATIONS[trace_ctx.trace_type]
    tracer.start_span("before").end()
    tracer.start_span(operation.name, kind=operation.kind, attributes=span_attributes(trace_ctx).span).end()
    tracer.start_span("after").end()
    provider.shutdown()
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file here that is always full")
def test_full_disk_is_one_error_and_no_log(caplog):
    exporter = FaultySpanExporter(Path("/dev/full"), {})
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for name in ("first", "second"):
        provider.get_tracer("tests").start_span(name).end()
    provider.shutdown()
    with pytest.raises(UsageError, match="cannot write /dev/full: no space left on device; free space there, or give"):
        exporter.check()
    assert caplog.messages == []


def spans_of(lines):
    scopes = [scope for line in lines for one in json.loads(line)["resourceSpans"] for scope in one["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


@pytest.mark.parametrize(("trace_ctx", "event"), [SIDES[0], *SIDES[2:]])
@pytest.mark.parametrize(
    ("kind", "copies"), [(FaultKind.DROPPED_OTLP, 0), (FaultKind.CRASHED, 0), (FaultKind.DUPLICATED_OTLP, 2)]
)
def test_span_is_dropped_or_doubled(tmp_path, kind, copies, trace_ctx, event):
    spans = spans_of(exported(tmp_path / "spans.jsonl", kind, event, trace_ctx))
    assert (spans[0]["name"], spans[-1]["name"], len(spans)) == ("before", "after", copies + 2)
    assert all(span == spans[1] for span in spans[1:-1])


def test_altered_span_differs_in_one_attribute(tmp_path):
    clean = spans_of(exported(tmp_path / "clean.jsonl", FaultKind.DROPPED_NATIVE, PUBLISHED, PUB))[1]
    altered = spans_of(exported(tmp_path / "altered.jsonl", FaultKind.ALTERED_OTLP, PUBLISHED, PUB, "store_host"))[1]
    pairs = zip(clean["attributes"], altered["attributes"], strict=True)
    assert [one["key"] for one, other in pairs if one != other] == ["mqtrace.store_host"]
    assert altered.keys() == clean.keys()


def test_damaged_line_is_no_json_and_names_its_message(tmp_path):
    first, damaged, last = exported(tmp_path / "spans.jsonl", FaultKind.MALFORMED_OTLP, PUBLISHED, PUB)
    assert [span["name"] for span in spans_of([first, last])] == ["before", "after"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(damaged)
    assert ID in damaged
