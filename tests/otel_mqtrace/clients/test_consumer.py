"""A traced consumer of confluent-kafka: context, batches, receive spans, and how processing ends."""

import gc
import threading
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import DeserializingConsumer, TopicPartition, cimpl
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.clients.confluent_kafka.messages import error_type
from otel_mqtrace.clients.confluent_kafka.state import active
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.hooks.sampling import actual_tracer
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import consume, current_span_id, poll
from tests.support.shown import shown
from tests.support.unique_ids import read_unique_id

PARENT = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
PARENT_TRACE, PARENT_SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def test_a_message_is_in_process_until_the_next_poll(instrument, spans, fill, consumer_of, topic):
    fill(
        topic,
        {
            "value": b"xyz",
            "key": b"k",
            "headers": [PARENT, ("UNIQ_KEY", "ID1"), ("KEYS", "a b"), ("RECONSUME_TIME", "2")],
        },
    )
    instrument(region_id="eu", region_name="Europe")
    consumer = consumer_of(topic)
    poll(consumer)
    current = current_span_id()
    spans.assert_empty()
    assert consumer.poll(0) is None
    assert not trace.get_current_span().get_span_context().is_valid
    span = spans.take(f"process {topic}")
    assert (span.context.span_id, span.kind) == (current, SpanKind.CONSUMER)
    record = trace_context_of(span)
    assert record.trace_type is TraceType.SUB_AFTER
    assert (record.group_name, record.region_id, record.region_name) == ("billing", "eu", "Europe")
    assert (record.success, record.context_code) == (True, ContextCode.SUCCESS)
    assert read_unique_id(record.request_id)
    (bean,) = record.beans
    assert (bean.topic, bean.msg_id, bean.keys, bean.retry_times, bean.body_length) == (topic, "ID1", "a b", 2, 3)
    assert bean.offset_msg_id == f"{topic}-0@0"
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert span.attributes["messaging.kafka.offset"] == 0
    assert "messaging.batch.message_count" not in span.attributes


def test_a_tombstone_is_a_message(instrument, spans, fill, consumer_of, topic):
    fill(topic, {"value": None, "key": b"k"})
    instrument()
    poll(consumer := consumer_of(topic))
    consumer.close()
    assert spans.take(f"process {topic}").attributes["messaging.kafka.message.tombstone"] is True


def test_ends_of_partitions_and_empty_polls_are_no_messages(instrument, spans, consumer_of, topic):
    instrument(receive_spans=True)
    consumer = consumer_of(topic, enable_partition_eof=True)
    assert poll(consumer).error() is not None
    assert consumer.poll(0) is None
    assert consumer.consume(5, 0) == []


class TestContext:
    @pytest.mark.parametrize(
        ("mode", "ambient", "parent", "links"),
        [
            ("auto", False, "sender", {PARENT_SPAN}),
            ("auto", True, "here", {PARENT_SPAN}),
            ("link", False, None, {PARENT_SPAN}),
            ("link", True, "here", {PARENT_SPAN}),
            ("parent", False, "sender", set()),
            ("parent", True, "sender", {"here"}),
            ("both", False, "sender", {PARENT_SPAN}),
            ("both", True, "sender", {PARENT_SPAN, "here"}),
        ],
    )
    def test_parent_and_links_follow_the_option(
        self, instrument, tracer, spans, fill, consumer_of, topic, mode, ambient, parent, links
    ):
        fill(topic, {"value": b"x", "headers": [PARENT]})
        instrument(process_context=mode)
        consumer = consumer_of(topic)
        here = tracer.start_span("here")
        with trace.use_span(here if ambient else trace.INVALID_SPAN):
            poll(consumer)
            consumer.close()
        here.end()
        span = spans.take(f"process {topic}")
        spans.take("here")
        named = {PARENT_SPAN: "sender", here.get_span_context().span_id: "here"}
        assert (None if span.parent is None else named[span.parent.span_id]) == parent
        wanted = {here.get_span_context().span_id if link == "here" else link for link in links}
        assert {link.context.span_id for link in span.links} == wanted

    def test_the_last_of_several_trace_headers_counts(self, instrument, spans, fill, consumer_of, topic):
        stale = (PARENT[0], PARENT[1].replace("b7ad6b7169203331", "00f067aa0ba902b7"))
        fill(topic, {"value": b"x", "headers": [stale, PARENT]})
        instrument()
        poll(consumer := consumer_of(topic))
        consumer.close()
        assert spans.take().parent.span_id == PARENT_SPAN


def _linked_fill(fill, topic, count):
    fill(topic, *({"value": b"x" * n, "headers": [PARENT, ("UNIQ_KEY", f"ID{n}")]} for n in range(count)))


class TestBatches:
    def test_a_batch_is_one_span_with_a_link_per_message(self, instrument, spans, fill, consumer_of, topic):
        _linked_fill(fill, topic, 3)
        instrument()
        consume(consumer := consumer_of(topic), 3)
        consumer.close()
        span = spans.take()
        assert span.attributes["messaging.batch.message_count"] == 3
        assert span.parent is None
        assert [link.attributes["messaging.message.id"] for link in span.links] == ["ID0", "ID1", "ID2"]
        assert [link.context.span_id for link in span.links] == [PARENT_SPAN] * 3
        assert [bean.offset_msg_id for bean in trace_context_of(span).beans] == [f"{topic}-0@{n}" for n in range(3)]


