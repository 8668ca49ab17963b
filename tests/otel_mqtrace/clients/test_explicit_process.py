"""Blocks of process() around messages, and the registry that finds the consumer of a message."""

import contextlib
import contextvars
import copy
import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from operator import methodcaller
from threading import Event

import confluent_kafka
import pytest
from confluent_kafka import Message
from opentelemetry import baggage, trace
from opentelemetry.sdk.metrics import MeterProvider

from otel_mqtrace import process
from otel_mqtrace._workers import LiveObjects
from otel_mqtrace.clients.state import MessageRegistry
from otel_mqtrace.hooks import outcome
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import code_of, consume, current_span_id, in_thread, poll
from tests.support.mailbox import TRACEPARENT


def test_exception_of_a_block_is_recorded_and_raised(consuming, spans):
    message = poll(consuming(b"1"))
    with pytest.raises(KeyError, match="mine"), process(message):
        raise KeyError("mine")
    span = spans.take()
    record = trace_context_of(span)
    assert (record.context_code, record.success) == (ContextCode.EXCEPTION, False)
    assert span.attributes["error.type"] == "KeyError"
    assert [event.name for event in span.events] == ["exception"]


def test_block_that_is_open_at_uninstrument_ends_there(consuming, spans):
    with process(poll(consuming(b"1"))):
        MqTraceInstrumentor().uninstrument()
        assert trace_context_of(spans.take()).context_code is ContextCode.RETURNNULL


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_blocks_that_other_threads_end_in_any_order_leave_no_span_current(consuming, spans, order, caplog):
    consumer = consuming(*[b"x"] * 4, process_spans="explicit")
    blocks = [process(poll(consumer)) for _ in range(3)]
    for block in blocks:
        block.__enter__()
        assert current_span_id()
    for number in order:
        in_thread(blocks[number].__exit__, None, None, None)
    assert (current_span_id(), caplog.records) == (0, [])
    with process(poll(consumer)):
        pass
    assert spans.take_all()[-1].parent is None


@pytest.mark.parametrize("end_turn", [methodcaller("poll", 0), methodcaller("close")], ids=["poll", "close"])
def test_block_that_is_open_when_its_batch_is_over_ends_the_span(consuming, spans, end_turn):
    consumer = consuming(b"1", b"2")
    first, _ = consume(consumer, 2)
    with pytest.raises(KeyError), process(first):  # noqa: PT012 - a handler
        end_turn(consumer)
        spans.assert_empty()
        raise KeyError
    span = spans.take()
    assert (code_of(span), len(trace_context_of(span).beans)) == (ContextCode.EXCEPTION, 2)


@pytest.mark.parametrize("is_late", [False, True])
def test_block_of_a_batch_has_the_baggage_of_its_message(consuming, spans, is_late):
    headers = [[TRACEPARENT, ("baggage", f"tenant={number}")] for number in range(3)]
    consumer = consuming(*({"value": b"x", "headers": each} for each in headers))
    batch = consume(consumer, 2)
    if is_late:
        poll(consumer)
    tenants = [baggage.get_baggage("tenant") for _ in process.each(batch)]
    consumer.close()
    assert tenants == ["0", "1"]
    spans.take_all()


def test_block_of_a_message_whose_headers_the_application_replaced_ends(consuming, spans, no_failures_yet):
    consumer = consuming(b"1", b"2")
    first, _ = consume(consumer, 2)
    first.set_headers(5)
    with process(first):
        process.failed()
    consumer.close()
    assert code_of(spans.take()) is ContextCode.FAILED


def _close_by_an_exception(consumer):
    with pytest.raises(LookupError), contextlib.closing(consumer):
        raise LookupError


@pytest.mark.parametrize(
    ("end_turn", "code"),
    [
        (methodcaller("poll", 0), ContextCode.SUCCESS),
        (_close_by_an_exception, ContextCode.EXCEPTION),
        (lambda _consumer: MqTraceInstrumentor().uninstrument(), ContextCode.RETURNNULL),
    ],
    ids=["next poll", "closed by an exception", "uninstrument"],
)
def test_messages_of_a_batch_without_a_block_end_as_their_turn_does(consuming, spans, end_turn, code):
    consumer = consuming(b"1", b"2")
    first, _ = consume(consumer, 2)
    with process(first):
        pass
    end_turn(consumer)
    assert code_of(spans.take()) is code


