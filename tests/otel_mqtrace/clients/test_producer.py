"""A traced producer of confluent-kafka: spans, headers, callbacks, and every way a send can end."""

from types import MappingProxyType

import pytest
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
    """Return the first message of a topic, read by a traced consumer."""

    def read(topic):
        message = poll(consumer := consumer_of(topic))
        consumer.close()
        spans.take(f"process {topic}")
        return message

    return read


def test_delivered_message_has_every_field_of_the_table(producer, spans, kafka, topic):
    headers = {"TAGS": "paid", "KEYS": b"order-1 \xe8\xae\xa2\xe5\x8d\x95", "DELAY": "3"}
    leaders_of({"bootstrap.servers": kafka.bootstrap_servers}).want(topic)
    leaders_of({"bootstrap.servers": kafka.bootstrap_servers}).settle(10)
    span = _sent(producer, spans, topic, "é", b"key-1", headers=headers)
    attributes = dict(span.attributes)
    assert read_unique_id(attributes.pop("messaging.message.id"))
    assert attributes.pop("mqtrace.client_host").count(".") == 3
    assert attributes.pop("mqtrace.cost_time") == span.end_time // 10**6 - span.start_time // 10**6
    assert span.start_time // 10**6 <= attributes.pop("mqtrace.store_time") <= span.end_time // 10**6
    assert read_unique_id(attributes.pop("mqtrace.request_id")) is not None
    host, port = kafka.bootstrap_servers.split(":")
    assert attributes == {
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


def test_send_is_a_child_of_the_current_span_and_its_context_is_in_the_headers(
    producer, tracer, spans, topic, read_back
):
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
def test_headers_of_the_caller_are_not_changed(producer, spans, topic, make):
    headers = make([("a", b"1")])
    for _ in range(2):
        span = _sent(producer, spans, topic, b"x", headers=headers)
        assert span.links == ()
    assert headers == make([("a", b"1")])


def test_headers_given_by_position_are_read_and_extended(producer, spans, topic, read_back):
    span = _sent(producer, spans, topic, b"x", None, 0, None, None, 0, [("TAGS", b"t")])
    assert span.attributes["mqtrace.tags"] == "t"
    assert dict(read_back(topic).headers())["UNIQ_KEY"].decode() == span.attributes["messaging.message.id"]


def test_tombstone_is_marked_and_binary_key_is_left_out_of_the_span(producer, spans, topic):
    span = _sent(producer, spans, topic, None, b"\xff\xfe")
    assert span.attributes["messaging.kafka.message.tombstone"] is True
    assert span.attributes["messaging.message.body.size"] == 0
    assert "messaging.kafka.message.key" not in span.attributes


@pytest.mark.parametrize("only_errors", [False, True])
def test_call_that_fails_is_recorded_and_raises_unchanged(producer_of, spans, topic, only_errors):
    conf = {"queue_buffering_max_messages": 1, "linger_ms": 60_000, "delivery_report_only_error": only_errors}
    producer = producer_of(**conf)
    producer.produce(topic, b"x")
    with pytest.raises(BufferError, match="Queue full"):
        producer.produce(topic, b"x")
    refused = spans.take(f"send {topic}")
    assert refused.attributes["error.type"] == "_QUEUE_FULL"
    assert refused.status.status_code is StatusCode.ERROR
    producer.flush(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


def test_message_refused_by_the_broker_is_recorded_at_its_report(producer, spans, kafka, topic):
    kafka.push_request_errors(kafka.PRODUCE, 10)
    span = _sent(producer, spans, topic, b"x")
    record = trace_context_of(span)
    assert span.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
    assert (record.trace_type, record.success) == (TraceType.PUB, False)
    assert span.attributes.keys().isdisjoint({"messaging.kafka.offset", "mqtrace.store_time"})


def test_send_without_an_acknowledgement_has_no_offset_in_either_format(producer_of, spans, topic):
    span = _sent(producer_of(acks=0), spans, topic, b"x")
    (bean,) = trace_context_of(span).beans
    assert (span.attributes["mqtrace.success"], bean.offset_msg_id) == (True, None)
    assert span.attributes.keys().isdisjoint({"messaging.kafka.offset", "mqtrace.offset_msg_id"})
    assert encode_spans([span]).errors == {}


def _explode(_error, _message):
    raise RuntimeError("mine")


class TestCallbacks:
    def test_callback_is_called_as_without_tracing(self, producer_of, spans, topic, callbacks):
        def run(options):
            calls = []

            def named(name):
                return None if name is None else lambda *_: calls.append(name)

            producer = producer_of(options, on_delivery=named("config"))
            producer.produce(topic, b"x", **{name: named(value) for name, value in callbacks.items()})
            producer.flush(10)
            return calls

        untraced = run(False)
        assert run({}) == untraced
        spans.take(f"send {topic}")

    @pytest.mark.parametrize(
        ("callback", "error"), [(_explode, RuntimeError), (5, TypeError)], ids=["raises", "no callback"]
    )
    def test_exception_of_a_callback_is_raised_by_flush(self, producer, spans, topic, callback, error):
        producer.produce(topic, b"x", on_delivery=callback)
        with pytest.raises(error, match=r"mine|'int' object is not callable"):
            producer.flush(10)
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True

    def test_message_that_is_queued_when_a_signal_handler_raises_keeps_its_outcome(
        self, producer, interrupted, spans, topic
    ):
        interrupted(producer.produce, topic, b"x")
        assert producer.flush(10) == 0
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True

    def test_callback_runs_in_the_context_of_the_call(self, producer, tracer, spans, topic):
        seen = []
        with tracer.start_as_current_span("checkout") as checkout:
            producer.produce(topic, b"x", callback=lambda *_: seen.append(trace.get_current_span()))
        producer.flush(10)
        assert seen == [checkout]
        spans.take_all()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("t",), {"nope": 1}),
        (("t",), {"headers": (("a", b"1"),)}),
        (("t",), {"headers": MappingProxyType({"a": b"1"})}),
        ((5,), {}),
        ((None,), {}),
    ],
)
def test_wrong_call_raises_the_same_error_as_without_tracing(producer_of, spans, args, kwargs):
    errors = []
    for options in (False, {}):
        with pytest.raises(TypeError) as raised:
            producer_of(options).produce(*args, **kwargs)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    spans.take_all()


