"""The tracing state of one consumer: who it is, its hook, what the application has in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.confluent_kafka.messages import header_pairs, incoming, placed, registry
from otel_mqtrace.clients.consumer_state import KafkaConsumerState, owners_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._holding import Held, Outcome
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders
    from otel_mqtrace.clients.registry import Entry
    from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage, ProcessCall
    from otel_mqtrace.hooks.process import Responsibility
    from otel_mqtrace.model import ContextCode

__all__ = ["AnyConsumerState", "ConsumerState"]

_NONE: Final[frozenset[int]] = frozenset()
_NOTHING_REMEMBERED: Final[tuple[int, Entry]] = (0, ("", None, None, 0, None, False))


class AnyConsumerState(KafkaConsumerState):
    """What the states of all of the client's consumers share.

    ``silent`` is the consumer inside an asyncio one, which does the recording; ``polling`` is the thread inside a
    ``poll`` that is itself made of others.
    """

    leaders: Leaders | None = None
    silent = False
    polling: int | None = None

    def incoming(self, messages: Sequence[Message]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""
        return incoming(messages, self.leaders)

    def record(self, message: Message, start_ns: int | None) -> bool:
        """Record that the application gets ``message``; ``False`` where :meth:`hand_over` has to open its span."""
        del message, start_ns
        return False

    def left_out(self, tracing: Tracing, errors: Sequence[Message]) -> None:
        """Take what a batch held besides messages: errors and ends of partitions."""


class ConsumerState(AnyConsumerState):
    """What one consumer that blocks needs to be traced: there is one thread of control that polls."""

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        known = conf or {}
        group = known.get("group.id")
        facts = ClientFacts.of_kafka(known, group_name=None if group is None else str(group))
        super().__init__(facts, registry)
        self.leaders = leaders_of(known)
        self._is_plain = type(self) is ConsumerState
        self._was_silent = False  # nothing was recorded of the last message: hand_over() looks again
        self._held = Held()
        self._remembered: tuple[int, Entry] = _NOTHING_REMEMBERED

    def next_turn(self) -> None:
        """The application polls again, so it is done with what it has."""
        held = self._held
        if not (held.calls or held.scopes):
            return
        call = held.finish_recorded() if self._is_plain else None
        if call is None:
            held.finish(outcome=self.outcome)
        else:
            registry.replace_ended(call, *self._remembered)

    @property
    def outcome(self) -> Outcome | None:
        """What this kind of consumer knows of how each message went; ``None``: nothing but how the turn ended."""
        return None

    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """The caller is done with what it was handed; spans that a block took over are the block's business."""
        self._held.finish(code, exception, self.outcome)

    def hold(self, hook: ConsumeHook, calls: list[ProcessCall], handed: object) -> Held:
        """Keep what the caller's thread of control is handed: there is one for the whole of a consumer that blocks."""
        del handed
        held = self._held
        if held.calls:  # two threads were in a poll at once, or the consumer was told to wait and did not
            held.finish(outcome=self.outcome)
        held.hold(hook, calls)
        return held

    def hand_over(
        self,
        tracing: Tracing,
        messages: Sequence[Message],
        *,
        start_ns: int | None,
        batch: bool,
        handed: object = None,
    ) -> None:
        """The application gets ``messages``: open their spans and make the first one current where it was asked for.

        ``handed`` is what the poll returned.
        """
        hook = (self.hook if self.tracing is tracing else None) or self.bind(tracing)
        silent = self._was_silent = hook.asks_nothing
        received = placed(messages) if silent else self.incoming(messages)
        if start_ns is not None:
            hook.received(received, start_ns=start_ns, batch=batch)
        left = self.explicit.now and self.explicit.left(len(received))
        calls = [] if left else hook.before(received, batch=batch, unchanging=True, silent=silent)
        held = self.hold(hook, calls, handed)  # first of all: what is open must be ended, whatever fails from here on
        owners = calls if len(calls) == len(received) == 1 else owners_of(calls, len(received))
        awaited = {index for index, each in enumerate(received) if tracing.traces(each.topic)} if left else _NONE
        registry.add(messages, received, self.number, owners, awaited)
        if self.settles:
            self.positions.add(received)
        self.held(calls, received)
        if calls:
            held.enter(calls[0])

    def record(self, message: Message, start_ns: int | None) -> bool:  # noqa: PLR0911 - each for its own reason
        """Record that the application gets ``message``, the only one of a poll that began at ``start_ns``.

        ``False`` where it is not ordinary: :meth:`hand_over` then opens its span.
        """
        hook = self.hook
        if hook is None or not self._is_plain or self._was_silent or self.settles or self.explicit.now:
            return False
        if start_ns is not None and hook.records_polls:
            return False
        ground = hook.ground_of_records()
        if ground is None:
            return False
        value, key, offset, partition = message.value(), message.key(), message.offset(), message.partition()
        if offset is None or offset < 0 or partition is None:
            return False
        if not (value is None or type(value) is bytes) or not (key is None or type(key) is bytes):
            return False
        kind, timestamp_ms = message.timestamp()
        topic, headers = message.topic() or "", message.headers()
        call = hook.record(
            ground,
            topic,
            partition,
            offset,
            key,
            None if value is None else len(value),
            headers if type(headers) is list else header_pairs(headers),
            None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
            self.leaders,
        )
        if call is None:
            return False
        if start_ns is not None:  # before the span is current: a measurement keeps what is
            hook.count_received(topic, start_ns)
        held = self._held
        if held.calls:  # two threads were in a poll at once
            held.finish()
        held.hold(hook, [call])  # first of all: what is open must be ended, whatever fails from here on
        held.enter(call)
        entry = (topic, partition, offset, self.number, call, False)
        self._remembered = identity, _ = id(message), entry
        registry.remember(identity, entry)
        return True

    def release(self, call: ProcessCall) -> Responsibility | None:
        """Give the span of a message that is held to a block; ``None`` when it is held no more."""
        return self._held.take(call)

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer is gone, or tracing is, and nobody said how the last messages went: the next hook ends them."""
        self._held.abandon(self.outcome)
