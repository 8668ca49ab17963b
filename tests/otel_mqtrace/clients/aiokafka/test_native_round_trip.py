"""What an aiokafka application leaves in the native trace, with nothing but instrument()."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.instrumentor import AioKafkaInstrumentor
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native import decode_body
from tests.support.asyncio_kafka import consuming, play, producing


@pytest.fixture
def landing(tmp_path):
    AioKafkaInstrumentor().instrument(
        tracer_provider=TracerProvider(), exporters=[NativeFileSpanExporter(directory=tmp_path)]
    )
    yield tmp_path
    if AioKafkaInstrumentor().is_instrumented_by_opentelemetry:
        AioKafkaInstrumentor().uninstrument()


def test_sent_and_handled_messages_decode_as_rocketmqs_records(landing, kafka, topic):
    async def story():
        async with producing(kafka) as producer:
            for n in range(3):
                await producer.send_and_wait(topic, b"x" * n, key=b"k", headers=[("KEYS", b"order-%d" % n)])
        async with consuming(kafka, topic) as consumer:
            for _ in range(3):
                await consumer.getone()

    play(story)
    AioKafkaInstrumentor().uninstrument()
    lines = [
        json.loads(line)
        for path in sorted(landing.rglob("part-*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    decoded = [decode_body(b64decode(line["body_base64"])) for line in lines]
    assert [error for each in decoded for error in each.errors] == []
    records = [record for each in decoded for record in each.contexts]
    by_type = {kind: [each for each in records if each.trace_type is kind] for kind in TraceType}
    published, before, after = by_type[TraceType.PUB], by_type[TraceType.SUB_BEFORE], by_type[TraceType.SUB_AFTER]
    assert [len(several) for several in (published, before, after)] == [3, 3, 3]
    ids = [record.beans[0].msg_id for record in published]
    assert [record.beans[0].msg_id for record in before] == ids
    assert [record.beans[0].msg_id for record in after] == ids
    assert [record.request_id for record in before] == [record.request_id for record in after]
    assert {record.group_name for record in published} == {"shop"}
    assert {record.group_name for record in before} == {"billing"}
    assert [record.beans[0].keys for record in published] == [f"order-{n}" for n in range(3)]
    assert [record.beans[0].offset_msg_id for record in published] == [f"{topic}-0@{n}" for n in range(3)]
    assert {record.beans[0].store_host for record in published} == {kafka.bootstrap_servers}
