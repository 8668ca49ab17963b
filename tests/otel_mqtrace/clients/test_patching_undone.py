"""What is undone of the patches, whatever stands in the way."""

from __future__ import annotations

from otel_mqtrace.clients.confluent_kafka import patching
from otel_mqtrace.clients.confluent_kafka.messages import registry
from otel_mqtrace.clients.confluent_kafka.state import active
from otel_mqtrace.hooks import _guard
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.instrumentor import MqTraceInstrumentor


def test_a_step_of_the_undoing_that_fails_keeps_none_of_the_others(application, instrument, monkeypatch):
    """Whatever uninstrument() meets: the names are the client's again, and the next round begins clean."""
    names = dict(vars(application))
    instrument()
    monkeypatch.setattr(patching, "forget_leaders", _refuse)
    MqTraceInstrumentor().uninstrument()
    assert _guard._failures.pop("Patches.restore") == 1
    assert dict(vars(application)) == names
    assert (active.tracing, registry in sources) == (None, False)


def test_what_an_undoing_left_behind_is_undone_by_the_next_round(application, instrument, monkeypatch):
    """An uninstrument() that was broken off as a whole: the next instrument() first puts back what was changed."""
    names = dict(vars(application))
    instrument()
    with monkeypatch.context() as broken:
        broken.setattr(patching.ConfluentKafkaPatches, "restore", _refuse)
        MqTraceInstrumentor().uninstrument()
    assert _guard._failures.pop("MqTraceInstrumentor.uninstrument") == 1
    instrument()
    MqTraceInstrumentor().uninstrument()
    assert dict(vars(application)) == names
    assert sources.count(registry) == 0


def _refuse(*_):
    raise RuntimeError("Set changed size during iteration")
