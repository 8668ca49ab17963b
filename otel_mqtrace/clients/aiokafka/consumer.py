"""Consumption by an aiokafka consumer: messages handed over, handled and committed.

Automatic mode: the messages of ``getone`` (``async for``) or ``getmany`` belong to the task that awaited them, until
that task polls again, stops the consumer or ends. Explicit ``process(record)`` takes a message over from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka import ConsumerRecord
from aiokafka.errors import ConsumerStoppedError

from otel_mqtrace.clients.aiokafka.client import (
    Cluster,
    active,
    describe_error,
    incoming,
    info_of,
    registry,
    settled_offsets,
    state_of,
    stored_at_ms,
)
from otel_mqtrace.clients.consumer_state import KafkaConsumerState
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.settlement import Settlement
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import TaskDeliveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.tracing import Tracing
    from otel_mqtrace.records.handled import MessageRow


class ConsumerState(KafkaConsumerState):
    """What one consumer needs to be traced."""

    def __init__(self, consumer: Any) -> None:
        connection = consumer._client  # noqa: SLF001 - a producer's is public, a consumer's is not
        group = getattr(consumer, "_group_id", None)
        info = info_of(connection, group_name=None if group is None else str(group))
        super().__init__(info, registry, TaskDeliveries())
        self.leaders = Cluster(connection.cluster)

    def record(self, message: Any, start_ns: int | None) -> bool:
        """Record that the task gets one ordinary ``message``; ``False`` where :meth:`hand_over` opens its span."""
        hook, row = self.hook, _row_of(message)
        if hook is None or row is None or not self.may_record or self.explicit.is_on:
            return False
        topic = message.topic
        call = hook.record(topic, row, message.headers, self.leaders, start_ns)
        if call is None:
            return False
        # first: what is open must be ended, whatever fails from here on
        delivery = self.in_flight.hold([call], message)
        self.leaders.of(topic, row[0])  # as of now: the client may be gone at the export
        registry.remember(id(message), (topic, row[0], row[1], self.number, call.ids or call, False))
        delivery.enter(call)
        return True

    def record_batch(self, messages: Sequence[Any], handed: object, start_ns: int | None) -> bool:
        """Record that the task gets ``messages`` of one call, all of one topic; ``False`` as :meth:`record`."""
        if not self.may_record or self.explicit.is_on:
            return False
        topic, rows = messages[0].topic, []
        for message in messages:
            row = _row_of(message)
            if row is None or message.topic != topic:
                return False
            rows.append(row)
        for partition in {row[0] for row in rows}:
            self.leaders.of(topic, partition)  # as above
        headers = [message.headers for message in messages]
        return self.record_rows(messages, topic, rows, headers, start_ns=start_ns, handed=handed)

    def incoming(self, messages: Sequence[Any]) -> list[IncomingMessage]:
        """Return what the hook needs of records of this consumer."""
        return [incoming(record, self.leaders) for record in messages]


def _row_of(message: Any) -> MessageRow | None:
    """Return what a record has of a message; ``None`` for one with a key that a deserialiser made."""
    key = message.key
    if type(message) is not ConsumerRecord or not (key is None or type(key) is bytes):
        return None
    size = message.serialized_value_size
    return message.partition, message.offset, stored_at_ms(message), None if size < 0 else size, key


@dataclass(slots=True)
class _Poll:
    """A ``getone`` or, as a ``batch``, a ``getmany`` under way; ``start_ns`` is set where polls are recorded."""

    state: ConsumerState
    tracing: Tracing
    start_ns: int | None
    batch: bool

    @guarded("Consumer.failed")
    def failed(self, raised: Any) -> None:
        """Record what was raised, but for a task that was cancelled, or a consumer stopped, while it waited."""
        if isinstance(raised, Exception) and not isinstance(raised, ConsumerStoppedError):
            error, description = describe_error(raised)
            self.state.bind(self.tracing).poll_failed(
                start_ns=self.start_ns, error=error, description=description, exception=raised, batch=self.batch
            )

    @guarded("Consumer.handed")
    def succeeded(self, result: Any) -> None:
        """Record that the task gets what the call returned."""
        state, start_ns, batch = self.state, self.start_ns, self.batch
        if not batch and state.record(result, start_ns):
            return
        records = [record for several in result.values() for record in several] if batch else (result,)
        if records and batch and state.record_batch(records, result, start_ns):
            return
        if records:
            state.hand_over(self.tracing, records, start_ns=start_ns, batch=batch, handed=result)
        else:
            state.bind(self.tracing).empty(start_ns=start_ns, batch=True)


@guarded("Consumer.get")
def _begin(consumer: Any, *, batch: bool) -> _Poll | None:
    tracing = active.tracing
    if tracing is None:
        return None
    state: ConsumerState = state_of(consumer, ConsumerState)
    state.next_turn()
    return _Poll(state, tracing, state.bind(tracing).poll_begins(), batch)


traced_getone: Final = observe_calls(lambda consumer, _args, _kwargs: _begin(consumer, batch=False), is_async=True)
"""``getone``; ``async for`` calls it."""
traced_getmany: Final = observe_calls(lambda consumer, _args, _kwargs: _begin(consumer, batch=True), is_async=True)
"""``getmany``."""


@guarded("commit.before")
def _commit(consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Settlement | None:
    """Without ``offsets`` everything handed over is committed: the assigned partitions' positions as we saw them."""
    tracing = active.tracing
    if tracing is None or not tracing.settings.settle_spans:
        return None
    state: ConsumerState = state_of(consumer, ConsumerState)
    positions = state.positions
    state.bind(tracing)
    call = state.settle.before("commit")
    if call is None:
        return None
    offsets = args[0] if args else kwargs.get("offsets")
    if offsets is None:
        offsets = {each: positions.next_offset(*each) for each in consumer.assignment()}
    return Settlement(state.settle, call, settled_offsets(offsets, positions.creation_context), describe_error)


traced_commit: Final = observe_calls(_commit, is_async=True)
"""``commit``. What the client commits by itself (``enable_auto_commit``) happens in its background task, unseen."""
