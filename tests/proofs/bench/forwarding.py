"""The cost of forwarding: CPU time of a trace record, from its bytes to spans that a receiver counted.

A message's life is three records (a send and the two halves of a listener call), or two spans. All contenders take turns;
time is that of the forwarding thread alone. Beside ours runs the way through OpenTelemetry's SDK.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from bridge.forwarder.otlp_requests import requests_of
from bridge.forwarder.pairing import Event
from bridge.forwarder.span_delivery import OtlpDelivery, SpanForwarding
from bridge.forwarder.span_fields import SpanRules
from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.model import ContextCode, MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.native.decode import decode_rows
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns
from tests.proofs.scoreboard import receiving
from tests.support.forwarded_spans import span_of

ALL, THROUGH_SDK = "decode, pair, write, send", "the same through the SDK"
DECODE, ENCODE = "decode only", "decode, pair and encode only"
MESSAGES, RECORDS_AT_ONCE = 4_000, 100
RECORDS_EACH, SPANS_EACH = 3, 2
RECORDS, SPANS = RECORDS_EACH * MESSAGES, SPANS_EACH * MESSAGES
SDK_AT_ONCE = 512
START_MS = 1_700_000_000_000
_MOST_OF_SDK, _TARGET = Target("≥", 8.0), Target("≥", 60_000, "records/s")


def measure(effort: Effort) -> list[Row]:
    """Measure the forwarder with a receiver in another process, its first steps alone, and the way through the SDK."""
    messages = trace_messages()
    with receiver() as (endpoint, received):
        ways: dict[str, Callable[[], object]] = {
            DECODE: lambda: _decoded(messages),
            ENCODE: lambda: forwarded(messages, Nowhere()),
            ALL: lambda: _sent(messages, OtlpDelivery(endpoint), received),
            THROUGH_SDK: lambda: _sent(messages, _ThroughSdk(endpoint), received),
        }
        took = run_in_turns({name: partial(_records_a_second, act) for name, act in ways.items()}, effort.rounds)
    rival, unit = "span objects and OpenTelemetry's exporter", "records/s"
    note = "CPU time of the forwarder's thread; up to 2048 spans a request, 512 through the SDK (its default)"
    return [
        compare("trace records forwarded", rival, took[ALL], took[THROUGH_SDK], unit, _MOST_OF_SDK, note),
        compare("trace records forwarded, by CPU time", "none", took[ALL], None, unit, _TARGET),
        *(compare(way, "none", took[way], None, unit) for way in (DECODE, ENCODE)),
    ]


def _records_a_second(act: Callable[[], object]) -> float:
    return RECORDS * 1e6 / cpu_us(act)


def cpu_us(act: Callable[[], object]) -> float:
    """Return the CPU time that ``act`` takes this thread."""
    began = time.thread_time_ns()
    act()
    return (time.thread_time_ns() - began) / 1e3


# -- what is forwarded -------------------------------------------------------------------------------------------------
def trace_messages(messages: int = MESSAGES) -> list[LandedMessage]:
    """Return the lives of so many messages as a trace topic holds them, a hundred records in a body."""
    records = [encode_context(each).body for number in range(messages) for each in _life(number)]
    bodies = [b"".join(records[first : first + RECORDS_AT_ONCE]) for first in range(0, len(records), RECORDS_AT_ONCE)]
    return [
        LandedMessage(source="trace", partition=0, offset=offset, arrival_ms=START_MS, body=body)
        for offset, body in enumerate(bodies)
    ]


def _life(number: int) -> tuple[TraceContext, TraceContext, TraceContext]:
    """A send and a listener call as Java's client reports them."""
    msg_id, request_id, keys = f"7F0000010BB218B4AAC21B6F{number:08X}", f"AC110002{number:024X}", f"order-{number}"
    sent = TraceBean(
        topic="orders",
        msg_id=msg_id,
        offset_msg_id=f"7F00000100002A9F{number:016X}",
        tags="TagA",
        keys=keys,
        store_host="10.0.0.5:10911",
        body_length=200 + number % 50,
        msg_type=MessageType.NORMAL,
    )
    of_call: dict[str, Any] = {"group_name": "billing", "request_id": request_id}
    return (
        TraceContext(
            trace_type=TraceType.PUB,
            timestamp_ms=START_MS + number,
            region_id="DefaultRegion",
            group_name="shop",
            cost_ms=number % 20,
            success=True,
            beans=(sent,),
        ),
        TraceContext(
            trace_type=TraceType.SUB_BEFORE,
            timestamp_ms=START_MS + number + 30,
            region_id="DefaultRegion",
            beans=(TraceBean(msg_id=msg_id, retry_times=0, keys=keys),),
            **of_call,
        ),
        TraceContext(
            trace_type=TraceType.SUB_AFTER,
            timestamp_ms=START_MS + number + 50,
            cost_ms=20,
            success=True,
            context_code=ContextCode.SUCCESS,
            beans=(TraceBean(msg_id=msg_id, keys=keys),),
            **of_call,
        ),
    )


# -- the ways ----------------------------------------------------------------------------------------------------------
def _decoded(messages: Sequence[LandedMessage]) -> None:
    assert sum(len(decode_rows(message.body, None)[0]) for message in messages) == RECORDS


def forwarded(messages: Sequence[LandedMessage], delivery: Any, spans_of_all: int = SPANS) -> None:
    """Take every message through the forwarder, and see that each of its spans was given to ``delivery``."""
    spans = SpanForwarding(delivery)
    for message in messages:
        spans.take([message])
    spans.deliver()
    assert (spans.counts.spans, spans.counts.pending) == (spans_of_all, 0)


def _sent(messages: Sequence[LandedMessage], delivery: OtlpDelivery | _ThroughSdk, received: Callable[[], int]) -> None:
    before = received()
    forwarded(messages, delivery)
    delivery.close()
    assert received() - before == SPANS, "spans were lost"


class Nowhere:
    """Writes the requests and lets them go."""

    rejected = 0

    def deliver(self, events: Sequence[Event], rules: SpanRules) -> None:
        assert sum(len(request.events) for request in requests_of(events, rules) if request.body) == len(events)


class _ThroughSdk:
    """Sends as an application's batch processor does: span objects, OpenTelemetry's encoder, as many at once."""

    rejected = 0

    def __init__(self, endpoint: str) -> None:
        self._exporter = OTLPSpanExporter(f"{endpoint}/v1/traces")

    def deliver(self, events: Sequence[Event], rules: SpanRules) -> None:
        for first in range(0, len(events), SDK_AT_ONCE):
            spans = [span_of(event, rules) for event in events[first : first + SDK_AT_ONCE]]
            assert self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


# -- the receiver ------------------------------------------------------------------------------------------------------
@contextmanager
def receiver() -> Iterator[tuple[str, Callable[[], int]]]:
    """Run a receiver in another process; give its endpoint and a function that counts the spans it received."""
    with receiving.receiver() as url:
        endpoint = f"{url}/forwarded"
        yield endpoint, lambda: receiving.spans_by_kind(endpoint).total()
