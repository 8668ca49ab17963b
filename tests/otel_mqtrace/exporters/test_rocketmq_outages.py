"""The exporter that writes to a RocketMQ, while brokers are busy, away, or without its topic."""

from __future__ import annotations

import logging
from itertools import count
from threading import Event

import pytest

from otel_mqtrace.exporters import native_rocketmq
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from otel_mqtrace.rocketmq.commands import RequestCode, ResponseCode
from otel_mqtrace.rocketmq.frames import response_to
from tests.support.lanes import emptied
from tests.support.native_spans import bean, pub, traced
from tests.support.rocketmq_remoting import HANG_UP, SILENCE
from tests.support.rocketmq_traces import TOPIC, exporter_to, ids_in, landed_in, tracing_cluster

NAME = "NativeRocketMqSpanExporter"
SEND = RequestCode.SEND_MESSAGE_V2
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def cluster():
    with tracing_cluster() as running:
        yield running


@pytest.mark.parametrize("answer", [ResponseCode.SYSTEM_BUSY, HANG_UP, ResponseCode.NO_PERMISSION])
def test_what_one_broker_does_not_take_another_does(cluster, answer):
    failing, _ = cluster.brokers
    failing.answer_first(SEND, *[answer] * 100)
    processor, trace = traced(exporter_to(cluster), max_export_batch_size=1)
    for number in range(4):
        trace(pub(number))
    assert processor.force_flush()
    assert (processor.stats()[NAME]["exported"], processor.stats()[NAME]["failed"]) == (4, 0)
    assert ids_in(landed_in(cluster)) == [bean(number).msg_id for number in range(4)]
    processor.shutdown()


def test_a_broker_that_failed_is_not_asked_first_again(cluster):
    """For thirty seconds, as long as another one does."""
    failing, other = cluster.brokers
    failing.answer_first(SEND, *[ResponseCode.SYSTEM_BUSY] * 100)
    processor, trace = traced(exporter_to(cluster), max_export_batch_size=1)
    for number in range(6):
        trace(pub(number))
        processor.run_once()
    assert processor.force_flush()
    assert len(failing.asked(SEND)) == 1
    assert len(other.asked(SEND)) == 6
    processor.shutdown()


def test_every_try_of_a_message_has_the_same_unique_id(cluster):
    for broker in cluster.brokers:
        broker.answer_first(SEND, ResponseCode.SYSTEM_BUSY)
    processor, trace = traced(exporter_to(cluster))
    trace(pub(1))
    assert processor.force_flush()
    tries = [request.fields["i"] for broker in cluster.brokers for request in broker.asked(SEND)]
    assert len(tries) == 3
    assert len(set(tries)) == 1
    processor.shutdown()


