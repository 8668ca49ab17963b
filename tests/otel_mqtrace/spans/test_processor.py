"""The processor: the way of a span, flush, shutdown."""

import sys
import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S, Closing, Hanging, Scripted, Stuck, account_balances, span, worker_ended

GENEROUS_MS = GENEROUS_S * 1000


@pytest.fixture
def provider():
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def _attached(provider, *exporters, **options):
    processor = MqTraceSpanProcessor(*exporters, **options)
    provider.add_span_processor(processor)
    return processor, provider.get_tracer("tests")


def test_spans_are_exported_in_order_and_in_batches(provider):
    exporter = Scripted()
    processor, tracer = _attached(provider, exporter)
    for number in range(250):
        tracer.start_span(str(number)).end()
    assert processor.force_flush(GENEROUS_MS)
    assert exporter.names == [str(number) for number in range(250)]
    assert max(map(len, exporter.batches)) <= 100
    dropped = dict.fromkeys(("queue_full", "already_shutdown", "shutdown_timeout", "too_large"), 0)
    expected = {"offered": 250, "exported": 250, "dropped": dropped, "failed": 0, "pending": 0}
    assert processor.stats() == {"Scripted": expected}


def test_span_is_exported_after_the_delay(provider):
    arrived = threading.Event()

    class Waiting(Scripted):
        def export(self, spans):
            arrived.set()
            return super().export(spans)

    _, tracer = _attached(provider, Waiting(), schedule_delay_millis=1)
    tracer.start_span("a").end()
    assert arrived.wait(GENEROUS_S)


def test_unsampled_spans_are_not_exported():
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    processor, tracer = _attached(provider, Scripted(), background=False)
    tracer.start_span("a").end()
    processor.on_end(span("b", sampled=False))
    processor.on_end(ReadableSpan("no context"))
    assert processor.stats()["Scripted"]["offered"] == 0


def test_account_balances_at_every_instant_under_eight_threads(provider):
    answers = [SpanExportResult.SUCCESS, SpanExportResult.FAILURE, ValueError("x"), SystemExit(1)] * 50
    exporter = Scripted(*answers)
    processor, tracer = _attached(
        provider, exporter, max_queue_size=50, max_export_batch_size=20, schedule_delay_millis=1
    )
    start, seen = threading.Barrier(9), []

    def work():
        start.wait(GENEROUS_S)
        for _ in range(400):
            tracer.start_span("a").end()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait(GENEROUS_S)
    while any(thread.is_alive() for thread in threads):
        seen.append(processor.stats()["Scripted"])
    for thread in threads:
        thread.join()
    processor.shutdown()
    final = processor.stats()["Scripted"]
    assert all(map(account_balances, [*seen, final]))
    assert (final["offered"], final["pending"]) == (3200, 0)
    assert final["exported"] == sum(len(batch) for batch in exporter.batches) - final["failed"]
    assert exporter.most_concurrent == 1


@pytest.mark.parametrize("poison", [SystemExit(1), GeneratorExit(), KeyboardInterrupt()], ids=repr)
def test_worker_survives_any_exception_of_an_export(provider, poison):
    """The stock worker dies of SystemExit and never exports again."""
    daemons = []

    class DaemonRecorder(Scripted):
        def export(self, spans):
            daemons.append(threading.current_thread().daemon)
            return super().export(spans)

    exporter = DaemonRecorder(poison)
    processor, tracer = _attached(provider, exporter, max_export_batch_size=1)
    tracer.start_span("a").end()
    tracer.start_span("b").end()
    processor.force_flush(GENEROUS_MS)
    stats = processor.stats()["DaemonRecorder"]
    assert (stats["failed"], stats["exported"], daemons) == (1, 1, [True, True])


def test_exporter_that_flushes_its_own_processor_in_an_export_does_not_hang(provider):
    class Recursive(Scripted):
        def export(self, spans):
            self.answer = processor.force_flush(GENEROUS_MS)
            return super().export(spans)

    exporter = Recursive()
    processor, tracer = _attached(provider, exporter, max_export_batch_size=1)
    tracer.start_span("a").end()
    assert processor.force_flush(GENEROUS_MS)
    assert exporter.answer is False


