"""The processor: the way of a span, flush, shutdown, metrics, and what it owes the application's threads."""

import gc
import logging
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from opentelemetry.metrics import _internal as metrics_of_the_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace.spans.processor import COMPONENT_TYPE, MqTraceSpanProcessor
from otel_mqtrace.testing import ManualClock
from tests.support import lanes

GENEROUS_MS = lanes.GENEROUS_S * 1000
POISONS = [SystemExit(1), GeneratorExit(), KeyboardInterrupt(), ValueError("broken"), KafkaError(KafkaError._FAIL)]
"""The last can be raised although it is no BaseException."""


def _account(processor):
    (account,) = processor.stats().values()
    return account


def test_spans_are_exported_in_order_and_in_batches():
    exporter = lanes.Scripted()
    processor = MqTraceSpanProcessor(exporter)
    for number in range(250):
        processor.on_end(lanes.span(str(number)))
    assert processor.force_flush(GENEROUS_MS)
    processor.shutdown()
    assert exporter.names == [str(number) for number in range(250)]
    assert max(map(len, exporter.batches)) <= 100
    dropped = dict.fromkeys(("queue_full", "already_shutdown", "shutdown_timeout", "too_large"), 0)
    expected = {"offered": 250, "exported": 250, "dropped": dropped, "failed": 0, "pending": 0}
    assert processor.stats() == {"Scripted": expected}


def test_span_is_exported_after_the_delay():
    exporter = lanes.Stuck()
    exporter.let_go.set()
    processor = MqTraceSpanProcessor(exporter, schedule_delay_millis=100)  # its thread starts sooner
    processor.on_end(lanes.span())
    assert exporter.entered.wait(lanes.GENEROUS_S)
    processor.shutdown()


def test_unsampled_spans_are_not_exported():
    provider, exporter = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False), lanes.Scripted()
    exporter.exports_starts = True
    processor = MqTraceSpanProcessor(exporter, background=False)
    provider.add_span_processor(processor)
    provider.get_tracer("tests").start_span("a").end()
    processor.on_start(lanes.span("b", sampled=False))
    processor.on_end(lanes.span("b", sampled=False))
    processor.on_end(ReadableSpan("no context"))
    assert (_account(processor)["offered"], processor.internal_errors) == (0, 0)


def test_mock_as_an_exporter_gets_each_span_once():
    exporter = Mock()
    exporter.export.return_value = SpanExportResult.FAILURE
    processor = MqTraceSpanProcessor(exporter, background=False)
    lanes.tracer_of(processor).start_span("a").end()
    processor.force_flush()
    assert _account(processor)["failed"] == _account(processor)["offered"] == 1
    assert [(row["side"], row["count"]) for row in processor.ledger()["rows"]] == [("otlp", 1)]


def test_exports_never_overlap_whichever_thread_flushes():
    exporting, pause, overlaps = threading.Lock(), threading.Event(), []

    class Exclusive(lanes.Scripted):
        def export(self, spans):
            is_alone = exporting.acquire(blocking=False)
            overlaps.append(not is_alone)
            pause.wait(0.001)  # room for an overlap
            if is_alone:
                exporting.release()
            return super().export(spans)

    processor = MqTraceSpanProcessor(Exclusive(), max_export_batch_size=1, schedule_delay_millis=1)

    def work():
        for _ in range(20):
            processor.on_end(lanes.span())
            processor.force_flush(GENEROUS_MS)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(work)
    processor.shutdown()
    assert overlaps == [False] * 80


@pytest.mark.parametrize("interrupt", [None, KeyboardInterrupt])
def test_shutdown_with_a_hanging_exporter_ends_in_time_or_on_interrupt_and_counts_the_rest(interrupt, monkeypatch):
    processor, exporter = lanes.stuck_processor()
    processor.on_end(lanes.span("waiting"))
    if interrupt is not None:
        monkeypatch.setattr(processor.lanes[0], "finish", Mock(side_effect=interrupt))
    with nullcontext() if interrupt is None else pytest.raises(interrupt):
        processor.shutdown(timeout_millis=0)
    account = _account(processor)
    assert (account["pending"], account["dropped"]["shutdown_timeout"]) == (0, 2)
    again = threading.Thread(target=processor.shutdown, args=(GENEROUS_MS,))  # as the provider does at exit
    again.start()
    again.join(lanes.GENEROUS_S / 2)
    assert (again.is_alive(), exporter.let_go.is_set()) == (False, False)
    exporter.let_go.set()
    assert lanes.worker_ended(processor, lanes.GENEROUS_S)
    assert lanes.account_balances(_account(processor))


