"""The parts of a hook's test: an exporter that keeps every span, a Tracing of given settings."""

import pytest

from otel_mqtrace import SendHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import ManualClock, RecordingExporter, recording_provider


@pytest.fixture
def exporter():
    """A recording exporter that fails the test when a span was not taken or our code failed."""
    before = guard.failures()
    kept = RecordingExporter()
    yield kept
    kept.assert_empty()
    assert guard.failures() == before


@pytest.fixture
def clock():
    """Time that only the test moves."""
    return ManualClock()


@pytest.fixture
def tracing_with(exporter, clock):
    """Make a Tracing of settings; ``collaborators`` are its other parts."""

    def make(collaborators=None, **settings):
        given = {"tracer_provider": recording_provider(exporter), "clock": clock, **(collaborators or {})}
        return Tracing.create(settings=Settings(**settings), **given)

    return make


@pytest.fixture
def tracing(tracing_with):
    """A Tracing of default settings."""
    return tracing_with()


@pytest.fixture
def sender(tracing_with):
    """Make a send hook of settings."""
    return lambda **settings: SendHook(tracing=tracing_with(**settings), servers="broker:9092")
