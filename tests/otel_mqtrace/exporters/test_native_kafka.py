"""The exporter to a Kafka trace topic: delivery, failures, forks, and its own producer."""

import logging
import sys
from functools import partial
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition, admin, cimpl
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from otel_mqtrace import client_properties
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter, connection_of
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native import encode_context
from tests.support.clocks import TickingClock
from tests.support.lanes import span, tracer_of, worker_ended
from tests.support.native_spans import bean, pub, sub
from tests.support.shown import shown

TOPIC = "RMQ_SYS_TRACE_TOPIC"
PRODUCE = 0  # Kafka's request type
NOT_LEADER, TOO_LARGE, UNKNOWN_TOPIC, TOPIC_AUTHORIZATION, OUT_OF_ORDER = 6, 10, 3, 29, 45
NAME = "NativeKafkaSpanExporter"
DEAD = "127.0.0.1:1"


def _exporter(kafka, **options):
    return NativeKafkaSpanExporter(bootstrap_servers=[kafka.bootstrap_servers], **options)


def test_spans_reach_the_trace_topic_as_rocketmq_would_write_them(kafka, exported, landed):
    processor = exported(_exporter(kafka), *map(pub, range(3)), sub(bean(1)))
    attributes = {"mqtrace.trace_type": "Sub", "messaging.message.id": bean(2).msg_id}
    tracer_of(processor).start_span("process", attributes=attributes)  # exported before it ends
    assert processor.force_flush()
    [message, started], records = landed()
    types = [record.trace_type for record in records]
    assert types == [*[TraceType.PUB] * 3, TraceType.SUB_BEFORE, TraceType.SUB_AFTER, TraceType.SUB_BEFORE]
    assert bean(2).msg_id in started.keys
    assert {bean(1).msg_id, "order-1"} <= set(message.keys.split(" "))
    assert processor.stats()[NAME]["exported"] == 6
    reader = cimpl.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
    reader.assign([TopicPartition(TOPIC, message.partition, message.offset)])
    assert dict(reader.poll(20).headers())["mqtrace.dialect"] == b"5.5.0"
    reader.close()


@pytest.mark.parametrize(
    ("errors", "is_exported", "arriving"),
    [((NOT_LEADER, NOT_LEADER), True, (1, 2)), ((OUT_OF_ORDER,), False, (2,))],
    ids=["retriable", "fatal"],
)
def test_retriable_error_costs_nothing_and_a_fatal_one_its_batch(kafka, traced, arrived, errors, is_exported, arriving):
    """After a fatal one, as when a broker lost its log, librdkafka's idempotent producer sends nothing any more."""
    kafka.push_request_errors(PRODUCE, *errors)
    processor, trace = traced(_exporter(kafka))
    for number, expected in (1, is_exported), (2, True):
        trace(pub(number))
        assert processor.force_flush() is expected
    assert arrived() == [bean(number).msg_id for number in arriving]


