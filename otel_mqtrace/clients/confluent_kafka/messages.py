"""This module knows how confluent-kafka's messages, errors and arguments are taken apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from otel_mqtrace.hooks.consume import IncomingMessage

if TYPE_CHECKING:
    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders

__all__ = ["PRODUCE_ORDER", "error_type", "incoming", "is_message", "parameter_order", "replaced"]

PRODUCE_ORDER: Final = ("topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers")
"""The positional parameters of the C method, which has no signature to ask."""

_NEVER_CHANGED: Final = PRODUCE_ORDER.index("callback")


def is_message(candidate: object) -> TypeGuard[Message]:
    """Whether this is a real message: errors and ends of partitions are not, tombstones (falsy!) are."""
    return isinstance(candidate, Message) and candidate.error() is None


def incoming(message: Message, leaders: Leaders | None = None) -> IncomingMessage:
    """Return what the hook needs of a message; ``leaders`` tell where it was stored."""
    kind, timestamp_ms = message.timestamp()
    topic, partition = message.topic(), message.partition()
    value: object = message.value()
    return IncomingMessage(
        topic=topic or "",
        partition=partition,
        offset=message.offset(),
        key=message.key(),
        body_length=len(value) if isinstance(value, bytes) else 0 if value is None else None,
        tombstone=value is None,
        headers=_pairs(message.headers()),
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        store_host=None if leaders is None else leaders.of(topic, partition),
    )


def _pairs(headers: Any) -> list[tuple[str, Any]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())


def error_type(exception: BaseException) -> str:
    """Return the KafkaError name an exception carries, ``_QUEUE_FULL`` for the full queue, else its class name."""
    for argument in exception.args:
        if isinstance(argument, KafkaError):
            return argument.name()
    return "_QUEUE_FULL" if isinstance(exception, BufferError) else type(exception).__qualname__


def parameter_order(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a ``produce``'s positional parameters, or ``None`` when it cannot be traced in place.

    Traceable are the C method, one that passes everything on, and one that takes a topic, headers and a callback.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return PRODUCE_ORDER
    kinds = {parameter.kind for parameter in parameters}
    names = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
    if names and names[0] == "self":
        names = names[1:]
    if {"topic", "headers"} <= set(names) and {"on_delivery", "callback"} & set(names):
        return names
    passes_on = inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds
    return PRODUCE_ORDER if passes_on and names == PRODUCE_ORDER[: len(names)] else None


def replaced(
    order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], changes: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with ``changes`` put where the caller had them: by position or by name."""
    if len(args) <= _NEVER_CHANGED and order is PRODUCE_ORDER:
        return args, {**kwargs, **changes}
    positional, named = list(args), dict(kwargs)
    for name, value in changes.items():
        index = order.index(name)
        if index < len(positional):
            positional[index] = value
        else:
            named[name] = value
    return tuple(positional), named
