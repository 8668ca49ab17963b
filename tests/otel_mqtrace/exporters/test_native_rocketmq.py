"""The exporter to a RocketMQ trace topic: delivery, and outages of brokers and name servers."""

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from bridge.forwarder.rocketmq_source import RemotingTraceSource
from otel_mqtrace.exporters import native_rocketmq
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from otel_mqtrace.message_id import read_unique_id
from otel_mqtrace.model import TraceType
from otel_mqtrace.rocketmq.commands import RequestCode, ResponseCode
from otel_mqtrace.rocketmq.messages import decode_messages, decompress_body
from tests.support.archives import find_by_key
from tests.support.clocks import TickingClock
from tests.support.landings import records_of
from tests.support.lanes import GENEROUS_S, tracer_of, worker_ended
from tests.support.native_spans import bean, pub, sub
from tests.support.programs import run_in_child
from tests.support.rocketmq_remoting import HANG_UP, SILENCE, TRACE_TOPIC, response_to, tracing_cluster
from tests.support.shown import shown

NAME = "NativeRocketMqSpanExporter"
SEND = RequestCode.SEND_MESSAGE_V2
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def cluster():
    with tracing_cluster() as running:
        yield running


def exporter_to(cluster, **options):
    return NativeRocketMqSpanExporter(namesrv=cluster.namesrv, **options)


def landed_in(cluster, topic=TRACE_TOPIC):
    with RemotingTraceSource(cluster.namesrv, topic) as source:
        return [message for batch in source.drain() for message in batch]


def ids_in(landed):
    return sorted(record.beans[0].msg_id for record in records_of(each.body for each in landed))


def only_stored_in(cluster):
    [raw] = [each for broker in cluster.brokers for queue in broker.stored.values() for each in queue.messages]
    [stored] = decode_messages(raw)
    return stored


def test_spans_reach_the_trace_topic_as_rocketmq_writes_them(cluster, exported):
    processor = exported(exporter_to(cluster), *map(pub, range(3)), sub(bean(1)))
    [message] = landed_in(cluster)
    types = [record.trace_type for record in records_of([message.body])]
    assert types == [*[TraceType.PUB] * 3, TraceType.SUB_BEFORE, TraceType.SUB_AFTER]
    assert {bean(1).msg_id, "order-1"} <= set(message.keys.split(" "))
    assert [each.body for each in find_by_key(cluster.namesrv, TRACE_TOPIC, bean(2).msg_id)] == [message.body]
    stored = only_stored_in(cluster)
    assert read_unique_id(stored.properties["UNIQ_KEY"])
    assert stored.properties["mqtrace.dialect"] == "5.5.0"
    assert processor.stats()[NAME]["exported"] == 5


def test_large_body_is_compressed(cluster, exported):
    exported(exporter_to(cluster), *map(pub, range(50)))
    stored = only_stored_in(cluster)
    assert len(stored.stored_body) < len(decompress_body(stored)) / 2
    assert len(ids_in(landed_in(cluster))) == 50


def test_messages_are_spread_over_brokers_and_queues(cluster, exported):
    exported(exporter_to(cluster), *map(pub, range(8)), max_export_batch_size=1)
    assert [len(broker.asked(SEND)) for broker in cluster.brokers] == [4, 4]
    assert len({message.partition for message in landed_in(cluster)}) == 4


def test_concurrent_exports_of_several_threads_are_delivered(cluster):
    """As OpenTelemetry's SimpleSpanProcessor calls an exporter: from whatever thread ends a span."""
    processor = SimpleSpanProcessor(exporter_to(cluster))
    tracer = tracer_of(processor)

    def consume(number):
        attributes = {"mqtrace.trace_type": "Sub", "messaging.message.id": bean(number).msg_id}
        tracer.start_span("process", attributes=attributes).end()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(consume, range(100)))
    processor.shutdown()
    assert ids_in(landed_in(cluster)) == sorted(bean(number).msg_id for number in range(100))


