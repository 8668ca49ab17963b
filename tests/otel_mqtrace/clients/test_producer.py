"""A traced producer of confluent-kafka: spans, headers, callbacks, and every way a send can end."""

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans
from tests.support.consuming import poll
from tests.support.unique_ids import read_unique_id


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
    span = _sent(producer, spans, topic, b"x", None, 0, None, None, 0, [("TAGS", b"t")])
    assert span.attributes["mqtrace.tags"] == "t"
    assert dict(read_back(topic).headers())["UNIQ_KEY"].decode() == span.attributes["messaging.message.id"]


def test_tombstone_is_marked_and_binary_key_is_left_out(producer, spans, topic):
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


def test_a_message_the_broker_refuses_is_recorded_when_the_report_comes(producer, spans, kafka, topic):
    kafka.push_request_errors(kafka.PRODUCE, 10)
    span = _sent(producer, spans, topic, b"x")
    record = trace_context_of(span)
    assert span.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
    assert (record.trace_type, record.success) == (TraceType.PUB, False)
    assert span.attributes.keys().isdisjoint({"messaging.kafka.offset", "mqtrace.store_time"})


def test_send_without_an_acknowledgement_has_no_offset_in_either_format(instrument, kafka, spans, topic):
    instrument()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": 0})
    span = _sent(producer, spans, topic, b"x")
    (bean,) = trace_context_of(span).beans
    assert (span.attributes["mqtrace.success"], bean.offset_msg_id) == (True, None)
    assert span.attributes.keys().isdisjoint({"messaging.kafka.offset", "mqtrace.offset_msg_id"})
    assert encode_spans([span]).errors == {}


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
        untraced = self._run(kafka, topic, **produce)
        instrument()
        assert self._run(kafka, topic, **produce) == untraced
        spans.take(f"send {topic}")

    def test_what_a_callback_raises_reaches_flush(self, producer, spans, topic):
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


class TestWithoutReportsOfSuccess:
    @pytest.fixture
    def taciturn(self, instrument, kafka):
        instrument()
        conf = {"bootstrap.servers": kafka.bootstrap_servers, "delivery.report.only.error": True}
        with confluent_kafka.Producer(conf) as producer:
            yield producer

    def test_the_span_ends_when_the_broker_has_the_message(self, taciturn, spans, topic):
        taciturn.produce(topic, b"x")
        spans.assert_empty()
        assert taciturn.flush(10) == 0
        span = spans.take(f"send {topic}")
        assert span.attributes["mqtrace.send_outcome"] == "not_awaited"
        assert span.attributes["mqtrace.success"] is True
        assert span.attributes.keys().isdisjoint({"mqtrace.store_time", "messaging.kafka.offset", "error.type"})

    def test_a_message_that_fails_later_is_recorded_as_failed(self, taciturn, kafka, spans, topic):
        told = []
        taciturn.produce(topic, b"x", on_delivery=lambda error, _: told.append(error.name()))
        taciturn.flush(10)
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True
        kafka.push_request_errors(kafka.PRODUCE, 10)
        taciturn.produce(topic, b"x", on_delivery=lambda error, _: told.append(error.name()))
        taciturn.flush(10)
        failed = spans.take(f"send {topic}")
        assert failed.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
        assert "mqtrace.send_outcome" not in failed.attributes
        assert told == ["MSG_SIZE_TOO_LARGE"]

    def test_a_batch_is_told_apart_the_same_way(self, taciturn, spans, topic):
        taciturn.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}])
        spans.assert_empty()
        taciturn.flush(10)
        outcomes = [span.attributes["mqtrace.send_outcome"] for span in spans.take_all(f"send {topic}")]
        assert outcomes == ["not_awaited"] * 2

    def test_nothing_is_kept_of_what_was_answered(self, taciturn, spans, topic):
        for _ in range(200):
            taciturn.produce(topic, b"x")
        assert len(taciturn._mqtrace_state.in_flight) == 200
        taciturn.flush(10)
        assert not taciturn._mqtrace_state.in_flight
        assert len(spans.take_all(f"send {topic}")) == 200

    def test_a_call_that_is_refused_ends_with_its_error(self, taciturn, spans, topic):
        with pytest.raises(KafkaException):
            taciturn.produce(topic, b"x" * 2_000_000)
        assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"


class TestLeaving:
    @pytest.fixture
    def unheard(self, instrument):
        instrument()
        return confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

    def test_a_flush_that_gives_up_leaves_the_spans_open(self, unheard, spans, topic):
        unheard.produce(topic, b"x")
        assert unheard.flush(0.01) == 1
        spans.assert_empty()
        unheard.purge()
        unheard.flush(5)
        assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"

    @pytest.mark.parametrize(("leave", "arguments"), [("close", ()), ("__exit__", (None, None, None))])
    def test_a_callback_that_raises_in_close_leaves_no_span_open(
        self, instrument, kafka, spans, topic, leave, arguments
    ):
        def explode(error, message):
            raise RuntimeError("mine")

        def run():
            producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            for _ in range(3):
                producer.produce(topic, b"x", on_delivery=explode)
            with pytest.raises((RuntimeError, SystemError)) as raised:
                getattr(producer, leave)(*arguments)
            return type(raised.value), repr(raised.value.__cause__)

        untraced = run()
        instrument()
        assert run() == untraced
        outcomes = [span.attributes.get("mqtrace.send_outcome") for span in spans.take_all(f"send {topic}")]
        assert outcomes == [None, "abandoned", "abandoned"]

    def test_a_message_in_flight_when_tracing_ends_is_ended_by_its_report(self, producer, spans, topic):
        producer.produce(topic, b"x")
        MqTraceInstrumentor().uninstrument()
        producer.flush(10)
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0


@pytest.fixture
def send(kafka, topic):
    def produce(**message):
        with confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop"}) as producer:
            producer.produce(topic, **message)
            assert producer.flush(10) == 0

    return produce
