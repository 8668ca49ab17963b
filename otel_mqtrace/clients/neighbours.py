"""This module knows the other instrumentations of each client, and where the code of a client's method comes from."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final, NamedTuple

__all__ = ["NEIGHBOURS", "Neighbour", "home_of"]


class Neighbour(NamedTuple):
    """Another instrumentation: whose, the module its code comes from, its distribution, what keeps it off the client.

    ``switched_off_by`` is ``VARIABLE=value`` for the environment, or else words.
    """

    name: str
    module: str
    distribution: str
    switched_off_by: str

    def __str__(self) -> str:
        return f"{self.name} (off with {self.switched_off_by})"


def _of_opentelemetry(client: str) -> Neighbour:
    return Neighbour(
        "OpenTelemetry's own instrumentation",
        f"opentelemetry.instrumentation.{client}",
        f"opentelemetry-instrumentation-{client.replace('_', '-')}",
        f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS={client}",
    )


NEIGHBOURS: Final = {
    "confluent-kafka": (
        _of_opentelemetry("confluent_kafka"),
        Neighbour("Datadog's ddtrace", "ddtrace", "ddtrace", "DD_TRACE_KAFKA_ENABLED=false"),
        Neighbour(
            "New Relic's agent",
            "newrelic",
            "newrelic",
            "enabled = false under [import-hook:confluent_kafka.cimpl]",
        ),
        Neighbour(
            "SkyWalking's agent", "skywalking", "apache-skywalking", "SW_AGENT_DISABLE_PLUGINS=sw_confluent_kafka"
        ),
    ),
    "aiokafka": (
        _of_opentelemetry("aiokafka"),
        Neighbour("Datadog's ddtrace", "ddtrace", "ddtrace", "DD_TRACE_AIOKAFKA_ENABLED=false"),
    ),
}
"""Distribution of a client → who else instruments it."""


def home_of(method: Any) -> str:
    """Return the module a method's outermost code is from; its ``__module__`` is that of what is wrapped."""
    wrapper = getattr(method, "_self_wrapper", None)  # wrapt's, which most instrumentations are made with
    if wrapper is not None:
        return str(getattr(wrapper, "__module__", type(wrapper).__module__))
    if type(method) is FunctionType:
        return str(method.__globals__.get("__name__", method.__module__))
    return type(method).__module__
