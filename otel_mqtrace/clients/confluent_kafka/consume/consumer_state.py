"""This module knows what one consumer needs to be traced: who it is, its hooks, what the application holds of it."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.cluster.leaders import leaders_of
from otel_mqtrace.clients.confluent_kafka.consume.handover import handed_over
from otel_mqtrace.clients.confluent_kafka.consume.holding import Holding
from otel_mqtrace.clients.confluent_kafka.consume.settling import Settling
from otel_mqtrace.clients.confluent_kafka.messages import incoming
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka import Message

    from otel_mqtrace.clients.confluent_kafka.cluster.leaders import Leaders

__all__ = ["ConsumerState", "abandon_consumers"]

_states: Final[weakref.WeakSet[ConsumerState]] = weakref.WeakSet()


class ConsumerState:
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected.

    ``silent`` is the consumer inside an asyncio one, which does the recording; ``explicit`` leaves every message to its
    block; ``polling`` is the thread inside a ``poll`` that is itself made of others.
    """

    def __init__(self, conf: Mapping[str, Any] | None, *, like: ConsumerState | None = None) -> None:
        known = conf or {}
        group = known.get("group.id")
        own = ClientFacts.of_kafka(known, group_name=None if group is None else str(group))
        self.facts: ClientFacts = own if like is None else like.facts
        self.leaders: Leaders | None = leaders_of(known) if like is None else like.leaders
        self.settling = Settling(self.facts)
        self._pid = os.getpid()
        self.silent = False
        self.explicit = False
        self.polling: int | None = None
        self._hook: ConsumeHook | None = None
        self._tracing: Tracing | None = None
        self._holding = Holding()
        self.reference: weakref.ref[ConsumerState] = weakref.ref(self)
        _states.add(self)

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self._hook is None or self._tracing is not tracing:
            self._hook = ConsumeHook(tracing=tracing, facts=self.facts)
            self._tracing = tracing
            self.explicit = tracing.settings.process_spans == "explicit"
        return self._hook

    def holding(self) -> Holding:
        """Return what the caller's thread of control holds: one for the whole of a consumer that blocks."""
        return self._holding

    def holdings(self) -> Iterable[Holding]:
        """Return all that is held of this consumer."""
        return (self._holding,)

    @guarded("ConsumerState.finish")
    def finish(self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None) -> None:
        """The application is done with what it was handed; spans that a block took over are the block's business."""
        self.end(self.holding(), code, exception)

    def closing(self, exception: BaseException | None) -> None:
        """The consumer is closed by the caller, perhaps because of an exception."""
        self.finish(ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION, exception)

    def next_turn(self) -> None:
        """The application polls again, so it is done with what it has."""
        holding = self.holding()
        if not holding.is_empty:
            self.end(holding, ContextCode.SUCCESS, None)

    def end(self, holding: Holding, code: ContextCode, exception: BaseException | None) -> None:
        """End every span of ``holding`` that no block has taken for itself; in a fork they are the parent's to end."""
        held = holding.give_back()
        if not held or os.getpid() != self._pid:
            return
        for call, shared in held:
            if shared is not None:
                shared.end()
            else:
                said, why = self.outcome(call, code, exception)
                self.hook.after(call, code=said, exception=why)

    def outcome(
        self, call: ProcessCall, code: ContextCode, exception: BaseException | None
    ) -> tuple[ContextCode, BaseException | None]:
        """Return how ``call`` ended, where the end of the turn says ``code`` and ``exception``."""
        del call
        return code, exception

    @guarded("ConsumerState.hand_over")
    def hand_over(self, tracing: Tracing, messages: Sequence[Message], *, start_ns: int, batch: bool) -> None:
        """The application gets ``messages``: open their spans and make the first one current where it was asked for."""
        hook = self.bind(tracing)
        received = [self.incoming(message) for message in messages]
        hook.received(received, start_ns=start_ns, batch=batch)
        calls = [] if self.explicit else hook.before(received, batch=batch)
        holding = self.holding()
        if not holding.is_empty:  # two threads were in a poll at once, or the consumer was told to wait and did not
            self.end(holding, ContextCode.SUCCESS, None)
        holding.hold(calls)  # first of all: what is open must be ended, whatever fails from here on
        owners = {index: call for call in calls for index in call.indexes}
        for index, where in enumerate(received):
            place = where.topic, where.partition, where.offset
            handed_over.note(messages[index], place, self.reference, owners.get(index))
        if tracing.settings.settle_spans:
            self.settling.note(received)
        self.held(calls, received)
        if calls:
            holding.enter(calls[0])

    def held(self, calls: Sequence[ProcessCall], received: Sequence[IncomingMessage]) -> None:
        """Remember of what was handed over whatever a kind of consumer needs to know besides."""

    def left_out(self, tracing: Tracing, errors: Sequence[Message]) -> None:
        """Hear of what a batch held besides messages: errors and ends of partitions."""

    def incoming(self, message: Message) -> IncomingMessage:
        """Return what the hook needs of a message of this consumer."""
        return incoming(message, self.leaders)

    def take(self, message: Message, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        del message
        for holding in self.holdings():
            taken = holding.take(self.hook, call)
            if taken is not None:
                self.explicit = self.explicit or call.messages > 1
                return taken
        # The next poll came first (another thread handles the messages): one span is right, so no second one;
        # from now on this consumer leaves its messages to the blocks.
        self.explicit = True
        return OwnSpan(self.hook, call)

    def open(self, message: Message, tracing: Tracing) -> Responsibility | None:
        """Open a span of its own for a message that is handled explicitly; ``None`` when it is not traced."""
        hook = self.bind(tracing)
        calls = hook.before([self.incoming(message)])
        return OwnSpan(hook, calls[0]) if calls else None

    @property
    def hook(self) -> ConsumeHook:
        """The hook in force, one that knows no configuration when none was bound yet."""
        if self._hook is None:
            raise LookupError("the consumer has not handed over anything yet")
        return self._hook

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer is gone, or tracing is, and nobody said how the last messages went."""
        for holding in self.holdings():
            self.end(holding, ContextCode.RETURNNULL, None)


def abandon_consumers() -> None:
    """End the span of every message that is being handled now: tracing is being switched off."""
    for state in list(_states):
        state.abandon()
