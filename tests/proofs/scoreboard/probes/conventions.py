"""Probes of names and numbers: semantic conventions, ids, metrics, statistics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from tests.proofs.scoreboard.stage import Seen

if TYPE_CHECKING:
    from tests.proofs.scoreboard.stage import Stage

_SEND = ("messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name")
_OLD = ("messaging.destination", "messaging.operation", "messaging.kafka.partition")
_METRICS = (
    "messaging.client.consumed.messages",
    "messaging.client.operation.duration",
    "messaging.client.sent.messages",
    "messaging.process.duration",
)
_MOST_ROUND_TRIPS = 30


def _round_trip(stage: Stage, **conf: Any) -> None:
    producer = stage.producer(**{"client.id": "shop"})
    producer.produce(stage.topic, None, "order-7")
    producer.flush(20)
    stage.handle_one(**{"client.id": "bills", **conf})


def _attributes(stage: Stage, word: str) -> dict[str, Any]:
    return {name: value for span in stage.spans(word) for name, value in (span.attributes or {}).items()}


def current_names(stage: Stage) -> Seen:
    """Names, kinds and schema of the conventions of today; the old names beside them only if asked for."""
    stage.instrument()
    _round_trip(stage)
    sends, processed = stage.spans("send"), stage.spans("process")
    scope = sends[0].instrumentation_scope
    schema = (scope.schema_url or "").rpartition("/")[2] if scope else ""
    named = [span.name for span in (*sends, *processed)] == [f"send {stage.topic}", f"process {stage.topic}"]
    complete = all(set(_SEND) <= set(_attributes(stage, word)) for word in ("send", "process"))
    kinds = [span.kind for span in (*sends, *processed)] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
    stage.uninstrument()
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "messaging/dup"
    stage.exporter.clear()
    stage.instrument()
    _round_trip(stage, **{"group.id": f"{stage.topic}-again"})
    both = {*_OLD, *_SEND} <= set(_attributes(stage, "process"))
    evidence = f"schema {schema}, names of today: {'yes' if named and complete else 'no'}, old and new on request: {'yes' if both else 'no'}"
    return Seen(named and complete and kinds and both and schema == "1.44.0", evidence)


def identities(stage: Stage) -> Seen:
    """Consumer group, client id, key, tombstone and cluster id."""
    stage.instrument()
    wanted = {
        "messaging.consumer.group.name",
        "messaging.client.id",
        "messaging.kafka.message.key",
        "messaging.kafka.message.tombstone",
        "messaging.kafka.cluster.id",
    }
    names: set[str] = set()
    for attempt in range(_MOST_ROUND_TRIPS):  # the cluster id is looked up in the background: later messages have it
        _round_trip(stage, **{"group.id": f"{stage.topic}-{attempt}"})
        names = wanted & set(_attributes(stage, "process"))
        if names in (wanted, set()):
            break
    return Seen(names == wanted, f"{len(names)} of {len(wanted)}: {', '.join(sorted(names)) or 'none'}")


def metrics_and_identities(stage: Stage) -> Seen:
    """Messaging metrics, and who consumes what of a batch."""
    stage.instrument()
    stage.send(2)
    consumer = stage.consumer()
    assert len(consumer.consume(2, 20)) == 2
    consumer.close()
    attributes = _attributes(stage, "process")
    wanted = ("messaging.consumer.group.name", "messaging.batch.message_count")
    names = [name for name in wanted if name in attributes]
    measured = sorted(name for name in stage.metrics() if name.startswith("messaging."))
    evidence = f"attributes: {', '.join(names) or 'neither'}; metrics: {len(measured)}"
    return Seen(names == list(wanted) and bool(measured), evidence)


def messaging_metrics(stage: Stage) -> Seen:
    """The four metrics of the conventions."""
    stage.instrument()
    _round_trip(stage)
    measured = sorted(name for name in stage.metrics() if name in _METRICS)
    return Seen(measured == sorted(_METRICS), f"{len(measured)} of {len(_METRICS)}: {', '.join(measured) or 'none'}")


def client_statistics(stage: Stage) -> Seen:
    """Lag and queues from the client's own statistics, and the application's callback goes on being called."""
    stage.instrument(client_metrics=True, client_metrics_interval_ms=50)
    stage.fill()
    lines: list[str] = []
    consumer = stage.consumer(**{"statistics.interval.ms": 50, "stats_cb": lines.append})
    stage.poll(consumer)
    for _ in range(15):
        consumer.poll(0.1)
        measured = {name for name in stage.metrics() if name not in _METRICS}
        if lines and measured:
            break
    consumer.close()
    lag = sorted(name for name in measured if "lag" in name)
    evidence = f"further metrics: {len(measured)}, lag among them: {'yes' if lag else 'no'}; own callback called: {'yes' if lines else 'no'}"
    return Seen(bool(lag) and bool(lines), evidence)
