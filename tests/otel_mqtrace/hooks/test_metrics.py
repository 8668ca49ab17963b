"""The four messaging metrics of the conventions 1.44: what counts, when, and under which attributes."""

import threading
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_ON, TraceIdRatioBased

from otel_mqtrace import ConsumeHook, SendHook, process
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks import metrics as metrics_of_hooks
from otel_mqtrace.hooks.attributes import OPT_IN
from otel_mqtrace.hooks.metrics import MessagingMetrics
from otel_mqtrace.hooks.outcome import defer_end
from otel_mqtrace.hooks.settle import SettledOffset, SettleHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import ContextCode
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S
from tests.support.mailbox import Letter, incoming

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
OF_SEND = {"messaging.operation.name": "send", "messaging.system": "kafka", "messaging.destination.name": "orders"}
OF_SEND |= {"server.address": "broker", "server.port": 9092}
OF_FAILED_SEND = {**OF_SEND, "error.type": "_MSG_TIMED_OUT"}
OF_CONSUMER = {**OF_SEND, "messaging.consumer.group.name": "billing"}


@pytest.fixture
def metered(tracing_with, reader):
    providers = {"meter_provider": MeterProvider([reader]), "tracer_provider": TracerProvider(sampler=ALWAYS_OFF)}
    return partial(tracing_with, providers)


_sender = partial(SendHook, servers="broker:9092")
_consumer = partial(ConsumeHook, group_name="billing", servers="broker:9092")


@pytest.mark.parametrize("names", ["", "messaging/legacy"])
def test_sent_messages_counts_every_attempt_and_names_the_error(metered, monkeypatch, points, names):
    monkeypatch.setenv(OPT_IN, names)  # of spans alone
    hook = _sender(tracing=metered())
    hook.before("orders")  # without an answer
    assert points("messaging.client.sent.messages") == []
    answers = {"partition": 0, "offset": 1}, {"partition": 1, "offset": 1}, {"error": "_MSG_TIMED_OUT"}
    for n, answer in enumerate(answers):
        hook.after(hook.before("orders", key=str(n), partition=n), **answer)
    sent = [(attributes, point.value) for attributes, point in points("messaging.client.sent.messages")]
    assert sent == [(OF_SEND, 2), (OF_FAILED_SEND, 1)]


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, TraceIdRatioBased(0.5), ALWAYS_ON])
def test_recorded_send_is_counted_whether_or_not_it_is_sampled(tracing_with, reader, points, sampler):
    tracer_provider, ended = TracerProvider(sampler=sampler, shutdown_on_exit=False), SpanProcessor()
    ended.on_end = Mock()  # exporters are not given those that are not sampled
    tracer_provider.add_span_processor(ended)
    providers = {"meter_provider": MeterProvider([reader]), "tracer_provider": tracer_provider}
    hook = _sender(tracing=tracing_with(providers))
    sends = [hook.record("orders", b"x", None, None, None, None)[0] for _ in range(40)]
    for each in sends[:20]:
        hook.end_record(each, 3, 4)
    for each in sends[20:]:
        hook.after(hook.reopen(each), error="_MSG_TIMED_OUT")
    sent = [(attributes, point.value) for attributes, point in points("messaging.client.sent.messages")]
    assert sent == [(OF_SEND, 20), (OF_FAILED_SEND, 20)]
    ids = {call.args[0].context.span_id for call in ended.on_end.call_args_list}
    assert ids == {int.from_bytes(each.ids[16:], "big") for each in sends if each.flags & 1}


def test_collection_counts_what_a_finaliser_has_left_to_end(metered, points):
    hook = _sender(tracing=metered())
    defer_end(hook, hook.before("orders"), error="abandoned")
    assert [point.value for _, point in points("messaging.client.sent.messages")] == [1]


def test_operation_duration_of_a_send_is_its_span_s_in_seconds(metered, clock, points):
    hook = _sender(tracing=metered())
    call = hook.before("orders", partition=3)
    clock.advance(ms=30)
    hook.after(call, partition=3, offset=1)
    ((attributes, point),) = points("messaging.client.operation.duration")
    assert attributes == {**OF_SEND, "messaging.operation.type": "send"}
    assert (point.count, point.sum, point.explicit_bounds) == (1, 0.03, BUCKETS)
    assert point.bucket_counts[BUCKETS.index(0.05)] == 1


