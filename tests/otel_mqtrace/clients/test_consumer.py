"""A traced consumer of confluent-kafka: attributes, batches, when automatic mode begins and ends a message."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import DeserializingConsumer, KafkaError, Message, TopicPartition
from confluent_kafka.error import ConsumeError, ValueDeserializationError
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace import process
from otel_mqtrace.clients.confluent_kafka.client import active, registry
from otel_mqtrace.clients.state import known_state
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.sampling import actual_tracer
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.message_id import read_unique_id
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import ManualClock
from tests.support.consuming import code_of, consume, current_span_id, in_thread, poll
from tests.support.mailbox import SENDER, TRACEPARENT
from tests.support.shown import shown

STORED_MS = 1_790_000_000_000
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0}


def test_handled_message_has_every_field_of_the_table(consuming, spans, kafka, topic):
    headers = [TRACEPARENT, ("UNIQ_KEY", "ID1"), ("TAGS", "paid"), ("KEYS", "a b"), ("RECONSUME_TIME", "2")]
    full = {"value": b"xyz", "key": b"k", "headers": headers, "timestamp": STORED_MS}
    conf = {"client_id": "till"}
    consumer = consuming(full, {"value": None}, conf=conf, region_id="eu", region_name="Europe")
    leaders = known_state(consumer).leaders
    leaders.settle(20)
    for _ in range(2):
        poll(consumer)
    consumer.close()
    span, tombstone = spans.take_all(f"process {topic}")
    attributes = dict(span.attributes)
    assert attributes.pop("mqtrace.client_host").count(".") == 3
    assert attributes.pop("mqtrace.cost_time") == span.end_time // 10**6 - span.start_time // 10**6
    assert read_unique_id(attributes.pop("mqtrace.request_id"))
    host, port = kafka.bootstrap_servers.split(":")
    assert attributes == {
        "messaging.system": "kafka",
        "messaging.client.id": "till",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "billing",
        "messaging.kafka.cluster.id": leaders.cluster_id,
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k",
        "messaging.message.id": "ID1",
        "messaging.message.body.size": 3,
        "server.address": host,
        "server.port": int(port),
        "mqtrace.trace_type": "Sub",
        "mqtrace.group_name": "billing",
        "mqtrace.region_id": "eu",
        "mqtrace.region_name": "Europe",
        "mqtrace.offset_msg_id": f"{topic}-0@0",
        "mqtrace.store_host": kafka.bootstrap_servers,
        "mqtrace.store_time": STORED_MS,
        "mqtrace.tags": "paid",
        "mqtrace.keys": ("a", "b"),
        "mqtrace.retry_times": 2,
        "mqtrace.msg_type": "Normal_Msg",
        "mqtrace.success": True,
        "mqtrace.context_code": "SUCCESS",
    }
    assert (span.kind, span.parent.span_id) == (SpanKind.CONSUMER, SENDER)
    assert tombstone.attributes["messaging.kafka.message.tombstone"] is True


def test_message_is_current_until_the_next_poll(consuming, spans):
    consumer = consuming()
    poll(consumer)
    current = current_span_id()
    assert process.current() is process.current()
    spans.assert_empty()
    assert consumer.poll(0) is None
    assert current_span_id() == 0
    assert spans.take().context.span_id == current


def test_offset_that_is_read_again_has_a_span_for_each_attempt(consuming, spans, topic):
    consumer = consuming()
    failed = poll(consumer)
    process.failed()
    consumer.seek(TopicPartition(topic, failed.partition(), failed.offset()))
    poll(consumer)
    consumer.close()
    attempts = spans.take_all(f"process {topic}")
    assert [code_of(each) for each in attempts] == [ContextCode.FAILED, ContextCode.SUCCESS]
    assert {each.attributes["messaging.kafka.offset"] for each in attempts} == {0}


def test_batch_is_one_span_with_a_link_for_each_message(consuming, spans, topic):
    consumer = consuming(*({"value": b"x", "headers": [TRACEPARENT, ("UNIQ_KEY", f"ID{n}")]} for n in range(3)))
    consume(consumer, 3)
    consumer.close()
    span = spans.take()
    assert (span.attributes["messaging.batch.message_count"], span.parent) == (3, None)
    assert [link.attributes["messaging.message.id"] for link in span.links] == ["ID0", "ID1", "ID2"]
    assert [link.context.span_id for link in span.links] == [SENDER] * 3
    assert [bean.offset_msg_id for bean in trace_context_of(span).beans] == [f"{topic}-0@{n}" for n in range(3)]


@pytest.mark.parametrize("leave", ["close", "with"])
def test_exception_that_closes_the_consumer_fails_the_message(consuming, spans, leave):
    """The C code of ``__exit__`` does not call ``close``."""
    consumer = consuming()
    with pytest.raises(RuntimeError), closing(consumer) if leave == "close" else consumer:  # noqa: PT012 - a handler
        poll(consumer)
        raise RuntimeError("handler")
    span = spans.take()
    assert (code_of(span), span.status.status_code) == (ContextCode.EXCEPTION, StatusCode.ERROR)
    assert span.attributes["error.type"] == "RuntimeError"


def test_with_that_ends_well_in_the_handler_of_an_earlier_exception_is_a_success(consuming, spans):
    try:
        int("x")
    except ValueError:
        with consuming() as consumer:
            poll(consumer)
    assert code_of(spans.take()) is ContextCode.SUCCESS


def test_message_its_deserializer_refuses_has_failed(consuming, spans):
    refusing = {"value.deserializer": Mock(side_effect=ValueError)}
    consumer = consuming(conf={"make_consumer": lambda conf: DeserializingConsumer({**conf, **refusing})})
    with pytest.raises(ValueDeserializationError):
        poll(consumer)
    span = spans.take()
    assert (code_of(span), span.attributes["error.type"]) == (ContextCode.EXCEPTION, "_VALUE_DESERIALIZATION")


@pytest.mark.parametrize("interrupted", [True, False])
def test_poll_that_is_interrupted_or_returns_another_object_is_not_recorded(instrument, spans, interrupted):
    class Odd(confluent_kafka.Consumer):
        def poll(self, *_args):
            if interrupted:
                raise KeyboardInterrupt
            return Mock()

    instrument(receive_spans=interrupted)
    with Odd(NOWHERE) as consumer, pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        assert isinstance(consumer.poll(1), Mock)
    spans.assert_empty()


@pytest.mark.parametrize("kind", ["Producer", "Consumer"])
def test_client_and_instrumentor_show_neither_a_password_nor_a_secret_key(instrument, instrumentor, kind):
    instrument(rocketmq_secret_key="open-sesame", kafka_config={"sasl.password": "open-sesame"})
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ali"}
    client = getattr(confluent_kafka, kind)({**NOWHERE, **login, "sasl.password": "open-sesame"})
    seen = shown([client, instrumentor])
    assert "Leaders object" in seen
    assert "127.0.0.1" in seen
    assert "open-sesame" not in seen


def test_batch_is_recorded_whole_once_the_sampler_drops_less(consuming, spans):
    consumer = consuming(*[b"xx"] * 6)
    tracer = actual_tracer(active.tracing.tracer)
    for sampler in (ALWAYS_OFF, ALWAYS_OFF, ALWAYS_ON):
        tracer.sampler = sampler
        consume(consumer, 2)
    consumer.close()
    (span,) = spans.take_all()
    assert [bean.body_length for bean in trace_context_of(span).beans] == [2, 2]


class TestThreads:
    def test_concurrent_polls_lose_no_span(self, instrument, spans):
        instrument()
        with Meeting(NOWHERE) as consumer:
            with ThreadPoolExecutor(2) as pool:
                polled = [pool.submit(consumer.poll) for _ in range(2)]
            assert {each.result().offset() for each in polled} == {0, 1}
        assert {span.attributes["messaging.kafka.offset"] for span in spans.take_all()} == {0, 1}

    @pytest.mark.parametrize("elsewhere", [True, False])
    def test_uninstrument_ends_the_current_message(self, consuming, spans, elsewhere):
        poll(consumer := consuming(b"1", b"2"))
        assert len(registry) > 0
        off = MqTraceInstrumentor().uninstrument
        in_thread(off) if elsewhere else off()
        assert len(registry) == 0
        assert code_of(spans.take()) is ContextCode.RETURNNULL
        assert poll(consumer).value() == b"2"
        assert current_span_id() == 0


@pytest.mark.parametrize("options", [{}, {"receive_spans": True, "empty_poll_spans": True}], ids=["", "polls"])
@pytest.mark.parametrize("method", ["on_start", "on_end"])
def test_kafka_error_that_a_span_processor_raises_reaches_no_call_and_costs_no_message(
    instrument, kafka, spans, topic, consumer_of, no_failures_yet, method, options
):
    def fail(*_given, **_named):
        raise KafkaError(KafkaError._FAIL)

    instrument(**options).add_span_processor(type("Failing", (SpanProcessor,), {method: fail})())
    producer, reports = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers}), []
    for value in (b"1", b"2"):
        producer.produce(topic, value, partition=0, on_delivery=lambda error, message: reports.append(message.value()))
        assert producer.flush(10) == 0
    consumer = consumer_of(topic)
    received = [poll(consumer).value(), consume(consumer, 1)[0].value()]
    assert (consumer.poll(0), consumer.consume(1, 0)) == (None, [])
    consumer.close()
    assert received == reports == [b"1", b"2"]
    assert guard.failures()
    spans.take_all()


class TestWhatIsNoMessage:
    @pytest.mark.parametrize("configured", [False, True])
    def test_empty_poll_is_recorded_if_configured(self, instrument, spans, consumer_of, topic, configured):
        instrument(receive_spans=True, empty_poll_spans=configured)
        consumer = consumer_of(topic)
        assert (consumer.poll(0), consumer.consume(5, 0)) == (None, [])
        counts = [span.attributes.get("messaging.batch.message_count") for span in spans.take_all("poll")]
        assert counts == ([None, 0] if configured else [])

    @pytest.mark.parametrize("make_consumer", [None, DeserializingConsumer])
    def test_end_of_a_partition_has_no_span(self, instrument, spans, consumer_of, topic, make_consumer):
        instrument(receive_spans=True)
        consumer = consumer_of(topic, make_consumer=make_consumer, enable_partition_eof=True)
        with pytest.raises(ConsumeError) if make_consumer else nullcontext():
            assert poll(consumer).error() is not None
        spans.assert_empty()

    @pytest.mark.parametrize(
        ("codes", "error"),
        [
            ((KafkaError._PARTITION_EOF, KafkaError.TOPIC_AUTHORIZATION_FAILED), "TOPIC_AUTHORIZATION_FAILED"),
            ((KafkaError._PARTITION_EOF, KafkaError._PARTITION_EOF), None),
        ],
        ids=["failed", "empty"],
    )
    def test_ends_of_partitions_hide_no_error_and_are_an_empty_poll(self, instrument, short_lived, spans, codes, error):
        batch = [Message(topic="orders", partition=0, offset=1, error=KafkaError(code)) for code in codes]
        make_consumer = short_lived("Scripted", confluent_kafka.Consumer, consume=lambda *_: batch)
        instrument(receive_spans=True, empty_poll_spans=True)
        with make_consumer(NOWHERE) as consumer:
            assert consumer.consume(2) == batch
        assert spans.take("poll").attributes.get("error.type") == error

    def test_batch_with_the_end_of_a_partition_records_its_messages(self, consuming, spans, topic):
        consumer = consuming(b"1", b"2", conf={"enable_partition_eof": True}, receive_spans=True)
        batch = consumer.consume(3, 10)
        consumer.close()
        assert [each.error() is None for each in batch] == [True, True, False]
        assert len(spans.take(f"poll {topic}").links) == 2
        assert spans.take(f"process {topic}").attributes["messaging.batch.message_count"] == 2


def test_rebalance_callback_has_no_current_message(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"1"})
    instrument(receive_spans=True)
    seen = []
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(conf)

    def note(*_):
        seen.append(current_span_id())

    consumer.subscribe([topic], on_assign=note, on_revoke=note)
    poll(consumer)
    consumer.unsubscribe()
    consumer.poll(1)
    consumer.close()
    assert seen == [0, 0]
    assert len(spans.take_all()) == 2


def _ready(offset):
    return Message(topic="orders", partition=0, offset=offset, value=b"x", timestamp=(1, 5))


class Composed(confluent_kafka.Consumer):
    """A consumer of the application's own: its consume() is made of polls, its stream() yields them."""

    clock = ManualClock()
    offset = 0

    def poll(self, timeout=-1):
        self.clock.advance(ms=1000)
        self.offset += 1
        return _ready(self.offset - 1)

    def consume(self, num_messages=1, timeout=-1):
        return [self.poll(timeout) for _ in range(num_messages)]


