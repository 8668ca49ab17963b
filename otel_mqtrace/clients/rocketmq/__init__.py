"""Patch Apache's gRPC client and restore it: methods of its classes, changed in place.

They are plain Python classes, so every reference and every subclass sees the change. Listeners and checkers are given
to a client when it is made: those of older clients stay untraced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rocketmq
from rocketmq import Producer, SimpleConsumer

from otel_mqtrace.clients.patching import Patches, find_wrapper
from otel_mqtrace.clients.rocketmq.client import MESSAGE_METHODS, active, replace_argument
from otel_mqtrace.clients.rocketmq.consumer import (
    PUSH_CONSUMER_METHODS,
    SIMPLE_CONSUMER_METHODS,
    TracedListener,
    received_messages,
)
from otel_mqtrace.clients.rocketmq.producer import PRODUCER_METHODS, TracedChecker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.clients.patching import Wrappers
    from otel_mqtrace.hooks.tracing import Tracing

_PATCHED: Final[Mapping[str, Wrappers]] = {
    "Message": MESSAGE_METHODS,
    "Producer": {**PRODUCER_METHODS, "__init__": replace_argument("checker", TracedChecker)},
    "SimpleConsumer": SIMPLE_CONSUMER_METHODS,
    "PushConsumer": {**PUSH_CONSUMER_METHODS, "__init__": replace_argument("message_listener", TracedListener)},
}
"""Class → method → how to wrap it; lite consumers inherit. What an older client does not have is noted."""


class ClientPatches(Patches):
    """The changes made to the client by one ``instrument()``."""

    name = "rocketmq-python-client"
    active = active
    source = received_messages
    ending = (received_messages.clear,)

    def patch(self, tracing: Tracing) -> None:
        """Wrap the methods; a class that this version of the client does not have is noted."""
        del tracing
        for class_name, methods in _PATCHED.items():
            owner = getattr(rocketmq, class_name, None)
            if owner is None:
                self.untraceable.append(f"{rocketmq.__name__}.{class_name}")
            else:
                self.wrap_methods(owner, methods)

    @staticmethod
    def find_conflict() -> str | None:
        """Return the other instrumentation, or ``None``; the client itself exports metrics but no spans."""
        methods = (Producer.send, Producer.send_async, SimpleConsumer.receive)
        return find_wrapper("rocketmq-python-client", "rocketmq", methods)
