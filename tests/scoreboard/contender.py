"""This module knows one variant of tracing at work: a process that sends and consumes as often as it is told to.

``python -m tests.scoreboard.contender SUBJECT SAMPLING SERVERS TOPIC MESSAGES`` reads the names of calls, one a line, does
each for so many messages, and answers with the microseconds of CPU time that one message took: a line of two numbers, for
the calling thread and for the whole process. At the end of its input it counts the spans and records that it made, and
fails when one is missing.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.wire.native import decode_body
from tests.scoreboard.subjects import OURS, SUBJECTS
from tests.support.landings import landed_lines

__all__ = ["CALLS", "WARM"]

CALLS = ("produce", "poll", "consume")
"""In the order in which they are asked for: what is consumed was produced before."""

WARM = 200
"""Messages of each call before the first that count."""

_BATCH, _QUEUE, _ASLEEP_MS, _PATIENT_S = 100, 65_536, 600_000, 20.0


class _Encoded(SpanExporter):
    """Encodes every span as OTLP does, counts it, and keeps none: where the bytes go is nobody's question here."""

    def __init__(self) -> None:
        self.kinds: Counter[SpanKind] = Counter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode, count, let go."""
        assert encode_spans(spans).SerializeToString()
        self.kinds.update(span.kind for span in spans)
        return SpanExportResult.SUCCESS


class _Calls:
    """The three calls on clients of their own, made at the first of each kind, which warms up as well."""

    def __init__(self, servers: str, topic: str, provider: TracerProvider) -> None:
        self.done: Counter[str] = Counter()
        self._servers, self._topic, self._provider = servers, topic, provider
        self._warm: dict[str, Callable[[int], None]] = {}
        self._open: list[Any] = []

    def take(self, call: str, messages: int) -> tuple[float, float]:
        """Return µs a message, of the calling thread and of the whole process until all is exported."""
        if call not in self._warm:
            self.close()
            self._warm[call] = {"produce": self._producing, "poll": self._polling, "consume": self._consuming}[call]()
            self._warm[call](WARM)
            self._provider.force_flush()
        thread_ns, process_ns = time.thread_time_ns(), time.process_time_ns()
        self._warm[call](messages)
        thread_ns = time.thread_time_ns() - thread_ns
        self._provider.force_flush()  # or the next one is measured beside the last one's workers
        process_ns = time.process_time_ns() - process_ns
        self.done[call] += messages
        return thread_ns / messages / 1000, process_ns / messages / 1000

    def close(self) -> None:
        """Close the consumer at hand, which is done with its last message then."""
        while self._open:
            self._open.pop().close()

    def _consumer(self) -> Any:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": "billing"})
        consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, 0)])
        self._open.append(consumer)
        return consumer

    def _producing(self) -> Callable[[int], None]:
        """The delivery reports are counted in, since they are served by the same thread."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self._servers})
        producer.list_topics(self._topic, 20)

        def send(messages: int) -> None:
            for _ in range(messages):
                producer.produce(self._topic, b"twenty bytes of order")
            assert producer.flush(60) == 0

        return send

    def _polling(self) -> Callable[[int], None]:
        consumer = self._consumer()

        def poll(messages: int) -> None:
            for _ in range(messages):
                assert consumer.poll(_PATIENT_S) is not None, "a message is missing"

        return poll

    def _consuming(self) -> Callable[[int], None]:
        """A hundred at a time."""
        consumer = self._consumer()

        def consume(messages: int) -> None:
            left = messages
            while left:
                found = consumer.consume(min(_BATCH, left), _PATIENT_S)
                assert found, f"{left} messages are missing"
                left -= len(found)

        return consume


def main(subject: str, sampling: str, servers: str, topic: str, messages: str) -> int:
    """Do what is asked for on standard input, tell what it took, check what it left; return 0."""
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
        calls = _Calls(servers, topic, provider)
        for line in sys.stdin:
            sys.stdout.write(json.dumps(calls.take(line.strip(), int(messages))) + "\n")
            sys.stdout.flush()
        calls.close()
        provider.shutdown()
        _check(subject, sampling, exporter.kinds, _records(Path(landing)), calls.done, int(messages))
    return 0


def _records(landing: Path) -> Counter[str]:
    """Count the native records that were written, by type."""
    bodies = (base64.b64decode(line["body_base64"]) for line in landed_lines(landing))
    return Counter(trace_ctx.trace_type.value for body in bodies for trace_ctx in decode_body(body).contexts)


def _check(
    subject: str, sampling: str, kinds: Counter[SpanKind], records: Counter[str], done: Counter[str], messages: int
) -> None:
    """Fail unless every message left its spans, and its records where those were asked for."""
    sent, polled, batched = (done[call] + WARM for call in CALLS)
    batches = done["consume"] // messages * -(-messages // _BATCH) + WARM // _BATCH
    silent = subject not in SUBJECTS or sampling == "off"
    assert kinds[SpanKind.PRODUCER] == (0 if silent else sent), f"{subject}, {sampling}: {kinds}"
    assert kinds.total() == 0 if silent else kinds[SpanKind.CONSUMER] >= polled + batches, (
        f"{subject}, {sampling}: {kinds}"
    )
    if sampling == "off":
        assert not records, f"{subject}: {records}"
    if sampling in {"both", "asleep"} and subject == OURS.name:
        # Each message was sent once and delivered twice: alone, and in a batch.
        handled = polled + batched
        assert records == {"Pub": sent, "SubBefore": handled, "SubAfter": handled}, f"{subject}: {records}"


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
