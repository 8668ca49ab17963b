"""The proof that our writer is right: RocketMQ's own ``mqadmin queryMsgTraceById`` finds our records, as our query does."""

import json
import re
import shutil
from pathlib import Path
from time import time

import pytest
import rocketmq
from opentelemetry.sdk.trace import TracerProvider

from bridge.forwarder.run import ForwardOptions, run
from bridge.query.findings import summarise
from bridge.query.rocketmq_archive import BrokerArchive
from bridge.query.search import ArrivalRange
from otel_mqtrace.instrumentor import RocketMqInstrumentor
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.model import ContextCode
from tests.support.archives import find_by_key, search_once
from tests.support.native_spans import pub, sub
from tests.support.rocketmq_proxy import message_of

pytestmark = pytest.mark.peers

_LINE = re.compile(r"(Pub|Sub) +(\S+) +(\S+) +(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) +(\d+)ms +(\S+)")


def _sent(**changes):
    context = pub(0)
    return context._replace(beans=(context.beans[0]._replace(msg_id=new_unique_id()),), **changes)


def _consumed(sent, **changes):
    return sub(*sent.beans, before=False)._replace(**changes)


def _printed(rocketmq_server, msg_id):
    output = rocketmq_server.mqadmin("queryMsgTraceById", "-i", msg_id)
    return [(kind, group, host, int(cost), status) for kind, group, host, _, cost, status in _LINE.findall(output)]


def test_mqadmin_prints_the_send_and_each_group_s_consumes(rocketmq_server):
    sent = _sent(cost_ms=7, group_name="order-producers")
    failed = {"success": False, "context_code": ContextCode.EXCEPTION}
    rocketmq_server.export(
        sent,
        _consumed(sent, group_name="billing", request_id="A" * 32, cost_ms=11, **failed),
        _consumed(sent, group_name="billing", request_id="B" * 32, cost_ms=12),
        _consumed(sent, group_name="shipping", request_id="C" * 32, cost_ms=13),
    )
    printed = _printed(rocketmq_server, sent.beans[0].msg_id)
    assert [line for line in printed if line[0] == "Pub"] == [("Pub", "order-producers", "127.0.0.1", 7, "success")]
    assert sorted((group, status) for kind, group, _, _, status in printed if kind == "Sub") == [
        ("billing", "failed"),
        ("billing", "success"),
        ("shipping", "success"),
    ]
    failed_send = _sent(success=False)
    rocketmq_server.export(failed_send)
    assert [line[-1] for line in _printed(rocketmq_server, failed_send.beans[0].msg_id)] == ["failed"]


def test_compressed_body_is_read_by_mqadmin(rocketmq_server):
    """Above four kilobytes we compress as Java's producer does."""
    sents = [_sent() for _ in range(60)]
    rocketmq_server.export(*sents)
    assert [line[0] for line in _printed(rocketmq_server, sents[30].beans[0].msg_id)] == ["Pub"]


def test_application_on_the_grpc_proxy_appears_in_mqadmin(rocketmq_server, started, topic_of, receive_from):
    """Neither RocketMQ's gRPC clients nor its proxy write native traces: with us they do, producer and consumer."""
    topic, provider, instrumentor = topic_of(), TracerProvider(), RocketMqInstrumentor()
    options = {"exporters": ["mqtrace_native_rocketmq"], "group_name": "order-producers"}
    instrumentor.instrument(tracer_provider=provider, namesrv=rocketmq_server.name_server, **options)
    try:
        msg_id = started(rocketmq.Producer, [topic]).send(message_of(topic)).message_id
        consumer, receive = receive_from(topic)
        consumer.ack(*receive())
        consumer.shutdown()
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    rocketmq_server.settle()
    assert find_by_key(rocketmq_server.name_server, "RMQ_SYS_TRACE_TOPIC", msg_id)
    assert [(kind, who, status) for kind, who, _, _, status in _printed(rocketmq_server, msg_id)] == [
        ("Pub", "order-producers", "success"),
        ("Sub", f"{topic}-billing", "success"),
    ]


def test_spans_of_the_recorded_java_agent_appear_in_mqadmin(rocketmq_server, tmp_path, monkeypatch, capsys):
    """`forward --native`: an application that only knows OpenTelemetry, its send and what both groups made of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spans = tmp_path / "spans"
    spans.mkdir()
    shutil.copy(Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup" / "otlp.jsonl", spans)
    native = f"rocketmq://{rocketmq_server.name_server}/RMQ_SYS_TRACE_TOPIC"
    assert run(ForwardOptions(source=str(spans), native=native, once=True, timeout_ms=30_000), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 564
    rocketmq_server.settle()
    msg_id = "C000020262BB60E53B936993956C0003"
    assert find_by_key(rocketmq_server.name_server, "RMQ_SYS_TRACE_TOPIC", msg_id)
    printed = _printed(rocketmq_server, msg_id)
    assert {(kind, group) for kind, group, *_ in printed if kind == "Sub"} == {
        ("Sub", "CG_billing_d498dup"),
        ("Sub", "CG_shipping_d498dup"),
    }
    assert [status for kind, *_, status in printed if kind == "Pub"] == ["success"]


@pytest.fixture(scope="module")
def begin_ms():
    return int(time() * 1000)


@pytest.fixture(scope="module")
def found(rocketmq_server, begin_ms):
    """Search a topic for its only message, which was sent and consumed by two groups; returns what is known of it."""
    topic, whole = rocketmq_server.create_topic("peer-query", queues=4), _sent()
    by_groups = [_consumed(whole, group_name=name, request_id=new_unique_id()) for name in ("billing", "stock")]
    rocketmq_server.export(whole, *by_groups, trace_topic=topic)

    def search(**options):
        archive = BrokerArchive(rocketmq_server.name_server, [topic], **options)
        return search_once(archive, whole.beans[0].msg_id).stories

    return search


def test_query_by_the_index_finds_what_mqadmin_finds(found):
    assert [summarise(story) for story in found()] == ["Sent once; consumed by 2 groups."]


def test_query_by_a_scan_finds_a_message_in_its_time_range(found, begin_ms):
    now_ms, minute_ms = int(time() * 1000), 60_000
    around = found(reads_all=True, arrivals=ArrivalRange(begin_ms - minute_ms, now_ms + minute_ms))
    assert [len(story.groups) for story in around] == [2]
    for arrivals in (ArrivalRange(now_ms + minute_ms, None), ArrivalRange(None, begin_ms - 10 * minute_ms)):
        assert found(reads_all=True, arrivals=arrivals) == ()