@pytest.mark.parametrize("background", [True, False])
def test_shutdown_ends_in_time_when_an_exporter_hangs_in_its_own(background):
    hanging, free = lanes.Hanging(), lanes.Scripted()
    processor = MqTraceSpanProcessor(hanging, free, background=background)
    processor.on_end(lanes.span("a"))
    assert processor.force_flush(GENEROUS_MS)
    processor.shutdown(timeout_millis=200)
    assert not hanging.closed.is_set()
    hanging.let_go.set()
    assert free.closed.wait(lanes.GENEROUS_S)
    assert (hanging.names, free.names) == (["a"], ["a"])


@pytest.fixture
def started(monkeypatch):
    """The threads that the test's own thread has started; one of an earlier test may start others meanwhile."""
    own, start, threads = threading.current_thread(), threading.Thread.start, []

    def start_and_note(thread):
        threads.extend([thread] * (threading.current_thread() is own))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_and_note)
    return threads


def test_no_thread_starts_before_the_first_span_of_a_processor(started):
    """So that the parent of a pre-forking server has none."""
    MqTraceSpanProcessor(lanes.Scripted(), lanes.Scripted())
    assert started == []


def test_exception_of_the_processor_is_counted_and_not_raised():
    exporter, clock = lanes.Scripted(), Mock(ManualClock, **{"monotonic_ns.side_effect": OSError("no clock")})
    exporter.exports_starts = True
    processor = MqTraceSpanProcessor(exporter, clock=clock, background=False)
    offers = processor.on_end, processor.on_end, processor.on_start, processor.offer_record_start
    for count, offer in enumerate(offers, 1):
        offer(lanes.span("a"))
        assert processor.internal_errors == count


