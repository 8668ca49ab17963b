"""Consumption by an aiokafka consumer: messages handed over, handled and committed.

Automatic mode: the messages of ``getone`` (``async for``) or ``getmany`` belong to the task that awaited them, until
that task polls again, stops the consumer or ends. Explicit ``process(record)`` takes a message over from it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokafka import ConsumerRecord
from aiokafka.errors import ConsumerStoppedError

from otel_mqtrace.clients.aiokafka.client import (
    Cluster,
    active,
    describe_failure,
    incoming,
    info_of,
    registry,
    settled_offsets,
    stored_at_ms,
)
from otel_mqtrace.clients.consumer_state import KafkaConsumerState
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.settlement import record_settlement
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import TaskDeliveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.clients.patching import Observe
    from otel_mqtrace.hooks.attributes import IncomingMessage
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
        row = _row_of(message)
        if row is None or not self.may_record or self.explicit.is_on:
            return False
        topic = message.topic
        call = self.hook.record(topic, row, message.headers, self.leaders, start_ns)
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


@guarded("Consumer.get")
def _begin(consumer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], *, batch: bool) -> Observe | None:
    state = active.state_of(consumer, ConsumerState)
    if state is None:
        return None
    state.next_turn()
    return partial(_polled, state, start_ns=state.hook.poll_begins(), batch=batch)


@guarded("Consumer.polled")
def _polled(state: ConsumerState, result: Any, raised: Any, *, start_ns: int | None, batch: bool) -> None:
    """Record that the task gets what the call returned, or that the call failed.

    That its task was cancelled, or the consumer stopped, while it waited is no failure.
    """
    if state.tracing is not active.tracing:  # switched off while it waited
        return
    if raised is not None:
        if isinstance(raised, Exception) and not isinstance(raised, ConsumerStoppedError):
            state.hook.poll_failed(start_ns=start_ns, batch=batch, **describe_failure(raised))
        return
    if not batch and state.record(result, start_ns):
        return
    records = [record for several in result.values() for record in several] if batch else (result,)
    if records and batch and state.record_batch(records, result, start_ns):
        return
    if records:
        state.hand_over(records, start_ns=start_ns, batch=batch, handed=result)
    else:
        state.hook.empty(start_ns=start_ns, batch=True)


traced_getone: Final = observe_calls(partial(_begin, batch=False), is_async=True)
"""``getone``; ``async for`` calls it."""
traced_getmany: Final = observe_calls(partial(_begin, batch=True), is_async=True)
"""``getmany``."""


@guarded("commit.before")
def _commit(consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Observe | None:
    """Without ``offsets`` everything handed over is committed: the assigned partitions' positions as we saw them."""
    state = active.state_of(consumer, ConsumerState)
    call = None if state is None else state.settle.before("commit")
    if state is None or call is None:
        return None
    positions = state.positions
    offsets = args[0] if args else kwargs.get("offsets")
    if offsets is None:
        settled = positions.unsettled(consumer.assignment())
    else:
        settled = settled_offsets(offsets, positions.creation_context)
    return partial(record_settlement, state.settle, call, settled, describe_failure)


traced_commit: Final = observe_calls(_commit, is_async=True)
"""``commit``. What the client commits by itself (``enable_auto_commit``) happens in its background task, unseen."""
