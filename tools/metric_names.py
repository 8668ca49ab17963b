"""List every metric of the code under its Prometheus name."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider

from bridge.forwarder.service import Measures
from otel_mqtrace.clients.confluent_kafka.statistics import ClientStatistics
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.hooks.metrics import MessagingMetrics
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from spark_jobs.report.machine_files import METRICS, PREFIX

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter


_UNITS: Final = {"s": "_seconds", "By": "_bytes"}


def metric_names() -> dict[str, str]:
    """Return the name in the code → the name in Prometheus, by OpenTelemetry's rules for translating names.

    Dots become underscores, units become suffixes, units in braces are left out, counters end in ``_total``.
    """
    meter = _NamingMeter("naming")
    MessagingMetrics(meter)
    ClientStatistics(meter)
    Measures(meter=meter)
    with tempfile.TemporaryDirectory() as directory:
        exporter = NativeFileSpanExporter(directory=directory)
        MqTraceSpanProcessor(exporter, meter_provider=_NamingProvider(meter)).shutdown()
    return meter.names | {PREFIX + metric.name: PREFIX + metric.name for metric in METRICS}


class _NamingMeter(NoOpMeter):
    """Record the instruments that are created."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.names: dict[str, str] = {}

    def _record(self, name: str, unit: str, suffix: str = "") -> None:
        self.names[name] = name.replace(".", "_") + _UNITS.get(unit, "") + suffix

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        self._record(name, unit, "_total")
        return super().create_counter(name, unit, description)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **advice: Any) -> Any:
        self._record(name, unit)
        return super().create_histogram(name, unit, description, **advice)

    def create_observable_counter(self, name: str, callbacks: Any = None, unit: str = "", description: str = "") -> Any:
        self._record(name, unit, "_total")
        return super().create_observable_counter(name, callbacks, unit, description)

    def create_observable_gauge(self, name: str, callbacks: Any = None, unit: str = "", description: str = "") -> Any:
        self._record(name, unit)
        return super().create_observable_gauge(name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
    ) -> Any:
        self._record(name, unit)
        return super().create_observable_up_down_counter(name, callbacks, unit, description)


class _NamingProvider(NoOpMeterProvider):
    """Give one meter to everybody."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        return self._meter
