"""Records of the asyncio producers: the coroutine's send, ended by the broker's answer."""

import asyncio
import gc
import threading

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.aio import AIOProducer, AsyncSerializingProducer
from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from tests.support.consuming import let_others_run

POLICIES = ["correlate", "send_each"]


class _Tenant(AIOProducer):
    async def produce(self, topic, value=None, key=None, *args, **kwargs):
        return await super().produce(f"{topic}", value, key, *args, **kwargs)


@pytest.fixture
def running(instrument, kafka):
    """Run a test's coroutine function with a traced producer that flushes only when told to."""

    def run(story, *, policy="correlate", make_producer=AIOProducer, conf=None, **options):
        async def main():
            configuration = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop", **(conf or {})}
            producer = make_producer(configuration, **{"buffer_timeout": 0, "max_workers": 1, **options})
            if not isinstance(producer, AIOProducer):
                producer = await producer
            try:
                return await story(producer)
            finally:
                await producer.close()

        instrument(headerless_sends=policy)
        return asyncio.run(main())

    return run


def _current():
    return trace.get_current_span().get_span_context().is_valid, dict(context.get_current())


@pytest.mark.parametrize("make_producer", [AIOProducer, _Tenant])
def test_the_span_is_a_child_of_what_the_coroutine_was_in(running, spans, tracer, topic, make_producer):
    async def story(producer):
        with tracer.start_as_current_span("checkout") as checkout:
            sent = await producer.produce(topic, b"1", "k")
        spans.take("checkout")
        spans.assert_empty()
        await producer.flush()
        return checkout, await sent

    checkout, message = running(story, make_producer=make_producer)
    send = spans.take(f"send {topic}")
    assert send.parent.span_id == checkout.get_span_context().span_id
    assert send.kind is SpanKind.CLIENT
    assert send.attributes["messaging.message.id"] == f"{topic}-0@{message.offset()}"
    assert send.attributes["messaging.kafka.message.key"] == "k"
    assert send.attributes["messaging.client.id"] == "shop"


def test_messages_sent_alone_carry_their_spans_in_order(running, spans, topic, stored):
    async def story(producer):
        futures = [await producer.produce(topic, body) for body in (b"1", b"2", None)]
        await producer.flush()
        return [(await future).offset() for future in futures]

    assert running(story, policy="send_each") == [0, 1, 2]
    sends, messages = spans.take_all(f"send {topic}"), stored(topic, 3)
    assert [message.value() for message in messages] == [b"1", b"2", None]
    for send, message in zip(sends, messages, strict=True):
        headers = dict(message.headers())
        assert send.kind is SpanKind.PRODUCER
        assert headers["traceparent"].split(b"-")[2].decode() == f"{send.context.span_id:016x}"
        assert headers["UNIQ_KEY"].decode() == send.attributes["messaging.message.id"]