class TestWithoutReportsOfSuccess:
    @pytest.fixture
    def errors_only(self, producer_of):
        return producer_of(delivery_report_only_error=True)

    def test_span_without_a_report_of_success_ends_at_the_flush(self, errors_only, spans, topic):
        errors_only.produce(topic, b"x")
        spans.assert_empty()
        assert errors_only.flush(10) == 0
        assert not errors_only._mqtrace_state.in_flight
        span = spans.take(f"send {topic}")
        assert span.attributes["mqtrace.send_outcome"] == "not_awaited"
        assert span.attributes["mqtrace.success"] is True
        assert span.attributes.keys().isdisjoint({"mqtrace.store_time", "messaging.kafka.offset", "error.type"})

    def test_message_that_fails_later_is_recorded_as_failed(self, errors_only, kafka, spans, topic):
        calls = []
        errors_only.produce(topic, b"x", on_delivery=lambda error, _: calls.append(error.name()))
        errors_only.flush(10)
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True
        kafka.push_request_errors(kafka.PRODUCE, 10)
        errors_only.produce(topic, b"x", on_delivery=lambda error, _: calls.append(error.name()))
        errors_only.flush(10)
        failed = spans.take(f"send {topic}")
        assert failed.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
        assert "mqtrace.send_outcome" not in failed.attributes
        assert calls == ["MSG_SIZE_TOO_LARGE"]

    def test_batch_without_reports_of_success_ends_at_the_flush(self, errors_only, spans, topic):
        errors_only.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}])
        spans.assert_empty()
        errors_only.flush(10)
        outcomes = [span.attributes["mqtrace.send_outcome"] for span in spans.take_all(f"send {topic}")]
        assert outcomes == ["not_awaited"] * 2


class TestLeaving:
    @pytest.fixture
    def unreachable(self, producer_of):
        return producer_of(bootstrap_servers="127.0.0.1:1")

    def test_flush_that_times_out_leaves_the_spans_open(self, unreachable, spans, topic):
        unreachable.produce(topic, b"x")
        assert unreachable.flush(0.01) == 1
        spans.assert_empty()
        unreachable.purge()
        unreachable.flush(5)
        assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"

    @pytest.mark.parametrize(("leave", "arguments"), [("close", ()), ("__exit__", (None, None, None))])
    def test_callback_that_raises_in_close_leaves_no_span_open(self, producer_of, spans, topic, leave, arguments):
        def run(options):
            producer = producer_of(options)
            for _ in range(3):
                producer.produce(topic, b"x", on_delivery=_explode)
            with pytest.raises((RuntimeError, SystemError)) as raised:
                getattr(producer, leave)(*arguments)
            return type(raised.value), repr(raised.value.__cause__)

        untraced = run(False)
        assert run({}) == untraced
        outcomes = [span.attributes.get("mqtrace.send_outcome") for span in spans.take_all(f"send {topic}")]
        assert outcomes == [None, "abandoned", "abandoned"]

    def test_message_in_flight_at_uninstrument_ends_at_its_report(self, producer, spans, topic):
        producer.produce(topic, b"x")
        MqTraceInstrumentor().uninstrument()
        producer.flush(10)
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0
