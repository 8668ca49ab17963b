"""This module knows how tracing is switched on and off: settings, the client's patches, our processor."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # it is untyped

from otel_mqtrace._errors import MissingExtraError
from otel_mqtrace.config import Settings, forget_application_kafka_config
from otel_mqtrace.hooks._guard import failures, note_failure
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.hooks.transaction import overflowed
from otel_mqtrace.spans.processor import MqTraceSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_mqtrace.clients.confluent_kafka.patching import Patches

__all__ = ["MqTraceInstrumentor"]

_log: Final = logging.getLogger(__name__)
_EXPORTER_GROUP: Final = "opentelemetry_traces_exporter"
_PATCHING: Final = "otel_mqtrace.clients.confluent_kafka.patching"
_EXPORTER_OPTIONS: Final = {
    "bootstrap_servers": "bootstrap_servers",
    "kafka_config": "kafka_config",
    "trace_topic": "trace_topic",
    "dialect": "dialect",
    "region_id": "region_id",
    "max_message_bytes": "max_message_bytes",
    "create_trace_topic": "create_trace_topic",
    "landing_dir": "directory",
}
"""Option of ``instrument()`` → keyword of an exporter that takes it; what is not given the exporter finds by itself."""


class MqTraceInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # as above
    """Instruments confluent-kafka: ``MqTraceInstrumentor().instrument()``; options are the settings in lower case.

    ``exporters`` may hold exporter objects besides names. ``tracer_provider`` and ``meter_provider`` default to the
    global ones; a global TracerProvider that comes later is found at the first span. Nothing here ever raises.
    """

    configuration: ClassVar[type[Settings]] = Settings

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the client versions that can be instrumented."""
        return ("confluent-kafka >= 2.6",)

    @property
    def patches(self) -> Patches | None:
        """What was changed in the client, while instrumented; for ``mqtrace doctor``."""
        return getattr(self, "_patches", None)

    @property
    def processor(self) -> MqTraceSpanProcessor | None:
        """The span processor this instrumentor attached, if it has: its ``stats()`` tell what became of every span."""
        attachment: _Attachment | None = getattr(self, "_attachment", None)
        return None if attachment is None else attachment.processor

    @property
    def unrecorded(self) -> dict[str, int]:
        """What this process never made a span of, by reason; of the spans made, the processor's ``stats()`` tell.

        ``transaction_too_long`` counts messages without an ``end_transaction`` span, ``failed in …`` failures of ours.
        """
        failed = {f"failed in {place}": count for place, count in failures().items()}
        return {"transaction_too_long": overflowed(), **failed}

    def _instrument(self, **options: Any) -> None:
        try:
            self._switch_on(**options)
        except Exception:  # noqa: BLE001 - an instrumentor that raises would stop all the ones after it
            note_failure("MqTraceInstrumentor.instrument")

    def _uninstrument(self, **_options: Any) -> None:
        try:
            self._switch_off()
        except Exception:  # noqa: BLE001 - as above
            note_failure("MqTraceInstrumentor.uninstrument")

    def _switch_on(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        exporters: str | Iterable[str | SpanExporter] | None = None,
        clock: Any = None,
        **options: Any,
    ) -> None:
        ready, names = _told_apart(exporters)
        settings = Settings.from_env({**options, "exporters": names})
        if not settings.enabled:
            return
        patching = _client()
        if patching is None:
            return
        foreign = patching.foreign_wrapper()
        if foreign is not None and settings.on_conflict == "step_back":
            _log.warning(
                "mqtrace: %s already wraps confluent-kafka, so nothing is traced here: disable it, "
                "or set MQTRACE_ON_CONFLICT=wrap to trace as well and leave the trace headers to it",
                foreign,
            )
            return
        self._attachment = _Attachment(tracer_provider, meter_provider, settings, ready, options)
        collaborators = {} if clock is None else {"clock": clock}
        tracing = Tracing.create(
            settings=settings,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            before_span=self._attachment.attach,
            writes_trace_headers=foreign is None,
            **collaborators,
        )
        self._patches = patching.Patches.apply(tracing)
        self._attachment.attach()

    def _switch_off(self) -> None:
        patches: Patches | None = getattr(self, "_patches", None)
        if patches is not None:
            patches.restore()
            del self._patches
        attachment: _Attachment | None = getattr(self, "_attachment", None)
        if attachment is not None:
            attachment.detach()
            del self._attachment
        forget_application_kafka_config()


def _told_apart(
    exporters: str | Iterable[str | SpanExporter] | None,
) -> tuple[list[SpanExporter], str | list[str] | None]:
    """Split exporter objects from exporter names; ``None`` for the names leaves them to the settings."""
    if exporters is None or isinstance(exporters, str):
        return [], exporters
    given = list(exporters)
    return [each for each in given if not isinstance(each, str)], [each for each in given if isinstance(each, str)]


def _client() -> Any:
    try:
        return import_module(_PATCHING)
    except ImportError:
        _log.warning("mqtrace: nothing is traced: %s", MissingExtraError("tracing confluent-kafka", "kafka"))
        return None


class _Attachment:
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
        self._turn: list[None] = [None] if (ready or settings.exporters) else []
        self.processor: MqTraceSpanProcessor | None = None

    def attach(self) -> None:
        """Attach once; called before every span, so it must cost nothing when done."""
        if not self._turn:
            return
        provider: Any = self._provider or trace.get_tracer_provider()
        if not hasattr(provider, "add_span_processor"):
            return
        try:
            self._turn.pop()
        except IndexError:
            return
        if any(isinstance(each, MqTraceSpanProcessor) for each in _processors_of(provider)):
            return
        exporters = [*self._ready, *self._loaded()]
        if exporters:
            self.processor = self._processor(exporters)
            provider.add_span_processor(self.processor)
            self._provider = provider

    def detach(self) -> None:
        """Flush and stop our processor and take it off the provider again."""
        processor, self.processor = self.processor, None
        self._turn = []
        if processor is None:
            return
        processor.shutdown()
        active: Any = getattr(self._provider, "_active_span_processor", None)
        if hasattr(active, "_span_processors"):  # the SDK has no public way to remove one
            active._span_processors = tuple(each for each in _processors_of(self._provider) if each is not processor)  # noqa: SLF001

    def _processor(self, exporters: list[SpanExporter]) -> MqTraceSpanProcessor:
        settings = self._settings
        said = {
            "max_queue_size": settings.queue_size,
            "max_export_batch_size": settings.batch_size,
            "schedule_delay_millis": settings.linger_ms,
        }
        given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        given["meter_provider"] = self._meter_provider or metrics.get_meter_provider()
        if settings.preset is not None:
            return MqTraceSpanProcessor.preset(settings.preset, *exporters, **given)
        return MqTraceSpanProcessor(*exporters, **given)

    def _loaded(self) -> list[SpanExporter]:
        found = [_load_exporter(name, self._options) for name in self._settings.exporters]
        return [each for each in found if each is not None]


def _processors_of(provider: Any) -> tuple[Any, ...]:
    return tuple(getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ()))


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
