"""Trace ``produce`` of one message, ``close`` and others, on our own subclass and on the application's alike."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from threading import get_ident
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import cimpl
from opentelemetry import context

from otel_mqtrace._errors import is_from_signal_handler
from otel_mqtrace.clients.confluent_kafka.batches import traced_batch
from otel_mqtrace.clients.confluent_kafka.client import (
    PRODUCE_ORDER,
    active,
    as_given,
    default_of,
    describe_failure,
    is_client_code,
    is_too_large,
    parameter_order,
    replace_arguments,
    traced_constructor,
    valid_offsets,
)
from otel_mqtrace.clients.confluent_kafka.sending import ProducerState, Sending, reopen_sending, run_in_context
from otel_mqtrace.clients.patching import call_finally, observe_calls
from otel_mqtrace.clients.settlement import (
    continue_from,
    find_creation_context,
    record_settlement,
    transaction_wrappers,
)
from otel_mqtrace.clients.state import STATE, known_state
from otel_mqtrace.hooks.guard import guarded, note_failure
from otel_mqtrace.hooks.outcome import deferred_ends, drain_deferred_ends
from otel_mqtrace.hooks.send import UNKNOWN_BODY
from otel_mqtrace.hooks.settle import SettleHook

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.clients.confluent_kafka.sending import Callback
    from otel_mqtrace.clients.patching import Observe, Wrappers
    from otel_mqtrace.clients.state import Arguments
    from otel_mqtrace.hooks.send import SendHook
    from otel_mqtrace.records.sent import Sent


ORIGINAL_PRODUCER: Final[type[Any]] = cimpl.Producer
_MISSING: Final[Any] = object()


@guarded("produce.before")
def _prepare(
    producer: Any, order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_c_code: bool
) -> tuple[Sending | None, tuple[Any, ...], dict[str, Any]] | None:
    """Open the span of one ``produce`` and return the arguments to call it with."""
    state = active.state_of(producer, ProducerState)
    if state is None:
        return None
    hook = state.hook
    given = {**dict(zip(order, args)), **kwargs} if kwargs else dict(zip(order, args))  # noqa: B905 - every send's
    topic, headers = given.get("topic"), given.get("headers")
    if not isinstance(topic, str) or (state.layers and _is_inner(state, topic)):
        return None
    value, partition = given.get("value"), given.get("partition")
    taken = (list, dict) if is_c_code else (list, Mapping)
    call = hook.before(
        topic,
        body=value if order is PRODUCE_ORDER or value is None else UNKNOWN_BODY,
        key=given.get("key"),
        headers=headers,
        partition=partition if isinstance(partition, int) else None,
        transaction_id=state.transaction.transaction_id,
        carries_headers=headers is None or isinstance(headers, taken),
    )
    if call is None:
        return None
    if state.leaders is not None and call.is_recorded:
        state.leaders.want(topic)
    changes: dict[str, Any] = {}
    if call.headers is not None:
        changes["headers"] = call.headers if is_c_code else as_given(headers, call.headers)
    if not call.is_recorded and not call.current_ctx:
        return None, *replace_arguments(order, args, kwargs, changes)
    # An explicit callback=None hides on_delivery in the C code (it tests for NULL, not for None): so do we.
    name = next((each for each in ("callback", "on_delivery") if each in given), None) or (
        "on_delivery" if "on_delivery" in order else "callback"
    )
    user = given.get(name)
    callback = state.default_callback if user is None else user
    sending = state.sending(state, hook, call, callback)
    if (user is not None or state.default_is_known) and (call.is_recorded or callback is not None):
        changes[name] = sending
        sending.await_answer()
    return sending, *replace_arguments(order, args, kwargs, changes)


def _is_inner(state: ProducerState, topic: str) -> bool:
    thread = get_ident()
    if state.layers.get(thread) != topic:
        return False
    del state.layers[thread]
    return True


def _traced_produce(original: Callable[..., Any]) -> Callable[..., Any] | None:
    """``produce``, of the C code or of a subclass; ``None`` for a signature that leaves no way in."""
    order = parameter_order(original)
    if order is None:
        return None
    is_c_code = isinstance(original, MethodDescriptorType)
    may_repeat = is_client_code(original)  # an application's own may not stand a second call
    send = original if is_c_code else _outer(original, order)
    default_topic = None if is_c_code else default_of(original, "topic")

    @functools.wraps(original)
    def produce_with_span(self: Any, *args: Any, **kwargs: Any) -> Any:
        if default_topic is not None and "topic" not in kwargs and len(args) <= order.index("topic"):
            kwargs["topic"] = default_topic
        prepared = _prepare(self, order, args, kwargs, is_c_code=is_c_code)
        if prepared is None:
            return original(self, *args, **kwargs)
        sending, changed_args, changed_kwargs = prepared
        try:
            result = send(self, *changed_args, **changed_kwargs)
        except:  # noqa: E722 - a KafkaError can be raised, but is not a BaseException
            headers = _own_headers(order, (args, kwargs), (changed_args, changed_kwargs)) if may_repeat else _MISSING
            if not _note_raised(sending, headers, is_c_code=is_c_code):
                raise
        else:
            if sending is not None:
                sending.returned()
            return result
        own_args, own_kwargs = replace_arguments(order, changed_args, changed_kwargs, {"headers": headers})
        return _send_again(partial(send, self, *own_args, **own_kwargs), sending, is_c_code=is_c_code)

    if not (is_c_code and order is PRODUCE_ORDER):
        return produce_with_span
    return _recorded_produce(original, produce_with_span)


def _own_headers(order: tuple[str, ...], given: Arguments, changed: Arguments) -> Any:
    """Return the caller's headers; ``_MISSING`` where they were sent as they are."""
    own, sent = ({**dict(zip(order, args, strict=False)), **kwargs}.get("headers") for args, kwargs in (given, changed))
    return _MISSING if own is sent else own


