"""How the processor is tuned: by code, by environment, by preset."""

from __future__ import annotations

from functools import partial

import pytest

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import Scripted


def test_the_defaults_are_those_of_the_contract():
    """2048, 100, 500 ms, 30 s, 30 s, refuse the newest."""
    settings = MqTraceSpanProcessor(Scripted()).settings
    assert (settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_ms) == (2048, 100, 500)
    assert (settings.export_timeout_ms, settings.shutdown_timeout_ms, settings.drop_policy) == (
        30_000,
        30_000,
        "newest",
    )


@pytest.mark.parametrize(
    ("preset", "expected"), [("rocketmq4", (1024, 100, 500, "arrival")), ("rocketmq5", (2048, 10, 5000, "last_batch"))]
)
def test_a_preset_is_a_rocketmq_generation(preset, expected):
    """The numbers and the flush rule of AsyncTraceDispatcher before and since 5.3.1."""
    lane = MqTraceSpanProcessor.preset(preset, Scripted()).settings
    assert (
        lane.max_queue_size,
        lane.max_export_batch_size,
        lane.schedule_delay_ms,
        lane.linger_from,
    ) == expected


def test_the_batch_of_rocketmq5_is_capped_at_twenty():
    """As traceMsgBatchNum is."""
    settings = MqTraceSpanProcessor.preset("rocketmq5", Scripted(), max_export_batch_size=50).settings
    assert settings.max_export_batch_size == 20


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="rocketmq4, rocketmq5"):
        MqTraceSpanProcessor.preset("rocketmq6", Scripted())


def test_the_environment_speaks_when_code_does_not(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "300")
    monkeypatch.setenv("OTEL_BSP_EXPORT_TIMEOUT", "7000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "soon")
    monkeypatch.setenv("MQTRACE_QUEUE_SIZE", "400")
    monkeypatch.setenv("MQTRACE_LINGER_MS", "50")
    settings = MqTraceSpanProcessor(Scripted(), schedule_delay_millis=70).settings
    assert (settings.max_queue_size, settings.export_timeout_ms, settings.schedule_delay_ms) == (400, 7000, 70)


def test_an_environment_that_contradicts_itself_does_not_break_start_up(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    assert MqTraceSpanProcessor(Scripted()).settings.max_export_batch_size == 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_queue_size": 0},
        {"max_queue_size": "many"},
        {"max_export_batch_size": 2.5},
        {"max_export_batch_size": 11, "max_queue_size": 10},
        {"schedule_delay_millis": -1},
        {"export_timeout_millis": "x"},
        {"export_timeout_millis": float("nan")},
        {"shutdown_timeout_millis": float("inf")},
        {"drop_policy": "random"},
        {"drop_policy": ["newest"]},
    ],
    ids=repr,
)
@pytest.mark.parametrize("preset", [None, "rocketmq4", "rocketmq5"])
def test_a_wrong_value_in_code_is_refused_by_the_name_of_its_argument(wrong, preset, caplog):
    if preset == "rocketmq5" and len(wrong) == 2:
        wrong = {"max_export_batch_size": 11, "max_queue_size": 9}
    make = MqTraceSpanProcessor if preset is None else partial(MqTraceSpanProcessor.preset, preset)
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must "):
        make(Scripted(), **wrong)
    assert caplog.records == []


def test_the_batch_of_a_preset_shrinks_with_a_queue_that_was_chosen():
    settings = MqTraceSpanProcessor.preset("rocketmq4", Scripted(), max_queue_size=50).settings
    assert (settings.max_queue_size, settings.max_export_batch_size) == (50, 50)


def test_a_preset_takes_none_as_not_given():
    """As the constructor does."""
    settings = MqTraceSpanProcessor.preset("rocketmq5", Scripted(), max_export_batch_size=None).settings
    assert settings.max_export_batch_size == 10