@pytest.fixture
def metrics(reader):
    """Read the value or count of every point, by metric, unit, component type and error type."""

    def read():
        (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        return {
            (metric.name, metric.unit, point.attributes["otel.component.type"], point.attributes.get("error.type")): (
                getattr(point, "count", getattr(point, "value", None))
            )
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    return read


def test_queue_size_metric_counts_waiting_spans_up_to_the_capacity(reader, metrics):
    provider = MeterProvider([reader], shutdown_on_exit=False)
    processor, stuck = lanes.stuck_processor(meter_provider=provider, max_queue_size=2)
    processor.on_end(lanes.span("waits"))
    processor.on_end(lanes.span("waits, too"))
    assert metrics() == {  # and none of the exporter, which has no component type
        ("otel.sdk.processor.span.queue.size", "{span}", COMPONENT_TYPE, None): 2,
        ("otel.sdk.processor.span.queue.capacity", "{span}", COMPONENT_TYPE, None): 2,
        ("otel.sdk.processor.span.processed", "{span}", COMPONENT_TYPE, None): 0,
    }
    assert _account(processor)["pending"] == 3
    stuck.let_go.set()
    processor.shutdown()


def test_processor_metrics_equal_the_stats(reader, metrics):
    exporter = lanes.Scripted(SpanExportResult.SUCCESS, SpanExportResult.FAILURE)
    exporter.component_type = "ours"
    provider = MeterProvider([reader], shutdown_on_exit=False)
    limits = {"max_queue_size": 2, "max_export_batch_size": 1}
    processor = MqTraceSpanProcessor(exporter, meter_provider=provider, background=False, clock=ManualClock(), **limits)
    for name in "abc":
        processor.on_end(lanes.span(name))
    processor.force_flush()
    processor.on_end(lanes.span("d"))
    assert metrics() == {
        ("otel.sdk.processor.span.queue.size", "{span}", COMPONENT_TYPE, None): 1,
        ("otel.sdk.processor.span.queue.capacity", "{span}", COMPONENT_TYPE, None): 2,
        ("otel.sdk.processor.span.processed", "{span}", COMPONENT_TYPE, None): 1,
        ("otel.sdk.processor.span.processed", "{span}", COMPONENT_TYPE, "queue_full"): 1,
        ("otel.sdk.processor.span.processed", "{span}", COMPONENT_TYPE, "export_failed"): 1,
        ("otel.sdk.exporter.span.inflight", "{span}", "ours", None): 0,
        ("otel.sdk.exporter.span.exported", "{span}", "ours", None): 1,
        ("otel.sdk.exporter.span.exported", "{span}", "ours", "export_failed"): 1,
        ("otel.sdk.exporter.operation.duration", "s", "ours", None): 1,
        ("otel.sdk.exporter.operation.duration", "s", "ours", "export_failed"): 1,
    }


@pytest.mark.parametrize("is_set_between", [False, True])
def test_second_processor_of_a_meter_provider_has_its_metrics(reader, points, is_set_between):
    other, provider = MeterProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    MqTraceSpanProcessor(lanes.Scripted(), meter_provider=other, max_queue_size=1, background=False)
    before = metrics_of_the_api._ProxyMeterProvider() if is_set_between else provider
    MqTraceSpanProcessor(lanes.Scripted(), meter_provider=before, max_queue_size=2, background=False)
    if is_set_between:
        before.on_set_meter_provider(provider)
    MqTraceSpanProcessor(lanes.Scripted(), meter_provider=provider, max_queue_size=3, background=False)
    assert [point.value for _, point in points("otel.sdk.processor.span.queue.capacity")] == [2, 3]


def test_counts_of_a_processor_stay_after_the_shutdown(reader, metrics):
    processor = MqTraceSpanProcessor(lanes.Scripted(), meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    processor.on_end(lanes.span("a"))
    processor.shutdown()
    processor.on_end(lanes.span("b"))
    processed = "otel.sdk.processor.span.processed", "{span}", COMPONENT_TYPE
    after = {(*processed, None): 1, (*processed, "already_shutdown"): 1}
    assert after.items() <= metrics().items()
    del processor
    gc.collect()
    assert metrics() == after  # of a queue that is no more, neither size nor capacity


class Flushing(lanes.Scripted):
    """Does ``act`` in each flush, after saying that it is there; raises what is an exception."""

    def __init__(self, act=lambda: True):
        super().__init__()
        self.act = act

    def force_flush(self, timeout_millis=30000):
        super().force_flush(timeout_millis)
        self.entered.set()
        if not callable(self.act):
            raise self.act
        return self.act()


@pytest.fixture
def thread_deaths(monkeypatch):
    """Those of a processor's workers; other threads may die of other tests meanwhile."""
    deaths = []
    monkeypatch.setattr(threading, "excepthook", lambda it: it.thread.name.startswith("mqtrace ") and deaths.append(it))
    return deaths


@pytest.mark.parametrize("poison", POISONS, ids=repr)
def test_worker_survives_any_exception_of_an_export_or_flush(poison, thread_deaths):
    """The stock worker dies of SystemExit and never exports again."""
    daemons = []

    class Broken(Flushing):
        def export(self, spans):
            daemons.append(threading.current_thread().daemon)
            return super().export(spans)

    exporter = Broken(poison)
    exporter.answers = [poison]
    processor = MqTraceSpanProcessor(exporter, max_export_batch_size=1)
    for act, names in (poison, "ab"), (poison, "c"), (lambda: True, "d"):
        exporter.act = act
        for name in names:
            processor.on_end(lanes.span(name))
        assert processor.force_flush(GENEROUS_MS) is (names == "d")
    account = _account(processor)
    assert (account["failed"], account["exported"], daemons, thread_deaths) == (1, 3, [True] * 4, [])
    processor.shutdown()


@pytest.mark.parametrize("poison", POISONS, ids=repr)
@pytest.mark.parametrize("background", [True, False])
def test_shutdown_goes_on_after_any_exception_of_an_exporter(poison, background, thread_deaths):
    calls = []

    def shut_down():
        calls.append(poison)
        raise poison

    exporter, next_one = lanes.Scripted(), lanes.Scripted()
    exporter.shutdown = shut_down
    processor = MqTraceSpanProcessor(exporter, next_one, background=background)
    processor.on_end(lanes.span("a"))
    processor.shutdown()
    assert (calls, next_one.shutdowns, thread_deaths) == ([poison], 1, [])
    assert processor.stats()["Scripted"]["exported"] == 1


def test_exporter_without_a_shutdown_is_reported_and_the_processor_ends(caplog, thread_deaths):
    class Minimal:
        def export(self, spans):
            return SpanExportResult.SUCCESS

    processor = MqTraceSpanProcessor(Minimal())
    processor.on_end(lanes.span("a"))
    assert processor.force_flush()
    processor.shutdown()
    assert (processor.stats()["Minimal"]["exported"], thread_deaths) == (1, [])
    assert caplog.messages == ["mqtrace: Minimal raised in shutdown() (logged once)"]


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")], ids=["nothing", "one span", "a backlog"])
@pytest.mark.parametrize(("method", "answer"), [("force_flush", True), ("shutdown", None)])
def test_flush_or_shutdown_of_a_lane_does_not_wait_for_a_stuck_one(method, answer, names):
    stuck, free, answers = lanes.Stuck(), Flushing(), []
    processor = MqTraceSpanProcessor(stuck, free, max_export_batch_size=1)
    for name in names:
        processor.lanes[1].offer(lanes.span(name))
    processor.lanes[0].offer(lanes.span("in flight"))
    assert stuck.entered.wait(lanes.GENEROUS_S)
    calling = threading.Thread(target=lambda: answers.append(getattr(processor, method)(GENEROUS_MS)))
    calling.start()
    try:
        assert (free.entered if answer else free.closed).wait(lanes.GENEROUS_S / 2)  # long before the time is up
        assert calling.is_alive()
        assert free.names == list(names)
        assert all(left_ms > GENEROUS_MS / 2 for left_ms in free.flushes)
    finally:
        stuck.let_go.set()
        calling.join(lanes.GENEROUS_S)
    processor.shutdown()
    assert (answers, stuck.shutdowns, free.shutdowns) == ([answer], 1, 1)
    assert processor.stats()["Stuck"]["exported"] == 1


def test_flush_ends_in_time_when_the_exporter_hangs_in_its_own():
    let_go = threading.Event()
    processor = MqTraceSpanProcessor(Flushing(lambda: let_go.wait(lanes.GENEROUS_S)))
    processor.on_end(lanes.span("a"))
    assert processor.force_flush(200) is False
    assert not let_go.is_set()
    let_go.set()
    assert processor.force_flush(GENEROUS_MS) is True
    processor.shutdown()


@pytest.mark.parametrize("method", ["export", "force_flush"])
def test_exporter_that_flushes_its_own_processor_does_not_hang(method, monkeypatch):
    exporter, inner = lanes.Scripted(), []
    call = getattr(exporter, method)

    def recursive(argument):
        inner.append(processor.force_flush(GENEROUS_MS))
        return call(argument)

    monkeypatch.setattr(exporter, method, recursive)
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(lanes.span("a"))
    assert processor.force_flush(GENEROUS_MS)
    assert (inner, len(exporter.flushes), exporter.names) == ([False], 1, ["a"])
    processor.shutdown()


def test_processor_after_shutdown_calls_no_exporter_and_starts_no_thread(started):
    exporter = Flushing()
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(lanes.span("a"))
    processor.shutdown()
    assert started
    started.clear()
    assert processor.force_flush(0)
    processor.on_end(lanes.span("late"))
    processor.shutdown()
    assert (exporter.names, exporter.flushes, exporter.shutdowns, started) == (["a"], [], 1, [])
    assert _account(processor)["dropped"]["already_shutdown"] == 1


def test_flush_and_shutdown_export_in_the_calling_thread_when_no_thread_can_start(monkeypatch):
    exporter = Flushing()
    processor = MqTraceSpanProcessor(exporter)
    refused = RuntimeError("can't create new thread at interpreter shutdown")
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=refused))
    processor.on_end(lanes.span("a"))
    assert processor.force_flush(GENEROUS_MS)
    assert (exporter.names, len(exporter.flushes)) == (["a"], 1)
    processor.on_end(lanes.span("b"))
    processor.shutdown()
    assert (exporter.names, exporter.shutdowns) == (["a", "b"], 1)


@pytest.mark.parametrize("forever", [None, float("inf"), float("nan"), sys.maxsize])
def test_flush_accepts_no_and_endless_time(forever):
    processor = MqTraceSpanProcessor(lanes.Scripted())
    processor.on_end(lanes.span())
    assert processor.force_flush(forever)
    processor.shutdown(forever)


def test_flush_and_shutdown_without_threads_end_in_time_beside_a_stuck_export():
    exporter = lanes.Stuck()
    processor = MqTraceSpanProcessor(exporter, background=False, max_export_batch_size=1)
    processor.on_end(lanes.span("stuck"))
    processor.on_end(lanes.span("waits"))
    elsewhere = threading.Thread(target=processor.run_once)
    elsewhere.start()
    assert exporter.entered.wait(lanes.GENEROUS_S)
    assert not processor.force_flush(timeout_millis=20)
    processor.shutdown(timeout_millis=20)
    assert exporter.batches == []  # it still hangs
    account = _account(processor)
    assert (account["pending"], account["dropped"]["shutdown_timeout"]) == (0, 2)
    exporter.let_go.set()
    elsewhere.join(lanes.GENEROUS_S)


def test_calling_thread_neither_raises_nor_waits_nor_logs(caplog):
    processor, stuck = lanes.stuck_processor(max_queue_size=2)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3_000):
            processor.on_start(lanes.span())
            processor.on_end(lanes.span())
        mine = [each for each in caplog.records if each.threadName == threading.current_thread().name]
    assert mine == []
    assert _account(processor)["dropped"]["queue_full"] == 2_998
    stuck.let_go.set()
    processor.shutdown()


