"""Spans of our own library: its mapping, an SDK span, OpenTelemetry's JSON-lines file."""

import io
from collections.abc import Iterable
from hashlib import md5
from typing import Any

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS
from tests.faults.calls import Application, SpanDraft
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
    fields_of = span_attributes(context)
    operation = OPERATIONS[context.trace_type]
    first = context.beans[0]
    send = send_context(first.msg_id or "")
    is_send = context.trace_type is TraceType.PUB
    own = f"{context.trace_type} {first.msg_id} {context.group_name} {context.request_id} {call.start_ms}"
    own_id = send.span_id if is_send and not draft.copy else _id(f"{own} {draft.copy}", 16)
    links = [] if is_send else [_link(bean.msg_id or "", at, fields_of.links) for at, bean in enumerate(context.beans)]
    attributes = {**fields_of.span, semconv.MESSAGING_SYSTEM: "kafka"}
    for name, value in draft.attributes.items():
        attributes[name] = value(attributes[name]) if callable(value) else value
    return ReadableSpan(
        name=operation.span_name(first.topic),
        context=SpanContext(send.trace_id, own_id, is_remote=False, trace_flags=TraceFlags(1)),
        parent=None if is_send else send,
        resource=_resource(call.application),
        attributes={name: value for name, value in attributes.items() if value is not None},
        links=links,
        kind=operation.kind,
        status=_status(context),
        start_time=draft.start_ms * _NS_PER_MS,
        end_time=draft.end_ms * _NS_PER_MS,
        instrumentation_scope=_SCOPE,
    )


def plain_span(
    application: Application, at_ms: int, name: str, kind: SpanKind, attributes: dict[str, Any]
) -> ReadableSpan:
    """Return a span about no message of the application: an HTTP call, a poll, a send of the trace topic."""
    return ReadableSpan(
        name=name,
        context=SpanContext(_id(f"{name} {at_ms}", 32), _id(f"{at_ms} {name}", 16), is_remote=False),
        resource=_resource(application),
        attributes=attributes,
        kind=kind,
        start_time=at_ms * _NS_PER_MS,
        end_time=(at_ms + 5) * _NS_PER_MS,
        instrumentation_scope=InstrumentationScope("app", "1"),
    )


def _link(msg_id: str, at: int, attributes: tuple[dict[str, Any], ...]) -> Link:
    return Link(send_context(msg_id), attributes=attributes[at] if attributes else None)


def _resource(application: Application) -> Resource:
    return Resource({"service.name": application.service, "service.instance.id": "1"})


def _status(context: TraceContext) -> Status:
    return Status(StatusCode.ERROR) if context.success is False else Status(StatusCode.UNSET)


def line_of(spans: Iterable[ReadableSpan], *, torn: bool = False) -> str:
    """Return one line of the file: the spans as OpenTelemetry's exporter writes them, cut off when ``torn``."""
    stream = io.StringIO()
    FileSpanExporter(stream=stream).export(list(spans))
    line = stream.getvalue().rstrip("\n")
    return (line[:-_TORN_CHARACTERS] if torn else line) + "\n"
