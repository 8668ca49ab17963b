"""The same events recorded as tuples and as spans, and everything that is exported of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.exporters.packing import SpanPacker, has_record
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.records.span import RecordSpan
from otel_mqtrace.testing import FixedIds, ManualClock, RecordingExporter
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans


class Lane(RecordingExporter):
    exports_starts = True
    takes_records = True
    wants = staticmethod(has_record)


class _LooksAtStarts(SpanProcessor):
    """A processor that looks at spans when they start makes every event need its span from the start."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass


class World:
    """A provider whose ids, clock and request ids count from one; two of them differ in ``records`` only."""

    def __init__(self, *, records: bool, **options: Any) -> None:
        self.clock, self.ended, self.lane = ManualClock(), RecordingExporter(), Lane()
        provider = TracerProvider(id_generator=FixedIds(), shutdown_on_exit=False, **options)
        provider.add_span_processor(SimpleSpanProcessor(self.ended))
        self._processor = MqTraceSpanProcessor(self.lane, background=False, clock=self.clock)
        provider.add_span_processor(self._processor)
        ids = iter(f"{number:032X}" for number in range(10**6))
        if not records:
            provider.add_span_processor(_LooksAtStarts())
        self.tracing = Tracing.create(tracer_provider=provider, clock=self.clock, new_id=lambda: next(ids), naming=None)

    @contextmanager
    def tracing_in(self, active: Any) -> Iterator[World]:
        active.tracing = self.tracing
        try:
            yield self
        finally:
            active.stop()

    def spans(self) -> list[Any]:
        self._processor.force_flush()
        return list(self.ended.take_all())


def assert_equal(recorded: World, other: World, dialect: str, *, expect_records: bool) -> None:
    ours, theirs = recorded.spans(), other.spans()
    assert all(isinstance(each, RecordSpan) is expect_records for each in ours)
    assert not any(isinstance(each, RecordSpan) for each in theirs)
    written = _parsed(encode_spans(ours).body)  # first: what reads the attributes of an event ends its own way to OTLP
    for one, another in zip(recorded.lane.take_all(), other.lane.take_all(), strict=True):
        for _ in range(2):  # by a new template, by the same again; a partial is another encoder, which uses none
            assert native_of([one], dialect) == native_of([another], dialect, partial(encode_context))
    assert written == _parsed(encode_by_opentelemetry(theirs).SerializeToString())
    assert list(map(_plain, ours)) == list(map(_plain, theirs))
    assert written == _parsed(encode_spans(ours).body)  # also once their attributes were read


@dataclass
class Leaders:
    """What is known of a cluster: the host that leads each partition, and the cluster's id."""

    hosts: dict[int, str]
    cluster_id: str | None

    def of(self, _topic: str, partition: int) -> str | None:
        return self.hosts.get(partition)

    def want(self, topic: str) -> None:
        pass


def native_of(spans: list[Any], dialect: str, encode: Callable[..., Any] = encode_context) -> Any:
    """Return body and keys of the trace messages made of ``spans``, and what was refused."""
    packer = SpanPacker(encode=encode, dialect=dialect, max_message_bytes=128_000, region_id=None)
    packed = packer.pack_batches([spans])
    return [(each.value, each.keys) for each in packed.messages], packed.refused


def spans_of(body: bytes) -> list[Any]:
    """Return the spans of an OTLP request, their attributes in one order."""
    request = ExportTraceServiceRequest.FromString(body)
    spans = [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
    for span in spans:
        span.attributes.sort(key=lambda attribute: attribute.key)
    return spans


def _parsed(body: bytes) -> list[Any]:
    spans = spans_of(body)
    for span in spans:
        for event in span.events:
            event.ClearField("time_unix_nano")
            del event.attributes[:]
        for link in span.links:
            link.attributes.sort(key=lambda attribute: attribute.key)
    return spans


def _plain(span: Any) -> Any:
    fields_of = json.loads(span.to_json())
    for event in fields_of["events"]:
        event.pop("timestamp")
        event["attributes"].pop("exception.stacktrace", None)
    return fields_of
