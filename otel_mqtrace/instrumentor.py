"""The instrumentors: switch tracing of one client on and off.

Importing this module loads OpenTelemetry's API and the settings; ``instrument()`` loads the rest. OpenTelemetry's base
class of an instrumentor takes longer to import than its whole SDK, and so is loaded by the first ``instrument()`` too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import trace

from otel_mqtrace._errors import MissingExtraError, reraise_from_signal_handler
from otel_mqtrace._workers import ProcessLock
from otel_mqtrace.client_properties import forget_application_kafka_config
from otel_mqtrace.config import Settings, is_exporter
from otel_mqtrace.hooks.guard import failures, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from typing_extensions import Self

    from otel_mqtrace.clients.patching import Patches
    from otel_mqtrace.provider import Factories, ProviderBinding
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor

_log: Final = logging.getLogger(__name__)
_switching: Final = ProcessLock()
"""One thread at a time instruments or uninstruments."""
OBJECTS: Final = frozenset({"tracer_provider", "meter_provider", "produce_hook", "consume_hook", "clock"})
"""The options of ``instrument()`` that are no settings."""
_NOT_SETTINGS: Final = OBJECTS | {"skip_dep_check", "raise_exception_on_conflict"}  # of OpenTelemetry's base class


def _accept(given: Any, option: str, expected: str, method: str = "__call__") -> Any:
    if given is None or callable(getattr(given, method, None)):
        return given
    _log.warning("mqtrace: option %s (%s): %s; it is ignored", option, type(given).__name__, expected)
    return None


def _split_exporters(
    exporters: str | Iterable[str | SpanExporter] | None,
) -> tuple[list[SpanExporter], str | list[str] | None]:
    """Split exporter objects from exporter names (or invalid values); ``None`` leaves the names to the settings."""
    if is_exporter(exporters):
        return [exporters], []
    if exporters is None or isinstance(exporters, str) or not isinstance(exporters, Iterable):
        return [], exporters
    given: list[Any] = list(exporters)
    ready = [each for each in given if is_exporter(each)]
    return ready, [each for each in given if not is_exporter(each)]


class ClientInstrumentor:
    """Instruments one client: ``.instrument()``; options are the settings in lower case.

    ``exporters`` may hold exporter objects besides names. ``tracer_provider`` and ``meter_provider`` default to the
    global ones; a global TracerProvider that comes later is found at the first span. Nothing here ever raises.

    A subclass names the client: ``client`` for messages, ``module`` as Python imports it, ``requirement`` as pip writes
    it, ``extra`` that installs it.
    """

    _instance: ClassVar[Any] = None
    configuration: ClassVar[type[Settings]] = Settings
    client: ClassVar[str]
    module: ClassVar[str]
    requirement: ClassVar[str]
    extra: ClassVar[str]
    patches: Patches | None = None
    """What was changed in the client, while instrumented; for ``mqtrace doctor``."""
    _binding: ProviderBinding | None = None
    _is_automatic = False

    def __new__(cls) -> Self:
        """Return the one instrumentor of the client, as OpenTelemetry's base class does."""
        if cls.__dict__.get("_instance") is None:
            cls._instance = super().__new__(cls)
        instance: Self = cls._instance
        return instance

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the client versions that can be instrumented."""
        return (self.requirement,)

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Return whether :meth:`instrument` was called and :meth:`uninstrument` was not."""
        return self._switch is not None and bool(self._switch.is_instrumented_by_opentelemetry)

    @cached_property
    @guarded("instrument")  # a broken installation of OpenTelemetry
    def _switch(self) -> Any:
        """OpenTelemetry's instrumentor, which checks the client's version and switches once; it calls back here."""
        from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # noqa: PLC0415 - see above
            BaseInstrumentor,
        )

        outer = self

        class Switch(BaseInstrumentor):  # type: ignore[misc]  # it is untyped
            def instrumentation_dependencies(self) -> Collection[str]:
                return outer.instrumentation_dependencies()

            def _instrument(self, **options: Any) -> None:
                outer._instrument(**options)

            def _uninstrument(self, **options: Any) -> None:
                outer._uninstrument(**options)

        Switch.__name__ = type(self).__name__  # it is in what the base class logs
        BaseInstrumentor.register(ClientInstrumentor)
        return Switch()

    @property
    def processor(self) -> MqTraceSpanProcessor | None:
        """The span processor that instrumentors attached, if any: its ``stats()`` count every span."""
        return None if self._binding is None else self._binding.processor

    @property
    def provider(self) -> trace.TracerProvider:
        """The TracerProvider of the client's spans: the one given, or the current global one."""
        return trace.get_tracer_provider() if self._binding is None else self._binding.provider

    @property
    def unrecorded(self) -> dict[str, int]:
        """Operations that never became a span in this process, by reason; for spans see the processor's ``stats()``.

        ``transaction_too_long`` counts messages without an ``end_transaction`` span, ``handed_over_unhandled`` messages
        without their ``process`` block, ``outcome_too_late`` failures after the span's end, ``failed in …`` our
        own failures.
        """
        from otel_mqtrace.hooks.outcome import missing_counts  # noqa: PLC0415 - loaded with the clients

        failed = {f"failed in {place}": count for place, count in failures().items()}
        return {**missing_counts(), **failed}

    @property
    def refused_exporters(self) -> dict[str, str]:
        """Configured exporters that could not be attached: name → why."""
        return {} if self._binding is None else self._binding.refused_exporters

    def instrument(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **options: Any,
    ) -> None:
        """Switch tracing on, with the settings in lower case as ``options``.

        Under ``opentelemetry-instrument``, which tries every instrumentor there is, a client that is not installed is
        no warning.
        """
        from otel_mqtrace.doctor.run_report import capture_logs  # noqa: PLC0415 - as in `_switch_on`

        capture_logs()
        options = {"tracer_provider": tracer_provider, "meter_provider": meter_provider, **options}
        # without the lock: another thread may import a module that instruments
        prepared = guarded(f"{type(self).__name__}.instrument")(self._prepare)(options)
        with _switching.lock:
            self._is_automatic = bool(options.get("skip_dep_check"))
            if self._switch is not None and prepared is not None:
                self._switch.instrument(**{**options, **prepared})

    def uninstrument(self, **options: Any) -> None:
        """Switch tracing off and restore the client completely."""
        with _switching.lock:
            if self._switch is not None:
                self._switch.uninstrument(**options)

    def _instrument(self, **options: Any) -> None:
        # an instrumentor that raises would stop all the ones after it
        guarded(f"{type(self).__name__}.instrument")(self._switch_on)(**options)

    def _uninstrument(self, **_options: Any) -> None:
        guarded(f"{type(self).__name__}.uninstrument")(self._switch_off)()

    def _switch_on(self, **options: Any) -> None:
        # Loaded only now: an application that merely imports an instrumentor does not pay for the SDK.
        from otel_mqtrace.doctor.run_report import report  # noqa: PLC0415

        if "factories" not in options:  # _instrument() was called itself, as OpenTelemetry names it
            options |= self._prepare(options)
        report(self, outcome=self._patch_client(**options))

    def _patch_client(  # noqa: PLR0913 - the public options that are objects, each by its name
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        settings: Settings,
        ready: list[SpanExporter],
        client: type[Patches] | Exception | None,
        factories: Factories,
        produce_hook: Callable[..., None] | None = None,
        consume_hook: Callable[..., None] | None = None,
        clock: Any = None,
        **options: Any,
    ) -> str:
        """Patch the client unless a check forbids it; return the outcome, as the doctor's ``report`` names it.

        ``client`` is the class that patches it, why it cannot be imported, or ``None`` where tracing is switched off.
        """
        from otel_mqtrace.hooks.tracing import Tracing  # noqa: PLC0415 - as in `_switch_on`
        from otel_mqtrace.provider import ProviderBinding  # noqa: PLC0415 - as in `_switch_on`

        tracer_provider = _accept(tracer_provider, "tracer_provider", "it has no get_tracer()", "get_tracer")
        meter_provider = _accept(meter_provider, "meter_provider", "it has no get_meter()", "get_meter")
        if client is None:
            return "switched_off"
        if isinstance(client, Exception):
            return self._log_missing(client)
        foreign = client.find_conflict()
        if foreign is not None and settings.on_conflict == "step_back":
            _log.warning(
                "mqtrace: %s already wraps %s, so nothing is traced here: disable it, "
                "or set MQTRACE_ON_CONFLICT=wrap to trace as well and leave the trace headers to it",
                foreign,
                self.client,
            )
            return f"stepped_back: {foreign}"
        self._switch_off()  # an uninstrument() may have been interrupted
        binding = self._binding = ProviderBinding(tracer_provider, meter_provider, settings, ready, options, factories)
        given = {
            "clock": _accept(clock, "clock", "it has no wall_ns()", "wall_ns"),
            "produce_hook": _accept(produce_hook, "produce_hook", "a function was expected"),
            "consume_hook": _accept(consume_hook, "consume_hook", "a function was expected"),
        }
        tracing = Tracing.create(
            settings=settings,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            before_span=binding.ensure_attached,
            writes_trace_headers=foreign is None,
            **{name: value for name, value in given.items() if value is not None},
        )
        self.patches = client.apply(tracing)
        binding.attach()
        return "instrumented"

    def _switch_off(self) -> None:
        if self.patches is not None:
            self.patches.restore()
            self.patches = None
        if self._binding is not None:
            binding, self._binding = self._binding, None
            binding.detach()
        forget_application_kafka_config()

    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what ``_switch_on`` takes: the settings, and what the client's and the exporters' modules give.

        ``exporters`` is taken out of ``options``.
        """
        ready, names = _split_exporters(options.pop("exporters", None))
        given = {name: value for name, value in options.items() if name not in _NOT_SETTINGS}
        settings = Settings.from_env({**given, "exporters": names})
        client = self._import_client() if settings.enabled else None
        factories: Factories = {}
        if client is not None and not isinstance(client, Exception):
            from otel_mqtrace.provider import load_exporters  # noqa: PLC0415 - as in `_switch_on`

            factories = load_exporters(settings.exporters)
        return {"settings": settings, "ready": ready, "client": client, "factories": factories}

    def _import_client(self) -> type[Patches] | Exception:
        """Return the class that patches the client, or why the client cannot be imported."""
        try:
            import_module(self.module)  # first: its import may be under way in a thread that waits for our modules
            patches: type[Patches] = import_module(f"otel_mqtrace.clients.{self.module}").ClientPatches
        except Exception as problem:  # noqa: BLE001 - a client may do anything: RocketMQ's makes a log file in HOME
            reraise_from_signal_handler()
            return problem
        return patches

    def _log_missing(self, problem: Exception) -> str:
        """Log why the client cannot be imported, and return the outcome."""
        if isinstance(problem, ModuleNotFoundError) and problem.name == self.module:
            level = logging.DEBUG if self._is_automatic else logging.WARNING
            _log.log(level, "mqtrace: nothing is traced: %s", MissingExtraError(f"tracing {self.client}", self.extra))
            return "no_client"
        kind = "" if isinstance(problem, ImportError) else f"{type(problem).__name__}: "
        why = f"{kind}{problem}".partition("\n")[0]  # protobuf's has a page of advice
        _log.warning(
            "mqtrace: %s cannot be imported: %s; it is not traced: repair or reinstall it, "
            "or leave it out with OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
            self.client,
            why,
        )
        return f"broken_client: {why}"


class MqTraceInstrumentor(ClientInstrumentor):
    """Instruments confluent-kafka: ``MqTraceInstrumentor().instrument()``; see :class:`ClientInstrumentor`."""

    client = "confluent-kafka"
    module = "confluent_kafka"
    requirement = "confluent-kafka >= 2.6"
    extra = "kafka"


class AioKafkaInstrumentor(ClientInstrumentor):
    """Instruments aiokafka: ``AioKafkaInstrumentor().instrument()``; see :class:`ClientInstrumentor`."""

    client = "aiokafka"
    module = "aiokafka"
    requirement = "aiokafka >= 0.10"
    extra = "aiokafka"


class RocketMqInstrumentor(ClientInstrumentor):
    """Instruments Apache's gRPC client rocketmq-python-client; see :class:`ClientInstrumentor`."""

    client = "rocketmq-python-client"
    module = "rocketmq"
    requirement = "rocketmq-python-client >= 5.0.9"
    extra = "rocketmq"