def test_flush_exports_earlier_spans_and_returns_the_result():
    exporter = lanes.Scripted(SpanExportResult.SUCCESS, SpanExportResult.FAILURE)
    processor = MqTraceSpanProcessor(exporter, background=False)
    processor.on_end(lanes.span())
    assert processor.force_flush(5_000)
    assert 0 < exporter.flushes[-1] <= 5_000
    processor.on_end(lanes.span())
    assert not processor.force_flush(None)
    processor.on_end(lanes.span())
    assert not processor.force_flush(0)
    assert (len(exporter.batches), _account(processor)["pending"]) == (2, 1)
    exporter.force_flush = lambda timeout_millis: False
    assert not processor.force_flush()


def test_shutdown_of_several_threads_is_once_and_exporter_gets_its_timeouts():
    given = []

    class Timed(lanes.Scripted):
        def export(self, spans, timeout_millis=None):
            given.append(timeout_millis)
            return super().export(spans)

        def shutdown(self, timeout_millis=None):
            given.append(timeout_millis)

    processor = MqTraceSpanProcessor(Timed(), background=False, export_timeout_millis=1_234, max_export_batch_size=1)
    processor.on_end(lanes.span())
    processor.force_flush()
    processor.on_end(lanes.span())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(processor.shutdown, [0] * 4))
    assert given == [1_234, 0]
    assert _account(processor)["dropped"]["shutdown_timeout"] == 1
    exporter, arguments = lanes.Scripted(), {}
    exporter.export = exporter.shutdown = arguments.update  # has no signature
    MqTraceSpanProcessor(exporter, background=False).shutdown()
    assert arguments == {}


def test_exported_span_is_freed():
    processor = MqTraceSpanProcessor(lanes.Scripted(), background=False)
    live = lanes.tracer_of(processor).start_span("a")
    reference = weakref.ref(live)
    live.end()
    del live
    processor.force_flush()
    gc.collect()
    assert reference() is None
