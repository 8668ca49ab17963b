"""Read confluent-kafka's messages, errors and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from otel_mqtrace.clients.confluent_kafka.state import active
from otel_mqtrace.clients.state import MessageRegistry
from otel_mqtrace.hooks.attributes import key_text
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.outcome import text_of

if TYPE_CHECKING:
    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders


PRODUCE_ORDER: Final = ("topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers")
"""The positional parameters of the C method, which has no signature."""

_NAMES_ONLY: Final = (*PRODUCE_ORDER,)
"""The same names for a method that takes no positions, as AvroProducer's: what it is given is not what is sent."""
_NEVER_CHANGED: Final = PRODUCE_ORDER.index("callback")


class Position(NamedTuple):
    """Where one message is stored; a plain tuple of the three is its equal."""

    topic: str
    partition: int | None
    offset: int | None


def position_of(message: Message) -> Position:
    """Return where ``message`` is stored."""
    return Position(message.topic() or "", message.partition(), message.offset())


def is_message(candidate: object) -> TypeGuard[Message]:
    """Return whether this is a real message: errors and ends of partitions are not, tombstones (falsy!) are."""
    return isinstance(candidate, Message) and candidate.error() is None


def incoming(messages: Iterable[Message], leaders: Leaders | None = None) -> list[IncomingMessage]:
    """Return the hook's view of each message; ``leaders`` have the store hosts."""
    received = []
    store_host: str | None = None
    stored: tuple[str, int | None] | None = None
    cluster_id = None if leaders is None else leaders.cluster_id
    for message in messages:
        kind, timestamp_ms = message.timestamp()
        place = topic, partition = message.topic() or "", message.partition()
        if leaders is not None and place != stored:  # a batch comes partition by partition
            store_host, stored = leaders.of(topic or None, partition), place
        value: object = message.value()
        key = message.key()
        received.append(
            IncomingMessage(  # by position: names cost more than all the rest of it
                topic,
                partition,
                message.offset(),
                key if key is None or type(key) is bytes else key_text(key),  # an object is the application's
                len(value) if isinstance(value, bytes) else 0 if value is None else None,
                value is None,
                header_pairs(message.headers()),
                None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
                store_host,
                cluster_id,
            )
        )
    return received


def header_pairs(headers: Any) -> list[tuple[str, Any]]:
    """Return the headers of a message, which the client gives as a list, a dict or ``None``, as pairs."""
    if type(headers) is list:  # by far the most; isinstance of a Mapping is slow
        return headers.copy()
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())


def error_type(failure: Any) -> str:
    """Return the KafkaError name a failure is or carries, ``_QUEUE_FULL`` for the full queue, else its class name."""
    args = getattr(failure, "args", ())  # of a test's stand-in for a message, anything
    for each in (failure, *(args if isinstance(args, tuple) else ())):
        if isinstance(each, KafkaError):
            return each.name()
    return "_QUEUE_FULL" if isinstance(failure, BufferError) else type(failure).__qualname__


def error_text(failure: Any) -> str:
    """Return the message of a failure; a ``KafkaError`` is not an exception, though the C code can raise one."""
    return failure.str() if isinstance(failure, KafkaError) else text_of(failure)


def describe_error(failure: Any) -> tuple[str, str]:
    """Return type and text of a failure."""
    return error_type(failure), error_text(failure)


registry: Final = MessageRegistry(
    active, is_message=is_message, position_of=position_of, incoming=lambda message: incoming([message])[0]
)


def parameter_order(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a ``produce``'s positional parameters, or ``None`` when it cannot be traced in place.

    Traceable are the C method, one that passes everything on or takes only names, and one that takes a topic, headers
    and a callback.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return PRODUCE_ORDER
    kinds = {parameter.kind for parameter in parameters}
    names = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
    if names and names[0] == "self":
        names = names[1:]
    by_name = names + tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        return None
    if {"topic", "headers"} <= set(by_name) and {"on_delivery", "callback"} & set(by_name):
        return by_name  # what has a name only stands behind every position there is
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return None
    if not by_name:
        return _NAMES_ONLY
    passes_on = inspect.Parameter.VAR_POSITIONAL in kinds
    return PRODUCE_ORDER if passes_on and names == PRODUCE_ORDER[: len(names)] else None


def replace_arguments(
    order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], changes: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with ``changes`` put where the caller had them: by position or by name."""
    if len(args) <= _NEVER_CHANGED and order is PRODUCE_ORDER:
        return args, {**kwargs, **changes} if kwargs else changes
    positional, named = list(args), dict(kwargs)
    for name, value in changes.items():
        if name in order[: len(positional)]:
            positional[order.index(name)] = value
        else:
            named[name] = value
    return tuple(positional), named
