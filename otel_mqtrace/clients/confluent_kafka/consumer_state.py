"""The tracing state of one consumer: its identity, hook and messages in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from otel_mqtrace.clients.confluent_kafka.client import header_pairs, incoming, registry
from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.consumer_state import KafkaConsumerState
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import Delivery, OutcomeOf, drain
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders
    from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage, ProcessSpan, SpanIds, Turn
    from otel_mqtrace.hooks.process import ProcessSpanOwner
    from otel_mqtrace.hooks.tracing import Tracing
    from otel_mqtrace.model import ContextCode
    from otel_mqtrace.records.batch import BatchHeaders
    from otel_mqtrace.records.handled import MessageRow


class AnyConsumerState(KafkaConsumerState):
    """What the states of all of the client's consumers share.

    ``polling`` is the thread inside a ``poll`` that is itself made of others.
    """

    leaders: Leaders | None = None
    polling: int | None = None
    _records = False

    def incoming(self, messages: Sequence[Message]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""
        return incoming(messages, self.leaders)

    def record(self, message: Message, start_ns: int | None) -> bool:
        """Record that the application gets ``message``; ``False`` where :meth:`hand_over` has to open its span."""
        del message, start_ns
        return False

    def record_batch(self, messages: Sequence[Message], start_ns: int | None) -> bool:
        """Record that the application gets ``messages`` of one call; ``False`` as :meth:`record`."""
        del messages, start_ns
        return False

    def left_out(self, tracing: Tracing, errors: Sequence[Message]) -> None:
        """Take what a batch held besides messages: errors and ends of partitions."""


class ConsumerState(AnyConsumerState):
    """What one consumer that blocks needs to be traced: there is one thread of control that polls."""

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        known = conf or {}
        group = known.get("group.id")
        info = ClientInfo.of_kafka(known, group_name=None if group is None else str(group))
        super().__init__(info, registry)
        self.leaders = leaders_of(known)
        self._is_plain = type(self) is ConsumerState
        self._delivery = Delivery()
        self._turns: list[Turn] = []
        """The last message, where it came alone and is recorded: one, or several threads are in a poll at once."""

    def next_turn(self) -> None:
        """End what the application has: it polls again."""
        while self._turns:
            try:
                turn = self._turns.pop()
            except IndexError:  # another thread took it: several may be in a poll at once
                break
            turn.hook.end_turn(turn)
        if self._delivery.calls:
            self._delivery.finish(outcome_of=None if self._is_plain else self.outcome_of)

    def _held(self) -> Delivery:
        for turn in drain(self._turns):
            self._delivery.hold(turn.hook, [turn.call])
            self._delivery.scopes.append(turn)
        return self._delivery

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force."""
        hook = super().bind(tracing)
        self._records = self._is_plain and not (self.settles or hook.records_polls)
        return hook

    @property
    def outcome_of(self) -> OutcomeOf | None:
        """Return the outcome of each message, where this kind of consumer has more than the end of the turn."""
        return None

    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """End what the application has, except for spans that a block took over."""
        self._held().finish(code, exception, self.outcome_of)

    def hold(self, hook: ConsumeHook, calls: list[ProcessSpan], handed: object) -> Delivery:
        """Keep what the caller's thread of control is handed: there is one for the whole of a consumer that blocks."""
        del handed
        delivery = self._held()
        if delivery.calls:  # two threads were in a poll at once
            delivery.finish(outcome_of=self.outcome_of)
        delivery.hold(hook, calls)
        return delivery

    def record(self, message: Message, start_ns: int | None) -> bool:
        """Record that the application gets ``message``, the only one of a poll that began at ``start_ns``.

        ``False`` where it is not ordinary: :meth:`hand_over` then opens its span.
        """
        hook = self.hook
        if hook is None or not self._records or self.explicit.is_on:
            return False
        partition, offset, headers = message.partition(), message.offset(), message.headers()
        if offset is None or offset < 0 or partition is None:
            return False
        if type(headers) is not list:
            headers = header_pairs(headers)
        row: MessageRow | None = None
        if not hook.drops_all:
            value, key, (kind, stored_ms) = message.value(), message.key(), message.timestamp()
            if not ((type(value) is bytes or value is None) and (key is None or type(key) is bytes)):
                return False
            length = None if value is None else len(value)
            row = (partition, offset, None if kind == TIMESTAMP_NOT_AVAILABLE else stored_ms, length, key)
        if self._turns or self._delivery.calls:  # two threads were in a poll at once
            self.next_turn()
        topic = message.topic() or ""
        turn = hook.begin_turn(topic, row, headers, self.leaders, start_ns)
        if turn is None:
            return False
        self._turns.append(turn)
        kept = turn.call if turn.process_ctx else turn.ids  # a block that comes late still has the baggage
        registry.remember(id(message), (topic, partition, offset, self.number, kept, False))
        return True

    def record_batch(self, messages: Sequence[Message], start_ns: int | None) -> bool:
        """Record that the application gets ``messages`` of one call; ``False`` as :meth:`record`."""
        hook = self.hook
        if hook is None or not self._records or self.explicit.is_on:
            return False
        topic, is_dropped = messages[0].topic() or "", hook.drops_all
        rows: list[MessageRow] = []
        of_all: BatchHeaders = []
        for message in messages:
            offset, partition, headers = message.offset(), message.partition(), message.headers()
            if type(message) is not Message or message.error() is not None or message.topic() != topic:
                return False
            if offset is None or offset < 0 or partition is None or not (headers is None or type(headers) is list):
                return False
            of_all.append(headers)
            if is_dropped:
                rows.append((partition, offset, None, None, None))
                continue
            value, key = message.value(), message.key()
            if not ((value is None or type(value) is bytes) and (key is None or type(key) is bytes)):
                return False
            kind, timestamp_ms = message.timestamp()
            stored_ms = None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
            rows.append((partition, offset, stored_ms, None if value is None else len(value), key))
        call = hook.record_batch(topic, rows, of_all, self.leaders, is_dropped=is_dropped)
        if call is None:
            return False
        if start_ns is not None:
            hook.count_received(topic, start_ns, len(rows))
        self.hold(hook, [call], messages).enter(call)
        number, ids = self.number, call.ids or call
        registry.remember_all(list(map(id, messages)), [(topic, row[0], row[1], number, ids, False) for row in rows])
        return True

    def release(self, call: ProcessSpan | SpanIds) -> ProcessSpanOwner | None:
        """Give the span of a message that is held to a block; ``None`` when it is held no more."""
        return self._held().take(call)

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """Leave the last messages to the next hook: the consumer is collected, or tracing is switched off."""
        self._held().abandon(self.outcome_of)
