"""One story on a real broker, in which everything happens that spans and records promise to record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import confluent_kafka
from confluent_kafka import TopicPartition, cimpl
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_mqtrace import MqTraceInstrumentor, process
from otel_mqtrace.model import TraceContext, TraceType
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.wire.native import decode_body
from tests.support.consuming import poll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka

TOPIC, TRACE_TOPIC = "orders", "RMQ_SYS_TRACE_TOPIC"
PAID, LATE, UNPAID, ODD = range(4)
"""The messages, by offset: one with tags and keys; delayed and a tombstone; one whose handler fails; one retried."""


class UnpaidError(Exception):
    """What the handler of one message raises."""


@dataclass
class Story:
    """What was recorded. ``wire`` holds the headers as sent; ``half_way`` the records while the first handler ran."""

    servers: str
    sends: list[ReadableSpan]
    processes: list[ReadableSpan]
    batch: ReadableSpan
    ends: list[ReadableSpan]
    others: list[ReadableSpan]
    wire: list[dict[str, bytes]]
    half_way: list[TraceContext]
    records: list[TraceContext]
    bodies: Sequence[tuple[bytes, dict[str, bytes]]]
    replaced: int
    metrics: set[str]

    def record(self, trace_type: TraceType, msg_id: object) -> TraceContext:
        """Return the record of one message."""
        return next(c for c in self.records if c.trace_type is trace_type and c.beans[0].msg_id == msg_id)


def told(kafka: EmbeddedKafka) -> Story:
    """Let it happen."""
    for name in (TOPIC, TRACE_TOPIC, "payments"):
        kafka.create_topic(name)
    exporter, reader = RecordingExporter(), InMemoryMetricReader()
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(
        tracer_provider=recording_provider(exporter),
        meter_provider=MeterProvider([reader]),
        exporters=["mqtrace_native"],
        bootstrap_servers=kafka.bootstrap_servers,
        region_name="north",
        group_name="shop",
        receive_spans=True,
        settle_spans=True,
    )
    try:
        wire, half_way = _told(kafka, instrumentor)
        measured = _names(reader)
        processor = instrumentor.processor
        assert processor.force_flush()
        exporting = processor.lanes[0].exporter.stats()
    finally:
        instrumentor.uninstrument()
    bodies = trace_messages(kafka.bootstrap_servers)
    sends, processes = exporter.take_all(f"send {TOPIC}"), exporter.take_all(f"process {TOPIC}")
    return Story(
        servers=kafka.bootstrap_servers,
        sends=sends,
        processes=processes[:4],
        batch=processes[4],
        ends=exporter.take_all("end_transaction payments"),
        others=exporter.take_all(),
        wire=wire,
        half_way=half_way,
        records=_records(bodies),
        bodies=bodies,
        replaced=exporting["replaced"],
        metrics=measured,
    )


def _told(kafka: EmbeddedKafka, instrumentor: MqTraceInstrumentor) -> tuple[list[dict[str, bytes]], list[TraceContext]]:
    _send(kafka)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "client.id": "till",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    wire, half_way = [], []
    for number in (PAID, LATE, UNPAID, ODD):
        message = poll(consumer)
        wire.append(dict(message.headers()))
        with suppress(UnpaidError), process(message):
            if number == PAID:
                assert instrumentor.processor.force_flush()
                half_way = _records(trace_messages(kafka.bootstrap_servers))
            if number == UNPAID:
                raise UnpaidError
    consumer.commit(asynchronous=False)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    assert len(consumer.consume(2, 20)) == 2
    consumer.close()
    return wire, half_way


def _send(kafka: EmbeddedKafka) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop-1"})
    producer.produce(TOPIC, b"an order", "order-7", headers=[("TAGS", b"paid"), ("KEYS", b"order-7 shop-1")])
    producer.produce(TOPIC, None, headers={"DELAY": b"3"})
    producer.produce(TOPIC, b"unpaid")
    producer.produce(TOPIC, b"odd", headers={"TAGS": b"a\x01b\x02c", "RECONSUME_TIME": b"2"})
    assert producer.flush(20) == 0
    payments = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "till", "client.id": "till-1"}
    )
    payments.init_transactions(20)
    for end in (payments.commit_transaction, payments.abort_transaction):
        payments.begin_transaction()
        payments.produce("payments", b"7")
        end(20)
    del payments
    producer.close()


def trace_messages(servers: str, topic: str = TRACE_TOPIC) -> list[tuple[bytes, dict[str, bytes]]]:
    """Return value and headers of every trace message that is on the topic now, as any client reads them."""
    reader = cimpl.Consumer({"bootstrap.servers": servers, "group.id": "onlooker", "enable.auto.commit": False})
    place = TopicPartition(topic, 0, 0)
    with suppress_instrumentation():
        reader.assign([place])
        high = reader.get_watermark_offsets(place, 20)[1]
        found = [(each.value(), dict(each.headers() or [])) for each in (reader.consume(high, 20) if high else [])]
        reader.close()
    return found


def _records(messages: Sequence[tuple[bytes, dict[str, bytes]]]) -> list[TraceContext]:
    return [record for body, _ in messages for record in decode_body(body).contexts]


def _names(reader: InMemoryMetricReader) -> set[str]:
    data = reader.get_metrics_data()
    found = (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.data.data_points)
    return {metric.name for metric in found}
