"""What a fault alters, and a disk that is full; that each fault hits its event: ``tests/flow/test_demo.py``."""

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from bridge.demo.faults import Fault, FaultKind, FaultySpanExporter, encode_with_faults
from bridge.demo.shop import Event
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import TraceBean, TraceContext, TransactionState
from otel_mqtrace.wire.native import decode_body, encode_context
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT
from tests.support.archives import ID, T0, consume, end, pub

PUB = pub(tags="生鲜", keys="订单-1 🧾-1", retry_times=0)
AFTER = consume("R1", T0, tags="生鲜", keys="订单-1 🧾-1")[1]
END = end(T0, TransactionState.COMMIT_MESSAGE)
ALTERED = (
    (PUB, Event("publish", ID, "orders"), ("body_length", "store_host", "tags", "keys")),
    (AFTER, Event("consume", ID, "billing"), ("context_code", "keys")),
    (END, Event("transaction_end", ID, ""), ("tags", "keys")),
)


@pytest.mark.parametrize(
    ("trace_ctx", "event", "field"), [(*event, name) for *event, names in ALTERED for name in names]
)
def test_altered_record_differs_in_one_field(trace_ctx, event, field):
    plan = {event: Fault(FaultKind.ALTERED_NATIVE, field)}
    (altered,) = decode_body(encode_with_faults(plan, trace_ctx, DEFAULT_DIALECT).body).contexts
    (original,) = decode_body(encode_context(trace_ctx).body).contexts
    names = [name for name in TraceContext._fields if name != "beans"]
    differing = {name for name in names if getattr(altered, name) != getattr(original, name)}
    pairs = zip(altered.beans, original.beans, strict=True)
    differing |= {name for a, b in pairs for name in TraceBean._fields if getattr(a, name) != getattr(b, name)}
    assert differing == {field}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file here that is always full")
def test_full_disk_is_one_error_and_no_log(caplog):
    exporter = FaultySpanExporter(Path("/dev/full"), {})
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for name in ("first", "second"):
        provider.get_tracer("tests").start_span(name).end()
    provider.shutdown()
    with pytest.raises(UsageError, match="cannot write /dev/full: no space left on device; free space, or give"):
        exporter.check()
    assert caplog.messages == []
