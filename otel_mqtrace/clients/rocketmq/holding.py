"""This module knows what one consumer has handed over and the application has not settled yet.

A message of a simple consumer is in the application's hands from ``receive`` until it acknowledges it, in whatever
thread, or until its invisible duration is over and the broker delivers it again: the next ``receive`` finds that out.
"""

from __future__ import annotations

from threading import Thread, current_thread, get_ident
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_mqtrace.clients.rocketmq.live import Bound
from otel_mqtrace.clients.rocketmq.received import Delivery, delivery_of, incoming
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._holding import leaving_with
from otel_mqtrace.hooks._left_behind import leave
from otel_mqtrace.hooks._left_to_blocks import LeftToBlocks
from otel_mqtrace.hooks._scope import AutomaticScope
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.process import LateSpan, OwnSpan
from otel_mqtrace.hooks.settle import SettleHook
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from otel_mqtrace.hooks.process import Responsibility
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["Holding", "close_consumers", "consumers"]

_NS_PER_SECOND: Final = 1_000_000_000
_UNSAID_SECONDS: Final = 60
"""The proxy's own invisible duration, where the caller names none."""


class _Turn:
    """The messages of one ``receive``: the first one behind the last settled one is current, in the receiving thread.

    That is right where they are handled one after the other; ``process.each`` is right always. Threads that share a
    consumer have turns of their own.
    """

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries
        self._thread = get_ident()
        self._scope: AutomaticScope | None = None
        self._behind = 0
        self._current: Delivery | None = None
        self._enter_next()

    def settled(self, delivery: Delivery) -> None:
        """Go on to the next message; elsewhere than where they were received, only stop being current."""
        if get_ident() == self._thread and delivery in self._deliveries[self._behind :]:
            self._behind = self._deliveries.index(delivery) + 1
            self.leave()
            self._enter_next()
        elif delivery is self._current:
            self.leave()

    def left_to_blocks(self, delivery: Delivery) -> None:
        """One of the messages is handled explicitly: so will the others be."""
        if delivery in self._deliveries:
            self.leave()

    def leave(self) -> Delivery | None:
        """Restore what was current; return the message that was."""
        scope, self._scope = self._scope, None
        current, self._current = self._current, None
        if scope is not None:
            scope.leave()
        return current

    def _enter_next(self) -> None:
        for delivery in self._deliveries[self._behind :]:
            call = delivery.call
            if call is not None and call.is_open:
                self._scope = AutomaticScope(call.lent(), call.ambient)
                self._current = delivery
                return


