"""Every span that was opened ends: failures of the application, of the wire, of our own code, and collected clients."""

import gc
import math
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode

from otel_mqtrace import ConsumeHook, MqTraceSpanProcessor, SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import defer_end, deferred_ends, drain_deferred_ends, when_collected
from otel_mqtrace.hooks.process import Handling
from otel_mqtrace.model import ContextCode
from otel_mqtrace.testing import RecordingExporter
from tests.support.mailbox import incoming
from tests.support.programs import clean_environment, run_in_child, run_program
from tests.support.source_tree import ROOT


class UnprintableError(Exception):
    def __str__(self):
        raise ZeroDivisionError


def test_exception_that_cannot_be_printed_is_recorded_by_its_type(tracing, spans, sent):
    hook = ConsumeHook(tracing=tracing)
    (call,) = hook.before([incoming(topic="t")])
    hook.after(call, exception=UnprintableError())
    handled = spans.take("process t")
    assert (handled.status.status_code, handled.status.description) == (StatusCode.ERROR, "UnprintableError")
    assert handled.attributes["mqtrace.context_code"] == "EXCEPTION"
    assert handled.attributes["error.type"] == "UnprintableError"
    _, refused = sent({"error": "_FAIL", "exception": UnprintableError()})
    assert refused.attributes["mqtrace.success"] is False
    for span in (handled, refused):
        assert [event.attributes["exception.type"] for event in span.events] == ["UnprintableError"]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("FAILED", "FAILED"), (ContextCode.FAILED, "FAILED"), *((odd, "RETURNNULL") for odd in ("typo", 99, []))],
    ids=repr,
)
def test_unknown_outcome_is_returnnull(tracing, spans, outcome, code):
    hook = ConsumeHook(tracing=tracing)
    first, second = (*hook.before([incoming(topic="t")]), *hook.before([incoming(topic="t")]))
    hook.after(first, code=outcome)
    handling = Handling(second.span)
    handling.outcome(outcome)
    hook.after(second, code=handling.code)
    for span in spans.take_all("process t"):
        assert (span.attributes["mqtrace.context_code"], span.attributes["mqtrace.success"]) == (code, False)


def test_answer_that_cannot_be_recorded_still_ends_the_span(sent, no_failures_yet):
    class Odd:
        def __bool__(self):
            raise ZeroDivisionError

        __eq__ = None
        __hash__ = None

    sent({"partition": Odd()})


def test_span_with_an_end_that_is_no_number_ends_now(tracing, spans, no_failures_yet):
    send, consume = SendHook(tracing=tracing), ConsumeHook(tracing=tracing)
    for end_ns in ("soon", math.nan, 1.7e18 + 2**22):
        call, (handled,) = send.before("orders"), consume.before([incoming()])
        send.after(call, end_ns=end_ns)
        consume.after(handled, end_ns=end_ns)
    assert [str(span.end_time - span.start_time) for span in spans.take_all()] == [*["0"] * 4, *["4194304"] * 2]
    assert guard.failures() == {"end_ns": 4}


def test_message_that_cannot_be_recorded_leaves_the_others_of_its_poll(tracing, spans, no_failures_yet):
    hook = ConsumeHook(tracing=tracing)
    torn = incoming(("a header without a value",), topic="torn")
    calls = hook.before([incoming(topic="before"), torn, incoming(topic="after")])
    assert [call.indexes for call in calls] == [(0,), (2,)]
    for call in calls:
        hook.after(call)
    assert [span.name for span in spans.take_all()] == ["process before", "process after"]


def test_propagator_that_cannot_extract_is_a_counted_failure_without_a_span(tracing, propagating, no_failures_yet):
    propagating(Mock(TextMapPropagator, fields=frozenset(), **{"extract.side_effect": ZeroDivisionError}))
    assert ConsumeHook(tracing=tracing).before([incoming(("traceparent", b"x"))]) == []
    assert guard.failures() == {"ConsumeHook.before": 1}


def test_each_type_of_exception_at_one_place_is_logged_once(monkeypatch, no_failures_yet, caplog):
    monkeypatch.setattr(guard, "_logged", set())

    @guarded("Hook.before")
    def fail(kind):
        raise kind("mine")

    for kind in (ValueError, KeyError, ValueError, KeyError):
        assert fail(kind) is None
    logged = [(record.args[0], record.exc_info[0]) for record in caplog.records if record.name == guard.__name__]
    assert logged == [("Hook.before", ValueError), ("Hook.before", KeyError)]
    assert guard.failures() == {"Hook.before": 4}


def test_every_failure_of_several_threads_is_counted(impatient, no_failures_yet):
    fail = guarded("Hook.before")(int)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(lambda: [*map(fail, "x" * 5_000)])
    assert guard.failures() == {"Hook.before": 20_000}


def test_failure_while_the_interpreter_ends_prints_nothing(run_code):
    """A generator of the application that is open then, as ``process.each()`` may be, is closed so late."""
    run_code("""
        from otel_mqtrace.hooks.guard import guarded

        def messages():
            try:
                yield
            finally:
                guarded("Hook.after")(int)("x")

        held = messages()
        next(held)
        """)


class TimeLimitError(Exception):
    """Raised by an application's signal handler, as Celery's SoftTimeLimitExceeded is."""


class _Limit:
    def exceeded(self, *_):
        raise TimeLimitError


