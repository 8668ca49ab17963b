"""This module knows what one consumer needs to be traced: who it is, its hooks, what the application holds of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from otel_mqtrace.clients.alive import Alive
from otel_mqtrace.clients.confluent_kafka.cluster.leaders import leaders_of
from otel_mqtrace.clients.confluent_kafka.consume.handover import Entry, handed_over
from otel_mqtrace.clients.confluent_kafka.consume.settling import Settling
from otel_mqtrace.clients.confluent_kafka.messages import header_pairs, incoming, placed
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._holding import Held, LateSpan, Outcome
from otel_mqtrace.hooks._left_to_blocks import LeftToBlocks
from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility, SharedSpan
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from otel_mqtrace.clients.confluent_kafka.cluster.leaders import Leaders

__all__ = ["ConsumerState", "abandon_consumers"]

_NONE: Final[frozenset[int]] = frozenset()
_NOTHING_REMEMBERED: Final[tuple[int, Entry]] = (0, ("", None, None, 0, None, False))
_states: Final[Alive[ConsumerState]] = Alive()


class ConsumerState:
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected.

    ``silent`` is the consumer inside an asyncio one, which does the recording; ``polling`` is the thread inside a
    ``poll`` that is itself made of others.
    """

    def __init__(self, conf: Mapping[str, Any] | None, *, like: ConsumerState | None = None) -> None:
        known = conf or {}
        group = known.get("group.id")
        own = ClientFacts.of_kafka(known, group_name=None if group is None else str(group))
        self.facts: ClientFacts = own if like is None else like.facts
        self.leaders: Leaders | None = leaders_of(known) if like is None else like.leaders
        self.settling = Settling(self.facts)
        self.silent = False
        self._is_plain = type(self) is ConsumerState
        self.polling: int | None = None
        self._was_silent = False  # nothing was recorded of the last message: hand_over() looks again
        self._hook: ConsumeHook | None = None
        self._tracing: Tracing | None = None
        self._left = LeftToBlocks("")
        self._settles = False
        self._held = Held()
        self._number = handed_over.register(self)
        self._remembered: tuple[int, Entry] = _NOTHING_REMEMBERED
        _states.add(self)

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self._hook is None or self._tracing is not tracing:
            self._hook = ConsumeHook(tracing=tracing, facts=self.facts)
            self._tracing = tracing
            self._left = LeftToBlocks(tracing.settings.process_spans)
            self._settles = tracing.settings.settle_spans
        return self._hook

    @guarded("ConsumerState.closing")
    def closing(self, exception: BaseException | None = None) -> None:
        """The consumer is closed by the caller, perhaps because of an exception."""
        self.done(ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION, exception)

    def next_turn(self) -> None:
        """The application polls again, so it is done with what it has."""
        held = self._held
        if not (held.calls or held.scopes):
            return
        call = held.finish_recorded() if self._is_plain else None
        if call is None:
            held.finish(outcome=self.outcome)
        else:
            handed_over.replace_ended(call, *self._remembered)

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
        hook = (self._hook if self._tracing is tracing else None) or self.bind(tracing)
        silent = self._was_silent = hook.asks_nothing
        received = placed(messages) if silent else self.incoming(messages)
        if start_ns is not None:
            hook.received(received, start_ns=start_ns, batch=batch)
        left = self._left.now and self._left.left(len(received))
        calls = [] if left else hook.before(received, batch=batch, unchanging=True, silent=silent)
        held = self.hold(hook, calls, handed)  # first of all: what is open must be ended, whatever fails from here on
        owners = calls if len(calls) == len(received) == 1 else _owners(calls, len(received))
        awaited = {index for index, each in enumerate(received) if tracing.traces(each.topic)} if left else _NONE
        handed_over.note(messages, received, self._number, owners, awaited)
        if self._settles:
            self.settling.note(received)
        self.held(calls, received)
        if calls:
            held.enter(calls[0])

    def record(self, message: Message, start_ns: int | None) -> bool:  # noqa: PLR0911 - each for its own reason
        """Record that the application gets ``message``, the only one of a poll that began at ``start_ns``.

        ``False`` where it is not ordinary: :meth:`hand_over` then opens its span.
        """
        hook = self._hook
        if hook is None or not self._is_plain or self._was_silent or self._settles or self._left.now:
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
        entry = (topic, partition, offset, self._number, call, False)
        self._remembered = identity, _ = id(message), entry
        handed_over.remember(identity, entry)
        return True

    def held(self, calls: Sequence[ProcessCall], received: Sequence[IncomingMessage]) -> None:
        """Remember of what was handed over whatever a kind of consumer needs to know besides."""

    def left_out(self, tracing: Tracing, errors: Sequence[Message]) -> None:
        """Hear of what a batch held besides messages: errors and ends of partitions."""

    def incoming(self, messages: Sequence[Message]) -> list[IncomingMessage]:
        """Return what the hook needs of messages of this consumer."""
        return incoming(messages, self.leaders)

    def take(self, message: Message, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        del message
        taken = self.taken(call)
        if taken is None:
            # The next poll came first (another thread handles the messages): one span is right, so no second one.
            self._left.came_late(self.facts.group_name)
            return LateSpan(call)
        if isinstance(taken, SharedSpan) and taken.is_shared_out:
            self._left.one_by_one()
        return taken

    def taken(self, call: ProcessCall) -> Responsibility | None:
        """Give the span of a message that is held to a block; ``None`` when it is held no more."""
        return self._held.take(call)

    def open(self, message: Message, tracing: Tracing) -> Responsibility | None:
        """Open a span of its own for a message that is handled explicitly; ``None`` when it is not traced."""
        hook = self.bind(tracing)
        self._left.block_came()
        calls = hook.before(self.incoming([message]))
        return OwnSpan(hook, calls[0]) if calls else None

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer is gone, or tracing is, and nobody said how the last messages went: the next hook ends them."""
        self._held.abandon(self.outcome)


def _owners(calls: Sequence[ProcessCall], messages: int) -> list[ProcessCall | None]:
    owners: list[ProcessCall | None] = [None] * messages
    for call in calls:
        for index in call.indexes:
            owners[index] = call
    return owners


def abandon_consumers() -> None:
    """Say of every message that is being handled now that nobody will say how it went: tracing is switched off."""
    for state in _states.all():
        state.abandon()