def test_trace_topic_is_created_if_configured(cluster, exported):
    exported(exporter_to(cluster, trace_topic="MINE", create_trace_topic=True), pub(1))
    assert len(landed_in(cluster, "MINE")) == 1
    assert all("MINE" in broker.topics for broker in cluster.brokers)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "set MQTRACE_NAMESRV"),
        ({"namesrv": "nowhere"}, "'nowhere' is not an address"),
        ({"namesrv": NOWHERE, "access_key": "a"}, "belong together"),
        ({"namesrv": NOWHERE}, f"the name server {NOWHERE} cannot be reached"),
    ],
)
def test_batch_without_a_usable_address_or_key_fails_in_time_with_the_fix(traced, options, complaint, caplog):
    exporter = NativeRocketMqSpanExporter(**options, clock=TickingClock(10))
    processor, trace = traced(exporter, export_timeout_millis=300)
    trace(pub(1))
    processor.run_once(now=10**18)
    assert complaint in caplog.text
    assert processor.stats()[NAME]["failed"] == 1


def test_environment_names_servers_topic_and_keys(cluster, exported, monkeypatch, caplog):
    monkeypatch.setenv("MQTRACE_NAMESRV", f"{NOWHERE};{cluster.namesrv}")
    monkeypatch.setenv("MQTRACE_TRACE_TOPIC", "T")
    monkeypatch.setenv("MQTRACE_ROCKETMQ_ACCESS_KEY", "hunter1")
    monkeypatch.setenv("MQTRACE_ROCKETMQ_SECRET_KEY", "hunter2")
    with caplog.at_level(logging.DEBUG):
        exporter = NativeRocketMqSpanExporter()
        exported(exporter, pub(1))
    assert len(landed_in(cluster, "T")) == 1
    sends = [request for broker in cluster.brokers for request in broker.asked(SEND)]
    assert {request.fields["AccessKey"] for request in sends} == {"hunter1"}
    seen = shown(exporter)
    assert cluster.namesrv in seen
    assert "hunter" not in seen + caplog.text


def test_forked_child_has_connections_of_its_own(cluster, traced):
    processor, trace = traced(exporter_to(cluster), max_export_batch_size=1)
    trace(pub(1))
    assert processor.force_flush()
    assert run_in_child(lambda: trace(pub(2)) or not processor.force_flush()) == 0
    trace(pub(3))
    assert processor.force_flush()
    assert ids_in(landed_in(cluster)) == [bean(number).msg_id for number in (1, 2, 3)]


@pytest.mark.parametrize("answer", [ResponseCode.SYSTEM_BUSY, HANG_UP, ResponseCode.NO_PERMISSION])
def test_message_one_broker_refuses_is_sent_to_another_which_is_then_preferred(cluster, traced, answer):
    failing, other = cluster.brokers
    failing.answer_first(SEND, *[answer] * 100)
    processor, trace = traced(exporter_to(cluster), max_export_batch_size=1)
    for number in range(4):
        trace(pub(number))
        processor.run_once()
    assert (processor.stats()[NAME]["exported"], processor.stats()[NAME]["failed"]) == (4, 0)
    assert ids_in(landed_in(cluster)) == [bean(number).msg_id for number in range(4)]
    assert (len(failing.asked(SEND)), len(other.asked(SEND))) == (1, 4)


def test_message_is_sent_again_with_its_id_until_a_broker_is_back(cluster, exported):
    for broker in cluster.brokers:
        broker.answer_first(SEND, *[ResponseCode.SYSTEM_BUSY] * 3)
    exported(exporter_to(cluster), pub(1))
    attempts = [request.fields["i"] for broker in cluster.brokers for request in broker.asked(SEND)]
    assert (len(attempts), len(set(attempts)), len(landed_in(cluster))) == (7, 1, 1)


def test_illegal_message_is_failed_at_once_and_the_next_is_exported(cluster, traced, caplog):
    for broker in cluster.brokers:
        broker.answer_first(SEND, ResponseCode.MESSAGE_ILLEGAL)
    exporter = exporter_to(cluster)
    processor, trace = traced(exporter)
    trace(pub(1))
    assert not processor.force_flush()
    assert sum(len(broker.asked(SEND)) for broker in cluster.brokers) == 1
    assert "MESSAGE_ILLEGAL" in caplog.text
    assert exporter.stats()["undelivered_messages"] == 1
    for broker in cluster.brokers:
        broker.instead.clear()
    trace(pub(2))
    assert processor.force_flush()
    assert ids_in(landed_in(cluster)) == [bean(2).msg_id]