@pytest.mark.parametrize("spool", [{}, {"spool_dir": "spool"}], ids=["no spool", "a spool"])
def test_refused_message_is_lost_alone_with_a_warning(kafka, traced, arrived, tmp_path, monkeypatch, caplog, spool):
    monkeypatch.chdir(tmp_path)
    kafka.push_request_errors(PRODUCE, TOO_LARGE)
    exporter = _exporter(kafka, **spool, kafka_config={"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 1})
    processor, trace = traced(exporter)
    trace(pub(1), pub(4), pub(2, topic="stock"))
    assert not processor.force_flush()
    assert "native traces are not delivered" in caplog.text
    trace(pub(3))
    assert processor.force_flush()
    stats = processor.stats()[NAME]
    assert (stats["failed"], stats["exported"], exporter.stats()["undelivered_messages"]) == (2, 2, 1)
    assert exporter.stats().get("spooled", 0) == 0
    assert arrived() == [bean(2).msg_id, bean(3).msg_id]


def test_creation_of_the_topic_ends_within_the_export_timeout(traced):
    clock = TickingClock(10)
    exporter = NativeKafkaSpanExporter(bootstrap_servers=DEAD, create_trace_topic=True, clock=clock)
    processor, trace = traced(exporter, export_timeout_millis=300, max_export_batch_size=1)
    trace(pub(1))
    processor.run_once()
    assert clock.monotonic_ns() < 1_000_000_000
    assert processor.stats()[NAME]["failed"] == 1


def test_topic_that_cannot_be_created_is_sent_to(kafka, exported, arrived, monkeypatch):
    refused = KafkaException(KafkaError(KafkaError._INVALID_ARG))
    for name in ("list_topics", "create_topics"):
        monkeypatch.setattr(admin.AdminClient, name, Mock(side_effect=refused))
    exported(_exporter(kafka, create_trace_topic=True), pub(1), pub(2), max_export_batch_size=1)
    assert len(arrived()) == 2


def test_topic_that_is_there_is_not_created(kafka, exported, arrived, monkeypatch):
    """The embedded broker names no controller, for which a creation waits ten seconds."""
    monkeypatch.setattr(admin.AdminClient, "create_topics", create := Mock())
    exported(_exporter(kafka, create_trace_topic=True), pub(1))
    assert (len(arrived()), create.called) == (1, False)


@pytest.mark.parametrize("rtt_ms", [None, 3_600_000], ids=["down", "silent"])
def test_message_given_up_does_not_arrive_later_and_the_broker_is_used_again(kafka, traced, arrived, rtt_ms):
    exporter, patience_ms, allowed_ms = _exporter(kafka, export_timeout_millis=20_000), 20_000, []
    export = exporter.export
    exporter.export = lambda spans, timeout_millis: allowed_ms.append(timeout_millis) or export(spans, patience_ms)
    processor, trace = traced(exporter, max_export_batch_size=1)
    trace(pub(1))
    assert processor.force_flush()
    kafka.broker_down(1) if rtt_ms is None else kafka.set_rtt(1, rtt_ms)
    patience_ms = 200
    trace(pub(2))
    assert not processor.force_flush()
    patience_ms = 20_000
    kafka.broker_up(1) if rtt_ms is None else kafka.set_rtt(1, 0)
    trace(pub(3))
    assert processor.force_flush()
    stats = processor.stats()[NAME]
    assert (stats["exported"], stats["failed"], allowed_ms) == (2, 1, [30_000] * 3)
    in_flight = {bean(2).msg_id} if rtt_ms else set()  # a request the broker already had may be in the log
    assert [msg_id for msg_id in arrived() if msg_id not in in_flight] == [bean(1).msg_id, bean(3).msg_id]


def test_message_that_an_earlier_purge_takes_is_sent_again(kafka, exported, arrived, monkeypatch, caplog):
    taken = []

    class Purging(cimpl.Producer):
        def produce(self, *arguments, on_delivery, **options):
            def report(error, message):
                taken.append(error and error.name())
                on_delivery(error, message)

            super().produce(*arguments, on_delivery=report, **options)

        def poll(self, timeout):
            if not taken:
                self.purge(in_queue=True, in_flight=False)
                kafka.broker_up(1)
            return super().poll(timeout)

    monkeypatch.setattr(cimpl, "Producer", Purging)
    kafka.broker_down(1)  # the message is in the queue until the purge
    processor = exported(_exporter(kafka), pub(1))
    assert (taken, arrived()) == (["_PURGE_QUEUE", None], [bean(1).msg_id])
    assert (processor.stats()[NAME]["failed"], caplog.messages) == (0, [])


@pytest.mark.parametrize("create_trace_topic", [False, True])
def test_shutdown_ends_a_running_export_or_creation_of_the_topic_early(traced, create_trace_topic):
    exporter = NativeKafkaSpanExporter(bootstrap_servers=DEAD, create_trace_topic=create_trace_topic)
    processor, trace = traced(exporter, background=True, max_export_batch_size=1)
    trace(pub(1))
    processor.shutdown(timeout_millis=200)
    assert worker_ended(processor, 20)
    assert processor.stats()[NAME]["exported"] == 0


@pytest.mark.parametrize("named_by", ["the environment", "the application"])
def test_broker_is_that_of_the_environment_or_the_application(kafka, exported, arrived, monkeypatch, named_by):
    monkeypatch.setattr(client_properties, "_learned", {})
    if named_by == "the environment":
        monkeypatch.setenv("MQTRACE_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    exporter, conf = NativeKafkaSpanExporter(), {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 10_000}
    if named_by == "the application":
        client_properties.remember_application_kafka_config(conf)
    exported(exporter, pub(1))
    assert arrived() == [bean(1).msg_id]


def test_environment_names_broker_topic_and_properties(kafka, exported, arrived, monkeypatch, tmp_path):
    properties = tmp_path / "client.properties"
    properties.write_text(f"\ufeffbootstrap.servers = {kafka.bootstrap_servers}\n# the trace broker\n\nacks=all\n")
    monkeypatch.setenv("MQTRACE_KAFKA_CONFIG", properties.name)
    monkeypatch.setenv("MQTRACE_TRACE_TOPIC", "MY_TRACE")
    kafka.create_topic("MY_TRACE")
    monkeypatch.chdir(tmp_path)
    exporter = NativeKafkaSpanExporter()
    monkeypatch.chdir(tmp_path.parent)
    exported(exporter, pub(1))
    assert arrived("MY_TRACE") == [bean(1).msg_id]


def test_token_that_nothing_gives_is_refused_with_the_fix():
    conf = {"bootstrap.servers": DEAD, "security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}
    with pytest.raises(UsageError, match="give an oauth_cb"):
        connection_of(conf, None)
    changes = ("oauth_cb", print), ("enable.sasl.oauthbearer.unsecure.jwt", "true"), ("security.protocol", "SSL")
    for name, value in changes:
        assert connection_of({**conf, name: value}, None)[name] is value


@pytest.mark.parametrize("form", ["file", "mapping"])
def test_password_is_neither_logged_nor_shown_by_the_exporter(traced, tmp_path, caplog, monkeypatch, form):
    monkeypatch.setenv("MQTRACE_ROCKETMQ_SECRET_KEY", "hunter2")  # of another exporter
    conf = {"sasl.password": "hunter2", "sasl.mechanism": "PLAIN", "security.protocol": "SASL_PLAINTEXT"}
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in conf.items()) + "no.such=x\n")
    exporter = NativeKafkaSpanExporter(
        bootstrap_servers=DEAD,
        trace_topic="MY_TRACE",
        kafka_config=str(properties) if form == "file" else {**conf, "sasl.username": "ali"},
    )
    with caplog.at_level(logging.DEBUG):
        processor, trace = traced(exporter, export_timeout_millis=300, max_export_batch_size=1)
        trace(pub(1))
        processor.run_once()
    assert processor.stats()[NAME]["failed"] == 1
    seen = shown(exporter)
    assert "MY_TRACE" in seen
    assert "hunter2" not in seen + caplog.text


@pytest.mark.parametrize("failure", [RuntimeError, partial(KafkaError, KafkaError._FAIL)])
def test_callback_of_kafka_config_that_raises_costs_no_record(kafka, exported, landed, caplog, failure):
    def refuse(_statistics):
        kafka.broker_up(1)
        raise failure("of the application")

    kafka.broker_down(1)  # no record is delivered before the callback was called
    conf = {"stats_cb": refuse, "statistics.interval.ms": 100}
    processor = exported(_exporter(kafka, kafka_config=conf), pub(1), pub(2))
    processor.shutdown()
    assert processor.stats()[NAME]["exported"] == len(landed()[1]) == 2
    (line,) = [each for each in caplog.messages if "a callback of the trace producer raised" in each]
    assert "of the application" in line


def test_batch_is_split_into_messages_the_broker_accepts(kafka, exported, landed):
    exported(_exporter(kafka, max_message_bytes=2000), *(pub(number, keys=f"订单{number}") for number in range(100)))
    messages, records = landed()
    assert len(messages) > 5
    assert max(len(message.body) for message in messages) <= 2000
    assert len(records) == 100


def test_exporter_behind_the_stock_processor_delivers_ends_of_ours(kafka, landed):
    """As OTEL_TRACES_EXPORTER=mqtrace_native attaches it: ends only, foreign spans passed over."""
    processor = BatchSpanProcessor(_exporter(kafka))
    tracer = tracer_of(processor)
    tracer.start_span("foreign").end()
    tracer.start_span("process", attributes={"mqtrace.trace_type": "Sub", "messaging.message.id": bean(1).msg_id}).end()
    processor.shutdown()
    assert [record.trace_type for record in landed()[1]] == [TraceType.SUB_AFTER]


def test_export_of_foreign_spans_needs_no_broker():
    assert NativeKafkaSpanExporter().export([span("foreign")]) is SpanExportResult.SUCCESS


def test_encoder_can_be_wrapped(kafka, exported):
    seen = []

    def encode(trace_ctx, dialect):
        seen.append((trace_ctx.trace_type, dialect))
        return encode_context(trace_ctx, dialect)

    exported(_exporter(kafka, encode=encode, dialect="4.9.3"), pub(1))
    assert seen == [(TraceType.PUB, "4.9.3")]


FORKED = """
import os, sys
import confluent_kafka.admin
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from tests.support.native_spans import pub, traced

def send():
    producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1]})
    producer.produce("orders", b"1")
    assert producer.flush(20) == 0
    return producer

MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters=[])
application = [send(), send(), confluent_kafka.admin.AdminClient({"bootstrap.servers": sys.argv[1]})]
processor, trace = traced(NativeKafkaSpanExporter(bootstrap_servers=sys.argv[1]), background=True)
trace(pub(1))
assert processor.force_flush()
pid = os.fork()
if not pid:
    send()
    trace(pub(2))
    assert processor.force_flush()
    processor.shutdown()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
trace(pub(3))
assert processor.force_flush()
processor.shutdown()
"""


def test_forked_child_has_a_producer_of_its_own_and_ends_normally(run_code, kafka, arrived):
    """Its parent's are never touched, not even by their destructor, which would hang for ever, or crash."""
    run_code(FORKED, kafka.bootstrap_servers)
    assert sorted(arrived()) == [bean(number).msg_id for number in (1, 2, 3)]


@pytest.fixture
def warnings(traced, caplog):
    """Export two records one after the other with an exporter, which fails; return the warnings about its delivery."""

    def export(exporter, timeout_ms=300):
        processor, trace = traced(exporter, export_timeout_millis=timeout_ms, max_export_batch_size=1)
        for number in range(2):
            trace(pub(number))
            processor.run_once()
        exporter.shutdown(timeout_millis=0)
        return [r.getMessage() for r in caplog.records if r.name == "otel_mqtrace.exporters.native_delivery"]

    return export


@pytest.mark.parametrize(
    ("options", "timeout_ms", "words"),
    [
        ({}, 300, ("not delivered", DEAD, "MY_TRACE", "MQTRACE_BOOTSTRAP_SERVERS")),
        ({"export_timeout_millis": 60_000}, 100, ("in time",)),
        ({"kafka_config": {"nonsense.key": "1"}}, 300, (DEAD, "nonsense.key", "MQTRACE_KAFKA_CONFIG")),
        ({"spool_dir": "spool"}, 300, ("not delivered", "wait on disk")),
        ({"bootstrap_servers": None}, 300, ("MQTRACE_BOOTSTRAP_SERVERS",)),
        (
            {"bootstrap_servers": "SASL_SSL://me:hush@\udcff:9092"},
            300,
            ("for SASL_SSL://…@\\udcff:9092 cannot be built: 'utf-8' codec", "correct MQTRACE_BOOTSTRAP_SERVERS"),
        ),
        ({"bootstrap_servers": f"SASL_SSL://me:hush@{DEAD}"}, 300, (f"SASL_SSL://…@{DEAD} ",)),
    ],
    ids=[
        *("no broker", "given up by us", "a wrong property", "a spool", "no known broker"),
        *("a password in an address that is not in UTF-8", "a password in the address"),
    ],
)
def test_failed_delivery_is_one_line_with_the_setting(warnings, tmp_path, monkeypatch, options, timeout_ms, words):
    monkeypatch.chdir(tmp_path)
    client_properties.forget_application_kafka_config()
    exporter = NativeKafkaSpanExporter(**{"bootstrap_servers": DEAD, "trace_topic": "MY_TRACE", **options})
    [line] = warnings(exporter, timeout_ms=timeout_ms)
    assert all(word in line for word in words)
    assert "PURGE" not in line
    assert "hush" not in line


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TOPIC_AUTHORIZATION, ("127.0.0.1:", "TOPIC_AUTHORIZATION_FAILED", "MQTRACE_KAFKA_CONFIG")),
        (UNKNOWN_TOPIC, ("MQTRACE_CREATE_TRACE_TOPIC",)),
    ],
    ids=["unauthorised", "no trace topic"],
)
def test_error_of_the_trace_topic_is_one_line_with_the_setting(warnings, kafka, error, words):
    kafka.set_topic_error(TOPIC, error)
    exporter = _exporter(kafka, kafka_config={"topic.metadata.propagation.max.ms": 50})
    [line] = warnings(exporter, timeout_ms=20_000)
    assert all(word in line for word in (TOPIC, *words))


def test_missing_client_is_logged_with_the_extra(monkeypatch, warnings):
    monkeypatch.setitem(sys.modules, "confluent_kafka.cimpl", None)
    [line] = warnings(NativeKafkaSpanExporter(bootstrap_servers=DEAD))
    assert "pip install 'otel-mqtrace[kafka]'" in line


def test_delivery_to_a_dead_broker_lets_other_greenlets_run(run_code):
    """Under gevent the exporter's worker is a greenlet too: waiting inside the client's C code stops the application."""
    run_code(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, logging, sys
        logging.disable()
        from otel_mqtrace._clock import SystemClock, compute_deadline
        from otel_mqtrace.config import Settings
        from otel_mqtrace.exporters.native_kafka import TraceProducer
        from otel_mqtrace.exporters.packing import TraceMessage
        clock, other = SystemClock(), gevent.spawn(int)
        settings = Settings(bootstrap_servers=sys.argv[1], kafka_config={"log_level": 0})
        producer = TraceProducer(settings, timeout_ms=300, clock=clock)
        message = TraceMessage(b"x", "key", (0,))
        assert producer.deliver([message], compute_deadline(clock, 300)).messages == (message,)
        assert other.ready()
        """,
        DEAD,
    )
