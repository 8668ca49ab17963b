"""The tracing state that every consumer adapter shares: its hook, messages in flight, explicit mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.settlement import Positions
from otel_mqtrace.clients.state import ClientState, known_state
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessSpan, SpanIds, ended_span
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import Delivery, ExplicitMode, TaskDeliveries, leaving_with
from otel_mqtrace.hooks.process import BatchOwner, LateOwner, ProcessSpanOwner, SingleOwner
from otel_mqtrace.hooks.settle import SettleHook
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.clients.state import MessageRegistry
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.tracing import ClientInfo, Tracing

_NONE: Final[frozenset[int]] = frozenset()


class ConsumerState(ClientState, ABC):
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected.

    ``hook`` and ``settle`` are there once :meth:`bind` was called; ``settles``: settlements are recorded.
    """

    settle: SettleHook

    def __init__(self, info: ClientInfo) -> None:
        self.info = info
        self.hook: ConsumeHook | None = None
        self.tracing: Tracing | None = None
        self.explicit = ExplicitMode("")
        self.settles = False

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self.hook is None or self.tracing is not tracing:
            self.hook = ConsumeHook(tracing=tracing, info=self.info)
            self.settle = SettleHook(tracing=tracing, info=self.info)
            self.tracing = tracing
            self.explicit = ExplicitMode(tracing.settings.process_spans)
            self.settles = tracing.settings.settle_spans
        return self.hook

    @abstractmethod
    def incoming(self, messages: Sequence[Any]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""

    def open(self, message: Any, tracing: Tracing) -> ProcessSpanOwner | None:
        """Open the span of a message that is handled explicitly; ``None`` when it is not traced."""
        hook = self.bind(tracing)
        self.explicit.record_block()
        calls = hook.before(self.incoming([message]))
        return SingleOwner(hook, calls[0]) if calls else None

    def late(self, call: ProcessSpan | SpanIds) -> ProcessSpanOwner:
        """A block came for a message whose span has ended already: one span is right, so it gets no second one."""
        self.explicit.record_late_block(self.info.group_name)
        return LateOwner(call if isinstance(call, ProcessSpan) else ended_span(call))


class KafkaConsumerState(ConsumerState):
    """The state of a consumer whose messages are identified by topic, partition and offset.

    ``silent`` is the one inside an asyncio consumer, which does the recording.
    """

    silent = False

    def __init__(self, info: ClientInfo, registry: MessageRegistry) -> None:
        super().__init__(info)
        self.positions = Positions(info)
        self._registry = registry
        self.number = registry.register(self)

    @abstractmethod
    def hold(self, hook: ConsumeHook, calls: list[ProcessSpan], handed: object) -> Delivery:
        """Keep the spans of what the application was ``handed``."""

    @abstractmethod
    def release(self, call: ProcessSpan | SpanIds) -> ProcessSpanOwner | None:
        """Give the span of a message that is held to a block; ``None`` when it is held no more."""

    @abstractmethod
    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """The caller is done with what it was handed; spans that a block took over are the block's business."""

    @abstractmethod
    def abandon(self) -> None:
        """The consumer or tracing is gone before the last messages were handled: the next hook ends their spans."""

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
        left = self.explicit.is_on and self.explicit.expect_blocks(len(received))
        calls = [] if left else hook.before(received, batch=batch)
        held = self.hold(hook, calls, handed)  # first of all: what is open must be ended, whatever fails from here on
        owners = calls if len(calls) == len(received) == 1 else _owners_of(calls, len(received))
        awaited = {index for index, each in enumerate(received) if tracing.is_traced(each.topic)} if left else _NONE
        self._registry.add(messages, received, self.number, owners, awaited)
        if self.settles:
            self.positions.add(received)
        self.held(calls, received)
        if calls:
            held.enter(calls[0])

    def held(self, calls: Sequence[ProcessSpan], received: Sequence[IncomingMessage]) -> None:
        """Remember of what was handed over what a kind of consumer needs besides."""

    def take(self, message: Any, call: ProcessSpan | SpanIds) -> ProcessSpanOwner:
        """Give the span of a message to the block that handles it explicitly."""
        del message
        taken = self.release(call)
        if taken is None:  # the next poll came first: another thread handles the messages
            return self.late(call)
        if isinstance(taken, BatchOwner) and taken.is_shared_out:
            self.explicit.record_shared_batch()
        return taken


def _owners_of(calls: Sequence[ProcessSpan], messages: int) -> list[ProcessSpan | None]:
    owners: list[ProcessSpan | None] = [None] * messages
    for call in calls:
        for index in call.indexes:
            owners[index] = call
    return owners


class TaskConsumerState(KafkaConsumerState):
    """The state of an asyncio consumer: what a task was handed is the task's until it polls again, or ends."""

    def __init__(self, info: ClientInfo, registry: MessageRegistry) -> None:
        super().__init__(info, registry)
        self._tasks = TaskDeliveries()

    def next_turn(self) -> None:
        """The current task polls again; what tasks left behind that did nothing but poll is done with as well."""
        self._tasks.finish_current_task()

    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """The current task is done with what it has; the other tasks are not."""
        self._tasks.finish_current_task(code, exception)

    def hold(self, hook: ConsumeHook, calls: list[ProcessSpan], handed: object) -> Delivery:
        """Keep what the current task is handed."""
        return self._tasks.hold(hook, calls, handed) if calls else Delivery()

    def release(self, call: ProcessSpan | SpanIds) -> ProcessSpanOwner | None:
        """Give the span of a message that a task holds to a block."""
        return self._tasks.take(call)

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer or tracing is gone."""
        self._tasks.abandon()


def _end_last(consumer: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """An exception on its way out means that the last message was not handled."""
    state: KafkaConsumerState | None = known_state(consumer)
    if state is not None and not state.silent:
        state.closing(leaving_with(args))


traced_close: Final = observe_calls(_end_last)
"""``close`` and ``__exit__``."""
traced_async_close: Final = observe_calls(_end_last, is_async=True)
"""``close``, ``stop`` and ``__aexit__`` of an asyncio consumer."""
