"""Call an exporter: OpenTelemetry's interface, and optional additions of ours (docs/rationale.md)."""

from __future__ import annotations

import inspect
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace._errors import raised_failure
from otel_mqtrace.spans.mapping import readable_span
from otel_mqtrace.spans.queue import ExportOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_mqtrace.spans.settings import LaneSettings

_logger = logging.getLogger(__name__)
SPANS_AT_ONCE: Final = 512
"""Spans of one ``export_batches`` at most: OpenTelemetry's default batch, which every receiver takes."""


def _has_own_export(kind: type) -> bool:
    """Return whether ``kind`` derives from a class that takes records, and exports in a way of its own."""
    before = itertools.takewhile(lambda each: "takes_records" not in vars(each), kind.__mro__)
    return any("export" in vars(each) or "export_batches" in vars(each) for each in before)


class ExporterSide:
    """Calls one exporter, ``name`` in the log, with instrumentation suppressed; any ``Exception`` is a failure."""

    def __init__(self, exporter: SpanExporter, *, name: str, settings: LaneSettings) -> None:
        self._exporter = exporter
        self._name = name
        self._logged: set[tuple[str, str]] = set()
        self._batch_size = settings.max_export_batch_size
        # a mock has every attribute, and declares nothing
        self.exports_starts = getattr(exporter, "exports_starts", False) is True
        self.takes_records = getattr(exporter, "takes_records", False) is True
        self._reads_spans = self.takes_records and _has_own_export(type(exporter))
        # Declared by its class: a mock that has every attribute does not count.
        join: Callable[..., Any] | None = getattr(exporter, "export_batches", None)
        self._export_batches = join if hasattr(type(exporter), "export_batches") else None
        self.batches_at_once = max(1, SPANS_AT_ONCE // self._batch_size) if self._export_batches else 1
        component_type = getattr(exporter, "component_type", None)
        self.component_type = component_type if isinstance(component_type, str) else None
        self.ledger_side = "native" if getattr(exporter, "ledger_side", None) == "native" else "otlp"
        self.wants: Callable[[ReadableSpan], bool] | None = getattr(exporter, "wants", None)
        self._take_outcome: Callable[[], ExportOutcome | None] | None = getattr(exporter, "take_outcome", None)
        self._on_idle: Callable[[], None] | None = getattr(exporter, "on_idle", None)
        takes_timeout = _takes_timeout(exporter.export)
        self._export_arguments = {"timeout_millis": settings.export_timeout_millis} if takes_timeout else {}

    def export(self, spans: list[ReadableSpan]) -> ExportOutcome:
        """Export ``spans``, one batch or several full ones, and return their outcome."""
        size = self._batch_size
        try:
            with suppress_instrumentation():
                if self._reads_spans:
                    spans = [*map(readable_span, spans)]
                if len(spans) > size and self._export_batches is not None:
                    batches = [spans[first : first + size] for first in range(0, len(spans), size)]
                    result = self._export_batches(batches, **self._export_arguments)
                else:
                    result = self._exporter.export(spans.copy(), **self._export_arguments)  # some clear the list
                outcome = self._take_outcome() if self._take_outcome else None
        except:  # noqa: E722 - counted as failed; the worker goes on
            self.log_exception("export", raised_failure())
            return ExportOutcome(failed=len(spans))
        if isinstance(outcome, ExportOutcome) and outcome.total == len(spans):
            return outcome
        is_exported = result is SpanExportResult.SUCCESS
        return ExportOutcome(exported=len(spans)) if is_exported else ExportOutcome(failed=len(spans))

    def idle(self) -> None:
        """Call the exporter in a quiet moment."""
        if self._on_idle is not None:
            self._call("on_idle", self._on_idle)

    def flush(self, timeout_ms: float) -> bool:
        """Flush the exporter; a missing return value counts as success, and so does a missing method."""
        flush = getattr(self._exporter, "force_flush", None)
        return flush is None or self._call("force_flush", lambda: flush(int(timeout_ms)))

    def shutdown(self, timeout_ms: float) -> None:
        """Shut the exporter down, with the time that is left if it takes one."""
        try:
            arguments = {"timeout_millis": timeout_ms} if _takes_timeout(self._exporter.shutdown) else {}
            with suppress_instrumentation():
                self._exporter.shutdown(**arguments)
        except BaseException as error:  # noqa: BLE001 - on our thread or at exit no caller could handle it
            self.log_exception("shutdown", error)
        except:  # noqa: E722 - a KafkaError
            self.log_exception("shutdown", raised_failure())

    def after_fork(self) -> None:
        """Notify the exporter, in the child."""
        notify: Callable[[], object] | None = getattr(self._exporter, "after_fork", None)
        if notify is not None:
            self._call("after_fork", notify)

    def _call(self, name: str, method: Callable[[], object]) -> bool:
        """Call a method of the exporter; return whether it neither raised nor returned ``False``."""
        try:
            with suppress_instrumentation():
                return method() is not False
        except:  # noqa: E722 - the worker, and the other lanes, go on
            self.log_exception(name, raised_failure())
            return False

    def log_exception(self, method: str, error: BaseException) -> None:
        """Log what a method of the exporter raised: with its traceback, once for each type of exception."""
        kind = method, type(error).__qualname__
        level = logging.DEBUG if kind in self._logged else logging.WARNING
        self._logged.add(kind)
        _logger.log(level, "mqtrace: %s raised in %s() (logged once)", self._name, method, exc_info=error)


def _takes_timeout(method: Callable[..., object]) -> bool:
    try:
        return "timeout_millis" in inspect.signature(method).parameters
    except (TypeError, ValueError):  # of a C function without a signature
        return False