def test_second_block_of_a_message_or_its_copy_has_a_second_span(consuming, spans):
    message = poll(consuming(b"1"))
    automatic = current_span_id()
    for each in (copy.copy(message), message):
        with process(each) as handling:
            handling.failed()
    ended = spans.take_all()
    assert [trace_context_of(span).context_code for span in ended] == [ContextCode.FAILED] * 2
    assert ended[0].context.span_id == automatic
    assert len({span.attributes["mqtrace.request_id"] for span in ended}) == 2


@pytest.mark.parametrize("batches", [1, 2])
def test_blocks_share_the_span_of_the_first_batch_and_have_their_own_until_one_is_missing(
    consuming, spans, unhandled, batches
):
    consumer = consuming(*[b"x"] * 9)
    with process(consume(consumer, 2)[0]):
        pass  # a block for one message alone says nothing about the next ones
    for _ in range(batches):
        for message in process.each(consume(consumer, 2)):
            assert message.value() == b"x"
    assert [len(trace_context_of(span).beans) for span in spans.take_all()] == [2, 2, *[1, 1] * (batches - 1)]
    missed = poll(consumer)
    for _ in range(2):
        poll(consumer)
    consumer.close()
    assert [len(trace_context_of(span).beans) for span in spans.take_all()] == [1, 1]
    MqTraceInstrumentor().uninstrument()
    assert (missed.offset(), unhandled()) == (2 + 2 * batches, {"handed_over_unhandled": 1})


def test_messages_of_an_excluded_topic_do_not_wait_for_blocks(consuming, spans, fill, kafka, topic):
    kafka.create_topic(f"audit-{topic}", partitions=1)
    fill(f"audit-{topic}", b"x")
    consumer = consuming(*[b"x"] * 4, topic_exclude="audit-*")
    for message in process.each(consume(consumer, 2)):
        assert message.topic() == topic
    spans.take()
    consumer.assign([confluent_kafka.TopicPartition(f"audit-{topic}", 0, 0)])
    poll(consumer)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 2)])
    for message in process.each(consume(consumer, 2)):
        assert message.topic() == topic
    assert len(spans.take_all()) == 2


def test_explicit_mode_has_a_span_in_the_block_only_also_when_its_consumer_is_gone(
    instrument, kafka, spans, fill, topic, unhandled, reader, points
):
    fill(topic, *[{"value": b"x"}] * 3)
    instrument(process_spans="explicit", meter_provider=MeterProvider([reader]))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    first, second, _left = (poll(consumer) for _ in range(3))
    assert current_span_id() == 0
    spans.assert_empty()
    with process(first):
        pass
    assert spans.take().attributes["mqtrace.group_name"] == "g"
    del consumer
    gc.collect()
    with process(second):
        pass
    assert (len(spans.take_all()), unhandled()) == (1, {})
    assert [point.value for _, point in points("messaging.client.consumed.messages")] == [3]  # those of the polls
    MqTraceInstrumentor().uninstrument()
    assert unhandled() == {"handed_over_unhandled": 1}


def test_message_without_a_block_is_counted_at_the_exit_of_the_process_that_had_it(run_code):
    code = """
    import atexit, os
    atexit.register(lambda: print(missing_counts()["handed_over_unhandled"], flush=True))
    from otel_mqtrace.clients.confluent_kafka.client import registry
    from otel_mqtrace.hooks.outcome import drain_at_exit, missing_counts
    drain_at_exit()
    registry.remember(1, ("orders", 0, 7, 1, None, True))
    child = os.fork()
    for number in range(1, 4) if child == 0 else ():
        registry.remember(number, ("orders", 0, number, 1, None, True))
    if child:
        os.waitpid(child, 0)
    """
    assert run_code(code).split() == ["3", "1"]


