"""Settlement: offsets committed or stored, transactions, and the creation context of each message."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._workers import LiveObjects
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.state import MAX_MESSAGES
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.propagation import creation_of
from otel_mqtrace.hooks.settle import SettledOffset
from otel_mqtrace.model import TransactionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.clients.patching import Observe, Wrapper, Wrappers
    from otel_mqtrace.clients.state import ActiveTracing, KafkaProducerState
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.settle import SettleCall, SettleHook
    from otel_mqtrace.hooks.tracing import ClientInfo
    from otel_mqtrace.records.message import HeaderIndex, Headers


class Positions:
    """Where one consumer stands, and the creation contexts of the last 10,000 messages it handed over.

    A settlement names offsets only. Consumers remember this as long as settlements are recorded.
    """

    def __init__(self, info: ClientInfo) -> None:
        self.info = info
        self._headers: OrderedDict[tuple[str, int | None, int | None], Headers | HeaderIndex] = OrderedDict()
        self._next: dict[tuple[str, int | None], int] = {}
        _consumers.add(self)

    def add(self, received: Iterable[IncomingMessage]) -> None:
        """Remember what was handed over."""
        for message in received:
            self._headers[message.topic, message.partition, message.offset] = message.headers
            if message.offset is not None:
                self._next[message.topic, message.partition] = message.offset + 1
        while len(self._headers) > MAX_MESSAGES:
            self._headers.popitem(last=False)

    def creation_context(self, topic: str, partition: int | None, offset: int | None) -> SpanContext | None:
        """Return the context in which the message there was created, while it is remembered."""
        headers = self._headers.get((topic, partition, offset))
        return None if headers is None else creation_of(headers)

    def unsettled(self, assigned: Collection[tuple[str, int]] | None = None) -> list[SettledOffset]:
        """Return the next offset of each partition with messages that were handed over and are not settled yet.

        Partitions that are not in ``assigned``, if it is given, are another consumer's to settle, and are forgotten.
        """
        if assigned is not None:
            for position in [each for each in list(self._next) if each not in assigned]:
                self._next.pop(position, None)
        known = ((where, self._next.get(where)) for where in list(self._next))
        return [continue_from(*where, offset, self.creation_context) for where, offset in known if offset]

    def remove(self, settled: Iterable[SettledOffset]) -> None:
        """Forget the positions that are committed."""
        for each in settled:
            where = each.topic, each.partition
            if each.offset is not None and self._next.get(where, each.offset + 1) <= each.offset:
                self._next.pop(where, None)


FindCreation = Callable[[str, Any, int], "SpanContext | None"]
"""Topic, partition and offset of a message → the context it was created in, where that is known."""


def continue_from(topic: str, partition: int | None, offset: int, find_creation: FindCreation) -> SettledOffset:
    """Return an offset to continue from; the message before it is the one that is settled last."""
    return SettledOffset(topic, partition, offset, find_creation(topic, partition, offset - 1))


_consumers: Final[LiveObjects[Positions]] = LiveObjects()


def find_creation_context(
    topic: str, partition: int, offset: int, *, server: str | None, group_name: str | None = None
) -> SpanContext | None:
    """Return what any consumer of ``server`` (and of the group, where it is known) remembers of a message."""
    for each in _consumers.all():
        if each.info.server == server and group_name in {None, each.info.group_name}:
            creation = each.creation_context(topic, partition, offset)
            if creation is not None:
                return creation
    return None


@guarded("settlement.over")
def record_settlement(
    hook: SettleHook,
    call: SettleCall,
    settled: Sequence[SettledOffset],
    describe: Callable[[Any], dict[str, Any]],
    _result: Any,
    raised: Any,
) -> None:
    """Record a call that settles and is over; ``describe`` returns the hook's arguments for what it raised."""
    hook.after(call, settled, **({} if raised is None else describe(raised)))


def transaction_wrappers(active: ActiveTracing, kind: type[KafkaProducerState], *, is_async: bool = False) -> Wrappers:
    """Return the wrappers of the begin, commit and abort of a producer, whose state is of this kind."""

    def observe(state: TransactionState | None) -> Wrapper:
        @guarded("transaction.begin")
        def begin(producer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Observe | None:
            known = active.state_of(producer, kind)
            if known is None:
                return None
            transaction = known.transaction
            act = transaction.begin
            if state is not None:
                act = partial(transaction.ended, state, start_ns=transaction.now_ns())
            # a call that failed leaves the transaction as it was, to be tried again
            return lambda _result, raised: act() if raised is None else None

        return observe_calls(begin, is_async=is_async)

    return {
        "begin_transaction": observe(None),
        "commit_transaction": observe(TransactionState.COMMIT_MESSAGE),
        "abort_transaction": observe(TransactionState.ROLLBACK_MESSAGE),
    }
