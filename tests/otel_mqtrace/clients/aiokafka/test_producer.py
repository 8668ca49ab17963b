"""A traced aiokafka producer: sends and batches, their answers, their headers."""

import asyncio
import gc
import json

import aiokafka
import pytest
import wrapt
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError, TopicAuthorizationFailedError
from aiokafka.producer.message_accumulator import BatchBuilder
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.client_properties import application_kafka_config
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import AioKafkaInstrumentor, MqTraceInstrumentor
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.asyncio_kafka import consuming, producing
from tests.support.consuming import let_others_run

TOPIC_AUTHORIZATION_FAILED = 29


async def test_span_ends_with_the_future_of_the_send(sending, spans, kafka, topic):
    async with sending() as producer:
        future = await producer.send(topic, b"abc", key=b"k1")
        assert type(future) is asyncio.get_running_loop().create_future().__class__
        spans.assert_empty()
        answer = await future
    span = spans.take(f"send {topic}")
    record = trace_context_of(span).beans[0]
    assert span.kind is SpanKind.PRODUCER
    assert (record.offset_msg_id, record.body_length) == (f"{topic}-0@{answer.offset}", 3)
    assert record.store_host == kafka.bootstrap_servers
    assert span.attributes["messaging.kafka.message.key"] == "k1"
    assert span.attributes["messaging.client.id"] == "shop"
    assert span.attributes["messaging.kafka.cluster.id"].startswith("mockCluster")
    host, _, port = kafka.bootstrap_servers.rpartition(":")
    assert (span.attributes["server.address"], span.attributes["server.port"]) == (host, int(port))


async def test_message_has_the_span_in_its_headers_and_the_callers_are_unchanged(sending, spans, stored, topic):
    mine = [("TAGS", b"paid"), ("empty", None)]
    async with sending() as producer:
        await producer.send_and_wait(topic, b"1", headers=mine)
        await producer.send_and_wait(topic, b"2", None, None, None, mine)
    headers = stored(topic, 2)[0].headers()
    first, _second = spans.take_all(f"send {topic}")
    assert mine == [("TAGS", b"paid"), ("empty", None)]
    assert [name for name, _ in headers] == ["TAGS", "empty", "traceparent", "UNIQ_KEY"]
    assert f"{first.context.span_id:016x}" in dict(headers)["traceparent"].decode()
    assert dict(headers)["UNIQ_KEY"].decode() == first.attributes["messaging.message.id"]
    assert first.attributes["mqtrace.tags"] == "paid"


async def _outcome_of_sending(kafka, topic, headers):
    async with producing(kafka) as producer:
        try:
            await producer.send_and_wait(topic, b"1", headers=headers)
        except (TypeError, ValueError, AttributeError) as refused:
            return type(refused)
    return "sent"


@pytest.mark.parametrize(
    "headers", [[("a", b"1")], (("a", b"1"),), [["a", b"1"]], {"a": b"1"}, [("a",)], [("a", "text")], 5, [], (), {}]
)
async def test_headers_the_client_refuses_are_refused_and_others_are_sent(instrument, spans, kafka, topic, headers):
    alone = await _outcome_of_sending(kafka, topic, headers)
    instrument()
    assert await _outcome_of_sending(kafka, topic, headers) == alone
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is (alone == "sent")


async def test_body_size_is_that_of_the_serialized_value(sending, spans, topic):
    seen, values = [], [{"a": 1}, [1, 2, 3], 12345]

    def serialise(value):
        seen.append(value)
        return json.dumps(value).encode()

    async with sending(value_serializer=serialise, key_serializer=str.encode) as producer:
        await asyncio.gather(*(producer.send_and_wait(topic, each, key="k") for each in values[:2]))
        await (await producer.send_batch(_filled(producer, {"value": values[2], "key": "k"}), topic, partition=0))
    assert seen == values
    sizes = sorted(trace_context_of(span).beans[0].body_length for span in spans.take_all())
    assert sizes == sorted(len(json.dumps(each)) for each in values)


async def test_call_that_raises_is_recorded_as_an_error(sending, spans, topic):
    async with sending(max_request_size=100) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send(topic, b"x" * 200)
        with pytest.raises(AssertionError, match="key or value"):
            await producer.send(topic)
        cancelled = asyncio.create_task(producer.send("never-created-yet", b"1", headers=[("DELAY", b"1")]))
        await let_others_run()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    too_large, nothing, cancelled = spans.take_all()
    assert too_large.attributes["error.type"] == "MESSAGE_SIZE_TOO_LARGE"
    assert too_large.status.status_code is StatusCode.ERROR
    assert nothing.attributes["error.type"] == "AssertionError"
    assert cancelled.attributes["error.type"] == "CancelledError"
    assert cancelled.attributes["messaging.message.body.size"] == 1


