"""What a message that came in says of itself: told by the client, else by its headers; on the span, else on its link."""

from __future__ import annotations

import pytest

from otel_mqtrace import ConsumeHook
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import MessageType
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.mailbox import SENDER, TRACEPARENT

HEADERS = (("UNIQ_KEY", b"FROM-HEADER"), ("TAGS", b"paid"), ("KEYS", b"k1 k2"), ("RECONSUME_TIME", b"3"), TRACEPARENT)


@pytest.fixture
def processed(tracing_with, exporter):
    def run(*messages, batch=False, info=None, **settings):
        hook = ConsumeHook(tracing=tracing_with(**settings), info=info or ClientInfo(group_name="billing"))
        (call,) = hook.before(messages, batch=batch)
        hook.after(call)
        return exporter.take()

    return run


def _message(**said):
    return IncomingMessage(**{"topic": "orders", "partition": 0, "offset": 7, **said})


def test_headers_tell_what_the_client_does_not(processed):
    """RocketMQ's property names."""
    (bean,) = trace_context_of(processed(_message(headers=HEADERS))).beans
    assert (bean.msg_id, bean.tags, bean.keys, bean.retry_times) == ("FROM-HEADER", "paid", "k1 k2", 3)


def test_what_the_client_tells_wins_over_headers(processed):
    message = _message(
        headers=(*HEADERS, ("DELAY", b"1")), msg_id="TOLD", tags="due", keys=["a", "b"], retry_times=1,
        msg_type=MessageType.ORDER,
    )  # fmt: skip
    (bean,) = trace_context_of(processed(message)).beans
    assert (bean.msg_id, bean.tags, bean.keys, bean.retry_times) == ("TOLD", "due", "a b", 1)
    assert bean.msg_type is MessageType.ORDER


def test_a_first_delivery_told_by_the_client_is_no_retry(processed):
    assert processed(_message(headers=HEADERS, retry_times=0)).attributes["mqtrace.retry_times"] == 0


@pytest.mark.parametrize(("retries", "said"), [(-1, 0), (2**31 - 1, 2**31 - 1), (2**31, 0)])
def test_a_count_that_is_no_32_bit_number_counts_as_none(processed, retries, said):
    assert processed(_message(retry_times=retries)).attributes["mqtrace.retry_times"] == said


def test_the_retry_header_is_a_setting(processed):
    message = _message(headers=(("RECONSUME_TIME", b"3"), ("x-attempt", b"5")))
    assert processed(message, retry_header="x-attempt").attributes["mqtrace.retry_times"] == 5


def test_a_message_without_an_id_goes_by_its_place(processed):
    """As RocketMQ's getMsgId() does; and without a place it has none."""
    assert processed(_message()).attributes["messaging.message.id"] == "orders-0@7"
    assert "messaging.message.id" not in processed(_message(offset=None)).attributes


def test_kafka_s_names_are_all_there(processed):
    said = processed(_message(key="k", tombstone=True, cluster_id="lkc-1")).attributes
    assert said["messaging.kafka.cluster.id"] == "lkc-1"
    assert said["messaging.kafka.message.key"] == "k"
    assert said["messaging.kafka.message.tombstone"] is True
    assert said["messaging.kafka.offset"] == 7
    assert not [name for name in said if name.startswith("messaging.rocketmq")]


def test_a_rocketmq_message_has_the_registry_s_names_beside_ours(processed):
    info = ClientInfo(system="rocketmq", group_name="billing", namespace="shop", consumption_model="clustering")
    message = _message(tags="due", keys=["a"], msg_type=MessageType.ORDER, message_group="g1", key=b"k")
    span = processed(message, info=info)
    said = span.attributes
    assert said["messaging.rocketmq.message.tag"] == "due" == said["mqtrace.tags"]
    assert said["messaging.rocketmq.message.keys"] == ("a",)
    assert said["messaging.rocketmq.message.type"] == "fifo"
    assert said["messaging.rocketmq.message.group"] == "g1"
    assert said["messaging.rocketmq.namespace"] == "shop"
    assert said["messaging.rocketmq.consumption_model"] == "clustering"
    assert said["messaging.consumer.group.name"] == "billing"
    assert not [name for name in said if name.startswith("messaging.kafka")]
    assert trace_context_of(span).beans[0].msg_type is MessageType.ORDER


def test_captured_headers_stand_where_their_message_does(processed):
    messages = [_message(offset=n, headers=(("tenant", f"t{n}".encode()), ("token", b"s"))) for n in range(2)]
    one = processed(messages[0], capture_headers=("tenant", "token"))
    assert one.attributes["messaging.header.tenant"] == ("t0",)
    several = processed(*messages, batch=True, capture_headers=("tenant", "token"))
    assert several.attributes["messaging.header.token"] == ("REDACTED",)
    assert [link.attributes["messaging.header.tenant"] for link in several.links] == [("t0",), ("t1",)]


@pytest.mark.parametrize("count", [1, 2])
def test_offset_and_key_never_stand_on_the_span_of_a_batch(processed, count):
    messages = [_message(partition=n, key=b"k", headers=HEADERS) for n in range(count)]
    span = processed(*messages, batch=True)
    assert not {"messaging.kafka.offset", "messaging.kafka.message.key"} & set(span.attributes)
    assert [link.attributes["messaging.kafka.offset"] for link in span.links] == [7] * count
    assert {link.context.span_id for link in span.links} == {SENDER}


@pytest.mark.parametrize("process_context", ["auto", "link", "parent", "both"])
@pytest.mark.parametrize("headers", [(), HEADERS], ids=["stranger", "traced"])
def test_a_batch_of_one_is_the_same_trace_record_as_one(processed, headers, process_context):
    one = trace_context_of(processed(_message(headers=headers, key=b"k"), process_context=process_context))
    batch = trace_context_of(
        processed(_message(headers=headers, key=b"k"), batch=True, process_context=process_context)
    )
    assert batch.beans == one.beans
