"""This module knows whether the patched classes trace at all, and the configuration a client was made with."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_mqtrace.config import remember_application_kafka_config
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import when_collected

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["STATE", "Arguments", "configuration_of", "known_state", "live", "remembering", "state_of"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""
STATE: Final = "_mqtrace_state"
"""The instance attribute that holds a client's tracing state."""


_CLIENT: Final = "confluent_kafka"
_DEFAULT_CLIENT_ID: Final = "rdkafka"
"""What librdkafka calls itself when the configuration does not say."""


class _Live:
    """The Tracing in force; ``None`` makes every patched class behave as if it had never been touched.

    ``begin()`` is called before a client is made, ``configure`` with the arguments it is to be made with: it returns
    others, or ``None`` to leave them.
    """

    tracing: Tracing | None = None
    begin: Callable[[], None] | None = None
    configure: Callable[[Arguments], Arguments | None] | None = None


live: Final = _Live()


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


def known_state(client: Any) -> Any:
    """Return the client's state, or ``None`` when it has none."""
    return getattr(client, STATE, None)


def remembering(
    place: str, make: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the wrapper of a client's ``__init__``: it makes the state of the client, named ``place`` in failures.

    The state's ``abandon`` is called when the client is collected: it only leaves behind what is open.
    """

    @guarded(place)
    def remember(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if known_state(client) is None and hasattr(client, "__dict__"):
            state = make(configuration_of(args, kwargs))
            client.__dict__[STATE] = state
            when_collected(client, state.abandon)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        takes_configuration = str(getattr(original, "__module__", _CLIENT)).startswith(_CLIENT)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
            begin, configure = live.begin, live.configure  # another thread may switch off
            if begin is not None:
                begin()
            if takes_configuration and configure is not None:
                args, kwargs = configure((args, kwargs)) or (args, kwargs)
            if kwargs:
                original(self, *args, **kwargs)
            else:  # the C code takes an empty dict for a configuration, and none for a mistake
                original(self, *args)
            remember(self, args, kwargs)

        return __init__

    return wrap


def state_of(client: Any, make: Callable[[dict[str, Any] | None], Any]) -> Any:
    """Return the client's state; a client older than the patch gets one that knows nothing of its configuration.

    ``None`` for an object without a ``__dict__`` (``__slots__``): it has no place for a state and is not traced.
    """
    state = known_state(client)
    if state is None and hasattr(client, "__dict__"):
        state = make(None)
        client.__dict__[STATE] = state
    return state