class TestReceiveSpans:
    def test_a_poll_that_returned_something_is_a_client_span(self, instrument, spans, fill, consumer_of, topic):
        fill(topic, {"value": b"x", "headers": [PARENT]})
        instrument(receive_spans=True)
        poll(consumer := consumer_of(topic))
        consumer.close()
        span = spans.take(f"poll {topic}")
        assert span.kind is SpanKind.CLIENT
        assert span.attributes["messaging.operation.type"] == "receive"
        assert span.links[0].context.span_id == PARENT_SPAN
        assert trace_context_of(span) is None
        spans.take(f"process {topic}")


class TestHowItEnds:
    def test_exception_that_closes_the_consumer_fails_the_message(self, instrument, spans, fill, consumer_of, topic):
        fill(topic, {"value": b"x"})
        instrument()
        consumer = consumer_of(topic)

        def work():
            try:
                poll(consumer)
                raise RuntimeError("handler")
            finally:
                consumer.close()

        with pytest.raises(RuntimeError):
            work()
        span = spans.take()
        assert trace_context_of(span).context_code is ContextCode.EXCEPTION
        assert span.status.status_code is StatusCode.ERROR

    def test_exception_in_a_consumer_context_manager_fails_the_message(self, instrument, kafka, spans, fill, topic):
        """The C __exit__ closes without calling close()."""
        fill(topic, {"value": b"x"})
        instrument()
        conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}

        def work():
            with confluent_kafka.Consumer(conf) as consumer:
                consumer.assign([TopicPartition(topic, 0, 0)])
                poll(consumer)
                raise RuntimeError("handler")

        with pytest.raises(RuntimeError):
            work()
        assert spans.take().attributes["error.type"] == "RuntimeError"

    def test_a_consumer_that_is_collected_ends_its_span(self, instrument, kafka, spans, fill, topic):
        fill(topic, {"value": b"x"})
        instrument()
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        poll(consumer)
        del consumer
        gc.collect()
        drain_deferred_ends()
        assert trace_context_of(spans.take()).context_code is ContextCode.RETURNNULL

    def test_closing_from_another_thread_leaves_nothing_behind(
        self, instrument, spans, fill, consumer_of, topic, caplog
    ):
        fill(topic, {"value": b"x"})
        instrument()
        consumer = consumer_of(topic)
        poll(consumer)
        thread = threading.Thread(target=consumer.close)
        thread.start()
        thread.join()
        spans.take()
        with pytest.raises(RuntimeError):
            consumer.poll(0)
        assert not trace.get_current_span().get_span_context().is_valid
        assert [message for message in caplog.messages if "detach" in message] == []

    def test_a_message_its_deserialiser_refuses_is_recorded(self, instrument, spans, fill, consumer_of, topic):
        fill(topic, {"value": b"x"})
        instrument()

        def refuse(value, ctx):
            raise ValueError("not mine")

        consumer = consumer_of(
            topic, make_consumer=lambda conf: DeserializingConsumer({**conf, "value.deserializer": refuse})
        )
        with pytest.raises(confluent_kafka.error.ValueDeserializationError):
            poll(consumer)
        span = spans.take()
        assert trace_context_of(span).context_code is ContextCode.EXCEPTION
        assert span.attributes["error.type"] == "_VALUE_DESERIALIZATION"


def test_an_interruption_is_no_failed_poll(instrument, spans):
    class Interrupted(confluent_kafka.Consumer):
        def poll(self, timeout=-1):
            raise KeyboardInterrupt

    instrument(receive_spans=True)
    with pytest.raises(KeyboardInterrupt):
        Interrupted({"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0}).poll()
    spans.assert_empty()


class Pretending(cimpl.Consumer):
    """An application's consumer whose poll hands over what its test wants."""

    def poll(self, *_args):
        return Mock()


def test_a_pretended_message_passes_through_unchanged(instrument, spans):
    instrument()
    consumer = Pretending({"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0})
    assert isinstance(consumer.poll(1), Mock)
    consumer.close()


@pytest.mark.parametrize(("failure", "name"), [(Mock(), "Mock"), (BufferError("full"), "_QUEUE_FULL"), (5, "int")])
def test_whatever_is_no_failure_is_named_by_its_class(failure, name):
    assert error_type(failure) == name


_PASSWORD = "open-sesame"
_CONF = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ali",
    "sasl.password": _PASSWORD,
    "log_level": 0,
}


@pytest.mark.parametrize(("kind", "more"), [("Producer", {}), ("Consumer", {"group.id": "billing"})])
def test_a_client_does_not_show_its_password(instrument, kind, more):
    instrument()
    client = getattr(confluent_kafka, kind)({**_CONF, **more})
    seen = shown(client)
    assert "Leaders object" in seen
    assert "127.0.0.1" in seen
    assert _PASSWORD not in seen


def test_batch_is_recorded_whole_once_the_sampler_drops_no_longer_all(instrument, spans, fill, consumer_of, topic):
    fill(topic, *({"value": b"xx"} for _ in range(6)))
    instrument()
    consumer = consumer_of(topic)
    tracer = actual_tracer(active.tracing.tracer)
    for sampler in (ALWAYS_OFF, ALWAYS_OFF, ALWAYS_ON):
        tracer.sampler = sampler
        consume(consumer, 2)
    consumer.close()
    (span,) = spans.take_all()
    assert [bean.body_length for bean in trace_context_of(span).beans] == [2, 2]