@pytest.fixture
def stuck():
    """A processor whose exporter hangs in the export of one span while another waits."""
    exporter = Stuck()
    processor = MqTraceSpanProcessor(exporter, max_export_batch_size=1)
    processor.on_end(span("in flight"))
    assert exporter.entered.wait(GENEROUS_S)
    processor.on_end(span("waiting"))
    yield processor, exporter
    exporter.let_go.set()


def test_shutdown_with_a_hanging_exporter_ends_in_time(stuck):
    processor, exporter = stuck
    processor.shutdown(timeout_millis=0)
    stats = processor.stats()["Stuck"]
    assert (stats["pending"], stats["dropped"]["shutdown_timeout"]) == (0, 2)
    exporter.let_go.set()
    assert worker_ended(processor, GENEROUS_S)
    assert account_balances(processor.stats()["Stuck"])


def test_export_that_shuts_the_processor_down_is_counted_as_exported():
    class ShuttingDown(Scripted):
        def export(self, spans):
            processor.shutdown(timeout_millis=GENEROUS_MS)
            return super().export(spans)

    processor = MqTraceSpanProcessor(ShuttingDown(), max_export_batch_size=1)
    processor.on_end(span("last"))
    assert worker_ended(processor, GENEROUS_S)
    stats = processor.stats()["ShuttingDown"]
    assert (stats["exported"], stats["dropped"]["shutdown_timeout"]) == (1, 0)


def test_second_shutdown_does_not_wait_again(stuck):
    """The provider shuts down at exit as well, when an application has given up an exporter that hangs."""
    processor, exporter = stuck
    processor.shutdown(timeout_millis=0)
    again = threading.Thread(target=processor.shutdown, args=(GENEROUS_MS,))
    again.start()
    again.join(GENEROUS_S / 2)
    assert not again.is_alive()
    assert not exporter.let_go.is_set()


def test_timed_out_flushes_are_not_passed_to_the_exporter(stuck):
    processor, exporter = stuck
    assert not any(processor.force_flush(0) for _ in range(100))
    exporter.let_go.set()
    assert processor.force_flush(GENEROUS_MS)
    assert len(exporter.flushes) == 1
    processor.shutdown()


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")], ids=["nothing", "one span", "a backlog"])
def test_shutdown_of_a_lane_does_not_wait_for_a_stuck_one(names):
    stuck, free = Stuck(), Closing()
    processor = MqTraceSpanProcessor(stuck, free, max_export_batch_size=1)
    for name in names:
        processor.lanes[1].offer(span(name))
    processor.lanes[0].offer(span("in flight"))
    assert stuck.entered.wait(GENEROUS_S)
    shutting = threading.Thread(target=processor.shutdown, kwargs={"timeout_millis": GENEROUS_MS})
    shutting.start()
    try:
        assert free.closed.wait(GENEROUS_S / 2)  # long before the time is up
        assert shutting.is_alive()
        assert free.names == list(names)
    finally:
        stuck.let_go.set()
        shutting.join(GENEROUS_S)
    assert (stuck.shutdowns, free.shutdowns) == (1, 1)
    assert processor.stats()["Stuck"]["exported"] == 1


def test_shutdown_ends_in_time_when_an_exporter_hangs_in_its_own():
    hanging, free = Hanging(), Closing()
    processor = MqTraceSpanProcessor(hanging, free)
    processor.on_end(span("a"))
    processor.shutdown(timeout_millis=200)
    hanging.let_go.set()
    assert free.closed.wait(GENEROUS_S)
    assert (hanging.names, free.names) == (["a"], ["a"])


def test_no_thread_starts_before_the_first_span_of_a_processor():
    """So that the parent of a pre-forking server has none."""
    before = set(threading.enumerate())
    MqTraceSpanProcessor(Scripted(), Scripted())
    assert set(threading.enumerate()) <= before  # a thread of an earlier test may end meanwhile


def test_exporters_of_one_class_have_an_account_each():
    assert list(MqTraceSpanProcessor(Scripted(), Scripted()).stats()) == ["Scripted", "Scripted#2"]


def test_exception_of_the_processor_is_counted_and_not_raised():
    class Broken(ManualClock):
        def monotonic_ns(self):
            raise OSError("no clock")

    processor = MqTraceSpanProcessor(Scripted(), clock=Broken(), background=False)
    processor.on_end(span("a"))
    processor.on_end(span("b"))
    processor.on_start(span("a"))
    assert processor.internal_errors == 2


