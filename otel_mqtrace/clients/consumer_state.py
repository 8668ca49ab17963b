"""The tracing state that every consumer adapter shares: its hook, messages in flight, explicit mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.settlement import Positions
from otel_mqtrace.clients.state import ClientState, known_state
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import ExplicitMode, closing_exception
from otel_mqtrace.hooks.outcome import OUTCOME_TOO_LATE, count_missing
from otel_mqtrace.hooks.process import Owner
from otel_mqtrace.hooks.propagation import index_headers, propagator_in_force
from otel_mqtrace.hooks.scope import ProcessSpan, ended_span
from otel_mqtrace.hooks.settle import SettleHook
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context

    from otel_mqtrace.clients.state import MessageRegistry
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.in_flight import Delivery, TaskDeliveries
    from otel_mqtrace.hooks.scope import SpanIds
    from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
    from otel_mqtrace.records.batch import BatchHeaders
    from otel_mqtrace.records.handled import MessageRow


class ConsumerState(ClientState, ABC):
    """What one consumer needs to be traced; ``settles``: settlements are recorded."""

    hook: ConsumeHook
    settle: SettleHook
    explicit: ExplicitMode
    settles: bool

    def __init__(self, info: ClientInfo) -> None:
        self.info = info

    def make_hooks(self, tracing: Tracing) -> None:
        """Make the hooks of messages and settlements."""
        self.hook = ConsumeHook(tracing=tracing, info=self.info)
        self.settle = SettleHook(tracing=tracing, info=self.info)
        self.explicit = ExplicitMode(tracing.settings.process_spans)
        self.settles = tracing.settings.settle_spans

    @abstractmethod
    def incoming(self, messages: Sequence[Any]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""

    def open(self, message: Any, tracing: Tracing) -> Owner | None:
        """Open the span of a message that is handled explicitly; ``None`` when it is not traced."""
        self.bind(tracing)
        calls = self.hook.before(self.incoming([message]))
        return Owner(calls[0], calls[0].finish) if calls else None

    def own_late_block(self, call: ProcessSpan | SpanIds) -> Owner:
        """Return the owner for a block that came after its message's span had ended: no second span is opened."""
        self.explicit.record_late_block(self.info.group_name)
        return Owner(call if isinstance(call, ProcessSpan) else ended_span(call), _count_late_outcome)


def _count_late_outcome(code: ContextCode, _exception: BaseException | None, **_later: bool) -> None:
    if code is not ContextCode.SUCCESS:
        count_missing(OUTCOME_TOO_LATE)


class KafkaConsumerState(ConsumerState):
    """The state of a consumer whose messages are identified by topic, partition and offset.

    ``in_flight`` is what the application has: one delivery or, of an asyncio consumer, those of each task. ``leaders``
    have the store hosts. ``silent`` is the one inside an asyncio consumer, which does the recording.
    """

    silent = False
    leaders: Any = None
    may_record = False
    """Whether ordinary messages are recorded without a span, as far as the settings go."""
    _records = True

    def __init__(self, info: ClientInfo, registry: MessageRegistry, in_flight: Delivery | TaskDeliveries) -> None:
        super().__init__(info)
        self.positions = Positions(info)
        self.in_flight = in_flight
        self._registry = registry
        self.number = registry.register(self)

    def make_hooks(self, tracing: Tracing) -> None:
        """Make the hooks."""
        super().make_hooks(tracing)
        self.may_record = self._records and not (self.settles or self.hook.records_polls)

    def next_turn(self) -> None:
        """The caller polls again: it is done with what it was handed."""
        self.in_flight.finish()

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer or tracing is gone before the last messages were handled: the next hook ends their spans."""
        self.in_flight.abandon()

    @guarded("ConsumerState.end_at_close")
    def end_at_close(self, exception: BaseException | None) -> None:
        """The consumer is closed by the caller, perhaps because of an exception."""
        self.in_flight.finish(ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION, exception)

    def hand_over(self, messages: Sequence[Any], *, start_ns: int | None, batch: bool, handed: object) -> None:
        """The application gets ``messages``: open their spans and make the first one current in the caller's context.

        ``handed`` is what the poll returned, ``start_ns`` when it began if polls are recorded.
        """
        hook, is_traced = self.hook, self.tracing.is_traced
        received = self.incoming(messages)
        if start_ns is not None:
            hook.received(received, start_ns=start_ns, batch=batch)
        is_left = self.explicit.expect_blocks()
        calls = [] if is_left else hook.before(received, batch=batch)
        # first of all: what is open must be ended, whatever fails from here on
        delivery = self.in_flight.hold(calls, handed)
        owners = {index: call for call in calls for index in call.indexes}
        entries = [
            (each.topic, each.partition, each.offset, self.number, owners.get(index), is_left and is_traced(each.topic))
            for index, each in enumerate(received)
        ]
        if is_left:
            self.explicit.record_awaited(sum(is_awaited for *_, is_awaited in entries))
        self._registry.remember_all(list(map(id, messages)), entries)
        if self.settles:
            self.positions.add(received)
        self.remember(calls, received)
        if calls:
            delivery.enter(calls[0])

    def remember(self, calls: Sequence[ProcessSpan], received: Sequence[IncomingMessage]) -> None:
        """Remember what else this kind of consumer needs of the messages that were handed over."""

    def record_rows(  # noqa: PLR0913 - what a hook records, and what it is recorded of
        self,
        messages: Sequence[Any],
        topic: str,
        rows: Sequence[MessageRow],
        headers: BatchHeaders,
        *,
        start_ns: int | None,
        handed: object,
        is_dropped: bool = False,
    ) -> bool:
        """Record that the application gets ordinary ``messages``; ``False``: :meth:`hand_over` must open a span."""
        call = self.hook.record_batch(topic, rows, headers, self.leaders, start_ns, is_dropped=is_dropped)
        if call is None:
            return False
        self.in_flight.hold([call], handed).enter(call)
        number, ids = self.number, call.ids
        entries = [(topic, row[0], row[1], number, ids, False) for row in rows]
        self._registry.remember_all(list(map(id, messages)), entries)
        return True

    def take(self, call: ProcessSpan | SpanIds, message: Any) -> Owner:
        """Give the span of a message to the block that handles it explicitly."""
        taken = self.in_flight.take(call)
        if taken is not None and taken.messages == 1:
            return Owner(taken, taken.finish)
        if taken is None:  # the next poll came first: another thread handles the messages
            owner = self.own_late_block(call)
        else:
            owner = Owner(taken, taken.finish)
            if taken.messages <= taken.blocks:
                self.explicit.record_shared_batch()
        return owner._replace(process_ctx=self._context_behind(owner.call, message))

    @guarded("ConsumerState.context_behind")
    def _context_behind(self, call: ProcessSpan, message: Any) -> Context:
        """Return what lies behind the span in a block of ``message``, with that message's own baggage."""
        (received,) = self.incoming([message])
        return propagator_in_force().extract(index_headers(received.headers), call.process_ctx)


def _end_last(consumer: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """An exception on its way out means that the last message was not handled."""
    state: KafkaConsumerState | None = known_state(consumer)
    if state is not None and not state.silent:
        state.end_at_close(closing_exception(args))


traced_close: Final = observe_calls(_end_last)
"""``close`` and ``__exit__``."""
traced_async_close: Final = observe_calls(_end_last, is_async=True)
"""``close``, ``stop`` and ``__aexit__`` of an asyncio consumer."""
