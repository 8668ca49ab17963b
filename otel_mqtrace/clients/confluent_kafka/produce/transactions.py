"""A producer's transactions: begun, with a consumer's offsets, ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.messages import describe_error
from otel_mqtrace.clients.confluent_kafka.produce.sending import ProducerState, producer_state
from otel_mqtrace.clients.confluent_kafka.state import active
from otel_mqtrace.clients.patching import observed
from otel_mqtrace.clients.settlement import Settlement, begin_transaction, end_transaction, find_creation_context
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.settle import SettledOffset
from otel_mqtrace.model import TransactionState

if TYPE_CHECKING:
    from otel_mqtrace.hooks.transaction import TransactionHook


_SEND_OFFSETS: Final = "send_offsets"


@guarded("Producer.transaction")
def _bound(producer: Any) -> ProducerState | None:
    """Return the producer's state, bound to the Tracing in force; ``None`` while nothing is traced."""
    if active.tracing is None:
        return None
    state = producer_state(producer)
    if state is not None:
        state.bind(active.tracing)
    return state


def _transaction_of(producer: Any) -> TransactionHook | None:
    state = _bound(producer)
    return None if state is None else state.transaction


@guarded("Producer.offsets")
def _send_offsets(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Settlement | None:
    state = _bound(producer)
    hook = None if state is None else state.settle
    call = None if hook is None else hook.before(_SEND_OFFSETS)
    if state is None or hook is None or call is None:
        return None
    offsets = args[0] if args else kwargs.get("positions")
    settled = [_settled(each, state.info.server) for each in offsets or ()]
    return Settlement(hook, call, settled, describe_error)


def _settled(offset: Any, server: str | None) -> SettledOffset:
    """Return an offset to continue from; the message before it, if a consumer of this process had it, is the last."""
    creation = find_creation_context(offset.topic, offset.partition, offset.offset - 1, server=server)
    return SettledOffset(offset.topic, offset.partition, offset.offset, creation)


traced_begin: Final = observed(begin_transaction(_transaction_of))
traced_offsets: Final = observed(_send_offsets)
traced_commit: Final = observed(end_transaction(_transaction_of, TransactionState.COMMIT_MESSAGE))
traced_abort: Final = observed(end_transaction(_transaction_of, TransactionState.ROLLBACK_MESSAGE))