@pytest.mark.parametrize(
    ("headers", "tenant"), [([], None), ([TRACEPARENT, ("baggage", "tenant=7")], "7")], ids=["recorded", "with a span"]
)
def test_late_blocks_have_the_ended_span_and_the_baggage_and_turn_the_explicit_mode_on(
    consuming, spans, unhandled, caplog, headers, tenant
):
    consumer = consuming(*[{"value": b"x", "headers": headers}] * 5)
    *late, _current = [poll(consumer) for _ in range(4)]
    ended = spans.take_all()
    for message, span in zip(late, ended, strict=True):
        with pytest.raises(LookupError), process(message) as handling:  # noqa: PT012 - a handler
            assert trace.get_current_span().get_span_context() == span.get_span_context()
            assert baggage.get_baggage("tenant") == tenant
            assert not handling.span.is_recording()
            raise LookupError
    assert unhandled() == {"outcome_too_late": 3}
    last = poll(consumer)
    assert current_span_id() == 0
    with process(last) as handling:
        assert handling.span.is_recording()
    ended += spans.take_all()
    assert [span.attributes["messaging.kafka.offset"] for span in ended] == [0, 1, 2, 3, 4]
    assert {trace_context_of(span).context_code for span in ended} == {ContextCode.SUCCESS}
    assert caplog.text.count("is left to its blocks (MQTRACE_PROCESS_SPANS=explicit") == 1


@pytest.mark.parametrize("headers", [[], [TRACEPARENT, ("baggage", "tenant=7")]], ids=["recorded", "with a span"])
def test_outcome_set_after_the_next_poll_is_counted(consuming, spans, unhandled, caplog, headers):
    outcome._warn_of_late_outcome.cache_clear()
    consumer = consuming(*[{"value": b"x", "headers": headers}] * 3)
    poll(consumer)
    inherited, kept = contextvars.copy_context(), process.current()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(poll, consumer).result()  # ends the span there, and revokes the context that is current here
        process.outcome("SUCCESS")
        process.failed()
        pool.submit(poll, consumer).result()
        inherited.run(process.failed)
        kept.failed()
    consumer.close()
    assert unhandled() == {"outcome_too_late": 3}
    assert {span.attributes["mqtrace.context_code"] for span in spans.take_all()} == {"SUCCESS"}
    assert caplog.text.count("an outcome was set after its message had ended") == 1


def test_failure_set_after_the_end_of_its_block_is_counted(consuming, spans, unhandled):
    consumer = consuming(*[{"value": b"x"}] * 2)
    first, second = consume(consumer, 2)
    with process(first) as handling:
        inherited = contextvars.copy_context()
    inherited.run(process.outcome, "SUCCESS")
    inherited.run(process.failed)
    handling.failed()
    with process(second):
        process.failed()
    with process(None) as of_no_message:
        pass
    of_no_message.failed()
    consumer.close()
    assert unhandled() == {"outcome_too_late": 2}
    assert spans.take().attributes["mqtrace.context_code"] == "FAILED"


class Thing:
    """Something that can be referred to weakly, and is freed by the collector alone."""

    def __init__(self):
        self.itself = self


def test_registry_is_limited_while_threads_add_messages(impatient):
    remembered = MessageRegistry(None, is_message=None, position_of=None, incoming=None, max_messages=8)
    number = remembered.register(owner := Thing())

    def hand_over(thread):
        messages = [Message(topic=f"t{thread}", partition=0, offset=n) for n in range(50)]
        for _ in range(400):
            for message in messages:
                remembered.remember(id(message), ("orders", 0, 1, number, None, False))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hand_over, range(8)))
    assert len(remembered) == 8
    del owner


def test_live_objects_are_listed_while_another_thread_adds(impatient):
    alive, over = LiveObjects(), Event()

    def make():
        while not over.is_set():
            alive.add(Thing())

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        try:
            for _ in range(100):
                alive.all()
        finally:
            over.set()
        making.result(30)