def test_process_duration_is_reported_for_every_process_span(metered, clock, points):
    hook = _consumer(tracing=metered())
    for code in (ContextCode.SUCCESS, ContextCode.FAILED):
        (call,) = hook.before([incoming()])
        clock.advance(ms=200)
        hook.after(call, code=code)
    (handled, first), (failed, second) = points("messaging.process.duration")
    assert handled == {**OF_CONSUMER, "messaging.operation.name": "process"}
    assert failed == {**handled, "error.type": "FAILED"}
    assert [(each.sum, each.explicit_bounds) for each in (first, second)] == [(0.2, BUCKETS)] * 2


def test_poll_has_its_duration_and_counts_once_for_each_delivered_message(metered, clock, points):
    hook = _consumer(tracing=metered())
    messages = [incoming(offset=n) for n in range(3)]
    start_ns = hook.now_ns()
    clock.advance(ms=70)
    hook.received(messages, start_ns=start_ns, batch=True)
    for call in hook.before(messages, batch=True):
        hook.after(call)
    of_poll = {**OF_CONSUMER, "messaging.operation.name": "poll"}
    ((attributes, point),) = points("messaging.client.consumed.messages")
    assert (attributes, point.value) == (of_poll, 3)
    ((attributes, point),) = points("messaging.client.operation.duration")
    assert (attributes, point.sum) == ({**of_poll, "messaging.operation.type": "receive"}, 0.07)


def test_operation_duration_of_a_settlement_has_its_error(metered, clock, points):
    hook = SettleHook(tracing=metered(settle_spans=True), group_name="billing", servers="broker:9092")
    call = hook.before()
    clock.advance(ms=250)
    hook.after(call, [SettledOffset("orders", 0, 2)], error="REQUEST_TIMED_OUT")
    ((attributes, point),) = points("messaging.client.operation.duration")
    expected = {**OF_CONSUMER, "messaging.operation.name": "commit", "messaging.operation.type": "settle"}
    assert expected.items() <= attributes.items()
    assert (attributes["error.type"], point.sum) == ("REQUEST_TIMED_OUT", 0.25)


def test_instrument_that_raises_costs_no_span(tracing_with, spans, no_failures_yet):
    raising = {"add.side_effect": ZeroDivisionError, "record.side_effect": ZeroDivisionError}
    instruments = dict.fromkeys(("create_counter.return_value", "create_histogram.return_value"), Mock(**raising))
    tracing = replace(tracing_with(), metrics=MessagingMetrics(Mock(Meter, **instruments)))
    sender, receiver = SendHook(tracing=tracing), ConsumeHook(tracing=tracing)
    sender.after(sender.before("orders"), partition=0, offset=1)
    for call in receiver.before([incoming()]):
        receiver.after(call)
    assert [span.name for span in spans.take_all()] == ["send orders", "process orders"]
    tracing.metrics.record_pending()
    assert set(guard.failures()) == {"metrics.record", "metrics.count"}


def test_collection_has_the_measurements_of_every_instrumentation(reader, points):
    meter = MeterProvider([reader]).get_meter("otel_mqtrace")
    both = MessagingMetrics(meter), MessagingMetrics(meter)
    assert reader.get_metrics_data() is None
    for each in both:
        each.sent({"messaging.system": "kafka"}, 5_000_000)
    assert sum(point.value for _, point in points("messaging.client.sent.messages")) == 2


def test_collection_waits_for_what_a_worker_has_taken_and_not_recorded_yet():
    """The last collection at exit missed a quarter of the messages."""
    counted = []

    def collect():
        metrics.record_pending()
        counted.append(counter.add.call_count)

    collection = threading.Thread(target=collect)
    duration, counter = Mock(), Mock()
    duration.record.side_effect = lambda *_: (collection.start(), collection.join(0.1))
    instruments = {"create_histogram.return_value": duration, "create_counter.return_value": counter}
    metrics = MessagingMetrics(Mock(Meter, **instruments))
    metrics.sent({"messaging.system": "kafka"}, 5_000_000)
    metrics.record_pending()
    collection.join(10)
    assert counted == [1]