@pytest.mark.parametrize("create_trace_topic", [False, True])
def test_missing_trace_topic_is_logged_once_with_the_fix(cluster, traced, caplog, monkeypatch, create_trace_topic):
    """Brokers refuse to make RocketMQ's own topics by request."""
    monkeypatch.setattr(native_rocketmq, "_TOPIC_WAIT_MS", 0)
    for broker in cluster.brokers:
        broker.topics.clear()
        broker.answer_first(RequestCode.UPDATE_AND_CREATE_TOPIC, *[ResponseCode.NO_PERMISSION] * 20)
    processor, trace = traced(exporter_to(cluster, create_trace_topic=create_trace_topic), max_export_batch_size=1)
    for number in range(2):
        trace(pub(number))
        processor.run_once()
    [line] = [r.getMessage() for r in caplog.records if r.name == "otel_mqtrace.exporters.native_delivery"]
    assert all(word in line for word in (TRACE_TOPIC, "TOPIC_NOT_EXIST", "traceTopicEnable=true"))
    assert processor.stats()[NAME]["failed"] == 2


def test_topic_that_is_away_with_its_broker_is_waited_for(cluster, traced, monkeypatch):
    """A name server forgets both while a broker restarts; a topic that never was there has little time."""
    monkeypatch.setattr(native_rocketmq, "_TOPIC_WAIT_MS", 0)
    processor, trace = traced(exporter_to(cluster), max_export_batch_size=1)
    asked = RequestCode.GET_ROUTEINFO_BY_TOPIC
    cluster.name_server.answer_first(asked, *[ResponseCode.TOPIC_NOT_EXIST] * 2)
    trace(pub(1))
    assert not processor.force_flush()
    trace(pub(2))
    assert processor.force_flush()
    for broker in cluster.brokers:
        broker.answer_first(SEND, ResponseCode.SERVICE_NOT_AVAILABLE)
    cluster.name_server.answer_first(asked, *[ResponseCode.TOPIC_NOT_EXIST] * 4)
    trace(pub(3))
    assert processor.force_flush()
    assert ids_in(landed_in(cluster)) == [bean(2).msg_id, bean(3).msg_id]


def test_shutdown_ends_a_running_export_early(cluster, traced, monkeypatch):
    monkeypatch.setattr(native_rocketmq, "_SEND_TIMEOUT_MS", 30_000)
    for broker in cluster.brokers:
        broker.answer_first(SEND, *[SILENCE] * 100)
    processor, trace = traced(exporter_to(cluster), background=True, max_export_batch_size=1)
    trace(pub(1))
    processor.shutdown(timeout_millis=200)
    assert worker_ended(processor, GENEROUS_S)  # before a send's own time is up
    assert processor.stats()[NAME]["exported"] == 0


def test_outage_with_a_spool_loses_nothing(cluster, traced, tmp_path):
    first, trace = traced(NativeRocketMqSpanExporter(namesrv=NOWHERE, spool_dir=tmp_path, export_timeout_millis=200))
    trace(*map(pub, range(3)))
    first.force_flush(timeout_millis=20_000)
    assert first.stats()[NAME]["exported"] == 3
    first.shutdown()
    to_kafka = NativeKafkaSpanExporter(bootstrap_servers=NOWHERE, spool_dir=tmp_path)
    to_another_topic = exporter_to(cluster, spool_dir=tmp_path, trace_topic="another")
    for other in to_kafka, to_another_topic:
        assert other.stats()["spool_waiting"] == 0
        other.shutdown()
    second = exporter_to(cluster, spool_dir=tmp_path)
    second.on_idle()
    assert ids_in(landed_in(cluster)) == [bean(number).msg_id for number in range(3)]
    second.shutdown()


def test_refusals_that_differ_in_a_number_are_logged_once(cluster, traced, caplog):
    lengths = count()

    def busy(request):
        return response_to(request, ResponseCode.SYSTEM_BUSY, remark=f"[REJECTREQUEST] queue: {next(lengths)}")

    for broker in cluster.brokers:
        broker.answer_first(SEND, *[busy] * 10_000)
    exporter = exporter_to(cluster, export_timeout_millis=1_000, clock=TickingClock(10))
    processor, trace = traced(exporter, max_export_batch_size=1, export_timeout_millis=1_000)
    for number in range(3):
        trace(pub(number))
        processor.run_once()
    processor.shutdown()
    warnings = [record.getMessage() for record in caplog.records if "SYSTEM_BUSY" in record.getMessage()]
    assert next(lengths) > 3
    assert len({message.split(" refused ")[0] for message in warnings}) == len(warnings) >= 1
