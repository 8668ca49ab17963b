"""This module knows what tracing costs the application's own thread, against the client alone.

``python -m tests.scoreboard.costs SUBJECT SAMPLING SERVERS TOPIC`` prints the microseconds of CPU time that one message
takes in ``produce`` and in ``poll``. Each variant is a process of its own; the variants take turns, the best round counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from bridge.embedded.cluster import EmbeddedKafka
from tests.scoreboard.stage import Seen
from tests.scoreboard.subjects import SUBJECTS

__all__ = ["measured_costs"]

ROOT = Path(__file__).resolve().parents[2]
_MESSAGES, _ROUNDS = 2_000, 3
_HALF, _UNSAMPLED_US = 0.5, 2.0
_VARIANTS = [("bare", "on"), *((subject, sampling) for subject in SUBJECTS for sampling in ("on", "off"))]


class _Nowhere(SpanExporter):
    """Takes every span and keeps none: the exporter's own work is nobody's question here."""

    def export(self, spans: object) -> SpanExportResult:
        """Let go."""
        return SpanExportResult.SUCCESS


def measured_costs() -> dict[str, dict[str, Seen]]:
    """Measure every variant; return subject → number of the row → what was seen."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    with EmbeddedKafka() as kafka:
        for turn in range(_ROUNDS):
            for subject, sampling in _VARIANTS:
                topic = f"costs.{subject}.{sampling}.{turn}"
                kafka.create_topic(topic, partitions=1)
                took = _run(subject, sampling, kafka.bootstrap_servers, topic)
                held = best.setdefault((subject, sampling), took)
                best[subject, sampling] = {call: min(held[call], took[call]) for call in took}
    bare = best["bare", "on"]
    added = {variant: {call: took[call] - bare[call] for call in bare} for variant, took in best.items()}
    return {subject: _rows(subject, added) for subject in SUBJECTS}


def _rows(subject: str, added: dict[tuple[str, str], dict[str, float]]) -> dict[str, Seen]:
    incumbent, mine, silent = added["incumbent", "on"], added[subject, "on"], added[subject, "off"]
    shares = {call: mine[call] / incumbent[call] for call in mine}
    told = ", ".join(f"{call} {share:.1f}" for call, share in shares.items())
    off = ", ".join(f"{call} {max(silent[call], 0):.0f} µs" for call in silent)
    return {
        "F17": Seen(max(shares.values()) <= _HALF, f"added, as a share of the incumbent's: {told}"),
        "T39": Seen(max(silent.values()) <= _UNSAMPLED_US, f"added: {off}"),
    }


def _run(subject: str, sampling: str, servers: str, topic: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.scoreboard.costs", subject, sampling, servers, topic]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    took: dict[str, float] = json.loads(done.stdout)
    return took


def _switch_on(subject: str, sampling: str) -> None:
    provider = TracerProvider(sampler=ALWAYS_ON if sampling == "on" else ALWAYS_OFF)
    provider.add_span_processor(BatchSpanProcessor(_Nowhere(), max_queue_size=65_536, schedule_delay_millis=60_000))
    if subject in SUBJECTS:
        SUBJECTS[subject].instrumentor().instrument(tracer_provider=provider, exporters=())


def main(subject: str, sampling: str, servers: str, topic: str) -> int:
    """Measure one variant and print it; return 0."""
    _switch_on(subject, sampling)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.list_topics(topic, 20)
    _produce(producer, topic, 200)  # warm
    sending = _produce(producer, topic, _MESSAGES)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "billing"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    _poll(consumer, 200)
    polling = _poll(consumer, _MESSAGES)
    consumer.close()
    sys.stdout.write(json.dumps({"produce": sending, "poll": polling}))
    return 0


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


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
