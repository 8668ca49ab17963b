"""Consumption by a confluent-kafka consumer: messages handed over, and the application done with them.

Automatic mode: a message belongs to the application from the moment ``poll`` or ``consume`` returns it until the next
call of either, or ``close``. Explicit ``process(message)`` takes a message over from automatic mode.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence, Sized
from threading import get_ident
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, Message, cimpl

from otel_mqtrace.clients.confluent_kafka.client import (
    active,
    describe_failure,
    error_type,
    is_message,
    traced_constructor,
)
from otel_mqtrace.clients.confluent_kafka.commit import offsets_of_call, traced_settlement
from otel_mqtrace.clients.confluent_kafka.consumer_state import AnyConsumerState, ConsumerState
from otel_mqtrace.clients.consumer_state import traced_close
from otel_mqtrace.clients.patching import call_after
from otel_mqtrace.clients.state import STATE, known_state
from otel_mqtrace.hooks.guard import guarded, note_failure
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from otel_mqtrace.clients.patching import Wrappers


ORIGINAL_CONSUMER: Final[type[Any]] = cimpl.Consumer
_S = TypeVar("_S", bound=AnyConsumerState)


def _begin(consumer: Any, kind: type[ConsumerState]) -> ConsumerState | None:
    """Return the state of a consumer whose poll begins, bound to the Tracing in force; ``None``: it is not traced."""
    state = state_at_poll(consumer, kind)
    if state is None or state.silent or (state.polling is not None and state.polling == get_ident()):
        return None
    state.next_turn()
    state.hook.poll_begins()
    return state


def state_at_poll(consumer: Any, kind: type[_S]) -> _S | None:
    """Return the state of a consumer that polls; once tracing has ended, stop being in the span of a last message."""
    state = active.state_of(consumer, kind)
    if state is None and (known := known_state(consumer)) is not None:
        known.abandon()
    return state


def traced_receive(kind: type[ConsumerState], *, batch: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: C901 - the innermost is every poll's: in one call
    """Return the wrapper of a ``poll`` or, for those that return several messages, a ``consume``."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: C901 - as above
        # A subclass may make its consume of polls, or the reverse: what the outer one returns is handed over, once.
        is_composed = not isinstance(original, MethodDescriptorType)

        @functools.wraps(original)
        def receive(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: C901, PLR0912 - as above
            state: Any = None
            start_ns: int | None = None
            tracing = active.tracing
            try:
                state = getattr(self, STATE, None)  # a function of ours would be a call of every poll
                if state is None or tracing is None or state.tracing is not tracing or state.silent or state.polling:
                    state = _begin(self, kind)
                else:
                    state.next_turn()
                if state is not None and state.hook.is_watched():
                    start_ns = state.hook.poll_begins()
            except:  # noqa: E722 - as guarded() does; this is every poll's
                note_failure("Consumer.poll")
                state = None
            if state is None:
                return original(self, *args, **kwargs)
            if is_composed:
                state.polling = get_ident()
            try:
                result = original(self, *args, **kwargs)
            except:  # a KafkaError can be raised, but is not a BaseException
                refused(state, sys.exc_info()[1], start_ns=start_ns, batch=batch)
                raise
            finally:
                if is_composed and state.polling == get_ident():
                    state.polling = None
            if state.tracing is not active.tracing:  # switched off while it waited: nothing would end the span
                return result
            try:
                if not batch and type(result) is Message and result.error() is None and state.record(result, start_ns):
                    return result
            except:  # noqa: E722 - as above
                note_failure("Consumer.returned")
                return result
            if result is not None or start_ns is not None:
                returned(state, result, start_ns=start_ns, batch=batch)
            return result

        return receive

    return wrap


def returned(state: AnyConsumerState, result: Any, *, start_ns: int | None, batch: bool) -> None:
    """Hand over the messages that a poll returned, without errors and ends of partitions.

    A generator of a subclass, which cannot be counted, is left to the application. Never raises.
    """
    try:
        if not batch and is_message(result):
            state.hand_over([result], start_ns=start_ns, batch=False, handed=result)
            return
        if batch and not isinstance(result, Sized):
            return
        if type(result) is list and result and state.record_batch(result, start_ns):
            return
        items = [] if result is None else list(result) if batch else [result]
        if not items:
            state.hook.empty(start_ns=start_ns, batch=batch)
            return
        messages = [each for each in items if is_message(each)]
        if len(messages) < len(items):
            errors = [each for each in items if not is_message(each)]
            state.record_refused(errors)
            if not messages:
                _record_empty_poll(state, errors, start_ns=start_ns, batch=batch)
        if messages:
            state.hand_over(messages, start_ns=start_ns, batch=batch, handed=result)
    except:  # noqa: E722 - as guarded() does; this is every poll's
        note_failure("Consumer.returned")


def _record_empty_poll(state: AnyConsumerState, items: Sequence[Any], *, start_ns: int | None, batch: bool) -> None:
    """Record a poll that returned no message, with its first error: ends of partitions alone leave it empty."""
    errors = (each.error() for each in items)
    end = KafkaError._PARTITION_EOF  # noqa: SLF001 - its name
    error = next((each for each in errors if each is not None and each.code() != end), None)
    if error is None:
        state.hook.empty(start_ns=start_ns, batch=batch)
    else:
        state.hook.poll_failed(start_ns=start_ns, batch=batch, **describe_failure(error))


@guarded("Consumer.refused")
def refused(state: AnyConsumerState, raised: Any, *, start_ns: int | None, batch: bool = False) -> None:
    """Record a poll that raised, or the failed processing of a message whose deserialiser refused it.

    Of a batch the application then gets nothing; only the refused message is named. ``raised`` may be a ``KafkaError``,
    which is not an exception to Python; an interruption or a cancellation is not a failure of the poll.
    """
    exception = raised if isinstance(raised, BaseException) else None
    if exception is not None and not isinstance(exception, Exception):
        return
    message = getattr(raised, "kafka_message", None)
    hook = state.hook
    if is_message(message):
        received = state.incoming([message])
        hook.received(received, start_ns=start_ns, batch=batch)
        for call in hook.before(received):
            hook.after(call, code=ContextCode.EXCEPTION, exception=exception, error=error_type(raised))
    elif message is not None:
        _record_empty_poll(state, [message], start_ns=start_ns, batch=batch)
    else:
        hook.poll_failed(start_ns=start_ns, batch=batch, **describe_failure(raised))


@guarded("Consumer.assign")
def _expect(consumer: Any, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
    """Look the leaders up now, before the first message comes."""
    state: ConsumerState | None = known_state(consumer)
    tracing = active.tracing
    if state is None or state.leaders is None or tracing is None or not args:
        return
    for each in args[0]:
        topic = str(getattr(each, "topic", each))  # the client takes anything that can be printed
        if not topic.startswith("^") and tracing.is_traced(topic):
            state.leaders.want(topic)


traced_assignment: Final = call_after(_expect)
"""``subscribe`` and ``assign``."""
CONSUMER_METHODS: Final[Wrappers] = {
    "__init__": traced_constructor("Consumer.__init__", ConsumerState),
    "poll": traced_receive(ConsumerState, batch=False),
    "consume": traced_receive(ConsumerState, batch=True),
    "subscribe": traced_assignment,
    "assign": traced_assignment,
    "incremental_assign": traced_assignment,
    "commit": traced_settlement("commit", offsets_of_call),
    "store_offsets": traced_settlement("store", offsets_of_call),
    "close": traced_close,
    "__exit__": traced_close,
}
"""Method → how to wrap it."""
