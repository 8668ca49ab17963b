"""How the RocketMQ client is changed, and that nothing of it stays."""

import functools
import gc
import logging
import weakref

import pytest
import rocketmq
from rocketmq.v5.exception import IllegalStateException

from otel_mqtrace.clients.rocketmq import ClientPatches
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.instrumentor import RocketMqInstrumentor

_CLASSES = (
    rocketmq.Message,
    rocketmq.Producer,
    rocketmq.SimpleConsumer,
    rocketmq.PushConsumer,
    rocketmq.LiteSimpleConsumer,
    rocketmq.LitePushConsumer,
)


class _Referring:
    client = None


def _as_it_is():
    return [dict(vars(each)) for each in _CLASSES], list(sources)


def test_uninstrument_restores_every_method_ten_times(instrument):
    before = _as_it_is()
    for _ in range(10):
        instrument()
        assert _as_it_is() != before
        RocketMqInstrumentor().uninstrument()
        assert _as_it_is() == before


def test_patched_method_keeps_its_name_and_documentation(instrument):
    names = [(owner, name) for owner in _CLASSES for name, value in vars(owner).items() if callable(value)]
    before = {(owner, name): getattr(owner, name) for owner, name in names}
    instrument()
    changed = [(owner, name) for owner, name in names if getattr(owner, name) is not before[owner, name]]
    assert len(changed) > 10
    for owner, name in changed:
        after = getattr(owner, name)
        assert after.__wrapped__ is before[owner, name]
        assert (after.__name__, after.__doc__) == (name, before[owner, name].__doc__)


def test_client_without_references_is_freed(instrument, proxy, spans, message):
    instrument()
    conf = rocketmq.ClientConfiguration(proxy.endpoints, rocketmq.Credentials())
    checker, listener = _Referring(), _Referring()
    checker.client = producer = rocketmq.Producer(conf, None, checker)
    listener.client = pushed = rocketmq.PushConsumer(conf, "billing", listener, {"o": rocketmq.FilterExpression()})
    with pytest.raises(IllegalStateException):
        producer.send(message())
    assert spans.take().attributes["error.type"] == "IllegalStateException"
    gone = [weakref.ref(producer), weakref.ref(pushed)]
    del producer, pushed, checker, listener
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_instrument_steps_back_for_another_instrumentation(instrument, monkeypatch, caplog):
    original = rocketmq.Producer.send
    theirs = functools.wraps(original)(lambda *args: original(*args))  # noqa: PLW0108 - another function
    monkeypatch.setattr(rocketmq.Producer, "send", theirs)
    with caplog.at_level(logging.WARNING):
        instrument()
    assert ClientPatches.find_conflict() == f"the module {__name__}"
    assert RocketMqInstrumentor().patches is None
    assert [__name__ in record.getMessage() for record in caplog.records if "mqtrace" in record.getMessage()] == [True]


def test_missing_method_of_the_client_is_reported_to_the_doctor(instrument, monkeypatch):
    instrument()
    assert RocketMqInstrumentor().patches.survey() == {"untraceable": [], "wrappers": []}
    RocketMqInstrumentor().uninstrument()
    monkeypatch.delattr(rocketmq, "PushConsumer")
    monkeypatch.delattr(rocketmq.Producer, "recall_message_async")
    instrument()
    survey = RocketMqInstrumentor().patches.survey()
    assert [each.rpartition(".")[2] for each in survey["untraceable"]] == ["recall_message_async", "PushConsumer"]
    assert survey["wrappers"] == []
    RocketMqInstrumentor().uninstrument()


def test_wrong_message_is_refused_by_the_client(instrument, producer, spans):
    with pytest.raises(AttributeError) as raised:
        producer.send(None)
    RocketMqInstrumentor().uninstrument()
    with pytest.raises(type(raised.value)):
        producer.send(None)
