"""One variant of tracing at work: a process that sends and consumes as often as it is told to.

``python -m tests.proofs.scoreboard.contender SUBJECT MODE SERVERS TOPIC MESSAGES ENDPOINT`` reads the names of calls, one a line,
and does each for so many messages. It answers with a line of JSON: the µs of CPU that one message took on the calling thread
and in the whole process until all was sent. At the end it fails when the receiver lacks a span or its landing a record.
"""

import base64
import gc
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.exporters.otlp import HTTP, OtlpSpanExporter
from otel_mqtrace.wire.native import decode_body
from tests.proofs.scoreboard.receiving import spans_by_kind
from tests.proofs.scoreboard.stage import OURS, SUBJECTS
from tests.support.landings import landed_lines

CALLS = ("produce", "poll", "consume", "look", "relay", "paced", "held")
"""In the order in which they are asked for: what is consumed was produced before.

``look`` polls, and reads the current span in the handler; ``relay`` polls, and sends each message on. ``paced`` sends at
3,000 a second, and answers with two latencies of ``produce()`` instead of CPU times; ``held`` sends without serving reports,
and answers with the objects of the garbage collector that a send in flight holds.
"""

WARM = 200
"""Messages of each call before the first that count."""

_BATCH, _PATIENT_S = 100, 20.0


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
            self._warm[call] = self._warmed(call)
            self._warm[call](WARM)
            self._provider.force_flush()
        if call in _OTHER_FIGURES:
            figures = _OTHER_FIGURES[call](self._open[-1], self._topic, messages)
            self._provider.force_flush()
            self.done[call] += messages
            return figures
        thread_ns, process_ns = time.thread_time_ns(), time.process_time_ns()
        self._warm[call](messages)
        thread_ns = time.thread_time_ns() - thread_ns
        self._provider.force_flush()  # or the next one is measured beside the last one's workers
        process_ns = time.process_time_ns() - process_ns
        self.done[call] += messages
        return thread_ns / messages / 1000, process_ns / messages / 1000

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _consumer(self) -> Any:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": "billing"})
        consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, 0)])
        self._open.append(consumer)
        return consumer

    def _warmed(self, call: str) -> Callable[[int], None]:
        receiving = {
            "poll": self._polling,
            "look": partial(self._polling, lambda: trace.get_current_span().get_span_context().trace_id),
            "relay": self._relaying,
            "consume": self._consuming,
        }
        return receiving.get(call, self._producing)()

    def _producing(self) -> Callable[[int], None]:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._servers})
        producer.list_topics(self._topic, 20)
        self._open.append(_Closing(producer))

        def send(messages: int) -> None:
            for _ in range(messages):
                # A list of its own each time: the incumbent appends to the caller's.
                producer.produce(self._topic, b"twenty bytes of order", headers=[("kind", b"order")])
            assert producer.flush(60) == 0

        return send

    def _polling(self, look: Callable[[], object] | None = None) -> Callable[[int], None]:
        consumer = self._consumer()

        def poll(messages: int) -> None:
            for _ in range(messages):
                assert consumer.poll(_PATIENT_S) is not None, "a message is missing"
                if look is not None:
                    look()

        return poll

    def _relaying(self) -> Callable[[int], None]:
        consumer = self._consumer()
        producer = confluent_kafka.Producer({"bootstrap.servers": self._servers})
        producer.list_topics(f"{self._topic}.relayed", 20)

        def relay(messages: int) -> None:
            for _ in range(messages):
                message = consumer.poll(_PATIENT_S)
                assert message is not None, "a message is missing"
                producer.produce(f"{self._topic}.relayed", message.value(), headers=[("kind", b"order")])
            assert producer.flush(60) == 0

        return relay

    def _consuming(self) -> Callable[[int], None]:
        consumer = self._consumer()

        def consume(messages: int) -> None:
            left = messages
            while left:
                polled = consumer.consume(min(_BATCH, left), _PATIENT_S)
                assert polled, f"{left} messages are missing"
                left -= len(polled)

        return consume


class _Closing:
    def __init__(self, producer: Any) -> None:
        self.producer = producer

    def close(self) -> None:
        assert self.producer.flush(60) == 0


_PER_SECOND = 3_000


