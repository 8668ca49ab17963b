"""This module knows what a consumer settles: which offsets ``commit`` and ``store_offsets`` mean, and whose they are.

Only with ``settle_spans``. What librdkafka commits by itself, ``enable.auto.commit`` and the last commit of ``close``,
is no call and leaves no span; of an asynchronous commit only the call is seen, its answer goes to ``on_commit``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, cimpl

from otel_mqtrace.clients.confluent_kafka.live import Arguments, known_state, live
from otel_mqtrace.clients.confluent_kafka.messages import Place, error_text, error_type, header_pairs, is_message
from otel_mqtrace.clients.creations import Creations
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import indexed
from otel_mqtrace.hooks._propagation import creation_of
from otel_mqtrace.hooks.settle import SettleCall, SettledOffset, SettleHook

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from confluent_kafka import TopicPartition
    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks.consume import IncomingMessage
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["Settlement", "Settles", "Settling", "begun", "offsets_asked", "traced_settlement"]

_COMMIT: Final = "commit"
_COMMIT_ORDER: Final = ("message", "offsets")
"""The positional parameters that say what to settle; the C methods have no signature to ask."""


class Settling:
    """What one consumer must know of the messages it handed over, to say what is settled: their places and headers."""

    def __init__(self, facts: ClientFacts) -> None:
        self._facts = facts
        self._hook: SettleHook | None = None
        self._tracing: Tracing | None = None
        self._creations = Creations(facts)
        self._next: dict[tuple[str, int | None], int] = {}

    def hook(self, tracing: Tracing) -> SettleHook:
        """Return the hook of the Tracing in force."""
        if self._hook is None or self._tracing is not tracing:
            self._hook = SettleHook(tracing=tracing, facts=self._facts)
            self._tracing = tracing
        return self._hook

    def note(self, received: Iterable[IncomingMessage]) -> None:
        """Remember what was handed over; the last 10,000 messages are."""
        found = list(received)
        self._creations.note(found)
        for message in found:
            if message.offset is not None:
                self._next[message.topic, message.partition] = message.offset + 1

    def creation(self, place: Place) -> SpanContext | None:
        """Return the context the message at ``place`` was created in, while it is remembered."""
        return self._creations.of(*place)

    def positions(self, assigned: Collection[tuple[str, int]] | None = None) -> list[SettledOffset]:
        """Return where the application stands in each partition it was handed something of that is not settled yet.

        What is not ``assigned`` any more, where that is known, is somebody else's to settle, and is forgotten.
        """
        if assigned is not None:
            for place in [each for each in list(self._next) if each not in assigned]:
                self._next.pop(place, None)
        return [self.committed(*place, offset) for place in list(self._next) if (offset := self._next.get(place))]

    def settled(self, settled: Iterable[SettledOffset]) -> None:
        """Forget the positions that are committed."""
        for each in settled:
            place = each.topic, each.partition
            if each.offset is not None and self._next.get(place, each.offset + 1) <= each.offset:
                self._next.pop(place, None)

    def committed(self, topic: str, partition: int | None, offset: int) -> SettledOffset:
        """Return an offset to go on from; the message before it is the one that is settled last."""
        return SettledOffset(topic, partition, offset, self.creation(Place(topic, partition, offset - 1)))

    def asked(self, consumer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[SettledOffset]:
        """Return what a call speaks of: one message, a list of offsets, or all that was handed over."""
        said = {**dict(zip(_COMMIT_ORDER, args, strict=False)), **kwargs}
        message, offsets = said.get("message"), said.get("offsets")
        if is_message(message):
            topic, partition, offset = message.topic() or "", message.partition(), message.offset()
            creation = creation_of(indexed(header_pairs(message.headers())))
            return [SettledOffset(topic, partition, None if offset is None else offset + 1, creation)]
        return self.positions(_assigned(consumer)) if offsets is None else self.partitions(offsets)

    def partitions(self, offsets: Sequence[TopicPartition]) -> list[SettledOffset]:
        """Return the client's list of offsets as the hook's."""
        return [self.committed(each.topic, each.partition, each.offset) for each in offsets]


@dataclass(slots=True)
class Settlement:
    """One call that settles, under way."""

    hook: SettleHook
    call: SettleCall
    settling: Settling
    settled: Sequence[SettledOffset]

    @guarded("Settlement.failed")
    def failed(self, raised: Any) -> None:
        """The call raised: an exception, or a ``KafkaError``, which is none to Python."""
        said = {"error": error_type(raised), "description": error_text(raised)}
        exception = raised if isinstance(raised, BaseException) else None
        self.hook.after(self.call, self.settled, exception=exception, **said)

    @guarded("Settlement.done")
    def done(self, result: object) -> None:
        """The call returned: nothing, or each partition it settled with an error of its own or none."""
        if result == {}:  # a share consumer had nothing to commit
            return
        settled, errors = self.settled, []
        if isinstance(result, list) and result:
            settled, errors = self.settling.partitions(result), [each.error for each in result]
        elif isinstance(result, dict):
            errors = list(result.values())
        error = next((each for each in errors if each is not None), None)
        if error is None:
            self.hook.after(self.call, settled)
            if self.call.operation == _COMMIT:
                self.settling.settled(settled)
        else:
            self.hook.after(self.call, settled, error=error_type(error), description=error_text(error))


Settles = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Sequence[SettledOffset]]
"""Consumer, its state, arguments of the call → what it settles."""


@guarded("Settlement.begun")
def begun(
    state_of: Callable[[Any], Any], consumer: Any, operation: str, settles: Settles, given: Arguments
) -> Settlement | None:
    """Note that ``consumer`` begins to settle something; ``None`` when nobody asked for settle spans."""
    tracing = live.tracing
    if tracing is None or not tracing.settings.settle_spans:
        return None
    state = state_of(consumer)
    if state is None or state.silent:
        return None
    hook = state.settling.hook(tracing)
    call = hook.before(operation)
    return None if call is None else Settlement(hook, call, state.settling, settles(consumer, state, *given))


def traced_settlement(operation: str, settles: Settles) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the wrapper of a method that settles, in the client's own word for it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def settle(self: Any, *args: Any, **kwargs: Any) -> Any:
            settlement = begun(known_state, self, operation, settles, (args, kwargs))
            if settlement is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except:  # a KafkaError can be raised, and is no BaseException
                settlement.failed(sys.exc_info()[1])
                raise
            settlement.done(result)
            return result

        return settle

    return wrap


def offsets_asked(consumer: Any, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[SettledOffset]:
    """Return what a ``commit`` or ``store_offsets`` with these arguments settles."""
    settling: Settling = state.settling
    return settling.asked(consumer, args, kwargs)


def _assigned(consumer: Any) -> set[tuple[str, int]] | None:
    """Return the partitions of a consumer that can be asked here and now; an asyncio one would have to be awaited."""
    if not isinstance(consumer, cimpl.Consumer):
        return None
    try:
        return {(each.topic, each.partition) for each in consumer.assignment()}
    except (KafkaException, RuntimeError):  # it is closed: the call itself will say so
        return None
