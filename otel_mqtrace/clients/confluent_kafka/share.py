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
from otel_mqtrace.hooks.in_flight import Delivery
from otel_mqtrace.hooks.settle import SettledOffset
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from otel_mqtrace.clients.patching import Wrappers
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.in_flight import Outcome
    from otel_mqtrace.hooks.process import Owner
    from otel_mqtrace.hooks.scope import ProcessSpan, SpanIds
    from otel_mqtrace.hooks.tracing import Tracing


ORIGINAL_SHARE_CONSUMER: Final[type[Any] | None] = getattr(cimpl, "ShareConsumer", None)
"""``None`` before confluent-kafka 2.15."""
_MODE: Final = "share.acknowledgement.mode"
_ACCEPT: Final[int] = getattr(cimpl, "SHARE_ACKNOWLEDGE_TYPE_ACCEPT", 1)
_ACKNOWLEDGE: Final = ("message", "ack_type")
_ACKNOWLEDGE_OFFSET: Final = ("topic", "partition", "offset", "ack_type")
"""The positional parameters; the C methods have no signature."""


class _ShareDelivery(Delivery):
    """The messages of one poll and their acknowledgements, which are the outcomes.

    ``is_explicit``: each message must be acknowledged before the next poll, or that poll raises. The configuration
    sets it, or the first acknowledgement that succeeded.
    """

    def __init__(self, *, is_explicit: bool) -> None:
        super().__init__()
        self.is_explicit = is_explicit
        self.positions_of: dict[int, tuple[Position, ...]] = {}
        self.acknowledged: dict[Position, ContextCode] = {}

    def outcome_of(self, call: ProcessSpan, code: ContextCode, exception: BaseException | None) -> Outcome:
        """Return the worst acknowledgement; where one is missing, a turn that failed wins."""
        positions = self.positions_of.pop(id(call), ())
        if not (self.is_explicit and positions) or call.worst[0] is not ContextCode.SUCCESS:
            return super().outcome_of(call, code, exception)
        codes = [self.acknowledged.get(position) for position in positions]
        if None in codes and code is not ContextCode.SUCCESS:
            return code, exception
        if ContextCode.FAILED in codes:
            return ContextCode.FAILED, None
        return (ContextCode.RETURNNULL if None in codes else ContextCode.SUCCESS), None


class ShareState(ConsumerState):
    """The state of a share consumer, with what is not acknowledged or committed since the last poll."""

    _records = False
    in_flight: _ShareDelivery

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        is_explicit = str((conf or {}).get(_MODE, "")).lower() == "explicit"
        super().__init__(conf, _ShareDelivery(is_explicit=is_explicit))
        self._outstanding: set[Position] = set()
        self._unsettled: dict[Position, None] = {}

    def next_turn(self) -> None:
        """The application polls again, so it is done with what it has, unless that poll is going to be refused."""
        if not (self.in_flight.is_explicit and self._outstanding):
            self.in_flight.finish()
            self._unsettled = {}

    def remember(self, calls: Sequence[ProcessSpan], received: Sequence[IncomingMessage]) -> None:
        """Remember the position of each message, which is not acknowledged yet."""
        delivery = self.in_flight
        positions = [(each.topic, each.partition, each.offset) for each in received]
        delivery.positions_of = {id(call): tuple(positions[index] for index in call.indexes) for call in calls}
        delivery.acknowledged = {}  # another one: the last messages' blocks still read that of theirs
        self._outstanding = set(positions)
        self._unsettled = {} if delivery.is_explicit else dict.fromkeys(positions)

    @guarded("ShareState.record_refused")
    def record_refused(self, errors: Sequence[Message]) -> None:
        """Record each message that a deserialiser refused: its processing failed before it began."""
        refused = {cimpl.KafkaError._KEY_DESERIALIZATION, cimpl.KafkaError._VALUE_DESERIALIZATION}  # noqa: SLF001 - their names
        hook = self.hook
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

    def take(self, call: ProcessSpan | SpanIds, message: Message) -> Owner:
        """Give the span of a message to the block that handles it."""
        return self._with_acknowledgement(message, super().take(call, message))

    def open(self, message: Message, tracing: Tracing) -> Owner | None:
        """Open the span of a message that is handled in a block."""
        opened = super().open(message, tracing)
        return None if opened is None else self._with_acknowledgement(message, opened)

    def _with_acknowledgement(self, message: Message, inner: Owner) -> Owner:
        """Return the owner whose block has the message's acknowledgement as outcome, unless its own is worse."""
        acknowledged, position = self.in_flight.acknowledged, position_of(message)

        def finish(code: ContextCode, exception: BaseException | None, *, later: bool = False) -> None:
            if exception is None and code is ContextCode.SUCCESS:
                code = acknowledged.get(position, code)
            inner.finish(code, exception, later=later)

        return inner._replace(finish=finish)

    def acknowledged(self, position: Position, code: ContextCode) -> None:
        """The application acknowledged one message; of several acknowledgements before a commit the last one counts."""
        delivery = self.in_flight
        if not delivery.is_explicit:
            delivery.is_explicit, self._unsettled = True, {}
        self._outstanding.discard(position)
        delivery.acknowledged[position] = code
        self._unsettled[position] = None

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
