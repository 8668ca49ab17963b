"""A RocketMQ that has the trace topic, the exporter that writes to it, and what has then landed."""

from contextlib import contextmanager

from bridge.forwarder.rocketmq_source import RemotingTraceSource
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from tests.support.landings import records_of
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


def ids_in(landed):
    return sorted(record.beans[0].msg_id for record in records_of(each.body for each in landed))
