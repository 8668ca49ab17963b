"""A traced producer of confluent-kafka: spans, headers, callbacks, batches, and every way a send can end."""

from contextlib import nullcontext
from types import MappingProxyType
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaException, SerializingProducer
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.hooks import guard
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.message_id import read_unique_id
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans


def _sent(producer, spans, topic, *args, **kwargs):
    producer.produce(topic, *args, **kwargs)
    assert producer.flush(10) == 0
    return spans.take(f"send {topic}")


def _unsampled():
    span_ctx = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0))
    return trace.use_span(trace.NonRecordingSpan(span_ctx))


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


def test_send_is_a_child_of_the_current_span_and_its_context_is_in_the_headers(producer, tracer, spans, topic, stored):
    with tracer.start_as_current_span("checkout") as checkout:
        token = context.attach(baggage.set_baggage("tenant", "t1"))
        producer.produce(topic, b"x")
        context.detach(token)
    producer.flush(10)
    send = spans.take(f"send {topic}")
    spans.take("checkout")
    assert send.parent.span_id == checkout.get_span_context().span_id
    headers = stored(topic, 1)[0].headers()
    parent = [value.decode() for name, value in headers if name == "traceparent"]
    assert parent == [f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-{send.context.trace_flags:02x}"]
    assert ("baggage", b"tenant=t1") in headers


@pytest.mark.parametrize("make", [dict, list])
@pytest.mark.parametrize("by_position", [False, True])
def test_headers_of_the_caller_are_not_changed(producer, spans, topic, stored, make, by_position):
    headers = make([("TAGS", "t")])
    args, kwargs = ((None, 0, None, None, 0, headers), {}) if by_position else ((), {"headers": headers})
    sends = [_sent(producer, spans, topic, b"x", *args, **kwargs) for _ in range(2)]
    assert headers == make([("TAGS", "t")])
    for send, message in zip(sends, stored(topic, 2), strict=True):
        assert (send.links, send.attributes["mqtrace.tags"]) == ((), "t")
        assert dict(message.headers())["UNIQ_KEY"].decode() == send.attributes["messaging.message.id"]


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
        producer.produce(topic, b"x", partition=0)
    refused = spans.take(f"send {topic}")
    assert refused.attributes["error.type"] == "_QUEUE_FULL"
    assert refused.attributes["messaging.destination.partition.id"] == "0"
    assert refused.status.status_code is StatusCode.ERROR
    producer.flush(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


@pytest.mark.parametrize("headers", [None, {"UNIQ_KEY": "order-1"}, {"kind": "order"}, [("kind", b"order")]])
@pytest.mark.parametrize(
    ("make_producer", "conf", "around"),
    [
        (None, {}, nullcontext),
        (None, {"delivery_report_only_error": True}, nullcontext),
        (SerializingProducer, {"value_serializer": lambda value, _: value}, nullcontext),
        (None, {}, _unsampled),
    ],
    ids=["recorded", "with a span", "serialised", "unsampled"],
)
def test_message_too_large_with_our_headers_alone_goes_without_them(
    producer_of, spans, topic, stored, make_producer, conf, around, headers
):
    body = b"x" * 9_900
    producer = producer_of(make_producer=make_producer, message_max_bytes=10_000, **conf)
    with around():
        producer.produce(topic, value=body, headers=headers)
        assert producer.flush(10) == 0
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            producer.produce(topic, value=body * 2)
    (message,) = stored(topic, 1)
    own = [(name, text.encode()) for name, text in headers.items()] if type(headers) is dict else headers
    assert (message.value(), message.headers()) == (body, own)
    if around is _unsampled:
        return
    span, refused = spans.take_all(f"send {topic}")
    assert (span.attributes["mqtrace.success"], refused.attributes["error.type"]) == (True, "MSG_SIZE_TOO_LARGE")
    if "UNIQ_KEY" in (headers or ()):
        assert span.attributes["messaging.message.id"] == "order-1"
    elif "delivery_report_only_error" not in conf:
        assert span.attributes["messaging.message.id"] == f"{topic}-0@0"


def test_message_too_large_without_headers_of_ours_is_serialised_once(producer_of, spans, topic):
    sizes = []
    conf = {"message_max_bytes": 10_000, "value_serializer": lambda value, _: sizes.append(len(value)) or value}
    producer = producer_of({"propagation": False}, make_producer=SerializingProducer, **conf)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer.produce(topic, value=b"x" * 20_000, headers=[("kind", b"order")])
    assert sizes == [20_000]
    assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"


@pytest.mark.parametrize("only_errors", [False, True])
def test_message_refused_by_the_broker_is_recorded_at_its_report(producer_of, spans, kafka, topic, only_errors):
    calls = []
    producer = producer_of(delivery_report_only_error=only_errors, linger_ms=60_000)  # one request, until the flush
    producer.list_topics(topic, 10)  # a topic that is not known yet takes its messages one by one, as the flush begins
    kafka.push_request_errors(kafka.PRODUCE, 10)
    for _ in range(2):  # the client counts the offsets of a refused request from -1: the second message has one
        producer.produce(topic, b"x", on_delivery=lambda error, _: calls.append(error.name()))
    producer.flush(10)
    refused = spans.take_all(f"send {topic}")
    assert [span.attributes["error.type"] for span in refused] == calls == ["MSG_SIZE_TOO_LARGE"] * 2
    for span in refused:
        record = trace_context_of(span)
        assert (record.trace_type, record.success) == (TraceType.PUB, False)
        absent = {"messaging.kafka.offset", "mqtrace.store_time", "mqtrace.send_outcome"}
        assert absent.isdisjoint(span.attributes)


@pytest.mark.parametrize("method", ["produce", "produce_batch"])
def test_span_without_a_report_of_success_ends_at_the_flush(producer_of, spans, topic, method):
    calls = []
    producer = producer_of(delivery_report_only_error=True)
    message = b"x" if method == "produce" else [{"value": b"x"}]
    getattr(producer, method)(topic, message, on_delivery=lambda *report: calls.append(report))
    spans.assert_empty()
    assert producer.flush(10) == 0
    span = spans.take(f"send {topic}")
    assert (span.attributes["mqtrace.send_outcome"], span.attributes["mqtrace.success"]) == ("not_awaited", True)
    assert span.attributes.keys().isdisjoint({"mqtrace.store_time", "messaging.kafka.offset", "error.type"})
    assert calls == []


@pytest.mark.parametrize("callback", [None, "call"])
def test_producer_older_than_instrument_awaits_the_report_of_a_call_with_a_callback(
    instrument, producer_of, spans, topic, callback
):
    calls = []
    producer = producer_of(False, SerializingProducer, on_delivery=lambda *_: calls.append("configuration"))
    instrument()
    own = {} if callback is None else {"on_delivery": lambda *_: calls.append(callback)}
    span = _sent(producer, spans, topic, value=b"x", **own)
    assert calls == [callback or "configuration"]
    assert span.attributes.get("messaging.kafka.offset") == (None if callback is None else 0)


def test_send_without_an_acknowledgement_has_no_offset_in_either_format(producer_of, spans, topic):
    span = _sent(producer_of(acks=0), spans, topic, b"x")
    (bean,) = trace_context_of(span).beans
    assert (span.attributes["mqtrace.success"], bean.offset_msg_id) == (True, None)
    assert span.attributes.keys().isdisjoint({"messaging.kafka.offset", "mqtrace.offset_msg_id"})
    assert encode_spans([span]).errors == {}


def _explode(_error, _message):
    raise RuntimeError("mine")


@pytest.mark.parametrize("other", [{}, {"on_delivery": "on_delivery"}], ids=str)
@pytest.mark.parametrize("first", [{}, {"callback": "callback"}, {"callback": None}], ids=str)
@pytest.mark.parametrize("method", ["produce", "produce_batch"])
def test_callback_is_called_as_without_tracing(producer_of, spans, topic, method, first, other):
    def run(options):
        calls = []

        def named(name):
            return None if name is None else lambda _error, message: calls.append((name, message.value()))

        producer = producer_of(options, on_delivery=named("config"))
        given = {name: named(value) for name, value in {**first, **other}.items()}
        if method == "produce":
            producer.produce(topic, b"x", **given)
        else:
            own, alias = {"value": b"own", "callback": named("own")}, {"value": b"alias", "on_delivery": named("never")}
            producer.produce_batch(topic, [own, {"value": b"none", "callback": None}, alias], **given)
        producer.flush(10)
        return calls

    untraced = run(False)
    assert run({}) == untraced
    assert len(spans.take_all(f"send {topic}")) == (1 if method == "produce" else 3)


@pytest.mark.parametrize(
    ("callback", "error"), [(_explode, RuntimeError), (5, TypeError)], ids=["raises", "no callback"]
)
def test_exception_of_a_callback_is_raised_by_flush(producer, spans, topic, callback, error):
    producer.produce(topic, b"x", on_delivery=callback)
    with pytest.raises(error, match=r"mine|'int' object is not callable"):
        producer.flush(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


@pytest.mark.parametrize(("method", "message"), [("produce", b"x"), ("produce_batch", [{"value": b"x"}])])
def test_message_that_is_queued_when_a_signal_handler_raises_keeps_its_outcome(
    producer, interrupted, spans, topic, method, message
):
    interrupted(getattr(producer, method), topic, message)
    assert producer.flush(10) == 0
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


@pytest.mark.parametrize("headers", [None, [("DELAY", b"1")]], ids=["record", "span"])
def test_report_that_a_signal_handler_interrupts_is_counted(producer, interrupted, topic, headers, no_failures_yet):
    producer.produce(topic, b"x", headers=headers)
    interrupted(producer.flush, 10)
    assert guard.failures() == {"Delivery.settle (a signal handler raised)": 1}


@pytest.mark.parametrize(
    ("method", "args", "kwargs"),
    [
        ("produce", (), {}),
        ("produce", ("t",), {"nope": 1}),
        ("produce", ("t",), {"headers": (("a", b"1"),)}),
        ("produce", ("t",), {"headers": MappingProxyType({"a": b"1"})}),
        ("produce", (5,), {}),
        ("produce", (None,), {}),
        ("produce", ("t",), {"partition": 10**5_000}),
        ("produce_batch", ("t", [{"value": 5}]), {}),
        ("produce_batch", ("t", [{"value": b"x"}, {"key": 5}]), {}),
        ("produce_batch", ("t", [{"headers": (("a", b"1"),)}]), {}),
        ("produce_batch", ("t", [{"headers": {"a": 5}}]), {}),
        ("produce_batch", ("t", [{"timestamp": 5}]), {}),
        ("produce_batch", ("t", [{"partition": "x"}]), {}),
        ("produce_batch", ("t", [5]), {}),
        ("produce_batch", ("t", ({"value": b"x"},)), {}),
        ("produce_batch", ("t", [{}]), {"partition": "x"}),
        ("produce_batch", ("t", [{}]), {"nope": 1}),
    ],
)
def test_wrong_call_raises_the_same_error_as_without_tracing(producer_of, spans, method, args, kwargs):
    errors = []
    for options in (False, {}):
        with pytest.raises((TypeError, ValueError, NotImplementedError, OverflowError)) as raised:
            getattr(producer_of(options), method)(*args, **kwargs)
        errors.append((type(raised.value).__name__, str(raised.value)))
    assert errors[0] == errors[1]
    assert {span.attributes["error.type"] for span in spans.take_all()} <= {errors[0][0]}


def test_message_of_an_excluded_topic_is_sent_as_it_is(producer_of, spans, topic, stored):
    producer = producer_of({"topic_exclude": (topic,)})
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0
    assert stored(topic, 1)[0].headers() is None


class TestLeaving:
    def test_flush_that_times_out_leaves_the_spans_open(self, producer_of, spans, topic):
        unreachable = producer_of(bootstrap_servers="127.0.0.1:1")
        unreachable.produce(topic, b"x")
        assert unreachable.flush(0.01) > 0  # the message, and errors of the connection that the client has not reported
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

    def test_message_in_flight_at_uninstrument_ends_there_and_its_callback_is_called(self, producer, spans, topic):
        called = []

        def report(error, _message):
            called.append((error, baggage.get_baggage("order")))

        sent_from = context.attach(baggage.set_baggage("order", "1"))
        for headers in (None, [("DELAY", b"1")]):  # a record, a span
            producer.produce(topic, b"x", headers=headers, on_delivery=report)
        context.detach(sent_from)
        MqTraceInstrumentor().uninstrument()
        outcomes = [span.attributes["mqtrace.send_outcome"] for span in spans.take_all(f"send {topic}")]
        producer.flush(10)
        assert (outcomes, called) == (["not_awaited"] * 2, [(None, "1")] * 2)


def test_message_of_a_batch_has_its_offset_as_id(producer, spans, topic, tracer, stored):
    with tracer.start_as_current_span("checkout") as checkout:
        assert producer.produce_batch(topic, [{"value": b"1", "key": "k"}, {"value": "é"}, {"value": None}]) == 3
    spans.take("checkout")
    spans.assert_empty()
    producer.flush(10)
    sends = spans.take_all(f"send {topic}")
    assert [send.attributes["messaging.message.id"] for send in sends] == [f"{topic}-0@{n}" for n in range(3)]
    assert [send.attributes["messaging.message.body.size"] for send in sends] == [1, 2, 0]
    assert [send.attributes.get("messaging.kafka.message.key") for send in sends] == ["k", None, None]
    parent = checkout.get_span_context().span_id
    assert {(send.parent.span_id, send.kind) for send in sends} == {(parent, SpanKind.CLIENT)}
    assert all("messaging.batch.message_count" not in send.attributes for send in sends)
    assert [message.headers() for message in stored(topic, 3)] == [None] * 3


class TestAsTheClient:
    @pytest.mark.parametrize(
        ("bodies", "conf", "error", "count"),
        [
            ([b"1", b"x" * 2_000_000, b"2"], {}, "MSG_SIZE_TOO_LARGE", 1),
            ([b"1"] * 4, {"queue_buffering_max_messages": 2, "linger_ms": 60_000}, "_QUEUE_FULL", 2),
        ],
        ids=["too large", "full queue refuses the rest"],
    )
    def test_refused_message_has_its_error_in_dict_and_span(
        self, producer_of, spans, topic, bodies, conf, error, count
    ):
        def run(options):
            calls = []
            messages = [{"value": body, "callback": lambda *report: calls.append(report[1].value())} for body in bodies]
            producer = producer_of(options, **conf)
            queued = producer.produce_batch(topic, messages)
            refused = spans.take_all()
            producer.flush(10)
            return (queued, [repr(message.get("_error")) for message in messages], calls), refused

        untraced, _ = run(False)
        assert untraced[0] == 2
        traced, refused = run({})
        assert traced == untraced
        assert [span.attributes["error.type"] for span in refused] == [error] * count
        assert {span.status.status_code for span in refused} == {StatusCode.ERROR}
        assert [send.attributes["mqtrace.success"] for send in spans.take_all(f"send {topic}")] == [True, True]

    @pytest.mark.parametrize("make_producer", [None, SerializingProducer])
    def test_list_and_dicts_of_the_caller_are_not_changed(self, producer_of, spans, topic, make_producer):
        messages = [{"value": b"1", "callback": lambda *_: None, "_error": "old"}]
        before = [dict(message) for message in messages]
        producer = producer_of({}, make_producer)
        assert producer.produce_batch(topic, messages) == 1
        producer.flush(10)
        assert messages == before
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True

    def test_partition_of_a_message_is_ignored_as_without_tracing(self, producer, kafka, spans):
        kafka.create_topic(name := "batch-partitions", partitions=3)
        producer.produce_batch(name, [{"value": b"1", "partition": 0}, {"value": b"2"}], partition=2)
        producer.flush(10)
        sends = spans.take_all(f"send {name}")
        assert [send.attributes["messaging.destination.partition.id"] for send in sends] == ["2", "2"]

    def test_closed_producer_refuses_a_batch(self, producer, spans, topic):
        producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce_batch(topic, [{"value": b"1"}])
        assert spans.take(f"send {topic}").attributes["error.type"] == "RuntimeError"


def test_suppressed_or_unsampled_batch_has_no_span(producer, spans, topic, stored):
    with suppress_instrumentation():
        assert producer.produce_batch(topic, [{"value": b"1"}]) == 1
    with _unsampled():
        assert producer.produce_batch(topic, [{"value": b"2"}]) == 1
    assert producer.produce_batch(topic, []) == 0
    producer.flush(10)
    assert [message.headers() for message in stored(topic, 2)] == [None, None]


def test_exception_of_ours_loses_no_message_of_a_batch(producer, spans, topic, stored, no_failures_yet, monkeypatch):
    monkeypatch.setattr(producer._mqtrace_state, "bind", Mock(side_effect=ZeroDivisionError))
    assert producer.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}]) == 2
    producer.flush(10)
    assert [message.value() for message in stored(topic, 2)] == [b"1", b"2"]
    assert spans.take_all() == []
    assert guard.failures() == {"produce_batch.plan": 1}