async def test_send_the_broker_refuses_is_an_error(sending, spans, kafka, topic):
    """asyncio logs one that was never retrieved, as without tracing."""
    kafka.push_request_errors(EmbeddedKafka.PRODUCE, TOPIC_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED)
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    async with sending() as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(topic, b"1")
        await producer.send(topic, b"2")
    for span in spans.take_all():
        assert span.attributes["error.type"] == "TOPIC_AUTHORIZATION_FAILED"
        assert "messaging.kafka.offset" not in span.attributes
        assert trace_context_of(span).success is False
    gc.collect()
    assert complaints == ["Future exception was never retrieved"]


@pytest.mark.parametrize("stops", [True, False])
async def test_send_whose_caller_stops_waiting_is_recorded(instrument, spans, topic, stops):
    instrument()
    with EmbeddedKafka() as slow:
        slow.create_topic(topic)
        async with producing(slow, linger_ms=20) as producer:
            await producer.send_and_wait(topic, b"1")
            slow.set_rtt(-1, 150)
            beside = await producer.send(topic, b"2")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(producer.send_and_wait(topic, b"3"), 0.05)
            slow.set_rtt(-1, 0)
            if not stops:
                await beside
                await let_others_run()
    sent = [trace_context_of(span) for span in spans.take_all(f"send {topic}")]
    assert sorted(each.beans[0].offset_msg_id for each in sent) == [f"{topic}-0@{n}" for n in range(3)]
    assert {each.success for each in sent} == {True}


async def test_send_without_acknowledgement_has_not_awaited(sending, spans, topic):
    async with sending(acks=0) as producer:
        assert await producer.send_and_wait(topic, b"1") is None
    span = spans.take()
    assert span.attributes["mqtrace.send_outcome"] == "not_awaited"
    assert span.attributes["mqtrace.success"] is True


@pytest.mark.parametrize("headers", [None, [("kind", b"order")], [("DELAY", b"1")]])
@pytest.mark.parametrize("is_sampled", [True, False])
async def test_message_too_large_with_our_headers_alone_goes_without_them(
    sending, spans, kafka, topic, headers, is_sampled
):
    flags = trace.TraceFlags(int(is_sampled))
    parent = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=flags))
    with trace.use_span(parent):
        async with sending(max_request_size=10_000, max_batch_size=10_000) as producer:
            sent = await producer.send_and_wait(topic, b"x" * 9_870, headers=headers)
            with pytest.raises(MessageSizeTooLargeError) as refused:
                await producer.send(topic, b"x" * 20_000)
    assert (sent.offset, refused.value.__context__) == (0, None)
    with suppress_instrumentation():
        async with consuming(kafka, topic) as consumer:
            assert (await consumer.getone()).headers == tuple(headers or ())
    if is_sampled:
        ended = {span.attributes["mqtrace.success"]: span.attributes for span in spans.take_all(f"send {topic}")}
        assert ended[True]["messaging.message.id"] == f"{topic}-0@0"
        assert ended[False]["error.type"] == "MESSAGE_SIZE_TOO_LARGE"


@pytest.mark.parametrize("headers", [None, [("DELAY", b"1")]], ids=["record", "span"])
@pytest.mark.parametrize("has_metadata", [True, False])
async def test_send_under_way_at_uninstrument_ends_there(sending, spans, topic, monkeypatch, has_metadata, headers):
    async with sending() as producer:
        known, wait_on_metadata = asyncio.Event(), producer.client._wait_on_metadata

        async def wait(topic):
            await known.wait()
            return await wait_on_metadata(topic)

        monkeypatch.setattr(producer.client, "_wait_on_metadata", wait_on_metadata if has_metadata else wait)
        sent = asyncio.ensure_future(producer.send(topic, b"1", headers=headers))
        await (sent if has_metadata else let_others_run())
        AioKafkaInstrumentor().uninstrument()
        assert spans.take().attributes["mqtrace.send_outcome"] == "not_awaited"
        known.set()
        assert (await (await sent)).offset == 0


async def test_send_under_way_is_not_ended_by_another_instrumentor(sending, spans, topic):
    other = MqTraceInstrumentor()
    other.instrument(tracer_provider=recording_provider(RecordingExporter()), exporters=())
    async with sending() as producer:
        sent = await producer.send(topic, b"1")
        other.uninstrument()
        await sent
    assert "mqtrace.send_outcome" not in spans.take().attributes


