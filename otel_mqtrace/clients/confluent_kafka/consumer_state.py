"""The tracing state of one consumer: its identity, hook and messages in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from otel_mqtrace.clients.confluent_kafka.client import ConfiguredState, header_pairs, incoming, registry
from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.consumer_state import KafkaConsumerState
from otel_mqtrace.hooks.in_flight import Delivery
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.records.batch import BatchHeaders
    from otel_mqtrace.records.handled import MessageRow


class AnyConsumerState(KafkaConsumerState):
    """What the states of all of the client's consumers share.

    ``polling`` is the thread inside a ``poll`` that is itself made of others.
    """

    leaders: Leaders | None
    polling: int | None = None

    def incoming(self, messages: Sequence[Message]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""
        return incoming(messages, self.leaders)

    def record_refused(self, errors: Sequence[Message]) -> None:
        """Take what a batch held besides messages: errors and ends of partitions."""

    def record_batch(self, messages: Sequence[Message], start_ns: int | None) -> bool:
        """Record that the application gets ``messages`` of one call; ``False`` where :meth:`hand_over` opens a span."""
        if not self.may_record or self.explicit.is_on:
            return False
        topic, is_dropped = messages[0].topic() or "", self.hook.drops_all
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
        return self.record_rows(
            messages, topic, rows, of_all, start_ns=start_ns, handed=messages, is_dropped=is_dropped
        )


class ConsumerState(ConfiguredState, AnyConsumerState):
    """What one consumer that blocks needs to be traced: there is one thread of control that polls."""

    in_flight: Delivery

    def __init__(self, conf: Mapping[str, Any] | None, in_flight: Delivery | None = None) -> None:
        known = conf or {}
        group = known.get("group.id")
        info = ClientInfo.of_kafka(known, group_name=None if group is None else str(group))
        super().__init__(info, registry, in_flight or Delivery())
        self.leaders = leaders_of(known)

    def next_turn(self) -> None:
        """End what the application has: it polls again."""
        calls = self.in_flight.calls
        while calls:
            try:
                call = calls.pop()
            except IndexError:  # another thread took it: several may be in a poll at once
                break
            call.hook.end_turn(call)

    def record(self, message: Message, start_ns: int | None) -> bool:
        """Record that the application gets ``message``, the only one of a poll that began at ``start_ns``.

        ``False`` where it is not ordinary: :meth:`hand_over` then opens its span.
        """
        hook = self.hook
        if not self.may_record or self.explicit.is_on:
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
        calls = self.in_flight.calls
        if calls:  # two threads were in a poll at once
            self.next_turn()
        topic = message.topic() or ""
        call = hook.record(topic, row, headers, self.leaders, start_ns)
        if call is None:
            return False
        calls.append(call)
        call.enter()
        if call not in calls:  # another thread has ended it meanwhile
            call.leave()
        registry.remember(id(message), (topic, partition, offset, self.number, call.ids or call, False))
        return True
