"""This module knows what a finaliser may do: leave a call behind, whatever lock its thread is holding."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from otel_mqtrace.hooks.outcome import defer_end, deferred_ends, drain_deferred_ends, when_collected
from otel_mqtrace.hooks.send import SendHook


class Client:
    """Something that is collected with a message on its way; in a cycle, so that only the collector frees it."""

    def __init__(self, hook, topic):
        self.itself = self
        call = hook.before(topic)
        when_collected(self, lambda: defer_end(hook, call, error="abandoned", outcome="abandoned"))


def test_a_call_left_behind_ends_as_of_when_it_was_left(tracing_with, exporter, clock):
    hook = SendHook(tracing=tracing_with())
    Client(hook, "orders")
    clock.advance(ms=5)
    gc.collect()
    clock.advance(ms=500)
    hook.before("other")

    span = exporter.take(name="send orders")
    assert span.end_time - span.start_time == 5_000_000
    assert span.attributes["mqtrace.send_outcome"] == "abandoned"


def test_the_collector_records_nothing(tracing_with, exporter):
    hook = SendHook(tracing=tracing_with())
    Client(hook, "orders")
    gc.collect()
    assert exporter.take_all() == []
    assert len(deferred_ends) == 1

    drain_deferred_ends()
    assert [span.name for span in exporter.take_all()] == ["send orders"]
    assert not deferred_ends


def test_a_call_that_has_ended_is_not_left_again(tracing_with, exporter):
    hook = SendHook(tracing=tracing_with())
    call = hook.before("orders")
    hook.after(call, partition=0, offset=1)
    defer_end(hook, call, error="abandoned")

    assert not deferred_ends
    assert "error.type" not in exporter.take(name="send orders").attributes


def test_thousands_left_behind_are_no_deeper_than_one(tracing_with, exporter):
    """Each end looks for what was left, too: that must not go one level deeper every time."""
    hook = SendHook(tracing=tracing_with())
    for _ in range(3_000):
        defer_end(hook, hook.before("orders"), error="abandoned")
    drain_deferred_ends()

    assert len(exporter.take_all()) == 3_000


def test_what_breaks_off_the_ending_loses_one_span_at_most(tracing_with, exporter):
    """Ctrl-C may come at any moment: the rest is ended by the next hook."""
    hook = SendHook(tracing=tracing_with())
    calls = [hook.before("orders") for _ in range(3)]

    class Interrupted:
        def now_ns(self):
            return 0

        def after(self, call, **how):
            raise KeyboardInterrupt

    defer_end(Interrupted(), calls[0])
    for call in calls:
        defer_end(hook, call, error="abandoned")
    with pytest.raises(KeyboardInterrupt):
        drain_deferred_ends()
    assert len(deferred_ends) == 3
    drain_deferred_ends()
    assert len(exporter.take_all()) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_ends_nothing_that_its_parent_began(tracing_with, exporter):
    hook = SendHook(tracing=tracing_with())
    call = hook.before("orders")
    child = os.fork()
    if child == 0:
        own = hook.before("of the child")
        right = not call.is_open and not call.try_end() and own.is_open and own.try_end()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert call.is_open
    hook.after(call, partition=0, offset=1)
    assert exporter.take(name="send orders").attributes["mqtrace.success"] is True


AT_EXIT = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from otel_mqtrace import SendHook
from otel_mqtrace.hooks.outcome import defer_end, when_collected
from otel_mqtrace.hooks.tracing import Tracing

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
hook = SendHook(tracing=Tracing.create(tracer_provider=provider))


class Client:
    def __init__(self, topic):
        call = hook.before(topic)
        when_collected(self, lambda: defer_end(hook, call, error="abandoned"))


"""


@pytest.mark.parametrize(
    ("story", "ended"),
    [
        ("clients = [Client('first'), Client('second')]", ["send second", "send first"]),
        ("defer_end(hook, hook.before('dropped'))", ["send dropped"]),
    ],
    ids=["clients alive", "left and nobody came"],
)
def test_what_is_left_at_exit_is_ended_before_the_provider_goes(story, ended):
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT + story], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ended
