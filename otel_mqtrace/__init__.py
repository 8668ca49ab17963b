"""The public names of the library, each loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage
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
    "UNKNOWN_BODY": "otel_mqtrace.hooks.send",
    "AioKafkaInstrumentor": "otel_mqtrace.instrumentor",
    "ConsumeHook": "otel_mqtrace.hooks.consume",
    "ContextCode": "otel_mqtrace.model",
    "IncomingMessage": "otel_mqtrace.hooks.consume",
    "MessageType": "otel_mqtrace.model",
    "MqTraceInstrumentor": "otel_mqtrace.instrumentor",
    "MqTraceSpanProcessor": "otel_mqtrace.spans.processor",
    "RocketMqInstrumentor": "otel_mqtrace.instrumentor",
    "SendHook": "otel_mqtrace.hooks.send",
    "SettleHook": "otel_mqtrace.hooks.settle",
    "SettledOffset": "otel_mqtrace.hooks.settle",
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
