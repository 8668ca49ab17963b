"""The cost of our span processor beside OpenTelemetry's ``BatchSpanProcessor``, each with its defaults.

``on_end`` is CPU time of the calling thread, over spans that ended before; the throughput is wall time from the first span
until the exporter has had the last. Arrivals and drops are counted.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_mqtrace import MqTraceSpanProcessor
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns

_ANCHOR = "BatchSpanProcessor"
_SPANS, _QUEUE, _SECONDS = 50_000, 2_048, 60.0
_ATTRIBUTES = {f"messaging.attribute.{number}": f"value {number}" for number in range(10)}
_THROUGH = ("spans/s", Target("≥", 1.0), 5)
_Make = Callable[[SpanExporter, int], SpanProcessor]
UNDER_LOCK: Final = "`on_end` with room, under a lock"
"""What the queue's one trick saves: its append takes no lock."""


def _ours(exporter: SpanExporter, queue: int) -> SpanProcessor:
    return MqTraceSpanProcessor(exporter, max_queue_size=queue)


def _theirs(exporter: SpanExporter, queue: int) -> SpanProcessor:
    return BatchSpanProcessor(exporter, max_queue_size=queue)


def _locked(exporter: SpanExporter, queue: int) -> SpanProcessor:
    processor = MqTraceSpanProcessor(exporter, max_queue_size=queue)
    (lane,) = processor.lanes
    append, lock = lane.offer, threading.RLock()

    def offer(span: ReadableSpan) -> bool:
        with lock:
            return append(span)

    lane.offer = offer
    processor._bind_lanes()
    return processor


_CONTENDERS: dict[str, _Make] = {"ours": _ours, "theirs": _theirs}


class _Null(SpanExporter):
    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


class _Gated(_Null):
    """Holds on to its first batch while ``gate`` is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.gate.wait(_SECONDS)
        return super().export(spans)


def measure(effort: Effort) -> list[Row]:
    """Measure every row."""
    for name in ("opentelemetry.sdk._shared_internal", "otel_mqtrace"):
        logger = logging.getLogger(name)  # both tell of a full queue on stderr
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
    spans = _ended(effort.scale(_SPANS, least=4 * _QUEUE))
    rows = []
    for measure, act, unit, target, turns in (
        ("`on_end` with room", _with_room, "µs CPU a span", Target("≤", 1.0), 1),
        ("`on_end` while full", _while_full, "µs CPU a span", Target("≤", 0.5), 1),
        ("spans through the processor, 1 thread", partial(_throughput, threads=1), *_THROUGH),
        ("spans through the processor, 8 threads", partial(_throughput, threads=8), *_THROUGH),
    ):
        rounds = effort.rounds * turns
        contenders = _CONTENDERS | ({"locked": _locked} if act is _with_room else {})
        took = run_in_turns({name: partial(act, make, spans) for name, make in contenders.items()}, rounds)
        rows.append(compare(measure, _ANCHOR, took["ours"], took["theirs"], unit, target))
        if act is _with_room:
            rows.append(compare(UNDER_LOCK, "ours without", took["locked"], took["ours"], unit))
    return rows


def _ended(count: int) -> list[ReadableSpan]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
    spans = [tracer.start_span("send orders", attributes=_ATTRIBUTES) for _ in range(count)]
    for span in spans:
        span.end()
    return spans


def _with_room(make: _Make, spans: list[ReadableSpan]) -> float:
    exporter = _Null()
    processor = make(exporter, len(spans) + 1)
    took_ns = _offered(processor, spans)
    processor.shutdown()
    assert exporter.spans == len(spans), f"{type(processor).__name__} exported {exporter.spans} of {len(spans)} spans"
    return took_ns / len(spans) / 1000


def _while_full(make: _Make, spans: list[ReadableSpan]) -> float:
    exporter = _Gated()
    processor = make(exporter, _QUEUE)
    filling = 2 * _QUEUE
    _offered(processor, spans[:_QUEUE])
    assert exporter.entered.wait(_SECONDS)
    _offered(processor, spans[_QUEUE:filling])  # the exporter has a batch in its hands, and its place is taken again
    took_ns = _offered(processor, spans[filling:])
    exporter.gate.set()
    processor.shutdown()
    # The queue and the one batch in the exporter's hands; all that was offered after them found no room.
    assert _QUEUE < exporter.spans <= filling, f"{type(processor).__name__} was not full: {exporter.spans} exported"
    return took_ns / (len(spans) - filling) / 1000


def _throughput(make: _Make, spans: list[ReadableSpan], *, threads: int) -> float:
    exporter = _Null()
    processor = make(exporter, len(spans) + 1)
    parts = [spans[number::threads] for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_offered, [processor] * threads, [[]] * threads))  # the threads are there before it counts
        began = time.perf_counter_ns()
        list(pool.map(_offered, [processor] * threads, parts))
        assert processor.force_flush(int(_SECONDS * 1000))
        took_ns = time.perf_counter_ns() - began
    assert exporter.spans == len(spans), f"{type(processor).__name__} exported {exporter.spans} of {len(spans)} spans"
    processor.shutdown()
    return len(spans) / took_ns * 1e9


def _offered(processor: SpanProcessor, spans: Sequence[ReadableSpan]) -> int:
    on_end, began = processor.on_end, time.thread_time_ns()
    for span in spans:
        on_end(span)
    return time.thread_time_ns() - began
