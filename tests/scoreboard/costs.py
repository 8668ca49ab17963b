"""This module knows what tracing costs the application's own thread, against the client alone.

``python -m tests.scoreboard.costs SUBJECT SAMPLING SERVERS TOPIC MESSAGES`` prints the microseconds of CPU time that one
message takes in ``produce`` (with its delivery report), in ``poll`` and in ``consume(100)``, and what the whole process
takes for one; with ``both``, ours writes native records beside OpenTelemetry's spans. Each variant is a process of its
own, counts the spans and records that it made, and fails when one is missing; whoever started it reads the messages back
and fails when one carries no trace, or another than it should. The variants take turns.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import confluent_kafka
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanContext, SpanKind, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bridge.codec.native import decode_body
from bridge.embedded.cluster import EmbeddedKafka
from bridge.exporters.native_file import NativeFileSpanExporter
from tests.bench.rows import interleaved
from tests.scoreboard.stage import Seen
from tests.scoreboard.subjects import OURS, SUBJECTS
from tests.support.landings import landed_lines
from tests.support.source_tree import ROOT

__all__ = ["BARE", "Variant", "measured_costs", "measured_rounds"]

Variant = tuple[str, str]
"""A subject, and how it is switched on: ``on``, ``off`` (the sampler), ``both`` (formats), ``asleep``.

The last is ``both`` with export threads that do nothing before they are flushed: what is left is the calling thread's.
"""

BARE: Variant = ("bare", "on")
_MESSAGES, _ROUNDS = 2_000, 3
_WARM, _BATCH, _QUEUE, _ASLEEP_MS = 200, 100, 65_536, 600_000
_HALF, _UNSAMPLED_US = 0.5, 2.0
_READ_S = 20.0
_CALLS = ("produce", "poll")
_VARIANTS = [BARE, *((subject, sampling) for subject in SUBJECTS for sampling in ("on", "off"))]


class _Encoded(SpanExporter):
    """Encodes every span as OTLP does, counts it, and keeps none: where the bytes go is nobody's question here."""

    def __init__(self) -> None:
        self.kinds: Counter[SpanKind] = Counter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode, count, let go."""
        assert encode_spans(spans).SerializeToString()
        self.kinds.update(span.kind for span in spans)
        return SpanExportResult.SUCCESS


def measured_costs() -> dict[str, dict[str, Seen]]:
    """Measure what the scoreboard asks; return subject → number of the row → what was seen. The best round counts."""
    rounds = measured_rounds(_VARIANTS, rounds=_ROUNDS, messages=_MESSAGES)
    best = {
        variant: {call: min(took[call] for took in all_of) for call in _CALLS} for variant, all_of in rounds.items()
    }
    bare = best[BARE]
    added = {variant: {call: took[call] - bare[call] for call in bare} for variant, took in best.items()}
    return {subject: _rows(subject, added) for subject in SUBJECTS}


def measured_rounds(
    variants: Sequence[Variant], *, rounds: int, messages: int
) -> dict[Variant, list[dict[str, float]]]:
    """Return what each variant took, round by round: call → µs of CPU time a message. Each round begins elsewhere."""
    with EmbeddedKafka() as kafka:
        numbers = count()
        return interleaved({each: partial(_run, *each, kafka, numbers, messages) for each in variants}, rounds)


def _rows(subject: str, added: dict[Variant, dict[str, float]]) -> dict[str, Seen]:
    incumbent, mine, silent = added["incumbent", "on"], added[subject, "on"], added[subject, "off"]
    shares = {call: mine[call] / incumbent[call] for call in mine}
    told = ", ".join(f"{call} {share:.1f}" for call, share in shares.items())
    off = ", ".join(f"{call} {max(silent[call], 0):.0f} µs" for call in silent)
    return {
        "F17": Seen(max(shares.values()) <= _HALF, f"added, as a share of the incumbent's: {told}"),
        "T39": Seen(max(silent.values()) <= _UNSAMPLED_US, f"added: {off}"),
    }


def _run(subject: str, sampling: str, kafka: EmbeddedKafka, numbers: count[int], messages: int) -> dict[str, float]:
    topic, servers = f"costs.{next(numbers)}", kafka.bootstrap_servers
    kafka.create_topic(topic, partitions=1)
    command = [sys.executable, "-m", "tests.scoreboard.costs", subject, sampling, servers, topic, str(messages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{subject}, {sampling}: {done.stderr[-2000:]}"
    is_bare, sampled = (subject, sampling) == BARE, sampling != "off"
    traces = [_trace(message) for message in _read_back(servers, topic)]
    assert len(traces) == messages + _WARM, f"{subject}, {sampling}: {len(traces)} messages"
    if is_bare:
        assert not any(each.is_valid for each in traces)
    else:
        assert all(each.trace_flags.sampled is sampled for each in traces), f"{subject}, {sampling}: {traces[-1]}"
        assert len({each.trace_id for each in traces if each.is_valid}) == len(traces), f"{subject}, {sampling}"
    took: dict[str, float] = json.loads(done.stdout)
    return took


def _read_back(servers: str, topic: str) -> list[confluent_kafka.Message]:
    """Return all messages of a topic; nothing is instrumented in this process."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "auditing"})
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=_READ_S)
    found: list[confluent_kafka.Message] = []
    while len(found) < end:
        some = [each for each in consumer.consume(end - len(found), _READ_S) if each.error() is None]
        assert some, f"{topic}: {len(found)} of {end} messages could be read"
        found += some
    consumer.close()
    return found


