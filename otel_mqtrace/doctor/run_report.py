"""What one process reports to the doctor: a file written when a client is instrumented and again at exit.

Nothing is written unless ``MQTRACE_DOCTOR_REPORT`` names a directory, as ``mqtrace doctor -- CMD`` does. The first file
is for a process that is killed and never writes the second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from opentelemetry import propagate

from otel_mqtrace._workers import at_child_exit
from otel_mqtrace.client_properties import application_kafka_config, servers_of
from otel_mqtrace.hooks.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry import trace

    from otel_mqtrace.clients.patching import Patches
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor

REPORT_DIRECTORY: Final = "MQTRACE_DOCTOR_REPORT"
_LOGGERS: Final = ("otel_mqtrace", "bridge")
_PREFIX: Final = "mqtrace: "
_MOST_LINES: Final = 50
_AFTER_THE_SPANS: Final = -1_000


class _LogCapture(logging.Handler):
    """Keeps the last fifty warnings of each logger it is added to, without our prefix.

    Python prints warnings to stderr only while no logger has a handler: with ``passes_on`` it still does.
    """

    def __init__(self, *, passes_on: bool = False) -> None:
        super().__init__(logging.WARNING)
        self._passes_on = passes_on
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().removeprefix(_PREFIX))
        del self.lines[:-_MOST_LINES]
        if self._passes_on and logging.lastResort is not None and self._is_only_handler(record):
            logging.lastResort.handle(record)

    def _is_only_handler(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(each is not self for each in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


@contextlib.contextmanager
def collect_warnings(logger_name: str) -> Iterator[list[str]]:
    """Yield the list of the warnings of one logger, which go nowhere else meanwhile."""
    capture, logger = _LogCapture(), logging.getLogger(logger_name)
    logger.addHandler(capture)
    propagate_before, logger.propagate = logger.propagate, False
    try:
        yield capture.lines
    finally:
        logger.propagate = propagate_before
        logger.removeHandler(capture)


class _Instrumented(Protocol):
    """The instrumentor of one client, as the report reads it."""

    client: ClassVar[str]
    patches: Patches | None

    @property
    def provider(self) -> trace.TracerProvider: ...
    @property
    def processor(self) -> MqTraceSpanProcessor | None: ...
    @property
    def refused_exporters(self) -> dict[str, str]: ...
    @property
    def unrecorded(self) -> dict[str, int]: ...


@guarded("doctor.capture_logs")
def capture_logs() -> None:
    """Capture the warnings of our loggers from now on, if the doctor wants a report."""
    directory = os.environ.get(REPORT_DIRECTORY)
    if directory and not _reports:
        _reports.append(_Report(Path(directory)))
        atexit.register(_reports[0].end)
        _end_in_child(_reports[0])
        from multiprocessing.util import register_after_fork  # noqa: PLC0415 - no other process pays for its import

        register_after_fork(_reports[0], _end_in_child)


def _end_in_child(of_process: _Report) -> None:
    at_child_exit(of_process.end, priority=_AFTER_THE_SPANS)


@guarded("doctor.report")
def report(instrumentor: _Instrumented, *, outcome: str) -> None:
    """Report the outcome of ``instrument()`` for one client: ``instrumented``, ``stepped_back``, ``switched_off``.

    At the end of the process it is reported again, with what was recorded until then.
    """
    for each in _reports:
        each.add(instrumentor, outcome)


class _Report:
    """The report of this process: each client, and what they share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clients: dict[str, tuple[_Instrumented, str]] = {}
        """Each instrumentor, and the outcome of its ``instrument()``."""
        self._surveys: dict[str, dict[str, dict[str, str]]] = {}
        self._logs = _LogCapture(passes_on=True)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._logs)

    def add(self, instrumentor: _Instrumented, outcome: str) -> None:
        """Add one instrumentor and write the file at once: the process may be killed."""
        self._clients[instrumentor.client] = instrumentor, outcome
        self._write(ended=False)

    @guarded("doctor.end")
    def end(self) -> None:
        """Export what is queued, as the SDK is about to do, so that the counts are final."""
        for processor in self._processors():
            processor.force_flush()
        self._write(ended=True)

    @guarded("doctor.write")
    def _write(self, *, ended: bool) -> None:
        if not self._clients:
            return
        path = self._directory / f"{os.getpid()}.json"
        beside = path.with_suffix(".part")
        with contextlib.suppress(FileNotFoundError):  # the command has ended before this process, and the doctor too
            beside.write_text(json.dumps(self._as_json(ended=ended)), encoding="utf-8")
            beside.replace(path)

    def _processors(self) -> list[MqTraceSpanProcessor]:
        processors = (instrumentor.processor for instrumentor, _ in self._clients.values())
        return list(dict.fromkeys(each for each in processors if each is not None))

    def _as_json(self, *, ended: bool) -> dict[str, Any]:
        instrumentors = [instrumentor for instrumentor, _ in self._clients.values()]
        return {
            "pid": os.getpid(),
            "program": Path(sys.argv[0]).name if sys.argv else "",
            "ended": ended,
            "clients": {name: self._describe_client(*each) for name, each in self._clients.items()},
            "processors": [each.stats() for each in self._processors()],
            "unrecorded": instrumentors[0].unrecorded,
            "propagated": sorted(propagate.get_global_textmap().fields),
            "refused_exporters": {name: why for each in instrumentors for name, why in each.refused_exporters.items()},
            "warnings": list(self._logs.lines),
            "application_servers": servers_of(application_kafka_config() or {}) or None,
        }

    def _describe_client(self, instrumentor: _Instrumented, outcome: str) -> dict[str, Any]:
        provider = instrumentor.provider
        return {
            "outcome": outcome,
            "survey": self._update_survey(instrumentor),
            "provider": f"{type(provider).__module__}.{type(provider).__qualname__}",
            "records": hasattr(provider, "add_span_processor") or instrumentor.processor is not None,
        }

    def _update_survey(self, instrumentor: _Instrumented) -> dict[str, list[str]]:
        """Return what was untraced at first and what is now; of entries ``name: count`` the last count stands."""
        survey = self._surveys.setdefault(instrumentor.client, {})
        for kind, names in ({} if instrumentor.patches is None else instrumentor.patches.survey()).items():
            counted = kind == "clients_untraced"
            survey.setdefault(kind, {}).update({each.partition(": ")[0] if counted else each: each for each in names})
        return {kind: sorted(names.values()) for kind, names in survey.items()}


_reports: Final[list[_Report]] = []
"""The report of this process, if the doctor wants one."""
