"""What stands in for the client's classes looks like them, and the asyncio classes need not be there."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys

import confluent_kafka
import pytest


def _said(ask, *arguments):
    """What a question answers, or what it raises: both must be as without us."""
    try:
        return str(ask(*arguments))
    except (TypeError, ValueError, pickle.PicklingError) as error:
        return type(error).__name__


@pytest.mark.parametrize(
    "name", ["Producer", "Consumer", "ShareConsumer", "SerializingProducer", "DeserializingConsumer"]
)
def test_a_class_looks_as_it_did(instrument, name):
    """Its names, its documentation, and whether it can be copied, pickled by name and asked for."""
    before = getattr(confluent_kafka, name)
    questions = (
        lambda cls: (cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__),
        pickle.dumps,
        lambda cls: copy.deepcopy(cls) is cls,
        lambda cls: [(each, getattr(cls, each).__doc__) for each in dir(before) if each[0] != "_"],
        lambda cls: sorted(dir(cls)),
        lambda cls: inspect.signature(cls.produce if "Producer" in name else cls.poll),
        lambda cls: repr(cls | None),
    )
    expected = [_said(each, before) for each in questions]
    instrument()
    assert [_said(each, getattr(confluent_kafka, name)) for each in questions] == expected


def test_the_asyncio_classes_are_not_imported_and_traced_when_they_come():
    """In a process of its own: instrument() leaves them out, and the first of them made later is traced."""
    code = """
import asyncio, sys
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from otel_mqtrace import MqTraceInstrumentor
from otel_mqtrace.testing import RecordingExporter, recording_provider

exporter = RecordingExporter()
MqTraceInstrumentor().instrument(tracer_provider=recording_provider(exporter), exporters=())
assert "confluent_kafka.aio" not in sys.modules
from confluent_kafka.aio import AIOProducer

async def run(servers):
    producer = AIOProducer({"bootstrap.servers": servers})
    sent = await producer.produce("orders", b"x")
    await producer.flush()
    await sent
    await producer.close()

with EmbeddedKafka() as kafka:
    kafka.create_topic("orders", partitions=1)
    asyncio.run(run(kafka.bootstrap_servers))
exporter.take("send orders")
exporter.assert_empty()
MqTraceInstrumentor().uninstrument()
assert not hasattr(AIOProducer.produce, "__wrapped__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
