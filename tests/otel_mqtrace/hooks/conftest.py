"""The parts of a hook's test: a Tracing of given settings, the hooks of one, a mailbox."""

import pytest
from opentelemetry import propagate

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
from otel_mqtrace.testing import recording_provider
from tests.support.mailbox import Mailbox


@pytest.fixture
def tracing_with(spans, clock):
    """Make a Tracing of settings; ``collaborators`` are its other parts."""

    def make(collaborators=None, **settings):
        given = {"tracer_provider": recording_provider(spans), "clock": clock, **(collaborators or {})}
        return Tracing.create(settings=Settings(**settings), **given)

    return make


@pytest.fixture
def tracing(tracing_with):
    return tracing_with()


@pytest.fixture
def mailbox_with(tracing_with):
    """Make a mailbox of settings, whose letters ``process`` handles."""
    known = len(sources)

    def make(collaborators=None, **settings):
        sources.append(box := Mailbox.of(tracing_with(collaborators, **settings)))
        return box

    yield make
    del sources[known:]


@pytest.fixture
def mailbox(mailbox_with):
    return mailbox_with()


@pytest.fixture
def sender(tracing_with):
    return lambda **settings: SendHook(tracing=tracing_with(**settings), servers="broker:9092")


@pytest.fixture
def sent(sender, spans):
    """Send a message with a hook of settings; return its call, as the client saw it, and its span."""

    def send(answer=None, settings=None, topic="orders", **message):
        hook = sender(**(settings or {}))
        call = hook.before(topic, **message)
        hook.after(call, **(answer or {}))
        return call, spans.take("send orders")

    return send


@pytest.fixture
def processed(tracing_with, spans):
    """Handle messages of one call with a hook of settings; return their span."""

    def handle(*messages, batch=False, info=None, collaborators=None, **settings):
        tracing = tracing_with(collaborators, **settings)
        hook = ConsumeHook(tracing=tracing, info=info or ClientInfo(group_name="billing"))
        (call,) = hook.before(messages, batch=batch)
        hook.after(call)
        return spans.take()

    return handle


@pytest.fixture
def propagating():
    usual = propagate.get_global_textmap()
    yield propagate.set_global_textmap
    propagate.set_global_textmap(usual)
