"""Other instrumentations of the same client: how each is recognised and switched off."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Instrumentation(NamedTuple):
    """Another instrumentation: its name, the module of its code, its distribution, what keeps it off the client.

    ``switched_off_by`` is ``VARIABLE=value`` for the environment, or else words.
    """

    name: str
    module: str
    distribution: str
    switched_off_by: str

    def __str__(self) -> str:
        return f"{self.name} (off with {self.switched_off_by})"


def _of_opentelemetry(client: str) -> Instrumentation:
    return Instrumentation(
        "OpenTelemetry's own instrumentation",
        f"opentelemetry.instrumentation.{client}",
        f"opentelemetry-instrumentation-{client.replace('_', '-')}",
        f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS={client}",
    )


INSTRUMENTATIONS: Final = {
    "confluent-kafka": (
        _of_opentelemetry("confluent_kafka"),
        Instrumentation("Datadog's ddtrace", "ddtrace", "ddtrace", "DD_TRACE_KAFKA_ENABLED=false"),
        Instrumentation(
            "New Relic's agent",
            "newrelic",
            "newrelic",
            "enabled = false under [import-hook:confluent_kafka.cimpl]",
        ),
        Instrumentation(
            "SkyWalking's agent", "skywalking", "apache-skywalking", "SW_AGENT_DISABLE_PLUGINS=sw_confluent_kafka"
        ),
    ),
    "aiokafka": (
        _of_opentelemetry("aiokafka"),
        Instrumentation("Datadog's ddtrace", "ddtrace", "ddtrace", "DD_TRACE_AIOKAFKA_ENABLED=false"),
    ),
    "rocketmq-python-client": (),
}
"""Distribution of a client → the other instrumentations of it."""
_OURS: Final = "otel_mqtrace."


def _identify(client: str, modules: Iterable[str]) -> str | None:
    known = INSTRUMENTATIONS[client]
    matches = (each for module in modules for each in known if f"{module}.".startswith(f"{each.module}."))
    return next(map(str, matches), None)


def identify_class(client: str, candidate: object) -> str | None:
    """Return who made a class, proxy or function, and how to switch that off; ``None`` if it is none of these."""
    modules = [str(getattr(candidate, "__module__", "")), type(candidate).__module__]
    return _identify(client, modules + [each.__module__ for each in getattr(candidate, "__mro__", ())])


def identify_method(client: str, module: str, method: Any) -> str | None:
    """Return who has wrapped a method of ``client``, whose own code is in ``module``; ``None`` for it and for us."""
    home = _defining_module(method)
    if method is None or home.startswith((f"{module}.", _OURS)):
        return None
    return _identify(client, (home,)) or f"the module {home}"


def find_wrapper(client: str, module: str, methods: Iterable[Any]) -> str | None:
    """Return the first who has wrapped any of ``methods``."""
    return next(filter(None, (identify_method(client, module, each) for each in methods)), None)


def _defining_module(method: Any) -> str:
    """Return the module of a method's outermost code; its ``__module__`` is that of what is wrapped."""
    wrapper = getattr(method, "_self_wrapper", None)  # wrapt's, which most instrumentations are made with
    if wrapper is not None:
        return str(getattr(wrapper, "__module__", type(wrapper).__module__))
    if type(method) is FunctionType:
        return str(method.__globals__.get("__name__", method.__module__))
    return type(method).__module__
