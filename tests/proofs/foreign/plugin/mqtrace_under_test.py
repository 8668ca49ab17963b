"""Run the tests of another project under an instrumentation, and write down what happened.

A pytest plugin, alone in its folder since the other suite may have a package ``tests``. ``MQTRACE_FOREIGN_MODE`` says what is
switched on and when, ``MQTRACE_FOREIGN_OUT`` where outcomes go, ``MQTRACE_FOREIGN_COUNTS`` whether spans count at start or end.
"""

import bisect
import functools
import inspect
import json
import os
import signal
import sys
import time
import weakref
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

_SEVERITY = ("passed", "skipped", "failed")
_AT_THE_END = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


class _CountingEnds(SpanProcessor):
    def __init__(self):
        self.ended = self.counted = Counter()
        self.began_ns = []  # of each span that has ended, some long after their test

    def on_end(self, span):
        self.ended[_operation(span)] += 1
        self.began_ns.append(span.start_time)


class _Counting(_CountingEnds):
    def __init__(self):
        super().__init__()
        self.counted = Counter()

    def on_start(self, span, parent_context=None):
        self.counted[_operation(span)] += 1


def _operation(span) -> str:
    known = {"send", "poll", "process", "recv", "commit", "end_transaction"}
    return next((word for word in span.name.split() if word in known), span.name)


def _switch(subject: str, provider) -> None:
    if subject == "ours":
        from otel_mqtrace import MqTraceInstrumentor  # noqa: PLC0415 - only where it is the subject

        MqTraceInstrumentor().instrument(tracer_provider=provider, exporters=())
    elif subject == "contrib":
        from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor  # noqa: PLC0415 - as above

        ConfluentKafkaInstrumentor().instrument(tracer_provider=provider)


def _failures_of(subject: str) -> dict[str, int]:
    if subject != "ours":
        return {}
    from otel_mqtrace import MqTraceInstrumentor  # noqa: PLC0415 - only where it is the subject

    return {place: count for place, count in MqTraceInstrumentor().unrecorded.items() if count}


def _contained(test):
    """Turn what is raised although it is no exception (a client's KafkaError) into one that pytest can catch."""
    if inspect.iscoroutinefunction(test):
        return test

    @functools.wraps(test)
    def call(*args, **kwargs):
        try:
            return test(*args, **kwargs)
        except BaseException:
            raise
        except:  # noqa: E722 - nothing else catches it
            raise RuntimeError(f"raised: {sys.exc_info()[1]!r}") from None

    return call


class _Recorder:
    """Switches the subject on at its moment, and writes down a line at once whenever a test begins or has ended."""

    def __init__(self, mode: str, target: Path, done: frozenset[str]):
        subject, _, moment = mode.rpartition("-")
        self.subject, self.moment, self.done = subject or mode, moment, done
        self.lines = target.open("a", encoding="utf-8")
        self.worst: dict[str, tuple[str, str]] = {}
        self.tests: list[tuple[int, str]] = []
        self.is_finished = False
        self.spans = _CountingEnds() if os.environ.get("MQTRACE_FOREIGN_COUNTS") == "ends" else _Counting()
        self.provider = TracerProvider()
        self.provider.add_span_processor(self.spans)

    def begin(self) -> None:
        """Early: before a test module is imported, so before it takes any name from the client."""
        # A shell starts background jobs with SIGINT ignored; tests that wait for KeyboardInterrupt would hang.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        weakref.finalize(self, self.conclude)  # at exit, after those made later, which end what is left open
        if self.moment != "late":
            _switch(self.subject, self.provider)
        self.write(switched=self.moment != "late")

    def write(self, **fields) -> None:
        """Write a line that is there whatever happens next: a test may hang in the client's code for ever."""
        self.lines.write(json.dumps(fields) + "\n")
        self.lines.flush()

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid not in self.done]

    def pytest_collection_finish(self):
        if self.moment == "late":
            _switch(self.subject, self.provider)
        self.write(switched=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        pyfuncitem.obj = _contained(pyfuncitem.obj)

    def pytest_runtest_logstart(self, nodeid):
        self.worst[nodeid] = ("passed", "")
        self.tests.append((time.time_ns(), nodeid))
        self.write(began=nodeid)

    def pytest_runtest_logreport(self, report):
        if _SEVERITY.index(report.outcome) > _SEVERITY.index(self.worst[report.nodeid][0]):
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(crash.message if crash else report.longrepr).strip().partition("\n")[0][:200]
            self.worst[report.nodeid] = (report.outcome, reason)

    def pytest_runtest_logfinish(self, nodeid):
        outcome, reason = self.worst.pop(nodeid)
        self.write(test=nodeid, outcome=outcome, reason=reason, spans=self.take_spans())

    def take_spans(self) -> dict[str, int]:
        """Return how many more spans have ended, by the test in which they began."""
        began_ns, self.spans.began_ns = self.spans.began_ns, []
        return Counter(self.tests[max(bisect.bisect(self.tests, (each, "~")) - 1, 0)][1] for each in began_ns)

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(not_collected=report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus):
        self.is_finished = exitstatus in _AT_THE_END  # a session that was interrupted is not
        self.conclude()

    def conclude(self):
        """Write what ended so far: when the session has ended, and again when the process exits; the last line counts."""
        self.write(
            finished=self.is_finished,
            spans=self.take_spans(),
            started=self.spans.counted,
            ended=self.spans.ended,
            failed=_failures_of(self.subject),
        )


def pytest_configure(config):
    """Begin; without the two variables this plugin does nothing. ``MQTRACE_FOREIGN_DONE`` names a file of test ids."""
    mode, target, done = (os.environ.get(f"MQTRACE_FOREIGN_{name}") for name in ("MODE", "OUT", "DONE"))
    if mode and target:
        before = Path(done).read_text(encoding="utf-8").splitlines() if done else []
        recorder = _Recorder(mode, Path(target), frozenset(before))
        config.pluginmanager.register(recorder)
        recorder.begin()