def test_what_is_left_alone_leaves_no_span(running, spans, topic):
    async def story(producer):
        await producer.produce(topic, b"1")
        await producer.flush()

    running(story, policy="leave")
    spans.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_buffer_is_sent_inside_the_call(running, spans, topic, policy):
    async def story(producer):
        futures = [await producer.produce(topic, b"x") for _ in range(2)]
        await producer.flush()
        return [(await future).error() for future in futures]

    assert running(story, policy=policy, batch_size=1) == [None, None]
    assert [send.attributes["mqtrace.success"] for send in spans.take_all(f"send {topic}")] == [True, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_left_in_the_pools_threads(running, spans, tracer, topic, policy):
    async def story(producer):
        with tracer.start_as_current_span("checkout"):
            await producer.produce(topic, b"x")
            await producer.flush()
        return await asyncio.get_running_loop().run_in_executor(producer.executor, _current)

    assert running(story, policy=policy) == (False, {})
    spans.take_all()


@pytest.mark.parametrize("policy", POLICIES)
class TestHowItEnds:
    def test_a_cancelled_future_does_not_end_the_send(self, running, spans, topic, policy):
        async def story(producer):
            (await producer.produce(topic, b"x")).cancel()
            spans.assert_empty()
            await producer.flush()

        running(story, policy=policy)
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0

    def test_a_message_the_client_refuses_fails_its_future_and_its_span(self, running, spans, topic, policy):
        async def story(producer):
            futures = [await producer.produce(topic, body) for body in (b"1", b"x" * 2_000_000)]
            await producer.flush()
            with pytest.raises(KafkaException, match="Message size too large"):
                await futures[1]
            return (await futures[0]).offset()

        assert running(story, policy=policy) == 0
        refused, delivered = sorted(
            spans.take_all(f"send {topic}"), key=lambda send: send.attributes["mqtrace.success"]
        )
        assert refused.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
        assert refused.status.status_code is StatusCode.ERROR
        assert delivered.attributes["messaging.kafka.offset"] == 0

    def test_a_message_the_broker_refuses_fails_its_future_and_its_span(self, running, kafka, spans, topic, policy):
        kafka.push_request_errors(kafka.PRODUCE, 10)

        async def story(producer):
            sent = await producer.produce(topic, b"x")
            await producer.flush()
            with pytest.raises(KafkaException):
                await sent

        running(story, policy=policy)
        assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"

    def test_a_purged_message_ends_as_purged(self, running, spans, topic, policy):
        async def story(producer):
            sent = await producer.produce(topic, b"x")
            await producer.purge()
            return sent.cancelled()

        assert running(story, policy=policy) is True
        assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"

    def test_closing_sends_what_is_buffered(self, running, spans, topic, policy):
        async def story(producer):
            await producer.produce(topic, b"x")

        running(story, policy=policy)
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0

    def test_a_call_cancelled_while_a_full_buffer_is_sent_has_one_span(self, running, spans, topic, policy):
        async def story(producer):
            held = threading.Event()
            busy = producer.executor.submit(held.wait, 10)
            sending = asyncio.ensure_future(producer.produce(topic, b"x"))
            await let_others_run()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            held.set()
            busy.result()
            await producer.flush()

        running(story, policy=policy, batch_size=1)
        gc.collect()
        drain_deferred_ends()
        assert spans.take(f"send {topic}").attributes["mqtrace.send_outcome"] == "abandoned"

    def test_headers_are_refused_as_ever(self, running, spans, topic, policy):
        async def story(producer):
            with pytest.raises(NotImplementedError, match="Headers are not supported"):
                await producer.produce(topic, b"x", headers={"a": b"1"})

        running(story, policy=policy)
        assert spans.take(f"send {topic}").attributes["error.type"] == "NotImplementedError"

    def test_a_batch_the_client_refuses_fails_and_is_tried_again(self, running, spans, topic, policy):
        async def story(producer):
            sent = await producer.produce(topic, b"x", timestamp=5)
            for _ in range(2):
                with pytest.raises(NotImplementedError):
                    await producer.flush()
            assert isinstance(sent.exception(), NotImplementedError)
            await producer.purge()

        running(story, policy=policy)
        attempts = spans.take_all(f"send {topic}")
        assert [send.attributes["error.type"] for send in attempts] == ["NotImplementedError"] * 2

    def test_uninstrument_leaves_the_answer_to_come(self, running, spans, topic, policy):
        async def story(producer):
            await producer.produce(topic, b"x")
            MqTraceInstrumentor().uninstrument()
            await producer.flush()

        running(story, policy=policy)
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0

    def test_a_transaction_ends_for_each_of_its_messages(self, running, spans, topic, policy):
        async def story(producer):
            await producer.init_transactions(10)
            await producer.begin_transaction()
            await producer.produce(topic, b"x")
            await producer.commit_transaction(10)

        running(story, policy=policy, conf={"transactional.id": f"aio-{policy}-{topic}"})
        send, end = spans.take(f"send {topic}"), spans.take(f"end_transaction {topic}")
        assert send.attributes["mqtrace.msg_type"] == "Trans_Msg_Half"
        assert end.attributes["mqtrace.transaction_id"] == send.attributes["mqtrace.transaction_id"]
        assert end.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]

    def test_suppressed_sends_stay_untraced_in_the_pool(self, running, spans, topic, policy):
        async def story(producer):
            with suppress_instrumentation():
                await producer.produce(topic, b"x")
            await producer.flush()

        running(story, policy=policy)
        spans.assert_empty()

    def test_reports_of_errors_only_still_end_the_span(self, running, spans, topic, policy):
        async def story(producer):
            await producer.produce(topic, b"x")
            await producer.flush()

        running(story, policy=policy, conf={"delivery.report.only.error": True})
        assert spans.take(f"send {topic}").attributes["mqtrace.send_outcome"] == "not_awaited"


def test_a_serializing_producer_is_traced_once_with_the_bytes_it_sent(running, spans, topic):
    async def story(producer):
        sent = await producer.produce(topic, value=12345)
        await producer.flush()
        return (await sent).value()

    conf = {"value.serializer": lambda value, _: str(value).encode()}
    assert running(story, make_producer=AsyncSerializingProducer, conf=conf) == b"12345"
    assert spans.take(f"send {topic}").attributes["messaging.message.body.size"] == 5


class TestOlderThanThePatch:
    def _run(self, kafka, instrument, story):
        async def main():
            producer = AIOProducer({"bootstrap.servers": kafka.bootstrap_servers}, buffer_timeout=0)
            instrument()
            try:
                return await story(producer)
            finally:
                await producer.close()

        return asyncio.run(main())

    def test_its_sends_end_with_their_futures(self, instrument, kafka, spans, topic):
        async def story(producer):
            futures = [await producer.produce(topic, body) for body in (b"1", b"x" * 2_000_000, b"22")]
            futures[2].cancel()
            await producer.flush()
            assert (await futures[0]).offset() == 0
            with pytest.raises(KafkaException):
                await futures[1]

        self._run(kafka, instrument, story)
        sends = {send.attributes["messaging.message.body.size"]: send.attributes for send in spans.take_all()}
        assert sends[1]["messaging.message.id"] == f"{topic}-0@0"
        assert sends[2_000_000]["error.type"] == "MSG_SIZE_TOO_LARGE"
        assert sends[2]["mqtrace.send_outcome"] == "not_awaited"
