"""Attach our processor to the SDK's TracerProvider, as soon as there is one, and detach it again.

Instrumentors of several clients share one processor; the last of them detaches it. A processor that the application
added itself stays: ours is added beside it, with the exporters that it does not have.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace
from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED

from otel_mqtrace._errors import MqTraceError, SubinterpreterError, reraise_from_signal_handler
from otel_mqtrace._workers import ProcessLock, process_generation
from otel_mqtrace.client_properties import without_password
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.outcome import end_all
from otel_mqtrace.hooks.sampling import processors_of, remove_processor
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.spans.settings import processor_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_log: Final = logging.getLogger(__name__)
EXPORTER_GROUP: Final = "opentelemetry_traces_exporter"
"""The entry points that exporters are named by."""
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
    "spool_bytes": "spool_bytes",
}
"""Option of ``instrument()`` → keyword of an exporter that takes it; an exporter reads other settings itself."""
_attaching: Final = ProcessLock()
"""One thread at a time attaches or detaches: two instrumentors would not find each other's processor."""
_LONGEST_WAIT_S: Final = 5.0
"""A logging handler that sends messages holds a lock that the exporter being made may need."""
_holders: Final[WeakKeyDictionary[MqTraceSpanProcessor, list[ProviderBinding]]] = WeakKeyDictionary()
_logged: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
"""Provider, or processor of the application → warnings about its exporters, logged once for all clients."""

Factories = Mapping[str, "Callable[..., SpanExporter] | Exception | None"]
"""Name of an exporter → its factory, why it cannot be loaded, or ``None``: there is no such exporter."""


def load_exporters(names: Iterable[str]) -> Factories:
    """Import exporters by their entry-point names; call this without a lock, for their modules may instrument."""
    factories: dict[str, Callable[..., SpanExporter] | Exception | None] = dict.fromkeys(names)
    for point in entry_points(group=EXPORTER_GROUP) if factories else ():
        if point.name in factories and factories[point.name] is None:  # the first of a name
            try:
                factories[point.name] = point.load()
            except Exception as problem:  # noqa: BLE001 - the application must start
                reraise_from_signal_handler()
                factories[point.name] = problem
    return factories