@pytest.fixture(
    params=[_Limit().exceeded, lambda *_: _Limit().exceeded(), partial(_Limit.exceeded, _Limit())],
    ids=["method", "function", "partial"],
)
def interrupt(request):
    """Interrupt the caller: the application's signal handler raises."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield lambda *_: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_in_our_code_or_in_a_hook_reaches_the_application(
    interrupt, tracing_with, spans, no_failures_yet
):
    with pytest.raises(TimeLimitError):
        guarded("Hook.before")(interrupt)()
    assert guard.failures() == {"Hook.before (a signal handler raised)": 1}
    tracing = tracing_with({"produce_hook": interrupt, "consume_hook": interrupt})
    with pytest.raises(TimeLimitError):
        SendHook(tracing=tracing).before("orders")
    spans.take("send orders")
    with pytest.raises(TimeLimitError):
        ConsumeHook(tracing=tracing).before([incoming()])
    spans.take("process orders")


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exit_that_interrupts_our_code_is_counted_and_reaches_the_application(leaving, no_failures_yet):
    with pytest.raises(leaving):
        guarded("Hook.before")(Mock(side_effect=leaving))()
    assert guard.failures() == {"Hook.before (a signal handler raised)": 1}


def test_what_a_signal_handler_raises_in_a_span_processor_reaches_the_application(interrupt):
    exporter = RecordingExporter()
    exporter.wants = interrupt
    processor = MqTraceSpanProcessor(exporter)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    span = provider.get_tracer("application").start_span("work")
    with pytest.raises(TimeLimitError):
        span.end()
    assert processor.internal_errors == 0
    processor.shutdown()


class Client:
    """Something that is collected with a message on its way; in a cycle, so that only the collector frees it."""

    def __init__(self, hook, topic):
        self.itself = self
        call = hook.before(topic)
        when_collected(self, lambda: defer_end(hook, call, error="abandoned", outcome="abandoned"))


@pytest.mark.parametrize("as_record", [False, True])
def test_call_of_a_collected_client_ends_at_the_time_of_the_collection(sender, spans, clock, as_record):
    hook = sender()
    Client(hook, "orders")
    clock.advance(ms=5)
    gc.collect()
    assert spans.take_all() == []  # the collector records nothing
    clock.advance(ms=500)
    if as_record:
        hook.record("other", b"x", None, None, None, None)
    else:
        hook.before("other")
    span = spans.take(name="send orders")
    assert span.end_time - span.start_time == 5_000_000
    assert span.attributes["mqtrace.send_outcome"] == "abandoned"


def test_call_that_has_ended_does_not_end_again(sender, spans, caplog):
    hook = sender()
    call = hook.before("orders")
    hook.after(call, partition=0, offset=1)
    hook.after(call, error="abandoned")
    defer_end(hook, call, error="abandoned")
    assert not deferred_ends
    assert spans.take("send orders").attributes["mqtrace.success"] is True
    assert caplog.records == []


def test_interrupted_drain_loses_one_span_at_most(sender, spans):
    hook = sender()
    calls = [hook.before("orders") for _ in range(1_500)]
    interrupted = sender()
    interrupted.after = Mock(side_effect=KeyboardInterrupt)
    defer_end(interrupted, calls[0])
    for call in calls:
        defer_end(hook, call, error="abandoned")
    with pytest.raises(KeyboardInterrupt):
        drain_deferred_ends()
    assert len(deferred_ends) == 1_500
    drain_deferred_ends()
    assert len(spans.take_all()) == 1_500


def test_forked_child_ends_no_span_of_its_parent(sender, spans):
    hook = sender()
    call, left = hook.before("orders"), hook.before("left")
    defer_end(hook, left, error="abandoned")

    def end_its_own():
        own = hook.before("of the child")
        right = not call.is_open and not call.try_end() and own.is_open and own.try_end()
        return not right or spans.take_all() != []

    assert run_in_child(end_its_own) == 0
    assert call.is_open
    hook.after(call, partition=0, offset=1)
    assert [span.attributes["mqtrace.success"] for span in spans.take_all()] == [False, True]


AT_EXIT = """
import multiprocessing, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from otel_mqtrace import MqTraceSpanProcessor, SendHook, process
from otel_mqtrace.hooks.outcome import defer_end, when_collected
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.hooks.tracing import Tracing
from tests.support.mailbox import Letter, Mailbox

provider = TracerProvider()
provider.add_span_processor(MqTraceSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
tracing = Tracing.create(tracer_provider=provider)
hook = SendHook(tracing=tracing)


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
        ("sources.append(Mailbox.of(tracing)); block = process(Letter(1)); block.__enter__()", ["process letters"]),
    ],
    ids=["clients alive", "left and never taken up", "block open"],
)
def test_open_calls_at_exit_are_ended_before_the_provider_shuts_down(run_code, story, ended):
    assert run_code(AT_EXIT + story).splitlines() == ended


def test_open_calls_end_before_the_provider_shuts_down_where_finalisers_run_later(run_code):
    """All of a process run where the first was registered, which another library may have done before."""
    attached = """
import otel_mqtrace.config, otel_mqtrace.provider
settings = otel_mqtrace.config.Settings(exporters=())
otel_mqtrace.provider.ProviderBinding(provider, None, settings, [], {}, {}).attach()
client = Client("first")
"""
    assert run_code("import weakref; weakref.finalize(weakref, int)" + AT_EXIT + attached) == "send first\n"


IN_A_CHILD = """
def child():
    Client.still_there = Client("orders")

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_open_call_ends_with_a_child_of_multiprocessing(tmp_path, start):
    """A forked one leaves past ``atexit``; a spawned one does not."""
    program = tmp_path / "application.py"
    program.write_text(AT_EXIT + IN_A_CHILD)
    done = run_program(sys.executable, program, start, env=clean_environment(PYTHONPATH=ROOT))
    assert (done.stdout, done.stderr) == ("send orders\n", "")
