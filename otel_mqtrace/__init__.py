"""This module knows the public names of the library, and loads each only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_mqtrace.hooks.consume import ConsumeHook
    from otel_mqtrace.hooks.process import process
    from otel_mqtrace.hooks.send import SendHook
    from otel_mqtrace.instrumentor import MqTraceInstrumentor
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor

__all__ = ["ConsumeHook", "MqTraceInstrumentor", "MqTraceSpanProcessor", "SendHook", "process"]

_HOMES: Final = {
    "ConsumeHook": "otel_mqtrace.hooks.consume",
    "MqTraceInstrumentor": "otel_mqtrace.instrumentor",
    "MqTraceSpanProcessor": "otel_mqtrace.spans.processor",
    "SendHook": "otel_mqtrace.hooks.send",
    "process": "otel_mqtrace.hooks.process",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