class ProviderBinding:
    """Puts our processor on the SDK's TracerProvider as soon as there is one: now, or at the first span."""

    def __init__(  # noqa: PLR0913, PLR0917 - what instrument() was given, and what it has loaded
        self,
        provider: trace.TracerProvider | None,
        meter_provider: MeterProvider | None,
        settings: Settings,
        ready: list[SpanExporter],
        options: dict[str, Any],
        factories: Factories,
    ) -> None:
        self._provider = provider
        self._meter_provider = meter_provider
        self._settings = settings.without_secrets()
        self._ready = ready
        given = {
            keyword: getattr(settings, option)
            for option, keyword in _EXPORTER_OPTIONS.items()
            if options.get(option) is not None
        }
        # Held by a function: a crash report that prints the instrumentor's attributes must show no password.
        self._exporter_options: Callable[[], dict[str, Any]] = lambda: given
        self._factories = factories
        self.exporter_names = settings.exporters
        self._begun_in: int | None = None  # the process in which the attachment began: a forked child begins anew
        self._is_over = self._has_warned = False
        self._wait_s = _LONGEST_WAIT_S
        self.processor: MqTraceSpanProcessor | None = None
        self.refused_exporters: dict[str, str] = {}
        """Configured exporters that could not be attached: name → why."""

    @property
    def provider(self) -> trace.TracerProvider:
        """The provider of the client's spans: the one given, or the current global one."""
        return trace.get_tracer_provider() if self._provider is None else self._provider

    def ensure_attached(self) -> None:
        """Attach unless that has been done; a first span without an SDK provider is a warning."""
        if self._is_over or self.attach() or self._has_warned:
            return
        self._has_warned = True
        if os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() != "true":
            _log.warning(
                "mqtrace: messages are sent or handled, but without an SDK TracerProvider no span is recorded: "
                "install opentelemetry-distro and start with opentelemetry-instrument, or call "
                "trace.set_tracer_provider()"
            )

    def attach(self) -> bool:
        """Attach once; return whether there is a provider to attach to.

        A span of another thread waits for that, five seconds at most.
        """
        provider: Any = self.provider
        if not hasattr(provider, "add_span_processor"):
            return False
        lock = _attaching.lock
        if not lock.acquire(timeout=self._wait_s):
            if self._wait_s:
                self._wait_s = 0
                _log.warning("mqtrace: an exporter takes long to start: until it has, other threads' spans are lost")
            return True
        try:
            self._attach_once(provider)
        finally:
            lock.release()
        return True

    def _attach_once(self, provider: Any) -> None:
        generation = process_generation()
        if self._is_over or self._begun_in == generation:  # an exporter that sends messages is being made
            return
        self._begun_in, self._provider = generation, provider
        atexit.unregister(end_all)
        atexit.register(end_all)  # runs before the provider's shutdown, which is registered already
        try:
            if self._ready or self.exporter_names:
                self._attach_to(provider)
            _warn_of_missing_starts(provider)
        finally:
            self._is_over = True

    def _attach_to(self, provider: Any) -> None:
        present = [each for each in processors_of(provider) if isinstance(each, MqTraceSpanProcessor)]
        ours = next((each for each in present if each in _holders), None)
        if ours is not None:
            self._refuse_unshared([lane.exporter for each in present for lane in each.lanes], _holders[ours])
            _holders[ours].append(self)
            self.processor = ours
            return
        exporters = self._build_missing(present)
        if exporters:
            try:
                self.processor = self._make_processor(exporters)
            except SubinterpreterError as refusal:
                _log.warning("mqtrace: %s", refusal)
                return
            _holders[self.processor] = [self]
            provider.add_span_processor(self.processor)

    def detach(self) -> None:
        """Flush and stop our processor and take it off the provider again, unless another attachment holds it."""
        with _attaching.lock:
            self._is_over = True
            processor, self.processor = self.processor, None
            holders = _holders.get(processor, []) if processor is not None else []
            if self in holders:
                holders.remove(self)
            if processor is None or holders:
                return
            _holders.pop(processor, None)
        processor.shutdown()
        remove_processor(self._provider, processor)

    def _make_processor(self, exporters: list[SpanExporter]) -> MqTraceSpanProcessor:
        settings = self._settings
        options: dict[str, Any] = {
            **processor_options(settings),
            "ledger_dir": settings.ledger_dir,
            "meter_provider": self._meter_provider or metrics.get_meter_provider(),
        }
        if settings.preset is not None:
            return MqTraceSpanProcessor.preset(settings.preset, *exporters, **options)
        return MqTraceSpanProcessor(*exporters, **options)

    def _build_missing(self, theirs: list[MqTraceSpanProcessor]) -> list[SpanExporter]:
        """Return the exporters wanted, but not those the application's own processors have: nothing goes out twice."""
        there = [lane.exporter for each in theirs for lane in each.lanes]
        types: list[Any] = [type(each) for each in there]
        ready = {id(each): each for each in self._ready}.values()  # one given twice would be called by two threads
        missing = [each for each in ready if all(each is not other for other in there)]
        for name in self.exporter_names:
            factory = self._find_factory(name)
            if factory is None:
                continue
            if factory in types:
                _warn_once(
                    theirs[0],
                    f"the exporter {name!r} is on the application's own MqTraceSpanProcessor and is not added again: "
                    "settings made for it elsewhere have no effect; leave it out of MQTRACE_EXPORTERS",
                )
            elif (exporter := self._build(name, factory)) is not None:
                self._warn_of_second_way(name, factory)
                missing.append(exporter)
        return missing

    def _warn_of_second_way(self, name: str, factory: Callable[..., SpanExporter]) -> None:
        """Warn where OpenTelemetry's own set-up sends each span to the exporter as well."""
        of_sdk = {each.strip() for each in os.environ.get(OTEL_TRACES_EXPORTER, "").split(",")}
        others = [getattr(each, "span_exporter", None) for each in processors_of(self._provider)]
        of_others = {type(each).__name__ for each in others}  # of OTLP's two protocols alike
        if name in of_sdk and getattr(factory, "__name__", None) in of_others:
            _warn_once(
                self.provider,
                f"the exporter {name!r} is in {OTEL_TRACES_EXPORTER} too, so that each span goes to it twice: "
                "take it off that list",
            )

    def _refuse_unshared(self, there: list[SpanExporter], others: list[ProviderBinding]) -> None:
        """Refuse exporters, but for the default, that none of ``others`` named and that are not ``there``."""
        named = {name for each in others for name in each.exporter_names}
        names = self.exporter_names if self.exporter_names != Settings().exporters else ()
        factories = {name: self._find_factory(name) for name in names if name not in named}
        missing = [
            without_password(name)
            for name, factory in factories.items()
            if factory is not None and all(type(each) is not factory for each in there)
        ]
        missing += [type(each).__name__ for each in self._ready if all(each is not other for other in there)]
        for name in missing:
            self._refuse(
                name,
                f"the exporter {name!r} is not added: the processor of the first instrumentor is shared; "
                "name all exporters in its instrument(), or in MQTRACE_EXPORTERS",
            )

    def _find_factory(self, name: str) -> Callable[..., SpanExporter] | None:
        """Return the factory of an exporter by its name; one that could not be loaded is one warning."""
        shown = without_password(name)
        factory = self._factories.get(name)
        if isinstance(factory, Exception):
            self._refuse(shown, f"the exporter {shown!r} cannot be used: {factory}")
            return None
        if factory is None:
            known = ", ".join(sorted(entry_points(group=EXPORTER_GROUP).names))
            self._refuse(shown, f"no exporter named {shown!r}; spans do not go there: name one of {known}")
        return factory

    def _build(self, name: str, factory: Callable[..., SpanExporter]) -> SpanExporter | None:
        """Return an exporter with the options given in code, as the settings read them: wrong ones were refused."""
        try:
            accepted = inspect.signature(factory).parameters
            given = {name: value for name, value in self._exporter_options().items() if name in accepted}
            return factory(**{name: value for name, value in given.items() if value is not None})
        except Exception as problem:  # noqa: BLE001 - the application must start
            reraise_from_signal_handler()
            fix = "" if isinstance(problem, MqTraceError) else "; correct its variables OTEL_EXPORTER_…, or its options"
            self._refuse(name, f"the exporter {name!r} cannot be used: {problem}{fix}")
            return None

    def _refuse(self, name: str, text: str) -> None:
        self.refused_exporters[name] = text
        _warn_once(self.provider, text)


def _warn_of_missing_starts(provider: Any) -> None:
    """Warn of a native exporter that only a processor of OpenTelemetry's has: that exports no start of a span."""
    processors = processors_of(provider)
    ours = [each for each in processors if isinstance(each, MqTraceSpanProcessor)]
    complete = {type(lane.exporter) for each in ours for lane in each.lanes}
    for exporter in (getattr(each, "span_exporter", None) for each in processors):
        if getattr(exporter, "exports_starts", False) is True and type(exporter) not in complete:
            _warn_once(
                provider,
                f"{type(exporter).__name__} is on a processor of OpenTelemetry's, which exports only ended spans: "
                "no SubBefore is written; name it in MQTRACE_EXPORTERS instead (under OTEL_CONFIG_FILE, in the "
                "instrumentor's exporters)",
            )


def _warn_once(owner: object, text: str) -> None:
    logged = _logged.setdefault(owner, set())
    if text not in logged:
        logged.add(text)
        _log.warning("mqtrace: %s", text)