async def test_message_too_large_without_headers_of_ours_is_serialised_once(sending, spans, topic):
    sizes = []
    conf = {"max_request_size": 10_000, "value_serializer": lambda value: sizes.append(len(value)) or value}
    async with sending({"propagation": False}, **conf) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send(topic, b"x" * 20_000)
    assert sizes == [20_000]
    assert spans.take().attributes["error.type"] == "MESSAGE_SIZE_TOO_LARGE"


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
def test_span_of_a_collected_producer_ends(instrument, spans, topic):
    instrument()
    with EmbeddedKafka() as slow:
        slow.create_topic(topic)

        async def story():
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            producer = AIOKafkaProducer(bootstrap_servers=slow.bootstrap_servers)
            await producer.start()
            await producer.send_and_wait(topic, b"1")
            slow.set_rtt(-1, 5_000)
            await producer.send(topic, b"2", partition=0)

        asyncio.run(asyncio.wait_for(story(), 30))
        gc.collect()
        slow.set_rtt(-1, 0)
    spans.take()
    assert spans.take_all() == []  # a finaliser records nothing
    drain_deferred_ends()
    abandoned = spans.take().attributes
    assert (abandoned["mqtrace.send_outcome"], abandoned["messaging.destination.partition.id"]) == ("abandoned", "0")


@pytest.mark.parametrize("options", [{"topic_exclude": "orders-*"}, {"propagation": False}])
async def test_excluded_topic_and_no_propagation_write_no_headers(sending, spans, stored, topic, options):
    async with sending(options) as producer:
        await producer.send_and_wait(topic, b"1")
    assert stored(topic, 1)[0].headers() is None
    physical = [span.attributes["messaging.message.id"] for span in spans.take_all()]
    assert physical == ([] if "topic_exclude" in options else [f"{topic}-0@0"])


def _names(message):
    return [name for name, _ in message.headers() or ()]


def _filled(producer, *messages):
    batch = producer.create_batch()
    for message in messages:
        assert batch.append(timestamp=None, **{"key": None, **message}) is not None
    return batch


async def test_correlated_message_of_a_batch_has_its_offset_as_id(sending, spans, fill, kafka, topic, stored):
    fill(topic, {"value": b"before"})
    async with sending() as producer:
        batch = _filled(
            producer,
            {"value": b"12", "key": b"k"},
            {"value": b"3456", "headers": [("UNIQ_KEY", b"MINE"), ("KEYS", b"a b"), ("TAGS", b"paid")]},
            {"value": None, "key": b"gone"},
        )
        assert isinstance(batch, BatchBuilder)
        assert (await (await producer.send_batch(batch, topic, partition=0))).offset == 1
    read = [(each.value(), _names(each)) for each in stored(topic, 4)[1:]]
    assert read == [(b"12", []), (b"3456", ["UNIQ_KEY", "KEYS", "TAGS"]), (None, [])]
    sent = spans.take_all(f"send {topic}")
    beans = [trace_context_of(span).beans[0] for span in sent]
    assert [bean.offset_msg_id for bean in beans] == [f"{topic}-0@{n}" for n in (1, 2, 3)]
    assert [bean.msg_id for bean in beans] == [f"{topic}-0@1", "MINE", f"{topic}-0@3"]
    assert [bean.body_length for bean in beans] == [2, 4, 0]
    assert (beans[1].keys, beans[1].tags) == ("a b", "paid")
    assert sent[2].attributes["messaging.kafka.message.tombstone"] is True
    assert {span.kind for span in sent} == {SpanKind.CLIENT}


async def test_batch_of_the_oldest_client_is_traced(sending, spans, topic, monkeypatch):
    """aiokafka 0.10 has no serialisers for batches."""

    def append(batch, *, timestamp, key, value, headers=()):
        batch._relative_offset += 1
        return batch._builder.append(batch._relative_offset - 1, timestamp, key=key, value=value, headers=list(headers))

    monkeypatch.delattr(BatchBuilder, "_serialize")
    monkeypatch.setattr(BatchBuilder, "append", append)
    async with sending() as producer:
        batch = _filled(producer, {"value": b"12"}, {"value": None, "key": b"gone"})
        await (await producer.send_batch(batch, topic, partition=0))
    sent = spans.take_all(f"send {topic}")
    assert [span.attributes["messaging.message.body.size"] for span in sent] == [2, 0]


async def test_message_a_full_batch_refuses_has_no_span(sending, spans, topic):
    async with sending(max_batch_size=200) as producer:
        batch = producer.create_batch()
        taken = 0
        while batch.append(timestamp=None, key=None, value=b"x" * 40) is not None:
            taken += 1
        await (await producer.send_batch(batch, topic, partition=0))
        assert taken == len(spans.take_all(f"send {topic}"))