def _points(reader):
    return {
        (metric.name, point.attributes.get("error.type")): point.value
        for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }


def test_queue_size_metric_counts_waiting_spans_up_to_the_capacity():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    stuck = Stuck()
    processor = MqTraceSpanProcessor(stuck, meter_provider=provider, max_queue_size=2, max_export_batch_size=1)
    processor.on_end(span("in flight"))
    assert stuck.entered.wait(GENEROUS_S)
    processor.on_end(span("waits"))
    processor.on_end(span("waits, too"))
    size, capacity = (_points(reader)[f"otel.sdk.processor.span.queue.{name}", None] for name in ("size", "capacity"))
    assert (size, capacity, processor.stats()["Stuck"]["pending"]) == (2, 2, 3)
    stuck.let_go.set()
    processor.shutdown()


def test_processor_metrics_equal_the_stats():
    reader = InMemoryMetricReader()
    processor = MqTraceSpanProcessor(
        Scripted(),
        meter_provider=MeterProvider([reader], shutdown_on_exit=False),
        background=False,
        max_queue_size=2,
        max_export_batch_size=2,
    )
    for name in "abc":
        processor.on_end(span(name))
    processor.run_once()
    processor.on_end(span("d"))
    assert _points(reader) == {
        ("otel.sdk.processor.span.queue.size", None): 1,
        ("otel.sdk.processor.span.queue.capacity", None): 2,
        ("otel.sdk.processor.span.processed", None): 2,
        ("otel.sdk.processor.span.processed", "queue_full"): 1,
    }
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    kinds = {point.attributes["otel.component.type"] for each in metrics for point in each.data.data_points}
    assert kinds == {"otel_mqtrace.spans.processor.MqTraceSpanProcessor"}


def test_exporter_metrics_are_those_of_exporters_with_a_component_type():
    class Ours(Scripted):
        component_type = "ours"

    reader = InMemoryMetricReader()
    clock = ManualClock()
    processor = MqTraceSpanProcessor(
        Ours(SpanExportResult.SUCCESS, SpanExportResult.FAILURE),
        Scripted(),
        meter_provider=MeterProvider([reader], shutdown_on_exit=False),
        background=False,
        max_queue_size=2,
        max_export_batch_size=1,
        clock=clock,
    )
    for name in "abc":
        processor.on_end(span(name))
    processor.force_flush()
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    attributes = {
        (metric.name, point.attributes["otel.component.type"], point.attributes.get("error.type")): getattr(
            point, "count", getattr(point, "value", None)
        )
        for metric in metrics
        for point in metric.data.data_points
        if metric.name.startswith("otel.sdk.exporter")
    }
    assert attributes == {
        ("otel.sdk.exporter.span.inflight", "ours", None): 0,
        ("otel.sdk.exporter.span.exported", "ours", None): 1,
        ("otel.sdk.exporter.span.exported", "ours", "export_failed"): 1,
        ("otel.sdk.exporter.operation.duration", "ours", None): 1,
        ("otel.sdk.exporter.operation.duration", "ours", "export_failed"): 1,
    }
    assert {(metric.name.rpartition(".")[2], metric.unit) for metric in metrics} == {
        *((name, "{span}") for name in ("size", "capacity", "processed", "inflight", "exported")),
        ("duration", "s"),
    }


POISONS = [SystemExit(1), GeneratorExit(), KeyboardInterrupt(), ValueError("broken")]


class Flushing(Scripted):
    """Does ``act`` in each flush, after saying that it is there; raises what is an exception."""

    def __init__(self, act=lambda: True):
        super().__init__()
        self.act = act
        self.entered = threading.Event()

    def force_flush(self, timeout_millis=30000):
        super().force_flush(timeout_millis)
        self.entered.set()
        if isinstance(self.act, BaseException):
            raise self.act
        return self.act()


@pytest.fixture
def thread_deaths(monkeypatch):
    deaths = []
    monkeypatch.setattr(threading, "excepthook", deaths.append)
    return deaths


@pytest.mark.parametrize("poison", POISONS, ids=repr)
def test_flush_fails_for_any_exception_of_the_exporter(poison, thread_deaths):
    exporter = Flushing(poison)
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    assert processor.force_flush(GENEROUS_MS) is False
    exporter.act = lambda: True
    processor.on_end(span("b"))
    assert processor.force_flush(GENEROUS_MS) is True
    assert (exporter.names, thread_deaths) == (["a", "b"], [])
    processor.shutdown()


