"""The share consumer (KIP-932): its acknowledgements as outcomes, and how often a message was delivered.

``ACCEPT`` is ``SUCCESS``; ``RELEASE`` is ``FAILED``, the message is delivered again; ``REJECT`` is ``FAILED`` too:
RocketMQ has no other status for a refused message. A message without acknowledgement, where the consumer requires one,
is ``RETURNNULL``. Without explicit acknowledgement the next poll accepts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import cimpl

from otel_mqtrace.clients.confluent_kafka.client import Position, position_of, traced_constructor
from otel_mqtrace.clients.confluent_kafka.commit import traced_settlement
from otel_mqtrace.clients.confluent_kafka.consumer import traced_assignment, traced_receive
from otel_mqtrace.clients.confluent_kafka.consumer_state import ConsumerState
from otel_mqtrace.clients.consumer_state import traced_close
from otel_mqtrace.clients.patching import call_after
from otel_mqtrace.clients.state import known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.settle import SettledOffset
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from otel_mqtrace.clients.patching import Wrappers
    from otel_mqtrace.hooks.consume import IncomingMessage, ProcessSpan, SpanIds
    from otel_mqtrace.hooks.in_flight import OutcomeOf
    from otel_mqtrace.hooks.process import ProcessSpanOwner
    from otel_mqtrace.hooks.tracing import Tracing


ORIGINAL_SHARE_CONSUMER: Final[type[Any] | None] = getattr(cimpl, "ShareConsumer", None)
"""``None`` before confluent-kafka 2.15."""
_MODE: Final = "share.acknowledgement.mode"
_ACCEPT: Final[int] = getattr(cimpl, "SHARE_ACKNOWLEDGE_TYPE_ACCEPT", 1)
_ACKNOWLEDGE: Final = ("message", "ack_type")
_ACKNOWLEDGE_OFFSET: Final = ("topic", "partition", "offset", "ack_type")
"""The positional parameters; the C methods have no signature."""


class _Block:
    """A message handled in its own block: its acknowledgement counts, unless the block's outcome is worse."""

    def __init__(self, inner: ProcessSpanOwner, acknowledgement: ContextCode | None) -> None:
        self._inner = inner
        self.acknowledgement = acknowledgement

    @property
    def call(self) -> ProcessSpan:
        """The span and what should be current while the message is handled."""
        return self._inner.call

    def finish(self, code: ContextCode, exception: BaseException | None, *, later: bool = False) -> None:
        """End the span, or its share in one."""
        if self.acknowledgement is not None and exception is None and code is ContextCode.SUCCESS:
            code = self.acknowledgement
        self._inner.finish(code, exception, later=later)