async def test_send_added_to_an_open_batch_is_recorded_as_a_send(sending, spans, topic):
    async with sending(linger_ms=50) as producer:
        batch = _filled(producer, {"value": b"1"})
        future = await producer.send_batch(batch, topic, partition=0)
        added = await producer.send(topic, b"2", partition=0)  # without a turn of the loop, in which the batch could go
        await asyncio.gather(future, added)
        assert batch.record_count() == 2
    places = sorted(trace_context_of(span).beans[0].offset_msg_id for span in spans.take_all())
    assert places == [f"{topic}-0@0", f"{topic}-0@1"]


async def test_batch_that_is_sent_again_is_traced_again_also_after_a_failure(sending, spans, topic):
    async with sending() as producer:
        batch = _filled(producer, {"value": b"1"}, {"value": b"2"})
        with pytest.raises(AssertionError, match="Unrecognized partition"):
            await producer.send_batch(batch, topic, partition=7)
        for _ in range(2):
            await (await producer.send_batch(batch, topic, partition=0))
    ended = spans.take_all()
    assert [span.attributes.get("error.type") for span in ended] == ["AssertionError"] * 2 + [None] * 4
    places = sorted(trace_context_of(span).beans[0].offset_msg_id for span in ended[2:])
    assert places == [f"{topic}-0@{offset}" for offset in range(4)]


@pytest.mark.parametrize("options", [{"headerless_sends": "leave"}, {"topic_exclude": "orders-*"}])
async def test_batch_that_is_not_traced_is_sent_unchanged(sending, spans, stored, topic, options):
    async with sending(options) as producer:
        await (await producer.send_batch(_filled(producer, {"value": b"1"}), topic, partition=0))
    (message,) = stored(topic, 1)
    assert (message.value(), message.headers()) == (b"1", None)


class EarlyProducer(AIOKafkaProducer):
    async def send(self, topic, value=None, *args, **kwargs):
        return await super().send(topic, value.upper(), *args, **kwargs)


async def test_subclass_made_before_or_after_has_one_span(instrument, spans, kafka, topic):
    instrument()

    class LateProducer(EarlyProducer):
        pass

    for make in (EarlyProducer, LateProducer, aiokafka.AIOKafkaProducer):
        async with producing(kafka, make=make) as producer:
            await producer.send_and_wait(topic, b"abc")
    assert len(spans.take_all(f"send {topic}")) == 3


@pytest.mark.parametrize("servers", ["broker", ["broker", "127.0.0.1:1"]], ids=str)
async def test_servers_and_password_are_passed_on_and_the_password_is_not_shown(instrument, spans, caplog, servers):
    instrument()
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "shop", "sasl_plain_password": "hunter2"}
    producer = AIOKafkaProducer(bootstrap_servers=servers, security_protocol="SASL_PLAINTEXT", **login)
    with pytest.raises(AssertionError):
        await producer.send("orders")
    producer._closed = True  # it was never started: nothing to stop, nothing to complain of
    span = spans.take()
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("broker", 9092)
    assert application_kafka_config()["bootstrap.servers"] == ("broker" if servers == "broker" else ",".join(servers))
    assert application_kafka_config()["sasl.password"] == "hunter2"
    assert "hunter2" not in caplog.text + span.to_json()


@pytest.fixture
def neighbour():
    async def send(wrapped, instance, args, kwargs):
        kwargs["headers"] = [*(kwargs.get("headers") or []), ("traceparent", b"theirs")]
        return await wrapped(*args, **kwargs)

    original = AIOKafkaProducer.send
    yield lambda: wrapt.wrap_function_wrapper(AIOKafkaProducer, "send", send)
    AIOKafkaProducer.send = original


async def test_other_instrumentation_keeps_its_trace_headers_if_both_are_configured(
    instrument, neighbour, spans, kafka, topic
):
    neighbour()
    instrument(on_conflict="wrap")
    async with producing(kafka) as producer:
        await (await producer.send(topic, b"1"))
    async with consuming(kafka, topic) as consumer:
        headers = (await consumer.getone()).headers
    assert [name for name, _ in headers] == ["UNIQ_KEY", "traceparent"]
    assert dict(headers)["traceparent"] == b"theirs"
    AioKafkaInstrumentor().uninstrument()
    assert isinstance(vars(AIOKafkaProducer)["send"], wrapt.FunctionWrapper)
    assert len(spans.take_all()) == 2


async def test_later_instrumentation_is_reported_once(instrument, neighbour, spans, kafka, topic, caplog):
    instrument()
    neighbour()
    for _ in range(2):
        async with producing(kafka) as producer:
            await (await producer.send(topic, b"1"))
    assert [f"the module {__name__} wraps aiokafka on top" in line for line in caplog.messages] == [True]
    assert len(spans.take_all()) == 2