class Holding:
    """The hooks of one consumer and its open messages; it never refers to the consumer."""

    def __init__(self, tracing: Tracing, facts: ClientFacts) -> None:
        self.hook = ConsumeHook(tracing=tracing, facts=facts)
        self.settle = SettleHook(tracing=tracing, facts=facts)
        self._group_name = facts.group_name
        self._blocks = LeftToBlocks(tracing.settings.process_spans)
        self._held: dict[Delivery, None] = {}
        self._turns: WeakKeyDictionary[Thread, _Turn] = WeakKeyDictionary()

    @guarded("rocketmq.next_turn")
    def next_turn(self) -> None:
        """The caller's thread receives again: nothing is current there any more, and what came too late is over."""
        self._stop()
        self._give_up_late(frozenset())

    @guarded("rocketmq.hand_over")
    def hand_over(
        self, messages: Sequence[Any], invisible_seconds: float | None, *, start_ns: int, enter: bool
    ) -> None:
        """The application gets ``messages``: open the span of each; ``enter`` makes the first current here."""
        received = [incoming(message) for message in messages]
        if not received:
            self.hook.empty(start_ns=start_ns, batch=True)
            return
        self._give_up_late({message.msg_id for message in received})
        self.hook.received(received, start_ns=start_ns, batch=True)
        left = self._blocks.left(len(received))
        until_ns = self.hook.now_ns() + self._duration_ns(invisible_seconds)
        deliveries = [delivery_of(message) for message in messages]
        for delivery, message in zip(deliveries, received, strict=True):
            calls = [] if left else self.hook.before([message])
            delivery.holder, delivery.until_ns = self, until_ns
            for call in calls:
                delivery.handle_in(call)
                self._held[delivery] = None
        if enter and not left:
            self._turns[current_thread()] = _Turn(deliveries)

    @guarded("rocketmq.settled")
    def settled(self, delivery: Delivery) -> None:
        """The application acknowledges: it is done with the message, whatever the broker will say."""
        if self._release(delivery) and delivery.call is not None:
            self.hook.after(delivery.call)
        for turn in list(self._turns.values()):
            turn.settled(delivery)

    @guarded("rocketmq.postponed")
    def postponed(self, delivery: Delivery, invisible_seconds: float | None) -> None:
        """The broker keeps the message back for longer: more time to handle it, or the pause before it comes again."""
        delivery.postponed_ns = now_ns = self.hook.now_ns()
        delivery.until_ns = now_ns + self._duration_ns(invisible_seconds)

    def take(self, delivery: Delivery) -> Responsibility | None:
        """Give the span of a message to the block that handles it explicitly."""
        call, delivery.call = delivery.call, None  # handled a second time it is a second attempt, with its own span
        if call is None:
            return None
        for turn in list(self._turns.values()):
            turn.left_to_blocks(delivery)
        if not self._release(delivery):
            # It was acknowledged before it was handled: one span is right, so no second one.
            self._blocks.came_late(self._group_name)
            return LateSpan(call)
        return OwnSpan(self.hook, call)

    def opened(self, message: Any) -> Responsibility | None:
        """Open a span of its own for a message that is handled in a block; ``None`` when it is not traced."""
        self._blocks.block_came()
        calls = self.hook.before([incoming(message)])
        return OwnSpan(self.hook, calls[0]) if calls else None

    @guarded("rocketmq.abandon")
    def abandon(self) -> None:
        """The consumer is collected, or the process ends: what is open ends with the next hook, as when given up."""
        for turn in list(self._turns.values()):
            turn.leave()
        for delivery in list(self._held):
            if self._release(delivery) and delivery.call is not None:
                code, end_ns = self._given_up(delivery)
                leave(self.hook, delivery.call, code=code, end_ns=end_ns)

    @guarded("rocketmq.close")
    def close(self) -> None:
        """Nothing can be acknowledged any more; an exception on its way out says why, of the message in hand."""
        exception = leaving_with(())
        current = self._stop()
        if exception is not None and current is not None and current.call is not None:
            self._release(current)
            self.hook.after(current.call, code=ContextCode.EXCEPTION, exception=exception)
        for turn in list(self._turns.values()):
            turn.leave()
        for delivery in list(self._held):
            self._give_up(delivery)

    def _give_up_late(self, came_again: AbstractSet[str | None]) -> None:
        now_ns = self.hook.now_ns()
        for delivery in list(self._held):
            if delivery.until_ns <= now_ns or delivery.msg_id in came_again:
                self._give_up(delivery)

    def _give_up(self, delivery: Delivery) -> None:
        """It was not acknowledged: ``FAILED`` when the application put it off, else nobody said anything."""
        if self._release(delivery) and delivery.call is not None:
            code, end_ns = self._given_up(delivery)
            self.hook.after(delivery.call, code=code, end_ns=end_ns)

    def _given_up(self, delivery: Delivery) -> tuple[ContextCode, int]:
        if delivery.postponed_ns is None:
            return ContextCode.RETURNNULL, min(delivery.until_ns, self.hook.now_ns())
        return ContextCode.FAILED, delivery.postponed_ns

    def _release(self, delivery: Delivery) -> bool:
        """Return ``True`` to exactly one caller: whoever gets it ends the span or hands it on."""
        try:
            del self._held[delivery]
        except KeyError:
            return False
        return True

    def _stop(self) -> Delivery | None:
        """End the turn of this thread and return what was current in it."""
        turn = self._turns.pop(current_thread(), None)
        return None if turn is None else turn.leave()

    @staticmethod
    def _duration_ns(seconds: float | None) -> int:
        return int((_UNSAID_SECONDS if seconds is None else seconds) * _NS_PER_SECOND)


consumers: Final = Bound(Holding, abandon=Holding.abandon)


def close_consumers() -> None:
    """Close the side of every consumer that is ours: tracing is being switched off."""
    for holding in consumers.forget():
        holding.close()