class Endless(Composed):
    def consume(self, num_messages=1, timeout=-1):
        while True:
            yield self.poll(timeout)


class Meeting(confluent_kafka.Consumer):
    """A consumer whose poll returns when two threads are in it."""

    def __init__(self, conf):
        super().__init__(conf)
        self._both_inside = threading.Barrier(2, timeout=20)

    def poll(self, timeout=-1):
        return _ready(self._both_inside.wait())


@pytest.mark.parametrize("method", ["poll", "consume"])
def test_poll_that_waits_while_tracing_is_switched_off_opens_no_span(instrument, short_lived, spans, method):
    make = short_lived("SwitchedOff", Composed, poll=lambda *_: MqTraceInstrumentor().uninstrument() or _ready(0))
    instrument()
    with make(NOWHERE) as consumer:
        assert getattr(consumer, method)()
        assert current_span_id() == 0
    spans.assert_empty()


class TestSubclasses:
    def test_consume_made_of_polls_is_one_batch(self, instrument, spans):
        instrument()
        with Composed(NOWHERE) as consumer:
            assert len(consumer.consume(3)) == 3
        assert spans.take("process orders").attributes["messaging.batch.message_count"] == 3

    def test_consume_that_yields_leaves_the_spans_to_poll(self, instrument, spans):
        instrument()
        with Composed(NOWHERE), Endless(NOWHERE) as consumer:
            stream = consumer.consume()
            seen = [next(stream).offset() for _ in range(2)]
        assert seen == [0, 1]
        assert [span.attributes["messaging.kafka.offset"] for span in spans.take_all()] == [0, 1]

    def test_receive_span_has_the_times_of_the_poll(self, instrument, spans):
        instrument(receive_spans=True, clock=Composed.clock)
        began = Composed.clock.wall_ns()
        with Composed(NOWHERE) as consumer:
            consumer.poll()
        span = spans.take("poll orders")
        assert (span.start_time - began, span.end_time - began) == (0, 1_000_000_000)
        spans.take("process orders")

    def test_message_changed_by_the_handler_is_found_in_another_thread(self, instrument, spans):
        instrument()
        with Composed(NOWHERE) as consumer:
            message = consumer.poll()
            automatic = current_span_id()
            message.set_value({"decoded": True})
            message.set_key(7)
            message.set_headers([("a", b"b")])

            def handle():
                with process(message):
                    return current_span_id()

            assert in_thread(handle) == automatic
        assert (spans.take("process orders").context.span_id, current_span_id()) == (automatic, 0)
