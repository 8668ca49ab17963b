"""What a traced producer records, and what it leaves exactly as it was."""

from __future__ import annotations

import gc

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.message_id import read_unique_id
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import poll


def _sent(producer, spans, topic, *args, **kwargs):
    producer.produce(topic, *args, **kwargs)
    assert producer.flush(10) == 0
    return spans.take(f"send {topic}")


@pytest.fixture
def read_back(consumer_of, spans):
    def read(topic):
        message = poll(consumer := consumer_of(topic))
        consumer.close()
        spans.take(f"process {topic}")
        return message

    return read


def test_a_delivered_message_carries_every_field_of_the_table(producer, spans, kafka, topic):
    headers = {"TAGS": "paid", "KEYS": b"order-1 \xe8\xae\xa2\xe5\x8d\x95", "DELAY": "3"}
    leaders_of({"bootstrap.servers": kafka.bootstrap_servers}).want(topic)
    leaders_of({"bootstrap.servers": kafka.bootstrap_servers}).settle(10)
    span = _sent(producer, spans, topic, "é", b"key-1", headers=headers)
    said = dict(span.attributes)
    assert read_unique_id(said.pop("messaging.message.id"))
    assert said.pop("mqtrace.client_host").count(".") == 3
    assert said.pop("mqtrace.cost_time") == span.end_time // 10**6 - span.start_time // 10**6
    assert span.start_time // 10**6 <= said.pop("mqtrace.store_time") <= span.end_time // 10**6
    assert read_unique_id(said.pop("mqtrace.request_id")) is not None
    host, port = kafka.bootstrap_servers.split(":")
    assert said == {
        "messaging.system": "kafka",
        "messaging.client.id": "shop",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.cluster.id": producer.cluster_id(10),
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "key-1",
        "messaging.message.body.size": 2,
        "server.address": host,
        "server.port": int(port),
        "mqtrace.trace_type": "Pub",
        "mqtrace.group_name": "shop",
        "mqtrace.region_id": "DefaultRegion",
        "mqtrace.offset_msg_id": f"{topic}-0@0",
        "mqtrace.store_host": kafka.bootstrap_servers,
        "mqtrace.tags": "paid",
        "mqtrace.keys": ("order-1", "订单"),
        "mqtrace.msg_type": "Delay_Msg",
        "mqtrace.success": True,
    }
    assert span.kind is SpanKind.PRODUCER
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert trace_context_of(span).beans[0].msg_type is MessageType.DELAY


def test_the_span_ends_at_the_delivery_report_and_not_before(producer, spans, topic):
    producer.produce(topic, b"x")
    spans.assert_empty()
    producer.flush(10)
    assert spans.take(f"send {topic}").end_time


def test_the_trace_goes_on_from_the_current_span_into_the_header(producer, tracer, spans, topic, read_back):
    with tracer.start_as_current_span("checkout") as checkout:
        token = context.attach(baggage.set_baggage("tenant", "t1"))
        producer.produce(topic, b"x")
        context.detach(token)
    producer.flush(10)
    send = spans.take(f"send {topic}")
    spans.take("checkout")
    assert send.parent.span_id == checkout.get_span_context().span_id
    headers = read_back(topic).headers()
    parent = [value.decode() for name, value in headers if name == "traceparent"]
    assert parent == [f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-{send.context.trace_flags:02x}"]
    assert ("baggage", b"tenant=t1") in headers


@pytest.mark.parametrize("make", [dict, list])
def test_the_callers_headers_are_never_touched(producer, spans, topic, make):
    headers = make([("a", b"1")])
    for _ in range(2):
        span = _sent(producer, spans, topic, b"x", headers=headers)
        assert span.links == ()
    assert headers == make([("a", b"1")])


def test_headers_by_position_are_found(producer, spans, topic, read_back):
    """Headers are the eighth positional parameter of produce."""
    span = _sent(producer, spans, topic, b"x", None, 0, None, None, 0, [("TAGS", b"t")])
    assert span.attributes["mqtrace.tags"] == "t"
    assert dict(read_back(topic).headers())["UNIQ_KEY"].decode() == span.attributes["messaging.message.id"]


def test_a_message_sent_on_has_one_trace_header_and_a_link_to_its_past(producer, spans, topic, read_back):
    first = _sent(producer, spans, topic, b"x")
    headers = read_back(topic).headers()
    second = _sent(producer, spans, topic, b"x", headers=headers)
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert second.attributes["messaging.message.id"] == first.attributes["messaging.message.id"]


@pytest.mark.parametrize("given", ["ABC", b"ABC"])
def test_a_unique_id_that_is_there_is_used(producer, spans, topic, given):
    span = _sent(producer, spans, topic, b"x", headers=[("UNIQ_KEY", given)])
    assert span.attributes["messaging.message.id"] == "ABC"


def test_a_tombstone_says_so_and_a_binary_key_is_left_out(producer, spans, topic):
    span = _sent(producer, spans, topic, None, b"\xff\xfe")
    assert span.attributes["messaging.kafka.message.tombstone"] is True
    assert span.attributes["messaging.message.body.size"] == 0
    assert "messaging.kafka.message.key" not in span.attributes


def test_a_call_that_fails_is_recorded_and_raised_unchanged(instrument, kafka, spans, topic):
    instrument()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "queue.buffering.max.messages": 1, "linger.ms": 60_000}
    )
    producer.produce(topic, b"x")
    with pytest.raises(BufferError, match="Queue full"):
        producer.produce(topic, b"x")
    refused = spans.take(f"send {topic}")
    assert refused.attributes["error.type"] == "_QUEUE_FULL"
    assert refused.status.status_code is StatusCode.ERROR
    producer.flush(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


def test_a_message_too_large_for_the_client_is_recorded(producer, spans, topic):
    with pytest.raises(KafkaException):
        producer.produce(topic, b"x" * 2_000_000)
    assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"


def test_a_message_the_broker_refuses_is_recorded_when_the_report_comes(producer, spans, kafka, topic):
    kafka.push_request_errors(kafka.PRODUCE, 10)
    span = _sent(producer, spans, topic, b"x")
    record = trace_context_of(span)
    assert span.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
    assert (record.trace_type, record.success) == (TraceType.PUB, False)
    assert span.attributes.keys().isdisjoint({"messaging.kafka.offset", "mqtrace.store_time"})


def test_a_message_that_times_out_is_recorded(instrument, spans, topic):
    instrument()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 50, "log_level": 0, "linger.ms": 0}
    )
    assert _sent(producer, spans, topic, b"x").attributes["error.type"] == "_MSG_TIMED_OUT"