def _note_raised(sending: Sending | None, headers: Any, *, is_c_code: bool) -> bool:
    """Note that ``produce`` raised; return whether the caller's ``headers`` alone may be what the client takes.

    ``_MISSING``: the message is not sent again.
    """
    if is_c_code and is_from_signal_handler():  # the handler runs once the message is queued
        if sending is not None:
            sending.returned()
        return False
    may_drop = headers is not _MISSING and is_too_large(sys.exc_info()[1])
    if sending is not None and may_drop:
        sending.withdraw_headers(headers)
    elif sending is not None:
        sending.raised(sys.exc_info()[1])
    return may_drop


def _send_again(call: Callable[[], Any], sending: Sending | None, *, is_c_code: bool = True) -> Any:
    """Send without our headers."""
    try:
        result = call()
    except:  # a KafkaError can be raised, but is not a BaseException
        _note_raised(sending, _MISSING, is_c_code=is_c_code)
        raise
    if sending is not None:
        sending.returned()
    return result


def _recorded_produce(  # noqa: C901 - the inner one is every send's: in one call
    original: Callable[..., Any], produce_with_span: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the C code's ``produce`` for the ordinary send, which is recorded; others open a span."""

    @functools.wraps(original)
    def produce(  # noqa: PLR0913, PLR0917 - every send's, with the C method's own parameters
        self: Any,
        topic: Any = _MISSING,
        value: Any = None,
        key: Any = None,
        partition: Any = -1,
        callback: Any = _MISSING,
        on_delivery: Any = _MISSING,
        timestamp: Any = 0,
        headers: Any = None,
        **kwargs: Any,
    ) -> Any:
        recorded: Any = None
        state: Any = None
        report: Any = None
        try:
            tracing = active.tracing
            state = getattr(self, STATE, None)  # a function of ours would be a call of every send
            if (
                tracing is not None
                and type(state) is ProducerState
                and state.sending is Sending
                and not (state.layers or state.behind_asyncio or kwargs)
                and (callback is _MISSING or on_delivery is _MISSING)
                and type(topic) is str
            ):
                if state.tracing is not tracing:
                    state.bind(tracing)
                hook = state.hook
                if state.transaction.transaction_id is None:
                    recorded = hook.record(topic, value, key, headers, state.leaders, partition)
        except:  # noqa: E722 - as guarded() does; this is every send's
            note_failure("produce.record")
        if recorded is None:
            given = _name_arguments((topic, value, key, partition, callback, on_delivery, timestamp, headers))
            return produce_with_span(self, **given, **kwargs)
        sent, pairs = recorded
        user = callback if on_delivery is _MISSING else on_delivery
        user = state.default_callback if user is _MISSING or user is None else user
        if sent is not None:
            report = partial(_end_recorded, state, hook, sent, user)
            state.in_flight[id(sent)] = sent
        elif user is not None:
            report = user if not (ctx := context.get_current()) else partial(run_in_context, ctx, user)
        try:
            return original(self, topic, value, key, partition, report, None, timestamp, pairs)
        except:  # noqa: E722 - a KafkaError can be raised, but is not a BaseException
            sending = None if is_from_signal_handler() else reopen_sending(state, hook, sent, user)
            if not _note_raised(sending, headers, is_c_code=True):
                raise
        call = partial(original, self, topic, value, key, partition, sending or report, None, timestamp, headers)
        return _send_again(call, sending)

    return produce


_DEFAULTS: Final = (_MISSING, None, None, -1, _MISSING, _MISSING, 0, None)


def _name_arguments(arguments: tuple[Any, ...]) -> dict[str, Any]:
    every = zip(PRODUCE_ORDER, arguments, _DEFAULTS, strict=True)
    return {name: each for name, each, default in every if each is not default}


def _end_recorded(  # noqa: PLR0913, PLR0917 - the last two are the client's, the others a partial's
    state: ProducerState, hook: SendHook, sent: Sent, user: Callback | None, error: Any, message: Any
) -> None:
    """Take a delivery report; what the application's callback raises goes on to its ``poll`` or ``flush``."""
    sending = None
    try:
        if state.in_flight.pop(id(sent), None) is not None:  # it was not abandoned
            partition, offset = message.partition(), message.offset()
            if error is None and partition is not None and offset is not None:
                hook.end_record(sent, partition, offset)
            else:  # with acks=0 there is no offset
                sending = reopen_sending(state, hook, sent, user)
    except:  # noqa: E722 - as guarded() does; this is every message's
        note_failure("Delivery.settle")
    if sending is not None:
        sending(error, message)
    elif user is not None:
        state.sending.call_user(sent.current_ctx, user, error, message)


def _outer(original: Callable[..., Any], order: tuple[str, ...]) -> Callable[..., Any]:
    """Call a subclass's own ``produce``; the client's, which it may call by a traced name, opens no second span."""
    position = order.index("topic")

    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = known_state(self)
        thread = get_ident()
        topic = args[position] if len(args) > position else kwargs["topic"]
        before = state.layers.get(thread)
        state.layers[thread] = topic
        try:
            return original(self, *args, **kwargs)
        finally:
            if before is None:
                state.layers.pop(thread, None)
            else:
                state.layers[thread] = before

    return send


def _end_released(_producer: Any) -> None:
    """The client has released the callbacks that it did not call (:class:`SilentSending`)."""
    if deferred_ends:
        drain_deferred_ends()


def _traced_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    """``__exit__`` ends as ``close`` does."""

    @functools.wraps(original)
    def __exit__(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any) -> Any:  # noqa: N807 - it becomes that method
        try:
            # Each by itself: called with *args, Python does not see that the C code returns None *and* an exception.
            return original(self, exc_type, exc_value, exc_traceback)
        finally:
            _abandon_unanswered(self)

    return __exit__


@guarded("Producer.close")
def _abandon_unanswered(producer: Any) -> None:
    """No report can come any more, even if a callback raised; a close that was broken off may be tried again."""
    state: ProducerState | None = known_state(producer)
    if state is not None and state.in_flight and not ORIGINAL_PRODUCER.__len__(producer):
        state.abandon()
    drain_deferred_ends()


@guarded("Producer.offsets")
def _send_offsets(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Observe | None:
    state = active.state_of(producer, ProducerState)
    if state is None:
        return None
    # the offsets are some consumer group's, whose name the client keeps to itself
    hook = SettleHook(tracing=state.tracing, info=replace(state.info, group_name=None))
    call = hook.before("send_offsets")
    if call is None:
        return None
    offsets = args[0] if args else kwargs.get("positions")
    find_creation = partial(find_creation_context, server=state.info.server)
    settled = [continue_from(each.topic, each.partition, each.offset, find_creation) for each in valid_offsets(offsets)]
    return partial(record_settlement, hook, call, settled, describe_failure)


PRODUCER_METHODS: Final[Wrappers] = {
    "__init__": traced_constructor("Producer.__init__", ProducerState),
    "produce": _traced_produce,
    "produce_batch": traced_batch,
    "flush": call_finally(_end_released),
    "close": call_finally(_abandon_unanswered),
    "__exit__": _traced_exit,
    **transaction_wrappers(active, ProducerState),
    "send_offsets_to_transaction": observe_calls(_send_offsets),
}
"""Method → how to wrap it."""
