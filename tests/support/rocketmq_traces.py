"""A RocketMQ that has the trace topic, the exporter that writes to it, and what has then landed."""

from contextlib import contextmanager

from bridge.forwarder.rocketmq_source import RemotingTraceSource
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from otel_mqtrace.wire.native import decode_body
from tests.support.rocketmq_remoting import RemotingCluster

TOPIC = "RMQ_SYS_TRACE_TOPIC"


@contextmanager
def tracing_cluster():
    with RemotingCluster("broker-a", "broker-b") as running:
        for broker in running.brokers:
            broker.topics.add(TOPIC)
        yield running


def exporter_to(cluster, **options):
    return NativeRocketMqSpanExporter(namesrv=cluster.namesrv, **options)


def landed_in(cluster, topic=TOPIC):
    with RemotingTraceSource(cluster.namesrv, topic) as source:
        return [message for batch in source.drain() for message in batch]


def records_in(landed):
    bodies = [decode_body(message.body) for message in landed]
    assert not any(body.errors for body in bodies)
    return [record for body in bodies for record in body.contexts]


def ids_in(landed):
    return sorted(record.beans[0].msg_id for record in records_in(landed))
