"""A confluent-kafka client: its configuration and state, and how its messages, errors and arguments are read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, TopicPartition
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_mqtrace.client_properties import remember_application_kafka_config
from otel_mqtrace.clients.state import ActiveTracing, ClientState, MessageRegistry, attach_state, known_state
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import text_of
from otel_mqtrace.records.message import key_text

if TYPE_CHECKING:
    from typing_extensions import Self

    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders
    from otel_mqtrace.clients.patching import Wrapper


active: Final = ActiveTracing()
_DEFAULT_CLIENT_ID: Final = "rdkafka"
"""librdkafka's own default of ``client.id``."""


def configuration_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the merged configuration of a constructor call: a dict, ``conf=``, keywords on top of either.

    Keywords may be spelt with underscores, as the client accepts them. Nothing of it may be kept: it holds passwords.
    """
    conf: dict[str, Any] = {"client.id": _DEFAULT_CLIENT_ID}
    for given in (*args, kwargs.get("conf")):
        if isinstance(given, dict):
            conf.update(given)
    named = {name: value for name, value in kwargs.items() if name != "conf"}
    conf.update({name.replace("_", ".") if "." not in name else name: value for name, value in named.items()})
    conf.update(named)
    if is_instrumentation_enabled():
        remember_application_kafka_config(conf)
    return conf


class ConfiguredState(ClientState):
    """A state made from the client's configuration, which is unknown for a client that is older than the patch."""

    @classmethod
    def of_client(cls, client: Any) -> Self:  # noqa: ARG003 - see above
        """Return the state of a client without a configuration."""
        return cls(None)  # type: ignore[call-arg]  # as its base


def is_client_code(function: Callable[..., Any]) -> bool:
    """Return whether ``function`` is of the client's package, whose C code names no module."""
    return str(getattr(function, "__module__", "confluent_kafka")).partition(".")[0] == "confluent_kafka"


def traced_constructor(place: str, make: Callable[[dict[str, Any]], Any]) -> Wrapper:
    """Return the wrapper of a client's ``__init__``: ``make`` makes its state; ``place`` names it in failures."""

    @guarded(place)
    def attach(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if known_state(client) is None and hasattr(client, "__dict__"):
            attach_state(client, make(configuration_of(args, kwargs)))

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        takes_configuration = is_client_code(original)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
            on_new_client, configure = active.on_new_client, active.configure  # another thread may switch off
            if on_new_client is not None:
                on_new_client()
            if takes_configuration and configure is not None:
                args, kwargs = configure((args, kwargs)) or (args, kwargs)
            if kwargs:
                original(self, *args, **kwargs)
            else:  # the C code takes an empty dict for a configuration, and none for a mistake
                original(self, *args)
            attach(self, args, kwargs)

        return __init__

    return wrap


# -- messages, errors and arguments -------------------------------------------------------------------------------
PRODUCE_ORDER: Final = ("topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers")
"""The positional parameters of the C method, which has no signature."""

_NAMES_ONLY: Final = (*PRODUCE_ORDER,)
"""The same names for a method that takes no positions, as AvroProducer's: what it is given is not what is sent."""
_NEVER_CHANGED: Final = PRODUCE_ORDER.index("callback")
Position = tuple[str, "int | None", "int | None"]
"""Topic, partition and offset of a message."""


def position_of(message: Message) -> Position:
    """Return where ``message`` is stored."""
    return message.topic() or "", message.partition(), message.offset()


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


def valid_offsets(offsets: Any) -> list[TopicPartition]:
    """Return the offsets given to a call; what the client refuses itself is left out."""
    return [each for each in offsets if isinstance(each, TopicPartition)] if isinstance(offsets, list) else []


def error_type(failure: Any) -> str:
    """Return the KafkaError name a failure is or carries, ``_QUEUE_FULL`` for the full queue, else its class name."""
    args = getattr(failure, "args", ())  # of a test's stand-in for a message, anything
    for each in (failure, *(args if isinstance(args, tuple) else ())):
        if isinstance(each, KafkaError):
            return each.name()
    return "_QUEUE_FULL" if isinstance(failure, BufferError) else type(failure).__qualname__


def is_too_large(failure: Any) -> bool:
    """Return whether the client refused a message as larger than its ``message.max.bytes``."""
    return isinstance(failure, KafkaException) and error_type(failure) == "MSG_SIZE_TOO_LARGE"


def describe_failure(failure: Any) -> dict[str, Any]:
    """Return a hook's arguments for a failure; the C code can raise a ``KafkaError``, which is no exception."""
    description = failure.str() if isinstance(failure, KafkaError) else text_of(failure)
    exception = failure if isinstance(failure, BaseException) else None
    return {"error": error_type(failure), "description": description, "exception": exception}


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


def default_of(function: Callable[..., Any], name: str) -> Any:
    """Return the default of a parameter of a ``produce``; ``None`` where there is none."""
    try:
        default = inspect.signature(function).parameters[name].default
    except (KeyError, TypeError, ValueError):
        return None
    return None if default is inspect.Parameter.empty else default


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


def _by_name(method: str) -> Callable[..., Any]:
    """Return ``dict``'s method for a list of pairs; what has no name for its first argument goes to ``list``'s."""
    of_list = vars(list).get(method)

    def call(self: list[Any], *args: Any, **kwargs: Any) -> Any:
        if of_list is not None and not (args and isinstance(args[0], str)):
            return of_list(self, *args, **kwargs)
        before = dict([*self])
        named = before.copy()
        result = getattr(named, method)(*args, **kwargs)
        if named != before:
            self[:] = named.items()
        return result

    return call


class HeaderPairs(list[Any]):
    """Headers where the caller gave none: an application's own ``produce`` may take them for a list or for a dict."""

    __contains__, __delitem__, __getitem__, __setitem__, pop = map(
        _by_name, ("__contains__", "__delitem__", "__getitem__", "__setitem__", "pop")
    )
    __or__, __ror__, get, items, keys, setdefault, update, values = map(
        _by_name, ("__or__", "__ror__", "get", "items", "keys", "setdefault", "update", "values")
    )


def as_given(given: Any, pairs: list[Any]) -> Any:
    """Return the headers to send in the form in which the caller gave theirs."""
    if given:
        return dict(pairs) if isinstance(given, Mapping) else pairs
    return HeaderPairs(pairs)
