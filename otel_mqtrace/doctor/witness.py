"""This module knows what one process tells the doctor: a file written when it is instrumented and again when it ends.

It does nothing unless ``MQTRACE_DOCTOR_REPORT`` names the directory for it, which ``mqtrace doctor -- CMD`` sets. The
first writing is for a process that is killed, and so never comes to the second.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import trace

from otel_mqtrace.config import application_kafka_config
from otel_mqtrace.hooks._guard import guarded

if TYPE_CHECKING:
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor

__all__ = ["REPORT_DIRECTORY", "Instrumented", "testify"]

REPORT_DIRECTORY: Final = "MQTRACE_DOCTOR_REPORT"


class Surveyed(Protocol):
    """A client that was changed."""

    def survey(self) -> dict[str, list[str]]:
        """Return what goes untraced now, by kind."""
        ...


class Instrumented(Protocol):
    """The instrumentor of one client, as far as it is looked at from outside."""

    client: str

    @property
    def patches(self) -> Surveyed | None:
        """What was changed in the client, if it was; its ``survey()`` tells what was not."""
        ...

    @property
    def processor(self) -> MqTraceSpanProcessor | None:
        """The processor that was attached."""
        ...

    @property
    def unrecorded(self) -> dict[str, int]:
        """What never became a span, by reason."""
        ...


@guarded("doctor.testify")
def testify(instrumentor: Instrumented, *, outcome: str) -> None:
    """Tell what became of ``instrument()`` for one client: ``instrumented``, ``stepped_back``, ``switched_off``.

    At the end of the process the same is told once more, with what was recorded until then.
    """
    directory = os.environ.get(REPORT_DIRECTORY)
    if not directory:
        return
    witness = _witnesses.get(instrumentor.client)
    if witness is None:
        witness = _witnesses[instrumentor.client] = _Witness(instrumentor, Path(directory))
        atexit.register(witness.write, ended=True)
    witness.outcome = outcome
    witness.write(ended=False)


class _Witness:
    """What one instrumentor of this process has to say."""

    def __init__(self, instrumentor: Instrumented, directory: Path) -> None:
        self.outcome = ""
        self._instrumentor = instrumentor
        self._directory = directory
        self._survey: dict[str, list[str]] = {}

    @guarded("doctor.write")
    def write(self, *, ended: bool) -> None:
        """Write the file of this process and client; it is there whole or not at all."""
        if not self._directory.is_dir():
            return  # the doctor has given up on us
        path = self._directory / f"{os.getpid()}-{self._instrumentor.client}.json"
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(self._told(ended=ended)), encoding="utf-8")
        beside.replace(path)

    def _told(self, *, ended: bool) -> dict[str, Any]:
        processor = self._instrumentor.processor
        provider = trace.get_tracer_provider()
        connection = application_kafka_config() or {}
        return {
            "pid": os.getpid(),
            "program": Path(sys.argv[0]).name if sys.argv else "",
            "client": self._instrumentor.client,
            "outcome": self.outcome,
            "ended": ended,
            "survey": self._seen(),
            "provider": f"{type(provider).__module__}.{type(provider).__qualname__}",
            "records": hasattr(provider, "add_span_processor") or processor is not None,
            "processor": None if processor is None else processor.stats(),
            "unrecorded": self._instrumentor.unrecorded,
            "application_servers": connection.get("bootstrap.servers") or connection.get("metadata.broker.list"),
        }

    def _seen(self) -> dict[str, list[str]]:
        """What was untraced first, and what is now: a client may be gone again by the end."""
        patches = self._instrumentor.patches
        for kind, names in ({} if patches is None else patches.survey()).items():
            self._survey[kind] = sorted({*self._survey.get(kind, ()), *names})
        return self._survey


_witnesses: Final[dict[str, _Witness]] = {}