def _trace(message: confluent_kafka.Message) -> SpanContext:
    """Return the trace that a message carries; an invalid one where it carries none."""
    carrier = {name: value.decode() for name, value in message.headers() or ()}
    return get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()


def main(subject: str, sampling: str, servers: str, topic: str, messages: str) -> int:
    """Measure one variant and print it; return 0."""
    exporter = _Encoded()
    with tempfile.TemporaryDirectory() as landing:
        provider = TracerProvider(sampler=ALWAYS_OFF if sampling == "off" else ALWAYS_ON, shutdown_on_exit=False)
        asleep = sampling == "asleep"
        theirs = {"max_export_batch_size": _QUEUE, "schedule_delay_millis": _ASLEEP_MS} if asleep else {}
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE, **theirs))
        if subject in SUBJECTS:
            native = () if sampling == "on" else (NativeFileSpanExporter(directory=landing),)
            options = {"queue_size": _QUEUE} | ({"batch_size": _QUEUE, "linger_ms": _ASLEEP_MS} if asleep else {})
            SUBJECTS[subject].instrumentor().instrument(tracer_provider=provider, exporters=native, **options)
        took = _measured(servers, topic, int(messages), provider)
        provider.shutdown()
        _check(subject, sampling, exporter.kinds, _records(Path(landing)), int(messages))
    sys.stdout.write(json.dumps(took))
    return 0


def _measured(servers: str, topic: str, messages: int, provider: TracerProvider) -> dict[str, float]:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.list_topics(topic, 20)
    _produce(producer, topic, _WARM)
    began = time.process_time_ns()
    sending = _produce(producer, topic, messages)
    provider.force_flush()
    whole = (time.process_time_ns() - began) / messages / 1000
    polling = _consumed(servers, topic, messages, _poll)
    provider.force_flush()  # or the next one is measured beside the last one's workers
    batched = _consumed(servers, topic, messages, _consume)
    return {"produce": sending, "process": whole, "poll": polling, "consume": batched}


def _consumed(servers: str, topic: str, messages: int, call: Any) -> float:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "billing"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    call(consumer, _WARM)
    took: float = call(consumer, messages)
    consumer.close()
    return took


def _produce(producer: Any, topic: str, count: int) -> float:
    """Return µs a message; the delivery reports are counted in, since they are served by the same thread."""
    began = time.thread_time_ns()
    for _ in range(count):
        producer.produce(topic, b"twenty bytes of order")
    assert producer.flush(60) == 0
    return (time.thread_time_ns() - began) / count / 1000


def _poll(consumer: Any, count: int) -> float:
    """Return µs a message."""
    left, began = count, time.thread_time_ns()
    while left:
        left -= consumer.poll(20) is not None
    return (time.thread_time_ns() - began) / count / 1000


def _consume(consumer: Any, count: int) -> float:
    """Return µs a message, a hundred at a time."""
    left, began = count, time.thread_time_ns()
    while left:
        left -= len(consumer.consume(min(_BATCH, left), 20))
    return (time.thread_time_ns() - began) / count / 1000


def _records(landing: Path) -> Counter[str]:
    """Count the native records that were written, by type."""
    bodies = (base64.b64decode(line["body_base64"]) for line in landed_lines(landing))
    return Counter(trace_ctx.trace_type.value for body in bodies for trace_ctx in decode_body(body).contexts)


def _check(subject: str, sampling: str, kinds: Counter[SpanKind], records: Counter[str], messages: int) -> None:
    """Fail unless every message left its spans, and its records where those were asked for."""
    sent, batches = messages + _WARM, -(-messages // _BATCH) + _WARM // _BATCH
    silent = subject not in SUBJECTS or sampling == "off"
    assert kinds[SpanKind.PRODUCER] == (0 if silent else sent), f"{subject}, {sampling}: {kinds}"
    assert kinds.total() == 0 if silent else kinds[SpanKind.CONSUMER] >= sent + batches, (
        f"{subject}, {sampling}: {kinds}"
    )
    if sampling == "off":
        assert not records, f"{subject}: {records}"
    if sampling in {"both", "asleep"} and subject == OURS.name:
        # Each message was sent once and delivered twice: alone, and in a batch.
        assert records == {"Pub": sent, "SubBefore": 2 * sent, "SubAfter": 2 * sent}, f"{subject}: {records}"


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