@pytest.mark.parametrize("poison", POISONS, ids=repr)
@pytest.mark.parametrize("background", [True, False])
def test_shutdown_goes_on_after_any_exception_of_an_exporter(poison, background, thread_deaths):
    class Broken(Scripted):
        def shutdown(self):
            super().shutdown()
            raise poison

    exporter, next_one = Broken(), Scripted()
    processor = MqTraceSpanProcessor(exporter, next_one, background=background)
    processor.on_end(span("a"))
    processor.shutdown()
    assert (exporter.shutdowns, next_one.shutdowns, thread_deaths) == (1, 1, [])
    assert processor.stats()["Broken"]["exported"] == 1


def test_flush_of_a_lane_does_not_wait_for_a_stuck_one():
    stuck, free = Stuck(), Flushing()
    processor = MqTraceSpanProcessor(stuck, free, max_export_batch_size=1)
    processor.on_end(span("a"))
    assert stuck.entered.wait(GENEROUS_S)
    answers = []
    flushing = threading.Thread(target=lambda: answers.append(processor.force_flush(GENEROUS_MS)))
    flushing.start()
    try:
        assert free.entered.wait(GENEROUS_S / 2)  # long before the time is up
        assert flushing.is_alive()
        assert free.names == ["a"]
        assert free.flushes[0] > GENEROUS_MS / 2
    finally:
        stuck.let_go.set()
        flushing.join(GENEROUS_S)
    assert answers == [True]
    processor.shutdown()


def test_flush_ends_in_time_when_the_exporter_hangs_in_its_own():
    let_go = threading.Event()
    exporter = Flushing(lambda: let_go.wait(GENEROUS_S))
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    assert processor.force_flush(200) is False
    assert not let_go.is_set()
    let_go.set()
    assert processor.force_flush(GENEROUS_MS) is True
    processor.shutdown()


def test_exporter_that_flushes_its_own_processor_in_a_flush_does_not_hang():
    inner = []
    exporter = Flushing(lambda: inner.append(processor.force_flush(GENEROUS_MS)))
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    assert processor.force_flush(GENEROUS_MS)
    assert (inner, len(exporter.flushes)) == ([False], 1)
    processor.shutdown()


def test_processor_after_shutdown_calls_no_exporter_and_starts_no_thread(monkeypatch):
    exporter = Flushing()
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    processor.shutdown()
    started = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    assert processor.force_flush(0)
    processor.on_end(span("late"))
    processor.shutdown()
    assert (exporter.names, exporter.flushes, exporter.shutdowns, started) == (["a"], [], 1, [])
    assert processor.stats()["Flushing"]["dropped"]["already_shutdown"] == 1


def test_flush_and_shutdown_export_in_the_calling_thread_when_no_thread_can_start(monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    exporter = Flushing()
    processor = MqTraceSpanProcessor(exporter)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    processor.on_end(span("a"))
    assert processor.force_flush(GENEROUS_MS)
    assert (exporter.names, len(exporter.flushes)) == (["a"], 1)
    processor.on_end(span("b"))
    processor.shutdown()
    assert (exporter.names, exporter.shutdowns) == (["a", "b"], 1)


@pytest.mark.parametrize("forever", [float("inf"), float("nan"), sys.maxsize])
def test_flush_accepts_endless_time(forever):
    exporter = Scripted()
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span())
    assert processor.force_flush(forever)
    processor.shutdown(forever)


def test_flush_and_shutdown_without_threads_end_in_time_beside_a_stuck_export():
    exporter = Stuck()
    processor = MqTraceSpanProcessor(exporter, background=False, max_export_batch_size=1)
    processor.on_end(span("stuck"))
    processor.on_end(span("waits"))
    elsewhere = threading.Thread(target=processor.run_once)
    elsewhere.start()
    assert exporter.entered.wait(GENEROUS_S)
    assert not processor.force_flush(timeout_millis=20)
    processor.shutdown(timeout_millis=20)
    assert exporter.batches == []  # it still hangs
    stats = processor.stats()["Stuck"]
    assert (stats["pending"], stats["dropped"]["shutdown_timeout"]) == (0, 2)
    exporter.let_go.set()
    elsewhere.join(GENEROUS_S)
