"""Flushing many lanes: each flushes its own exporter, and none of them can hold, or hit, the application."""

from __future__ import annotations

import sys
import threading

import pytest

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import GENEROUS_S, Scripted, Stuck, span

GENEROUS_MS = GENEROUS_S * 1000
POISONS = [SystemExit(1), GeneratorExit(), KeyboardInterrupt(), ValueError("broken")]


class Flushing(Scripted):
    """Does ``act`` in each flush, after saying that it is there."""

    def __init__(self, act=lambda: True):
        super().__init__()
        self.act = act
        self.entered = threading.Event()

    def force_flush(self, timeout_millis=30000):
        super().force_flush(timeout_millis)
        self.entered.set()
        return self.act()


def _raising(poison):
    def act():
        raise poison

    return act


@pytest.fixture
def thread_deaths(monkeypatch):
    deaths = []
    monkeypatch.setattr(threading, "excepthook", deaths.append)
    return deaths


@pytest.mark.parametrize("poison", POISONS, ids=repr)
def test_whatever_an_exporter_raises_in_its_flush_is_a_flush_that_failed(poison, thread_deaths):
    exporter = Flushing(_raising(poison))
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
def test_whatever_an_exporter_raises_in_its_shutdown_stays_there(poison, background, thread_deaths):
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


def test_a_lane_that_hangs_takes_no_time_from_the_next_ones_flush():
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


def test_a_flush_is_bounded_when_the_exporters_own_hangs():
    let_go = threading.Event()
    exporter = Flushing(lambda: let_go.wait(GENEROUS_S))
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    assert processor.force_flush(200) is False
    assert not let_go.is_set()
    let_go.set()
    assert processor.force_flush(GENEROUS_MS) is True
    processor.shutdown()


def test_nobody_is_flushed_for_who_has_stopped_waiting():
    stuck = Stuck()
    processor = MqTraceSpanProcessor(stuck, max_export_batch_size=1)
    processor.on_end(span("a"))
    assert stuck.entered.wait(GENEROUS_S)
    assert not any(processor.force_flush(0) for _ in range(100))
    stuck.let_go.set()
    assert processor.force_flush(GENEROUS_MS)
    assert len(stuck.flushes) == 1
    processor.shutdown()


def test_an_exporter_may_flush_its_own_processor_while_it_flushes():
    inner = []
    exporter = Flushing(lambda: inner.append(processor.force_flush(GENEROUS_MS)))
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    assert processor.force_flush(GENEROUS_MS)
    assert (inner, len(exporter.flushes)) == ([False], 1)
    processor.shutdown()


def test_a_flush_after_shutdown_asks_nobody_and_starts_nothing(monkeypatch):
    exporter = Flushing()
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span("a"))
    processor.shutdown()
    started = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    assert processor.force_flush(0)
    assert (exporter.flushes, started) == ([], [])


def test_a_flush_works_in_the_calling_thread_when_no_thread_can_start(monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    exporter = Flushing()
    processor = MqTraceSpanProcessor(exporter)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    processor.on_end(span("a"))
    assert processor.force_flush(GENEROUS_MS)
    assert (exporter.names, len(exporter.flushes)) == (["a"], 1)


@pytest.mark.parametrize("forever", [float("inf"), float("nan"), sys.maxsize])
def test_a_flush_may_be_given_all_the_time_there_is(forever):
    exporter = Scripted()
    processor = MqTraceSpanProcessor(exporter)
    processor.on_end(span())
    assert processor.force_flush(forever)
    processor.shutdown(forever)


def test_without_threads_an_export_that_hangs_elsewhere_holds_up_neither_flush_nor_shutdown():
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
    books = processor.stats()["Stuck"]
    assert (books["pending"], books["dropped"]["shutdown_timeout"]) == (1, 1)
    exporter.let_go.set()
    elsewhere.join(GENEROUS_S)
