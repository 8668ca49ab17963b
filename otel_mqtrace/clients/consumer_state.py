"""The tracing state that every consumer adapter shares: its hook, what the application has in hand, explicit mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.settlement import Positions
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._holding import Held, LateSpan, TaskHoldings
from otel_mqtrace.hooks._left_to_blocks import LeftToBlocks
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility, SharedSpan
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.clients.registry import MessageRegistry
    from otel_mqtrace.hooks.incoming import IncomingMessage
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["ConsumerState", "KafkaConsumerState", "TaskConsumerState", "owners_of"]

_NONE: Final[frozenset[int]] = frozenset()


class ConsumerState:
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected."""

    def __init__(self, facts: ClientFacts) -> None:
        self.facts = facts
        self.hook: ConsumeHook | None = None
        self.tracing: Tracing | None = None
        self.explicit = LeftToBlocks("")
        self.settles = False

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self.hook is None or self.tracing is not tracing:
            self.hook = ConsumeHook(tracing=tracing, facts=self.facts)
            self.tracing = tracing
            self.explicit = LeftToBlocks(tracing.settings.process_spans)
            self.settles = tracing.settings.settle_spans
        return self.hook

    def incoming(self, messages: Sequence[Any]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""
        raise NotImplementedError

    def open(self, message: Any, tracing: Tracing) -> Responsibility | None:
        """Open a span of its own for a message that is handled explicitly; ``None`` when it is not traced."""
        hook = self.bind(tracing)
        self.explicit.block_came()
        calls = hook.before(self.incoming([message]))
        return OwnSpan(hook, calls[0]) if calls else None

    def late(self, call: ProcessCall) -> Responsibility:
        """A block came for a message whose span has ended already: one span is right, so it gets no second one."""
        self.explicit.came_late(self.facts.group_name)
        return LateSpan(call)


class KafkaConsumerState(ConsumerState):
    """The state of a consumer whose messages are identified by topic, partition and offset."""

    def __init__(self, facts: ClientFacts, registry: MessageRegistry) -> None:
        super().__init__(facts)
        self.positions = Positions(facts)
        self._registry = registry
        self.number = registry.register(self)

    def hold(self, hook: ConsumeHook, calls: list[ProcessCall], handed: object) -> Held:
        """Keep the spans of what the application was ``handed``."""
        raise NotImplementedError

    def release(self, call: ProcessCall) -> Responsibility | None:
        """Give the span of a message that is held to a block; ``None`` when it is held no more."""
        raise NotImplementedError

    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """The caller is done with what it was handed; spans that a block took over are the block's business."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The consumer or tracing is gone before the last messages were handled: the next hook ends their spans."""
        raise NotImplementedError

    @guarded("ConsumerState.closing")
    def closing(self, exception: BaseException | None = None) -> None:
        """The consumer is closed by the caller, perhaps because of an exception."""
        self.done(ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION, exception)

    def hand_over(
        self,
        tracing: Tracing,
        messages: Sequence[Any],
        *,
        start_ns: int | None,
        batch: bool,
        handed: object = None,
    ) -> None:
        """The application gets ``messages``: open their spans and make the first one current in the caller's context.

        ``handed`` is what the poll returned, ``start_ns`` when it began if polls are recorded.
        """
        hook = self.bind(tracing)
        received = self.incoming(messages)
        if start_ns is not None:
            hook.received(received, start_ns=start_ns, batch=batch)
        left = self.explicit.now and self.explicit.left(len(received))
        calls = [] if left else hook.before(received, batch=batch)
        held = self.hold(hook, calls, handed)  # first of all: what is open must be ended, whatever fails from here on
        owners = calls if len(calls) == len(received) == 1 else owners_of(calls, len(received))
        awaited = {index for index, each in enumerate(received) if tracing.traces(each.topic)} if left else _NONE
        self._registry.add(messages, received, self.number, owners, awaited)
        if self.settles:
            self.positions.add(received)
        self.held(calls, received)
        if calls:
            held.enter(calls[0])

    def held(self, calls: Sequence[ProcessCall], received: Sequence[IncomingMessage]) -> None:
        """Remember of what was handed over what a kind of consumer needs besides."""

    def take(self, message: Any, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        del message
        taken = self.release(call)
        if taken is None:  # the next poll came first: another thread handles the messages
            return self.late(call)
        if isinstance(taken, SharedSpan) and taken.is_shared_out:
            self.explicit.one_by_one()
        return taken


def owners_of(calls: Sequence[ProcessCall], messages: int) -> list[ProcessCall | None]:
    """Return the call of each message by its index."""
    owners: list[ProcessCall | None] = [None] * messages
    for call in calls:
        for index in call.indexes:
            owners[index] = call
    return owners


class TaskConsumerState(KafkaConsumerState):
    """The state of an asyncio consumer: what a task was handed is the task's until it polls again, or ends."""

    def __init__(self, facts: ClientFacts, registry: MessageRegistry) -> None:
        super().__init__(facts, registry)
        self._tasks = TaskHoldings()

    def next_turn(self) -> None:
        """The current task polls again; what tasks left behind that did nothing but poll is done with as well."""
        self._tasks.finish_mine()

    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """The current task is done with what it has; the other tasks are not."""
        self._tasks.finish_mine(code, exception)

    def hold(self, hook: ConsumeHook, calls: list[ProcessCall], handed: object) -> Held:
        """Keep what the current task is handed."""
        return self._tasks.hold(hook, calls, handed) if calls else Held()

    def release(self, call: ProcessCall) -> Responsibility | None:
        """Give the span of a message that a task holds to a block."""
        return self._tasks.take(call)

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer or tracing is gone."""
        self._tasks.abandon()
