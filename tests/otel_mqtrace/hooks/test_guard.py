"""An exception of ours is counted every time, and told once for each place and type."""

from __future__ import annotations

import logging

import pytest

from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.guard import guarded


@pytest.fixture
def told(monkeypatch, caplog):
    monkeypatch.setattr(guard, "_failures", {})
    monkeypatch.setattr(guard, "_logged", set())
    caplog.set_level(logging.WARNING, logger=guard.__name__)
    return lambda: [(record.args[0], record.exc_info[0]) for record in caplog.records]


def test_another_exception_at_the_same_place_is_told_too(told):
    """The first may hide what matters: one line for each type, however often it comes."""

    @guarded("Hook.before")
    def fail(kind):
        raise kind("mine")

    for kind in (ValueError, KeyError, ValueError, KeyError):
        assert fail(kind) is None
    assert told() == [("Hook.before", ValueError), ("Hook.before", KeyError)]
    assert guard.failures() == {"Hook.before": 4}


def test_types_without_end_fill_neither_log_nor_memory(told, monkeypatch):
    """An application may make a class for each exception."""
    monkeypatch.setattr(guard, "_MAX_LOGGED", 3)

    @guarded("Hook.before")
    def fail(number):
        raise type(f"Failure{number}", (Exception,), {})

    for number in range(5):
        fail(number)
    assert len(told()) == len(guard._logged) == 3
    assert guard.failures() == {"Hook.before": 5}