class ShareState(ConsumerState):
    """The state of a share consumer, with the acknowledgements since the last poll.

    ``_is_explicit``: each message must be acknowledged before the next poll, or that poll raises. The configuration
    sets it, or the first acknowledgement that succeeded.
    """

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        super().__init__(conf)
        self._is_explicit = str((conf or {}).get(_MODE, "")).lower() == "explicit"
        self._positions_of: dict[int, tuple[Position, ...]] = {}
        self._acknowledged: dict[Position, ContextCode] = {}
        self._blocks: dict[Position, _Block] = {}
        self._outstanding: set[Position] = set()
        self._unsettled: dict[Position, None] = {}

    def next_turn(self) -> None:
        """The application polls again, so it is done with what it has, unless that poll is going to be refused."""
        if not (self._is_explicit and self._outstanding):
            super().next_turn()
            self._unsettled = {}

    def held(self, calls: Sequence[ProcessSpan], received: Sequence[IncomingMessage]) -> None:
        """Remember the position of each message, which is not acknowledged yet."""
        positions = [(each.topic, each.partition, each.offset) for each in received]
        self._positions_of = {id(call): tuple(positions[index] for index in call.indexes) for call in calls}
        self._acknowledged, self._blocks = {}, {}
        self._outstanding = set(positions)
        self._unsettled = {} if self._is_explicit else dict.fromkeys(positions)

    @guarded("ShareState.left_out")
    def left_out(self, tracing: Tracing, errors: Sequence[Message]) -> None:
        """Record each message that a deserialiser refused: its processing failed before it began."""
        refused = {cimpl.KafkaError._KEY_DESERIALIZATION, cimpl.KafkaError._VALUE_DESERIALIZATION}  # noqa: SLF001 - their names
        hook = self.bind(tracing)
        for message in errors:
            error = message.error()
            if error is not None and error.code() in refused:
                for call in hook.before(self.incoming([message])):
                    hook.after(call, code=ContextCode.EXCEPTION, exception=cimpl.KafkaException(error))

    def incoming(self, messages: Sequence[Message]) -> list[IncomingMessage]:
        """Return the hook's view of messages; the first delivery is not a retry."""
        received = super().incoming(messages)
        for message, each in zip(messages, received, strict=True):
            count = message.delivery_count()
            each.retry_times = None if count is None else max(count - 1, 0)
        return received

    def take(self, message: Message, call: ProcessSpan | SpanIds) -> ProcessSpanOwner:
        """Give the span of a message to the block that handles it."""
        return self._block(message, super().take(message, call))

    def open(self, message: Message, tracing: Tracing) -> ProcessSpanOwner | None:
        """Open the span of a message that is handled in a block."""
        opened = super().open(message, tracing)
        return None if opened is None else self._block(message, opened)

    def _block(self, message: Message, inner: ProcessSpanOwner) -> _Block:
        position = position_of(message)
        block = _Block(inner, self._acknowledged.get(position))
        self._blocks[position] = block
        return block

    def acknowledged(self, position: Position, code: ContextCode) -> None:
        """The application acknowledged one message; of several acknowledgements before a commit the last one counts."""
        if not self._is_explicit:
            self._is_explicit, self._unsettled = True, {}
        self._outstanding.discard(position)
        self._acknowledged[position] = code
        self._unsettled[position] = None
        if position in self._blocks:
            self._blocks[position].acknowledgement = code

    @property
    def outcome_of(self) -> OutcomeOf:
        """What was acknowledged of each message."""
        return self._acknowledgements

    def _acknowledgements(
        self, call: ProcessSpan, code: ContextCode, exception: BaseException | None
    ) -> tuple[ContextCode, BaseException | None]:
        """Return the worst acknowledgement; where one is missing, a turn that failed wins."""
        positions = self._positions_of.pop(id(call), ())
        if not self._is_explicit or not positions:
            return code, exception
        codes = [self._acknowledged.get(position) for position in positions]
        if None in codes and code is not ContextCode.SUCCESS:
            return code, exception
        if ContextCode.FAILED in codes:
            return ContextCode.FAILED, None
        return (ContextCode.RETURNNULL if None in codes else ContextCode.SUCCESS), None

    def committing(self) -> list[SettledOffset]:
        """Return what a commit settles: what was acknowledged or, where that is implicit, all of the last poll."""
        unsettled, self._unsettled = self._unsettled, {}
        return [SettledOffset(*position, self.positions.creation_context(*position)) for position in unsettled]


@guarded("ShareConsumer.acknowledge")
def _acknowledged(
    order: tuple[str, ...], consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any
) -> None:
    state: ShareState | None = known_state(consumer)
    if state is None:
        return
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    message = given.get("message")
    position = (given["topic"], given["partition"], given["offset"]) if message is None else position_of(message)
    accepted = int(given.get("ack_type", _ACCEPT)) == _ACCEPT
    state.acknowledged(position, ContextCode.SUCCESS if accepted else ContextCode.FAILED)


_traced_commit: Final = traced_settlement("commit", lambda _consumer, state, _args, _kwargs: state.committing())
SHARE_CONSUMER_METHODS: Final[Wrappers] = {
    "__init__": traced_constructor("ShareConsumer.__init__", ShareState),
    "poll": traced_receive(ShareState, batch=True),
    "acknowledge": call_after(partial(_acknowledged, _ACKNOWLEDGE)),
    "acknowledge_offset": call_after(partial(_acknowledged, _ACKNOWLEDGE_OFFSET)),
    "commit_sync": _traced_commit,
    "commit_async": _traced_commit,
    "subscribe": traced_assignment,
    "close": traced_close,
    "__exit__": traced_close,
}
"""Method → how to wrap it."""
