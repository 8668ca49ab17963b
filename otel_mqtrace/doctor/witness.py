"""This module knows what one process tells the doctor: a file written when it is instrumented and again when it ends.

It does nothing unless ``MQTRACE_DOCTOR_REPORT`` names the directory for it, which ``mqtrace doctor -- CMD`` sets. The
first writing is for a process that is killed, and so never comes to the second.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import propagate

from otel_mqtrace.config import application_kafka_config
from otel_mqtrace.doctor.heard import Heard
from otel_mqtrace.hooks._guard import guarded

if TYPE_CHECKING:
    from opentelemetry import trace

    from otel_mqtrace.spans.processor import MqTraceSpanProcessor

__all__ = ["REPORT_DIRECTORY", "Instrumented", "Surveyed", "listen", "testify"]

REPORT_DIRECTORY: Final = "MQTRACE_DOCTOR_REPORT"
_LOGGERS: Final = ("otel_mqtrace", "bridge")
"""Ours: what they say of lost spans is the cause."""


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
    def provider(self) -> trace.TracerProvider:
        """Who records its spans."""
        ...

    @property
    def processor(self) -> MqTraceSpanProcessor | None:
        """The processor that was attached."""
        ...

    @property
    def refused_exporters(self) -> dict[str, str]:
        """Exporters that were asked for and could not be attached: name → why."""
        ...

    @property
    def unrecorded(self) -> dict[str, int]:
        """What never became a span in this process, by reason."""
        ...


@guarded("doctor.listen")
def listen() -> None:
    """Hear from now on what our loggers say, if the doctor is there: called before anything is done."""
    directory = os.environ.get(REPORT_DIRECTORY)
    if directory and not _witnesses:
        _witnesses.append(_Witness(Path(directory)))
        atexit.register(_witnesses[0].end)


@guarded("doctor.testify")
def testify(instrumentor: Instrumented, *, outcome: str) -> None:
    """Tell what became of ``instrument()`` for one client: ``instrumented``, ``stepped_back``, ``switched_off``.

    At the end of the process the same is told once more, with what was recorded until then.
    """
    for witness in _witnesses:
        witness.hear(instrumentor, outcome)


class _Client:
    """What one instrumentor of this process has to say."""

    def __init__(self, instrumentor: Instrumented) -> None:
        self.instrumentor = instrumentor
        self.outcome = ""
        self._survey: dict[str, dict[str, str]] = {}

    def told(self) -> dict[str, Any]:
        provider = self.instrumentor.provider
        return {
            "outcome": self.outcome,
            "survey": self._seen(),
            "provider": f"{type(provider).__module__}.{type(provider).__qualname__}",
            "records": hasattr(provider, "add_span_processor") or self.instrumentor.processor is not None,
        }

    def _seen(self) -> dict[str, list[str]]:
        """What was untraced first, and what is now: a client may be gone again by the end.

        Of what is told as ``name: count`` the last count stands.
        """
        patches = self.instrumentor.patches
        for kind, names in ({} if patches is None else patches.survey()).items():
            counted = kind == "clients_untraced"
            self._survey.setdefault(kind, {}).update(
                {each.partition(": ")[0] if counted else each: each for each in names}
            )
        return {kind: sorted(names.values()) for kind, names in self._survey.items()}


class _Witness:
    """What this process has to say: of each client, and of what they share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clients: dict[str, _Client] = {}
        self._heard = Heard(passes_on=True)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._heard)

    def hear(self, instrumentor: Instrumented, outcome: str) -> None:
        """Take what one instrumentor tells, and write it down, lest the process be killed."""
        client = self._clients.setdefault(instrumentor.client, _Client(instrumentor))
        client.outcome = outcome
        self._write(ended=False)

    @guarded("doctor.end")
    def end(self) -> None:
        """Export what is queued, as the SDK is about to do, for only then the books tell what became of it."""
        for processor in self._processors():
            processor.force_flush()
        self._write(ended=True)

    @guarded("doctor.write")
    def _write(self, *, ended: bool) -> None:
        """Write the file of this process; it is there whole or not at all."""
        if not self._clients or not self._directory.is_dir():
            return  # the doctor has given up on us
        path = self._directory / f"{os.getpid()}.json"
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(self._told(ended=ended)), encoding="utf-8")
        beside.replace(path)

    def _processors(self) -> list[MqTraceSpanProcessor]:
        """Each once: the clients of a process share one."""
        found = (each.instrumentor.processor for each in self._clients.values())
        return list(dict.fromkeys(each for each in found if each is not None))

    def _told(self, *, ended: bool) -> dict[str, Any]:
        connection = application_kafka_config() or {}
        instrumentors = [each.instrumentor for each in self._clients.values()]
        return {
            "pid": os.getpid(),
            "program": Path(sys.argv[0]).name if sys.argv else "",
            "ended": ended,
            "clients": {name: each.told() for name, each in self._clients.items()},
            "processors": [each.stats() for each in self._processors()],
            "unrecorded": instrumentors[0].unrecorded,
            "propagated": sorted(propagate.get_global_textmap().fields),
            "refused_exporters": {name: why for each in instrumentors for name, why in each.refused_exporters.items()},
            "warnings": list(self._heard.said),
            "application_servers": connection.get("bootstrap.servers") or connection.get("metadata.broker.list"),
        }


_witnesses: Final[list[_Witness]] = []
"""The one of this process, while the doctor is there."""
