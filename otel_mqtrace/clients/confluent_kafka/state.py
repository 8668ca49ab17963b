"""The Tracing in force for confluent-kafka, and the configuration a client was made with."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_mqtrace.client_properties import remember_application_kafka_config
from otel_mqtrace.clients.state import ActiveTracing, attach_state, known_state
from otel_mqtrace.hooks.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.clients.patching import Wrapper


active: Final = ActiveTracing()
_CLIENT: Final = "confluent_kafka"
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


def traced_constructor(place: str, make: Callable[[dict[str, Any]], Any]) -> Wrapper:
    """Return the wrapper of a client's ``__init__``: ``make`` makes its state; ``place`` names it in failures."""

    @guarded(place)
    def attach(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if known_state(client) is None and hasattr(client, "__dict__"):
            attach_state(client, make(configuration_of(args, kwargs)))

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        takes_configuration = str(getattr(original, "__module__", _CLIENT)).startswith(_CLIENT)

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


def state_of(client: Any, make: Callable[[dict[str, Any] | None], Any]) -> Any:
    """Return the client's state; a client older than the patch gets one without a configuration.

    ``None`` for an object without a ``__dict__`` (``__slots__``): it has no place for a state and is not traced.
    """
    state = known_state(client)
    if state is None and hasattr(client, "__dict__"):
        state = make(None)
        attach_state(client, state)
    return state