def _latencies_us(client: _Closing, topic: str, messages: int) -> tuple[float, float]:
    producer, took_ns, began = client.producer, [], time.perf_counter()
    for number in range(messages):
        producer.poll(max(0.0, began + number / _PER_SECOND - time.perf_counter()))
        headers = [("kind", b"order")]
        at_ns = time.perf_counter_ns()
        producer.produce(topic, b"twenty bytes of order", headers=headers)
        took_ns.append(time.perf_counter_ns() - at_ns)
    client.close()
    took_ns.sort()
    return took_ns[messages // 2] / 1000, took_ns[min(messages - 1, messages * 999 // 1000)] / 1000


def _objects_held(client: _Closing, topic: str, messages: int) -> tuple[float, float]:
    producer = client.producer
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(messages):
        producer.produce(topic, b"twenty bytes of order", headers=[("kind", b"order")])
    held = (len(gc.get_objects()) - objects) / messages, (sys.getallocatedblocks() - blocks) / messages
    client.close()
    return held


_OTHER_FIGURES: dict[str, Callable[[_Closing, str, int], tuple[float, float]]] = {
    "paced": _latencies_us,
    "held": _objects_held,
}


def _spans_go(provider: TracerProvider, mode: str, endpoint: str, landing: str) -> tuple[Any, ...]:
    traces = f"{endpoint}/v1/traces"
    native = NativeFileSpanExporter(directory=landing)
    if mode in {"both", "both512", "off", "metrics"}:
        return native, OtlpSpanExporter(protocol=HTTP, endpoint=traces)
    if mode == "native":
        return (native,)
    is_ours = mode in {"bytes", "bytes+native"}
    exporter = OtlpSpanExporter(protocol=HTTP, endpoint=traces) if is_ours else OTLPSpanExporter(endpoint=traces)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return (native,) if mode.endswith("+native") else ()


def main(subject: str, mode: str, servers: str, topic: str, messages: str, endpoint: str) -> int:
    """Do what is asked for on standard input, tell what it took, check what it left; return 0."""
    with tempfile.TemporaryDirectory() as landing:
        provider = TracerProvider(sampler=ALWAYS_OFF if mode == "off" else ALWAYS_ON, shutdown_on_exit=False)
        if subject in SUBJECTS:
            stock = subject != OURS.name and mode == "off"
            exporters = _spans_go(provider, "stock" if stock else mode, endpoint, landing)
            options: dict[str, Any] = {}
            if mode == "metrics":
                options["meter_provider"] = MeterProvider([InMemoryMetricReader()])
            elif mode == "both512":
                options["batch_size"] = 512
            SUBJECTS[subject].instrumentor().instrument(tracer_provider=provider, exporters=exporters, **options)
        calls = _Calls(servers, topic, provider)
        for line in sys.stdin:
            sys.stdout.write(json.dumps(calls.take(line.strip(), int(messages))) + "\n")
            sys.stdout.flush()
        calls.close()
        provider.shutdown()
        kinds = spans_by_kind(endpoint)
        _check(subject, mode, kinds, _records(Path(landing)), calls.done, int(messages))
    return 0


def _records(landing: Path) -> Counter[str]:
    bodies = (base64.b64decode(line["body_base64"]) for line in landed_lines(landing))
    return Counter(trace_ctx.trace_type.value for body in bodies for trace_ctx in decode_body(body).contexts)


def _check(
    subject: str, mode: str, kinds: Counter[SpanKind], records: Counter[str], done: Counter[str], messages: int
) -> None:
    """Fail unless every message left its spans, and its records where those were asked for."""
    warmed = {call: done[call] + WARM if done[call] else 0 for call in CALLS}
    sent = warmed["produce"] + warmed["relay"] + warmed["paced"] + warmed["held"]
    polled = warmed["poll"] + warmed["look"] + warmed["relay"]
    batches = done["consume"] // messages * -(-messages // _BATCH) + WARM // _BATCH if done["consume"] else 0
    message = f"{subject}, {mode}: {kinds}, {records}"
    if subject not in SUBJECTS or mode == "off":
        assert not kinds, message
        assert not records, message
        return
    if mode != "native":
        assert kinds[SpanKind.PRODUCER] == sent, message
        assert kinds[SpanKind.CONSUMER] >= polled + batches, message
    if mode in {"both", "metrics", "native"} or mode.endswith("+native"):
        handled = polled + warmed["consume"]
        assert records == Counter({"Pub": sent, "SubBefore": handled, "SubAfter": handled}), message


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
