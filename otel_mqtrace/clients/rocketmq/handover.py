"""This module knows whose span ``process(message)`` takes over: the consumer's that received it, or a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketmq import Message

from otel_mqtrace.clients.rocketmq.holding import Holding, consumers
from otel_mqtrace.clients.rocketmq.live import live
from otel_mqtrace.clients.rocketmq.received import delivery_of
from otel_mqtrace.hooks.tracing import ClientFacts

if TYPE_CHECKING:
    from otel_mqtrace.hooks.consume import ProcessCall
    from otel_mqtrace.hooks.process import Responsibility
    from otel_mqtrace.model import ContextCode

__all__ = ["handed_over"]


class _Joined:
    """A block inside a listener, for the message the listener has: it speaks where the listener does not say worse."""

    def __init__(self, call: ProcessCall) -> None:
        self.call = call

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """Leave the end to the listener; an exception passes it on its way out, or was dealt with."""
        if exception is None:
            self.call.handling.outcome(code)

    def leave(self, code: ContextCode) -> None:
        """As in any other case."""
        self.finish(code, None)


class _HandedOver:
    """The received messages; a source of ``process``."""

    def responsibility(self, message: object, consumer: object | None) -> Responsibility | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = live.tracing
        if tracing is None or not isinstance(message, Message) or message.receipt_handle is None:
            return None
        delivery = delivery_of(message)
        if delivery.listening and delivery.call is not None:
            return _Joined(delivery.call)
        holder: Holding | None = delivery.holder
        taken = None if holder is None else holder.take(delivery)
        if taken is not None:
            return taken
        known = None if consumer is None else consumers.of(consumer)
        holder = known or holder or Holding(tracing, ClientFacts(system="rocketmq"))
        return holder.opened(message)


handed_over: Final = _HandedOver()
