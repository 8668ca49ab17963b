"""A traced consumer of confluent-kafka: attributes, batches, and how processing ends."""

import threading
from contextlib import closing
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import DeserializingConsumer, cimpl
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.clients.confluent_kafka.messages import error_type
from otel_mqtrace.clients.confluent_kafka.state import active
from otel_mqtrace.clients.state import known_state
from otel_mqtrace.hooks.sampling import actual_tracer
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import code_of, consume, current_span_id, poll
from tests.support.shown import shown
from tests.support.unique_ids import read_unique_id

PARENT = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
PARENT_SPAN = 0xB7AD6B7169203331
STORED_MS = 1_790_000_000_000


def test_handled_message_has_every_field_of_the_table(consuming, spans, kafka, topic):
    headers = [PARENT, ("UNIQ_KEY", "ID1"), ("TAGS", "paid"), ("KEYS", "a b"), ("RECONSUME_TIME", "2")]
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
    assert (span.kind, span.parent.span_id) == (SpanKind.CONSUMER, PARENT_SPAN)
    assert tombstone.attributes["messaging.kafka.message.tombstone"] is True


def test_message_is_current_until_the_next_poll(consuming, spans):
    consumer = consuming()
    poll(consumer)
    current = current_span_id()
    spans.assert_empty()
    assert consumer.poll(0) is None
    assert current_span_id() == 0
    assert spans.take().context.span_id == current


def test_end_of_a_partition_and_empty_poll_have_no_span(instrument, spans, consumer_of, topic):
    instrument(receive_spans=True)
    consumer = consumer_of(topic, enable_partition_eof=True)
    assert poll(consumer).error() is not None
    assert consumer.poll(0) is None
    assert consumer.consume(5, 0) == []


def test_batch_is_one_span_with_a_link_for_each_message(consuming, spans, topic):
    consumer = consuming(*({"value": b"x", "headers": [PARENT, ("UNIQ_KEY", f"ID{n}")]} for n in range(3)))
    consume(consumer, 3)
    consumer.close()
    span = spans.take()
    assert (span.attributes["messaging.batch.message_count"], span.parent) == (3, None)
    assert [link.attributes["messaging.message.id"] for link in span.links] == ["ID0", "ID1", "ID2"]
    assert [link.context.span_id for link in span.links] == [PARENT_SPAN] * 3
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


def test_close_in_another_thread_leaves_no_current_span(consuming, spans, caplog):
    consumer = consuming()
    poll(consumer)
    thread = threading.Thread(target=consumer.close)
    thread.start()
    thread.join()
    spans.take()
    with pytest.raises(RuntimeError):
        consumer.poll(0)
    assert not trace.get_current_span().get_span_context().is_valid
    assert [message for message in caplog.messages if "detach" in message] == []


def test_message_its_deserializer_refuses_is_recorded(consuming, spans):
    def refuse(value, ctx):
        raise ValueError("not mine")

    def make(conf):
        return DeserializingConsumer({**conf, "value.deserializer": refuse})

    consumer = consuming(conf={"make_consumer": make})
    with pytest.raises(confluent_kafka.error.ValueDeserializationError):
        poll(consumer)
    span = spans.take()
    assert (code_of(span), span.attributes["error.type"]) == (ContextCode.EXCEPTION, "_VALUE_DESERIALIZATION")


def test_interrupted_poll_is_not_recorded(instrument, spans):
    class Interrupted(confluent_kafka.Consumer):
        def poll(self, timeout=-1):
            raise KeyboardInterrupt

    instrument(receive_spans=True)
    with pytest.raises(KeyboardInterrupt):
        Interrupted({"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0}).poll()
    spans.assert_empty()


def test_message_of_another_class_is_returned_unchanged(instrument, spans):
    class Pretending(cimpl.Consumer):
        def poll(self, *_args):
            return Mock()

    instrument()
    with Pretending({"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0}) as consumer:
        assert isinstance(consumer.poll(1), Mock)


@pytest.mark.parametrize(("failure", "name"), [(Mock(), "Mock"), (BufferError("full"), "_QUEUE_FULL"), (5, "int")])
def test_error_type_of_another_object_is_its_class(failure, name):
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
def test_client_does_not_show_its_password(instrument, kind, more):
    instrument()
    client = getattr(confluent_kafka, kind)({**_CONF, **more})
    seen = shown(client)
    assert "Leaders object" in seen
    assert "127.0.0.1" in seen
    assert _PASSWORD not in seen


def test_batch_is_recorded_whole_once_the_sampler_drops_less(consuming, spans):
    consumer = consuming(*[b"xx"] * 6)
    tracer = actual_tracer(active.tracing.tracer)
    for sampler in (ALWAYS_OFF, ALWAYS_OFF, ALWAYS_ON):
        tracer.sampler = sampler
        consume(consumer, 2)
    consumer.close()
    (span,) = spans.take_all()
    assert [bean.body_length for bean in trace_context_of(span).beans] == [2, 2]
