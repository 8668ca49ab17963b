"""This module knows what a lane may ask of an exporter: OpenTelemetry's interface, and what ours add to it.

Each addition is optional: ``exports_starts`` and ``wants(span)`` (what it is offered), ``timeout_millis`` on ``export``
and ``shutdown`` (the time it has; without it, the exporter owns its timeout), ``take_outcome()`` (a batch's fate, span
by span), ``on_idle()`` (called now and then while nothing comes, never during an export), ``after_fork()`` (in the
child), ``ledger_side`` (``native``, else ``otlp``) and ``component_type`` (the processor then reports the exporter's
self-metrics under that name).
"""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace.spans.stats import ExportOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["ExporterSide"]

_logger = logging.getLogger(__name__)


def _untraced() -> Context:
    """Return what is current here, and that nothing is to be traced."""
    with suppress_instrumentation():
        return context.get_current()


class ExporterSide:
    """Calls one exporter, never traced; an ``Exception`` of its own ends here, and is an answer like any other.

    ``name`` is what the log calls it; ``export_timeout_ms`` is handed on to an ``export`` that takes it.
    """

    def __init__(self, exporter: SpanExporter, *, name: str, export_timeout_ms: float) -> None:
        self._exporter = exporter
        self._name = name
        self.exports_starts = bool(getattr(exporter, "exports_starts", False))
        component_type = getattr(exporter, "component_type", None)
        self.component_type = component_type if isinstance(component_type, str) else None
        self.ledger_side = str(getattr(exporter, "ledger_side", "otlp"))
        self.wants: Callable[[ReadableSpan], bool] | None = getattr(exporter, "wants", None)
        self._take_outcome: Callable[[], ExportOutcome | None] | None = getattr(exporter, "take_outcome", None)
        self._on_idle: Callable[[], None] | None = getattr(exporter, "on_idle", None)
        self._untraced: Context | None = None
        self._before = Context()
        takes_timeout = _takes_timeout(exporter.export)
        self._export_arguments = {"timeout_millis": export_timeout_ms} if takes_timeout else {}

    def stay_untraced(self) -> None:
        """Let nothing be traced on this thread, which is a lane's own, so that it is not asked with every batch."""
        try:
            self._before = context.get_current()
            self._untraced = _untraced()
            context.attach(self._untraced)
        except Exception:  # a foreign runtime of contexts; each export sees to itself then
            _logger.debug("%s: its thread has no context", self._name, exc_info=True)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Go back, on such a thread, to what was current: for what the application itself does there."""
        token = context.attach(self._before) if context.get_current() is self._untraced else None
        try:
            yield
        finally:
            if token is not None:
                context.detach(token)

    def export(self, batch: list[ReadableSpan]) -> ExportOutcome:
        """Export ``batch`` and return what became of it."""
        if context.get_current() is self._untraced:
            return self._exported(batch)
        token = context.attach(_untraced())
        try:
            return self._exported(batch)
        finally:
            context.detach(token)

    def _exported(self, batch: list[ReadableSpan]) -> ExportOutcome:
        try:
            result = self._exporter.export(batch, **self._export_arguments)
            told = self._take_outcome() if self._take_outcome else None
        except Exception as error:  # counted as failed; the worker goes on
            _logger.debug("%s raised during export", self._name, exc_info=error)
            return ExportOutcome(failed=len(batch))
        if told is not None and told.total == len(batch):
            return told
        return _all_exported(len(batch)) if result is SpanExportResult.SUCCESS else ExportOutcome(failed=len(batch))

    @property
    def uses_idleness(self) -> bool:
        """Whether :meth:`idle` does anything."""
        return self._on_idle is not None

    def idle(self) -> None:
        """Let it use a quiet moment."""
        if self._on_idle is not None:
            try:
                with suppress_instrumentation():
                    self._on_idle()
            except Exception as error:  # nothing was in flight; the worker goes on
                _logger.debug("%s raised while idle", self._name, exc_info=error)

    def flush(self, timeout_ms: float) -> bool:
        """Return whether it flushed; one that answers nothing did."""
        try:
            with suppress_instrumentation():
                return self._exporter.force_flush(int(timeout_ms)) is not False
        except Exception as error:  # a flush that raises is a flush that failed
            _logger.debug("%s raised during force_flush", self._name, exc_info=error)
            return False

    def shutdown(self, timeout_ms: float) -> None:
        """Shut it down, with the time that is left if it takes one."""
        arguments = {"timeout_millis": timeout_ms} if _takes_timeout(self._exporter.shutdown) else {}
        try:
            with suppress_instrumentation():
                self._exporter.shutdown(**arguments)
        except BaseException as error:  # its own business: on a thread of ours, or in an interpreter that is ending
            _logger.debug("%s raised during shutdown", self._name, exc_info=error)

    def after_fork(self) -> None:
        """Tell it, in the child."""
        notify = getattr(self._exporter, "after_fork", None)
        if notify is not None:
            try:
                notify()
            except Exception as error:  # the other lanes must begin anew all the same
                _logger.debug("%s raised after a fork", self._name, exc_info=error)


@lru_cache(maxsize=1)
def _all_exported(spans: int) -> ExportOutcome:
    """Return what becomes of most batches, which are of one size: to make one takes as long as to settle it."""
    return ExportOutcome(exported=spans)


def _takes_timeout(method: Callable[..., object]) -> bool:
    try:
        return "timeout_millis" in inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