def test_what_is_taken_at_once_costs_no_pause(cluster, monkeypatch):
    pauses = []

    class Counted(Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return super().wait(timeout)

    monkeypatch.setattr(native_rocketmq, "Event", Counted)
    cluster.brokers[0].answer_first(SEND, ResponseCode.SYSTEM_BUSY)
    processor, trace = traced(exporter_to(cluster), max_export_batch_size=1)
    for number in range(3):
        trace(pub(number))
    assert processor.force_flush()
    assert pauses == []
    for broker in cluster.brokers:
        broker.answer_first(SEND, *[ResponseCode.SYSTEM_BUSY] * 2)
    trace(pub(3))
    assert processor.force_flush()
    assert pauses
    processor.shutdown()


def test_a_broker_that_comes_back_within_the_deadline_is_used(cluster):
    for broker in cluster.brokers:
        broker.answer_first(SEND, *[ResponseCode.SYSTEM_BUSY] * 3)
    processor, trace = traced(exporter_to(cluster))
    trace(pub(1))
    assert processor.force_flush()
    assert len(landed_in(cluster)) == 1
    processor.shutdown()


def test_what_a_broker_refuses_for_itself_is_failed_at_once_and_the_rest_goes_on(cluster, caplog):
    for broker in cluster.brokers:
        broker.answer_first(SEND, ResponseCode.MESSAGE_ILLEGAL)
    exporter = exporter_to(cluster)
    processor, trace = traced(exporter)
    with caplog.at_level(logging.WARNING):
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
    processor.shutdown()


def test_a_missing_trace_topic_is_told_once_with_the_mend(cluster, caplog):
    for broker in cluster.brokers:
        broker.topics.clear()
    processor, trace = traced(exporter_to(cluster, export_timeout_millis=150), max_export_batch_size=1)
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            trace(pub(number))
            processor.run_once()
    [line] = [r.getMessage() for r in caplog.records if r.name == "otel_mqtrace.exporters.native_delivery"]
    assert TOPIC in line
    assert "traceTopicEnable=true" in line
    assert processor.stats()[NAME]["failed"] == 2
    processor.shutdown()


def test_a_topic_that_goes_with_its_broker_is_waited_for(cluster, monkeypatch):
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
    processor.shutdown()


def test_servers_that_are_away_fail_the_batch_within_the_export_timeout(caplog):
    processor, trace = traced(NativeRocketMqSpanExporter(namesrv=NOWHERE), export_timeout_millis=300)
    with caplog.at_level(logging.WARNING):
        trace(pub(1))
        processor.run_once(now=10**18)
    assert processor.stats()[NAME]["failed"] == 1
    assert f"the name server {NOWHERE} cannot be reached" in caplog.text
    processor.shutdown()


def test_shutdown_ends_a_running_export_early(cluster):
    for broker in cluster.brokers:
        broker.answer_first(SEND, *[SILENCE] * 100)
    processor, trace = traced(exporter_to(cluster), background=True, max_export_batch_size=1)
    trace(pub(1))
    processor.shutdown(timeout_millis=200)
    assert emptied(processor, 4)
    assert processor.stats()[NAME]["exported"] == 0


def test_with_a_spool_an_outage_loses_nothing(cluster, tmp_path):
    first, trace = traced(NativeRocketMqSpanExporter(namesrv=NOWHERE, spool_dir=tmp_path, export_timeout_millis=200))
    for number in range(3):
        trace(pub(number))
    first.force_flush(timeout_millis=1_000)
    assert first.stats()[NAME]["exported"] == 3
    first.shutdown()
    second = exporter_to(cluster, spool_dir=tmp_path)
    second.on_idle()
    assert ids_in(landed_in(cluster)) == [bean(number).msg_id for number in range(3)]
    second.shutdown()


def test_over_cloud_a_spool_is_declined(cluster, tmp_path, caplog):
    """It does not keep the region, which names the topic."""
    exporter = exporter_to(cluster, spool_dir=tmp_path, access_channel="CLOUD")
    assert "a spool does not keep the region" in caplog.text
    assert "spooled" not in exporter.stats()
    exporter.shutdown()


def test_a_refusal_is_told_once_whatever_its_numbers(cluster, caplog, monkeypatch):
    """Busy brokers say how long their queues are, which is another number each time: that must not fill the log."""
    lengths = count()
    for broker in cluster.brokers:
        answer = broker._answer

        def busy(request, answer=answer):
            if request.code != SEND:
                return answer(request)
            return response_to(request, ResponseCode.SYSTEM_BUSY, remark=f"[REJECTREQUEST] queue: {next(lengths)}")

        monkeypatch.setattr(broker, "_answer", busy)
    processor, trace = traced(exporter_to(cluster, export_timeout_millis=250), max_export_batch_size=1)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            trace(pub(number))
            processor.force_flush()
    processor.shutdown()
    told = [record.getMessage() for record in caplog.records if "SYSTEM_BUSY" in record.getMessage()]
    assert next(lengths) > 3
    assert len({message.split(" refused ")[0] for message in told}) == len(told) >= 1
