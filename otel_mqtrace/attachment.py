"""This module knows how our processor comes onto the SDK's TracerProvider, as soon as there is one, and off again.

Instrumentors of several clients share one processor: it is taken off when the last of them is done.
"""

from __future__ import annotations

import inspect
import logging
import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED

from otel_mqtrace._errors import SubinterpreterError
from otel_mqtrace.hooks._once import Once
from otel_mqtrace.hooks._sdk import processors_of, take_off
from otel_mqtrace.spans.processor import MqTraceSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_mqtrace.config import Settings

__all__ = ["Attachment", "told_apart"]

_log: Final = logging.getLogger(__name__)
_EXPORTER_GROUP: Final = "opentelemetry_traces_exporter"
_EXPORTER_OPTIONS: Final = {
    "bootstrap_servers": "bootstrap_servers",
    "kafka_config": "kafka_config",
    "namesrv": "namesrv",
    "rocketmq_access_key": "access_key",
    "rocketmq_secret_key": "secret_key",
    "trace_topic": "trace_topic",
    "dialect": "dialect",
    "region_id": "region_id",
    "max_message_bytes": "max_message_bytes",
    "create_trace_topic": "create_trace_topic",
    "landing_dir": "directory",
    "spool_dir": "spool_dir",
}
"""Option of ``instrument()`` → keyword of an exporter that takes it; what is not given the exporter finds by itself."""
_holders: Final[WeakKeyDictionary[MqTraceSpanProcessor, list[Attachment]]] = WeakKeyDictionary()


def told_apart(
    exporters: str | Iterable[str | SpanExporter] | None,
) -> tuple[list[SpanExporter], str | list[str] | None]:
    """Split exporter objects from exporter names; ``None`` for the names leaves them to the settings."""
    if exporters is None or isinstance(exporters, str):
        return [], exporters
    given = list(exporters)
    return [each for each in given if not isinstance(each, str)], [each for each in given if isinstance(each, str)]


class Attachment:
    """Puts our processor on the SDK's TracerProvider as soon as there is one: now, or at the first span."""

    def __init__(
        self,
        provider: trace.TracerProvider | None,
        meter_provider: MeterProvider | None,
        settings: Settings,
        ready: list[SpanExporter],
        options: dict[str, Any],
    ) -> None:
        self._provider = provider
        self._meter_provider = meter_provider
        self._settings = settings
        self._ready = ready
        self._options = options
        self._wanted = bool(ready or settings.exporters)
        self._turn = Once()
        self._unsaid = Once()
        self.processor: MqTraceSpanProcessor | None = None

    def before_span(self) -> None:
        """Attach, if that has not been done; a first span that nobody records is worth a warning."""
        if self._turn.is_left:
            self.attach()
            if self._turn.is_left and self._unsaid.take():
                _say_that_nothing_is_recorded()

    def attach(self) -> None:
        """Attach once, as soon as there is a provider to attach to."""
        if not self._turn.is_left:
            return
        provider: Any = self._provider or trace.get_tracer_provider()
        if not hasattr(provider, "add_span_processor"):
            return
        if not self._turn.take():
            return
        self._provider = provider
        if not self._wanted:
            return
        present = next((each for each in processors_of(provider) if isinstance(each, MqTraceSpanProcessor)), None)
        if present is not None:
            if present in _holders:  # one that the application added itself is the application's
                _holders[present].append(self)
                self.processor = present
            return
        exporters = [*self._ready, *self._loaded()]
        if exporters:
            try:
                self.processor = self._processor(exporters)
            except SubinterpreterError as refusal:
                _log.warning("mqtrace: %s", refusal)
                return
            _holders[self.processor] = [self]
            provider.add_span_processor(self.processor)

    def detach(self) -> None:
        """Flush and stop our processor and take it off the provider again, unless another attachment holds it."""
        processor, self.processor = self.processor, None
        self._turn.take()
        if processor is None:
            return
        holders = _holders.get(processor, [])
        if self in holders:
            holders.remove(self)
        if holders:
            return
        processor.shutdown()
        take_off(self._provider, processor)

    def _processor(self, exporters: list[SpanExporter]) -> MqTraceSpanProcessor:
        settings = self._settings
        said = {
            "max_queue_size": settings.queue_size,
            "max_export_batch_size": settings.batch_size,
            "schedule_delay_millis": settings.linger_ms,
        }
        given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        given["ledger_dir"] = settings.ledger_dir
        given["meter_provider"] = self._meter_provider or metrics.get_meter_provider()
        if settings.preset is not None:
            return MqTraceSpanProcessor.preset(settings.preset, *exporters, **given)
        return MqTraceSpanProcessor(*exporters, **given)

    def _loaded(self) -> list[SpanExporter]:
        found = [_load_exporter(name, self._options) for name in self._settings.exporters]
        return [each for each in found if each is not None]


def _say_that_nothing_is_recorded() -> None:
    """The way to lose all spans without a word: the API's own provider, which no exporter ever hears of."""
    if os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() != "true":
        _log.warning(
            "mqtrace: messages are sent or handled, but there is no SDK TracerProvider, so no span is recorded: "
            "install opentelemetry-distro and start with opentelemetry-instrument, or call trace.set_tracer_provider()"
        )


def _load_exporter(name: str, options: dict[str, Any]) -> SpanExporter | None:
    """Return the exporter of that entry-point name; one that cannot be had is one warning, and the others go on."""
    try:
        factory = next(iter(entry_points(group=_EXPORTER_GROUP, name=name))).load()
        accepted = inspect.signature(factory).parameters
        keywords = {
            keyword: options[option]
            for option, keyword in _EXPORTER_OPTIONS.items()
            if keyword in accepted and options.get(option) is not None
        }
        exporter: SpanExporter = factory(**keywords)
    except StopIteration:
        _log.warning("mqtrace: there is no exporter named %r; spans do not go there", name)
        return None
    except Exception as problem:  # noqa: BLE001 - whatever an exporter raises, the application starts
        _log.warning("mqtrace: the exporter %r cannot be used: %s", name, problem)
        return None
    return exporter
