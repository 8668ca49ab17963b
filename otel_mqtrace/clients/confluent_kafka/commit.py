"""Offsets that ``commit`` and ``store_offsets`` settle; recorded only with ``settle_spans``.

librdkafka's own commits (``enable.auto.commit``, the last one of ``close``) are not calls and leave no span. Of an
asynchronous commit only the call is recorded; its result goes to ``on_commit``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, cimpl

from otel_mqtrace.clients.confluent_kafka.client import (
    active,
    describe_failure,
    header_pairs,
    is_message,
    valid_offsets,
)
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.settlement import continue_from
from otel_mqtrace.clients.state import known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.propagation import creation_of
from otel_mqtrace.hooks.settle import SettledOffset

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from otel_mqtrace.clients.patching import Observe, Wrapper
    from otel_mqtrace.clients.settlement import Positions
    from otel_mqtrace.hooks.settle import SettleCall


_COMMIT: Final = "commit"
_COMMIT_ORDER: Final = ("message", "offsets")
"""The positional parameters that name what to settle; the C methods have no signature."""

Settles = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Sequence[SettledOffset]]
"""Consumer, its state, arguments of the call → what it settles."""


@guarded("settlement.over")
def _record(state: Any, call: SettleCall, settled: Sequence[SettledOffset], result: Any, raised: Any) -> None:
    """Record a call that returned nothing, or each settled partition with its error, if any; or that raised."""
    if result == {}:  # a share consumer had nothing to commit
        return
    errors = [raised]
    if isinstance(result, list) and result:
        settled, errors = _committed(state.positions, result), [each.error for each in result]
    elif isinstance(result, dict):
        errors = list(result.values())
    error = next((each for each in errors if each is not None), None)
    state.settle.after(call, settled, **({} if error is None else describe_failure(error)))
    if error is None and call.operation == _COMMIT:
        state.positions.remove(settled)


def traced_settlement(
    operation: str, settles: Settles, *, state_of: Callable[[Any], Any] = known_state, is_async: bool = False
) -> Wrapper:
    """Return the wrapper of a method that settles; ``operation`` is the client's own word for it."""

    @guarded("Settlement.begin")
    def begin(consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Observe | None:
        tracing = active.tracing
        if tracing is None or not tracing.settings.settle_spans:
            return None
        state = state_of(consumer)
        if state is None or state.silent:
            return None
        state.bind(tracing)
        call = state.settle.before(operation)
        if call is None:
            return None
        return partial(_record, state, call, settles(consumer, state, args, kwargs))

    return observe_calls(begin, is_async=is_async)


def offsets_of_call(
    consumer: Any, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sequence[SettledOffset]:
    """Return what a ``commit`` or ``store_offsets`` settles: one message, a list of offsets, or all handed over."""
    positions: Positions = state.positions
    given = {**dict(zip(_COMMIT_ORDER, args, strict=False)), **kwargs}
    message, offsets = given.get("message"), given.get("offsets")
    if is_message(message):
        topic, partition, offset = message.topic() or "", message.partition(), message.offset()
        creation = creation_of(header_pairs(message.headers()))
        return [SettledOffset(topic, partition, None if offset is None else offset + 1, creation)]
    return (
        positions.unsettled(_assigned(consumer)) if offsets is None else _committed(positions, valid_offsets(offsets))
    )


def _committed(positions: Positions, offsets: Sequence[TopicPartition]) -> list[SettledOffset]:
    return [continue_from(each.topic, each.partition, each.offset, positions.creation_context) for each in offsets]


def _assigned(consumer: Any) -> set[tuple[str, int]] | None:
    """Return the assigned partitions; ``None`` where that cannot be read here and now (asyncio would have to wait)."""
    if not isinstance(consumer, cimpl.Consumer):
        return None
    try:
        return {(each.topic, each.partition) for each in consumer.assignment()}
    except (KafkaException, RuntimeError):  # it is closed: the call itself will raise
        return None
