"""This module knows how long our own steps take: ``make bench`` prints two tables and writes ``build/bench.json``.

Every step checks that it did its work: a fast step that does nothing must not look good. Numbers are of this machine at
this moment; compare two runs of one machine, never two machines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import get_current_span

from bridge.codec.native import decode_body, encode_context
from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace._clock import SystemClock
from otel_mqtrace.hooks._scope import AutomaticScope
from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter
from tests.bench.codec import speeds

TARGET = Path(__file__).resolve().parents[2] / "build" / "bench.json"
ROUNDS, CALLS = 5, 2_000
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
            msg_id="7F0000010BB218B4AAC21B6F8B5A0001",
            offset_msg_id="orders-0@7",
            keys="order-7 客户",
            store_host="127.0.0.1:9092",
            body_length=200,
            msg_type=MessageType.NORMAL,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One step: the best round's microseconds for each call, and calls a second at that pace."""

    step: str
    microseconds: float
    per_second: int


def measure(step: str, act: Callable[[], object], *, expected: object) -> Measured:
    """Time ``act``; fail when any call returns something else than ``expected``."""
    clock, best_ns = SystemClock(), None
    for _ in range(ROUNDS):
        began = clock.monotonic_ns()
        results = [act() for _ in range(CALLS)]
        took_ns = clock.monotonic_ns() - began
        assert all(result == expected for result in results), f"{step} did not do its work"
        best_ns = took_ns if best_ns is None else min(best_ns, took_ns)
    each_us = (best_ns or 0) / CALLS / 1000
    return Measured(step, round(each_us, 2), int(1e6 / each_us))


def steps() -> list[Measured]:
    """Measure every step, in the order of the flow."""
    body = encode_context(CONTEXT).body
    exporter = RecordingExporter()
    processor = MqTraceSpanProcessor(exporter, max_queue_size=ROUNDS * CALLS * 3, background=False)
    recording, silent = TracerProvider(), TracerProvider(sampler=ALWAYS_OFF)
    recording.add_span_processor(processor)
    traced, untraced = (_sender(provider) for provider in (recording, silent))
    results = [
        measure("a send, traced (hook, span, queue)", traced, expected=None),
        measure("a send, not sampled", untraced, expected=None),
        measure("a message handled, traced", _handler(recording), expected=True),
        measure("a message handled, not sampled", _handler(silent), expected=False),
    ]
    lane = processor.lanes[0].name
    assert processor.stats()[lane]["offered"] == 2 * ROUNDS * CALLS, "not every operation became a span"
    processor.force_flush()
    span = exporter.take()
    native = trace_context_of(span)
    return [
        *results,
        measure("span to trace record's model", lambda: trace_context_of(span), expected=native),
        measure("encode a record", lambda: encode_context(CONTEXT).body, expected=body),
        measure("decode a record", lambda: len(decode_body(body).contexts), expected=1),
    ]


def _sender(provider: TracerProvider) -> Callable[[], None]:
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider), group_name="orders", servers="127.0.0.1:9092")

    def send() -> None:
        call = hook.before("orders", body=b"x" * 200, headers=[("TAGS", b"paid")])
        hook.after(call, partition=0, offset=7)

    return send


def _handler(provider: TracerProvider) -> Callable[[], bool]:
    """As the automatic mode of a client has it: received, current, not current any more, done."""
    tracing = Tracing.create(tracer_provider=provider)
    hook = ConsumeHook(tracing=tracing, group_name="billing", servers="127.0.0.1:9092")
    headers = (
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("UNIQ_KEY", b"7F0000010BB218B4AAC21B6F8B5A0001"),
    )

    def handle() -> bool:
        start_ns = hook.now_ns()
        message = IncomingMessage(topic="orders", partition=0, offset=7, key=b"k", body_length=200, headers=headers)
        hook.received([message], start_ns=start_ns)
        (call,) = hook.before([message])
        scope = AutomaticScope(call.otel_ctx, call.ambient, call.span)
        recorded = get_current_span().is_recording()
        scope.leave()
        hook.after(call)
        return recorded

    return handle


def main() -> int:
    """Measure, print the table, write the file."""
    measured = steps()
    sys.stdout.write(f"{'step':<40}{'µs':>10}{'per second':>14}\n")
    for each in measured:
        sys.stdout.write(f"{each.step:<40}{each.microseconds:>10.2f}{each.per_second:>14,}\n")
    beside = speeds()
    sys.stdout.write(f"\n{'codec':<44}{'µs/record':>10}{'records/s':>12}{'MB/s':>8}{'/ ours':>8}\n")
    for one in beside:
        sys.stdout.write(
            f"{one.job + ': ' + one.contender:<44}{one.us_per_record:>10.2f}{one.records_per_second:>12,}"
            f"{one.mb_per_second:>8.1f}{one.times_ours:>8.2f}\n"
        )
    TARGET.parent.mkdir(exist_ok=True)
    found = {"steps": [asdict(each) for each in measured], "codec": [asdict(each) for each in beside]}
    TARGET.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
