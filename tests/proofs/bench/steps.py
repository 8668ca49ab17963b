"""The CPU time of single steps of ours and of the SDK; every result is checked."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from operator import attrgetter, eq
from typing import Final, TypeVar

from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import get_current_span, set_span_in_context

from otel_mqtrace import MqTraceSpanProcessor, semconv
from otel_mqtrace.hooks.consume import ConsumeHook, Turn
from otel_mqtrace.hooks.propagation import Header
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.wire.native import decode_body, encode_context
from otel_mqtrace.wire.native.decode import maker_of
from tests.proofs.bench.rows import Effort, Row, compare, run_in_turns

SPAN, SPAN_OFF = "the SDK's span: start and end, no attributes", "the SDK's span, not sampled"
INJECT, EXTRACT = "the SDK's inject into headers", "the SDK's extract from headers"
APPENDED = "an append to a deque"
SPLIT, MODEL, DECODED = "a record's text split", "a record's objects made", "a record decoded"
_CALLS, _ATTRIBUTES = 5_000, 20
_TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
_SENT_IN = 0xB7AD6B7169203331
_TRACEPARENT = f"00-{_TRACE_ID:032x}-{_SENT_IN:016x}-01"
_UNIQ_KEY = b"7F0000010BB218B4AAC21B6F8B5A0001"
_Result = TypeVar("_Result")
CONTEXT = TraceContext(
    trace_type=TraceType.PUB,
    timestamp_ms=1_790_000_000_000,
    region_id="DefaultRegion",
    group_name="orders",
    cost_ms=3,
    success=True,
    beans=(
        TraceBean(
            topic="orders",
            msg_id=_UNIQ_KEY.decode(),
            offset_msg_id="orders-0@7",
            keys="order-7 客户",
            store_host="127.0.0.1:9092",
            body_length=200,
            msg_type=MessageType.NORMAL,
        ),
    ),
)


def measure(effort: Effort) -> list[Row]:
    """Measure every step and every floor, in turns and in the order of the flow."""
    calls, rounds = effort.scale(_CALLS), effort.rounds
    exporter = RecordingExporter()
    processor = MqTraceSpanProcessor(exporter, max_queue_size=2 * (rounds + 1) * calls, background=False)
    recording, silent = TracerProvider(), TracerProvider(sampler=ALWAYS_OFF)
    recording.add_span_processor(processor)
    acts: dict[str, partial[float]] = {
        "a send, traced (hook, span, queue)": partial(_timed_us, sender(recording), partial(is_sent, sampled=True)),
        "a send, not sampled": partial(_timed_us, sender(silent), partial(is_sent, sampled=False)),
        "a message handled, traced": partial(_timed_us, handler(recording), partial(is_handled, sampled=True)),
        "a message handled, not sampled": partial(_timed_us, handler(silent), partial(is_handled, sampled=False)),
        **{
            name: partial(_timed_us, act, partial(eq, expected))
            for name, (act, expected) in (_codec_steps() | floors()).items()
        },
    }
    contenders = {name: partial(act, calls) for name, act in acts.items()}
    run_in_turns(contenders, 1)  # warm
    took = run_in_turns(contenders, rounds)
    lane = processor.lanes[0].name
    assert processor.stats()[lane]["offered"] == 2 * (rounds + 1) * calls, "not every operation became a span"
    return [compare(name, "none", took[name], None, "µs CPU") for name in acts]


def _timed_us(act: Callable[[], _Result], is_done: Callable[[_Result], bool], calls: int) -> float:
    began = time.thread_time_ns()
    results = [act() for _ in range(calls)]
    took_ns = time.thread_time_ns() - began
    assert all(map(is_done, results)), "a step did not do its work"
    return took_ns / calls / 1000


def _codec_steps() -> dict[str, tuple[Callable[[], object], object]]:
    exporter = RecordingExporter()
    processor = MqTraceSpanProcessor(exporter, background=False)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    sender(provider)()
    processor.force_flush()
    span, body = exporter.take(), encode_context(CONTEXT).body
    new_context, new_bean = maker_of(TraceContext), maker_of(TraceBean)
    of_bean = attrgetter(*(each.name for each in fields(TraceBean)))(CONTEXT.beans[0])
    said = attrgetter(*(each.name for each in fields(TraceContext)))(CONTEXT)
    return {
        "a span's record as the model": (lambda: trace_context_of(span), trace_context_of(span)),
        "a record encoded": (lambda: encode_context(CONTEXT).body, body),
        DECODED: (lambda: len(decode_body(body).contexts), 1),
        SPLIT: (lambda: len(body.decode().rstrip("\x02").split("\x01")), body.count(b"\x01") + 1),
        MODEL: (lambda: new_context(*said[:-1], (new_bean(*of_bean),)), CONTEXT),
    }


def floors() -> dict[str, tuple[Callable[[], object], object]]:
    """Return the calls, each with its result, that any instrumentation pays for: a span, its context written or read."""
    tracer, silent = (TracerProvider(sampler=sampler).get_tracer("bench") for sampler in (None, ALWAYS_OFF))
    attributes = {f"messaging.attribute.{number}": f"value {number}" for number in range(_ATTRIBUTES)}
    current = set_span_in_context(tracer.start_span("send orders"))

    def span() -> bool:
        one = tracer.start_span("send orders")
        one.end()
        return one.is_recording()

    def described() -> bool:
        one = tracer.start_span("send orders", attributes=attributes)
        one.end()
        return one.is_recording()

    def unsampled() -> bool:
        one = silent.start_span("send orders")
        one.end()
        return one.is_recording()

    def inject() -> int:
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=current)
        return len(carrier)

    queue = deque[int](maxlen=_ATTRIBUTES)

    def extract() -> int:
        return get_current_span(propagate.extract({"traceparent": _TRACEPARENT})).get_span_context().span_id

    return {
        SPAN: (span, False),
        f"the SDK's span with {_ATTRIBUTES} attributes": (described, False),
        SPAN_OFF: (unsampled, False),
        INJECT: (inject, 1),
        EXTRACT: (extract, _SENT_IN),
        APPENDED: (lambda: queue.append(1), None),
    }


_TAGS: Final[Header] = ("TAGS", b"paid")


def sender(provider: TracerProvider, header: Header = _TAGS) -> Callable[[], list[Header]]:
    """Return a call that sends one message as ``Producer.produce`` does, and returns the headers it sends."""
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider), group_name="orders", servers="127.0.0.1:9092")

    def send() -> list[Header]:
        given: list[Header] = [header]
        recorded = hook.record("orders", b"x" * 200, None, given, None)
        if recorded is None:
            call = hook.before("orders", body=b"x" * 200, headers=given)
            hook.after(call, partition=0, offset=7)
            return call.headers or []
        sent, headers = recorded
        if sent is not None:
            hook.end_record(sent, 0, 7)
        return headers

    return send


def is_sent(headers: list[Header], *, sampled: bool) -> bool:
    """Return whether a message went with its own headers, an id and a trace that says whether it is sampled."""
    said = {name: value.decode() for name, value in headers if isinstance(value, bytes)}
    own = get_current_span(propagate.extract(said)).get_span_context()
    is_whole = said.get(semconv.HEADER_TAGS) == "paid" and len(said.get(semconv.HEADER_UNIQ_KEY, "")) == len(_UNIQ_KEY)
    return is_whole and own.is_valid and own.trace_flags.sampled is sampled


def handler(provider: TracerProvider) -> Callable[[], Turn | None]:
    """Return a call that handles one message as a client's ``poll`` does: received, current, then done.

    It returns what it opened; ``None`` when that was not current meanwhile.
    """
    tracing = Tracing.create(tracer_provider=provider)
    hook = ConsumeHook(tracing=tracing, group_name="billing", servers="127.0.0.1:9092")
    headers = [("traceparent", _TRACEPARENT.encode()), (semconv.HEADER_UNIQ_KEY, _UNIQ_KEY)]

    def handle() -> Turn | None:
        turn = hook.begin_turn("orders", (0, 7, None, 200, b"k"), headers, None, None)
        if turn is None:
            return None
        is_current = get_current_span() is turn.span
        hook.end_turn(turn)
        return turn if is_current else None

    return handle


def is_handled(turn: Turn | None, *, sampled: bool) -> bool:
    """Return whether a message was current with a span of its own in the trace it came with, sampled or not."""
    if turn is None:
        return False
    own = turn.span.get_span_context()
    return (own.trace_id, own.span_id != _SENT_IN, own.trace_flags.sampled) == (_TRACE_ID, True, sampled)
