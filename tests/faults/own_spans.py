"""Spans of our own library: its mapping, an SDK span, OpenTelemetry's JSON-lines file."""

import io
from hashlib import md5
from itertools import zip_longest

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.mapping import OPERATIONS
from tests.faults.calls import SpanDraft
from tests.support.native_spans import span_attributes

_SCOPE = InstrumentationScope("otel_mqtrace", "1.0")
_NS_PER_MS = 1_000_000
_TORN_CHARACTERS = 4  # closing brackets: no JSON any more, every id still legible


def _id(text: str, digits: int) -> int:
    return int(md5(text.encode(), usedforsecurity=False).hexdigest()[:digits], 16)


def send_context(msg_id: str) -> SpanContext:
    """Return where the send of a message is: every later span of the message belongs to its trace."""
    return SpanContext(_id(msg_id, 32), _id(f"send {msg_id}", 16), is_remote=True, trace_flags=TraceFlags(1))


def sdk_span(draft: SpanDraft) -> ReadableSpan:
    """Return the span as our processor would be handed it."""
    context, call = draft.context, draft.call
    shared, of_links = span_attributes(context)
    operation = OPERATIONS[context.trace_type]
    first = context.beans[0]
    send = send_context(first.msg_id or "")
    is_send = context.trace_type is TraceType.PUB
    own = f"{context.trace_type} {first.msg_id} {context.group_name} {context.request_id} {call.start_ms}"
    own_id = send.span_id if is_send and not draft.copy else _id(f"{own} {draft.copy}", 16)
    linked = [] if is_send else zip_longest(context.beans, of_links)
    attributes = {**shared, semconv.MESSAGING_SYSTEM: "kafka"}
    for name, value in draft.attributes.items():
        attributes[name] = value(attributes[name]) if callable(value) else value
    return ReadableSpan(
        name=operation.span_name(first.topic),
        context=SpanContext(send.trace_id, own_id, is_remote=False, trace_flags=TraceFlags(1)),
        parent=None if is_send else send,
        resource=Resource({"service.name": call.application.service, "service.instance.id": "1"}),
        attributes={name: value for name, value in attributes.items() if value is not None},
        links=[Link(send_context(bean.msg_id or ""), attributes=own_fields) for bean, own_fields in linked],
        kind=operation.kind,
        status=Status(StatusCode.ERROR if context.success is False else StatusCode.UNSET),
        start_time=draft.start_ms * _NS_PER_MS,
        end_time=draft.end_ms * _NS_PER_MS,
        instrumentation_scope=_SCOPE,
    )


def line_of(span: ReadableSpan, *, torn: bool = False) -> str:
    """Return one line of the file: the span as OpenTelemetry's exporter writes it, cut off when ``torn``."""
    stream = io.StringIO()
    FileSpanExporter(stream=stream).export([span])
    line = stream.getvalue().rstrip("\n")
    return (line[:-_TORN_CHARACTERS] if torn else line) + "\n"