def test_a_purged_message_is_recorded(instrument, spans, topic):
    instrument()
    producer = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    producer.produce(topic, b"x")
    producer.purge()
    producer.flush(5)
    assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"


def test_a_message_in_flight_when_its_producer_is_collected_ends_by_name(instrument, spans, topic):
    """Nobody can answer any more: the span says abandoned instead of never ending."""
    instrument()
    producer = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    producer.produce(topic, b"x")
    del producer
    gc.collect()
    drain_deferred_ends()
    span = spans.take(f"send {topic}")
    assert span.attributes["mqtrace.send_outcome"] == span.attributes["error.type"] == "abandoned"


class TestCallbacks:
    def _run(self, kafka, topic, conf=None, **produce):
        calls = []
        conf = {"on_delivery": lambda *_: calls.append("config")} if conf is None else conf
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, **conf})
        named = {
            name: None if value is None else (lambda *_, value=value: calls.append(value))
            for name, value in produce.items()
        }
        producer.produce(topic, b"x", **named)
        producer.flush(10)
        return calls

    @pytest.mark.parametrize(
        "produce",
        [
            {},
            {"callback": "callback"},
            {"on_delivery": "on_delivery"},
            {"callback": "callback", "on_delivery": "on_delivery"},
            {"callback": None, "on_delivery": "on_delivery"},
            {"callback": None},
        ],
    )
    def test_the_same_callback_fires_with_and_without_tracing(self, instrument, kafka, spans, topic, produce):
        """Whichever combination is given, tracing changes nothing; callback=None hides on_delivery."""
        untraced = self._run(kafka, topic, **produce)
        instrument()
        assert self._run(kafka, topic, **produce) == untraced
        spans.take(f"send {topic}")

    def test_what_a_callback_raises_reaches_flush(self, producer, spans, topic):
        """The application's exception is the application's business, after the span has ended."""

        def explode(error, message):
            raise RuntimeError("mine")

        producer.produce(topic, b"x", on_delivery=explode)
        with pytest.raises(RuntimeError, match="mine"):
            producer.flush(10)
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True

    def test_a_callback_runs_in_the_context_it_was_sent_from(self, producer, tracer, spans, topic):
        seen = []
        with tracer.start_as_current_span("checkout") as checkout:
            producer.produce(topic, b"x", callback=lambda *_: seen.append(trace.get_current_span()))
        producer.flush(10)
        assert seen == [checkout]
        spans.take_all()

    def test_something_that_is_no_callback_is_refused_as_ever(self, producer, spans, topic):
        producer.produce(topic, b"x", on_delivery=5)
        with pytest.raises(TypeError, match="'int' object is not callable"):
            producer.flush(10)
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("t",), {"nope": 1}), (("t",), {"headers": (("a", b"1"),)}), ((5,), {})]
)
def test_a_wrong_call_raises_the_same_error_with_and_without_tracing(instrument, kafka, spans, args, kwargs):
    conf = {"bootstrap.servers": kafka.bootstrap_servers}
    with confluent_kafka.Producer(conf) as plain, pytest.raises(TypeError) as untraced:
        plain.produce(*args, **kwargs)
    instrument()
    with confluent_kafka.Producer(conf) as producer, pytest.raises(TypeError) as traced:
        producer.produce(*args, **kwargs)
    assert str(traced.value) == str(untraced.value)
    spans.take_all()


def test_the_trace_topic_and_excluded_topics_are_never_traced(instrument, kafka, spans, topic, consumer_of):
    instrument(topic_exclude=(f"{topic[:-1]}*",), trace_topic="my-trace")
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"x")
    producer.produce("my-trace", b"x")
    producer.flush(10)
    assert poll(consumer_of(topic)).headers() is None


def test_suppressed_instrumentation_is_respected(producer, spans, topic):
    with suppress_instrumentation():
        producer.produce(topic, b"x")
        producer.flush(10)


def test_an_unsampled_message_still_travels_with_its_id_and_context(instrument, kafka, spans, topic, consumer_of):
    """Sampling decides about spans, not about headers."""
    instrument()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0)))
    with trace.use_span(unsampled):
        producer.produce(topic, b"x")
    producer.flush(10)
    headers = dict(poll(consumer_of(topic)).headers())
    assert headers["traceparent"].endswith(b"-00")
    assert read_unique_id(headers["UNIQ_KEY"].decode())
