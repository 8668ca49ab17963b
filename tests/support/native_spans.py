"""Spans of the kinds the native exporters write, made by a real SDK from our own mapping."""

from opentelemetry.trace import Link, SpanContext, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, context_attributes, share_attributes
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import tracer_of

_SOMEWHERE = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def bean(number, *, topic="orders", keys=None, **fields):
    return TraceBean(topic=topic, msg_id=f"{number:032X}", keys=keys or f"order-{number}", **fields)


def pub(number, *, region_id="DefaultRegion", **fields):
    beans = (bean(number, **{"tags": "new", "body_length": 10, "msg_type": MessageType.NORMAL, **fields}),)
    call = {"timestamp_ms": 1_700_000_000_000 + number, "region_id": region_id, "group_name": "shop"}
    return TraceContext(trace_type=TraceType.PUB, beans=beans, **call, cost_ms=3, success=True)


def sub(*beans, before=True):
    trace_type = TraceType.SUB_BEFORE if before else TraceType.SUB_AFTER
    call = {"timestamp_ms": 1_700_000_000_000, "region_id": "DefaultRegion", "group_name": "billing"}
    ended = {"cost_ms": 1, "success": True, "context_code": ContextCode.SUCCESS}
    return TraceContext(trace_type=trace_type, beans=beans, request_id="R" * 32, **call, **ended)


def span_attributes(trace_ctx):
    """Return the attributes of a record's span and of its links: the inverse of ``trace_context_of``, without times."""
    shared, of_links = share_attributes([bean_attributes(bean) for bean in trace_ctx.beans])
    if of_links:
        shared[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(of_links)
    return {**shared, **context_attributes(trace_ctx)}, of_links


def traced(*exporters, **options):
    """A processor without threads and a function that makes the spans of contexts pass through it."""
    processor = MqTraceSpanProcessor(*exporters, **{"background": False, **options})
    tracer = tracer_of(processor)

    def trace(*contexts):
        for trace_ctx in contexts:
            attributes, of_links = span_attributes(trace_ctx)
            links = [Link(_SOMEWHERE, attributes=each) for each in of_links]
            operation = OPERATIONS[trace_ctx.trace_type]
            tracer.start_span(operation.name, kind=operation.kind, attributes=attributes, links=links).end()

    return processor, trace
