"""The public names of the library, each loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.consume import ConsumeHook
    from otel_mqtrace.hooks.process import process
    from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendHook
    from otel_mqtrace.hooks.settle import SettledOffset, SettleHook
    from otel_mqtrace.instrumentor import AioKafkaInstrumentor, MqTraceInstrumentor, RocketMqInstrumentor
    from otel_mqtrace.model import ContextCode, MessageType
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor

__all__ = [
    "UNKNOWN_BODY",
    "AioKafkaInstrumentor",
    "ConsumeHook",
    "ContextCode",
    "IncomingMessage",
    "MessageType",
    "MqTraceInstrumentor",
    "MqTraceSpanProcessor",
    "RocketMqInstrumentor",
    "SendHook",
    "SettleHook",
    "SettledOffset",
    "process",
]

_HOMES: Final = {
    "hooks.attributes": ("IncomingMessage",),
    "hooks.consume": ("ConsumeHook",),
    "hooks.process": ("process",),
    "hooks.send": ("UNKNOWN_BODY", "SendHook"),
    "hooks.settle": ("SettleHook", "SettledOffset"),
    "instrumentor": ("AioKafkaInstrumentor", "MqTraceInstrumentor", "RocketMqInstrumentor"),
    "model": ("ContextCode", "MessageType"),
    "spans.processor": ("MqTraceSpanProcessor",),
}
"""Module → the names that it has."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