def test_collection_that_holds_a_lock_which_recording_needs_goes_on(monkeypatch):
    monkeypatch.setattr(metrics_of_hooks, "_LONGEST_WAIT_S", 0.01)
    lock, is_recording, has_recorded = threading.Lock(), threading.Event(), []

    def record(*_value):
        is_recording.set()
        has_recorded.append(lock.acquire(timeout=GENEROUS_S))

    metrics = MessagingMetrics(Mock(Meter, **{"create_histogram.return_value.record.side_effect": record}))
    metrics.sent({"messaging.system": "kafka"}, 5_000_000)
    worker = threading.Thread(target=metrics.record_pending)
    with lock:
        worker.start()
        assert is_recording.wait(GENEROUS_S)
        metrics.record_pending()
    worker.join()
    assert has_recorded == [True]


def test_poll_without_a_span_has_no_operation_duration(metered, clock, points):
    for settings in ({}, {"receive_spans": True}, {"empty_poll_spans": True}):
        quiet = _consumer(tracing=metered(**settings))
        quiet.empty(start_ns=quiet.now_ns())
    assert points("messaging.client.operation.duration") == []
    hook = _consumer(tracing=metered(receive_spans=True, empty_poll_spans=True))
    start_ns = hook.now_ns()
    clock.advance(ms=500)
    hook.empty(start_ns=start_ns)
    hook.poll_failed(start_ns=start_ns, error="_TRANSPORT")
    durations = points("messaging.client.operation.duration")
    assert [point.sum for _, point in durations] == [0.5, 0.5]
    assert [attributes.get("error.type") for attributes, _ in durations] == [None, "_TRANSPORT"]


def test_pushed_messages_count_when_their_processing_begins(mailbox_with, reader, points):
    mailbox_with({"meter_provider": MeterProvider([reader]), "tracer_provider": TracerProvider(sampler=ALWAYS_OFF)})
    for _ in process.each([Letter(1), Letter(2)]):
        pass
    assert sum(point.value for _, point in points("messaging.client.consumed.messages")) == 2


NEXT_POLL = {"by": "the next poll"}


def _measure(sampler, messages, how, *, is_recorded, has_polled=False):
    """Return the points of a poll's messages that were handled within 30 ms, by metric and attributes."""
    clock, reader = ManualClock(), InMemoryMetricReader()
    tracers, meters = TracerProvider(sampler=sampler, shutdown_on_exit=False), MeterProvider([reader])
    needs_span = {} if is_recorded else {"consume_hook": print}
    tracing = Tracing.create(tracer_provider=tracers, meter_provider=meters, clock=clock, **needs_span)
    hook = _consumer(tracing=tracing)
    if has_polled:
        hook.poll_begins()
    sender = ("traceparent", b"00-%032x-%016x-00" % (1, 2))
    row = (0, 7, None, 3, None)
    if not is_recorded:
        (call,) = hook.before([incoming(sender)] * messages, batch=messages > 1)
    elif messages > 1:
        call = hook.record_batch("orders", [row] * messages, [[sender]] * messages, None)
    else:
        call = hook.record("orders", row, [sender], None)
    clock.advance(ms=30)
    if how == NEXT_POLL:
        hook.poll_begins()
        hook.end_turn(call)
    else:
        hook.after(call, **how)
    scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
    metrics = [metric for scope in scopes for metric in scope.metrics]
    return {
        (metric.name, *sorted(point.attributes.items())): getattr(point, "sum", getattr(point, "value", None))
        for metric in metrics
        for point in metric.data.data_points
    }


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("messages", [1, 2])
def test_messages_of_a_poll_that_began_before_the_meter_provider_count_as_handled_alone(messages, is_recorded):
    measured = _measure(ALWAYS_ON, messages, {}, is_recorded=is_recorded, has_polled=True)
    assert {name for name, *_ in measured} == {"messaging.process.duration"}


@pytest.mark.parametrize(
    "how", [NEXT_POLL, {}, {"code": ContextCode.FAILED}, {"exception": KeyError("order")}], ids=str
)
@pytest.mark.parametrize("sampler", [ALWAYS_OFF, DEFAULT_ON, ALWAYS_ON], ids=["off", "as the sender", "on"])
@pytest.mark.parametrize("messages", [1, 2])
def test_recorded_messages_are_measured_as_their_span_would_be(sampler, messages, how):
    measured = _measure(sampler, messages, how, is_recorded=True)
    assert measured == _measure(sampler, messages, how, is_recorded=False)
    assert set(measured.values()) == {messages, 0.03}
