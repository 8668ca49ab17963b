"""Consumption from RocketMQ and its settlement: the simple consumer, and the push consumer's listener.

A message of a simple consumer is in the application's hands from ``receive`` until it acknowledges it, in whatever
thread, or until its invisible duration is over and the broker delivers it again: the next ``receive`` finds that out.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from contextlib import nullcontext
from functools import partial
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from opentelemetry import context, trace
from rocketmq import Message

from otel_mqtrace._workers import restart_in_child
from otel_mqtrace.clients.consumer_state import ConsumerState
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.rocketmq.client import (
    ReceivedMessage,
    active,
    creation_of_message,
    describe_failure,
    incoming,
    info_of,
    observe_call,
    received_of,
)
from otel_mqtrace.clients.settlement import record_settlement
from otel_mqtrace.clients.state import MAX_MESSAGES, take_all
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import closing_exception
from otel_mqtrace.hooks.outcome import UNHANDLED, count_missing, defer_end, ends_at_exit
from otel_mqtrace.hooks.process import Owner
from otel_mqtrace.hooks.scope import BlockScope, ambient_context
from otel_mqtrace.hooks.settle import SettledOffset
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from typing_extensions import Self

    from otel_mqtrace.clients.patching import Observe, Wrapper, Wrappers
    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.scope import ProcessSpan


_NS_PER_S: Final = 1_000_000_000
_DEFAULT_INVISIBLE_S: Final = 60
"""The proxy's own invisible duration, where the caller names none."""


class RocketMqConsumerState(ConsumerState):
    """The hooks of one consumer and its open messages.

    The turn of a thread is what it received and has not settled: the first of these messages is current there. That is
    right where they are handled one after the other; ``process.each`` is right always.
    """

    def __init__(self, info: ClientInfo) -> None:
        super().__init__(info)
        self._held: dict[ReceivedMessage, None] = {}
        self.in_listener: dict[int, ProcessSpan] = {}
        self._turns: WeakKeyDictionary[Thread, list[ReceivedMessage]] = WeakKeyDictionary()

    @classmethod
    def of_client(cls, client: Any) -> Self:
        """Return the state of a consumer."""
        return cls(info_of(client))

    def incoming(self, messages: Sequence[Any]) -> list[IncomingMessage]:
        """Return what the hook needs of messages."""
        return [incoming(message) for message in messages]

    @guarded("rocketmq.next_turn")
    def next_turn(self) -> None:
        """The caller's thread receives again: nothing is current there any more, and what came too late is over."""
        _leave(self._turns.pop(current_thread(), ()))
        self._give_up_late(frozenset())

    @guarded("rocketmq.hand_over")
    def hand_over(self, messages: Sequence[Any], invisible_s: float | None, *, start_ns: int, enter: bool) -> None:
        """The application gets ``messages``: open the span of each; ``enter`` makes the first current here."""
        received = self.incoming(messages)
        if not received:
            self.hook.empty(start_ns=start_ns, batch=True)
            return
        self._give_up_late({message.msg_id for message in received})
        self.hook.received(received, start_ns=start_ns, batch=True)
        is_left = self.explicit.expect_blocks()
        until_ns = self.hook.now_ns() + _duration_ns(invisible_s)
        handed = [received_of(message) for message in messages]
        for message, what in zip(handed, received, strict=True):
            calls = [] if is_left else self.hook.before([what])
            message.holder, message.until_ns = self, until_ns
            if is_left and self.tracing.is_traced(what.topic):
                self.explicit.record_awaited(1)
                received_messages.await_block(message)
            for call in calls:
                message.handle_in(call)
                self._held[message] = None
        if enter and not is_left:
            self._turns[current_thread()] = handed
            _enter_first(handed)

    @guarded("rocketmq.settled")
    def settled(self, message: ReceivedMessage) -> None:
        """The application acknowledges: it is done with the message, whatever the broker responds."""
        if self._release(message) and message.call is not None:
            self.hook.after(message.call)
        turn = self._turns.get(current_thread(), [])
        if message in turn:
            _leave(turn)
            del turn[: turn.index(message) + 1]
            _enter_first(turn)
        else:  # in another thread than received it
            _leave([message])

    @guarded("rocketmq.postponed")
    def postponed(self, message: ReceivedMessage, invisible_s: float | None) -> None:
        """The broker keeps the message back for longer: more time to handle it, or a pause before its redelivery."""
        message.postponed_ns = now_ns = self.hook.now_ns()
        message.until_ns = now_ns + _duration_ns(invisible_s)

    def take(self, message: ReceivedMessage) -> Owner | None:
        """Give the span of a message to the block that handles it explicitly."""
        call, message.call = message.call, None  # handled a second time it is a second attempt, with its own span
        if call is None:
            return None
        call.leave()
        for turn in list(self._turns.values()):
            if message in turn:
                _leave(turn)
        if not self._release(message):  # it was acknowledged before it was handled
            return self.own_late_block(call)
        return Owner(call, call.finish)

    @guarded("rocketmq.abandon")
    def abandon(self) -> None:
        """The consumer is collected, or the process ends: what is open ends with the next hook, as when given up."""
        self._leave_all()
        for message in list(self._held):
            self._give_up(message, partial(defer_end, self.hook))

    @guarded("rocketmq.close")
    def close(self, exception: BaseException | None = None) -> None:
        """Nothing can be acknowledged any more; ``exception``, if any, is the outcome of the current message."""
        current = _leave(self._turns.pop(current_thread(), ()))
        if exception is not None and current is not None and current.call is not None:
            self._release(current)
            self.hook.after(current.call, code=ContextCode.EXCEPTION, exception=exception)
        self._leave_all()
        for message in list(self._held):
            self._give_up(message)

    def switch_off(self) -> None:
        """End what is open, in a listener too."""
        self.close()
        for call in take_all(self.in_listener):
            self.hook.after(call, code=ContextCode.RETURNNULL)

    def _leave_all(self) -> None:
        for turn in list(self._turns.values()):
            _leave(turn)

    def _give_up_late(self, came_again: AbstractSet[str | None]) -> None:
        now_ns = self.hook.now_ns()
        for message in list(self._held):
            if message.until_ns <= now_ns or message.msg_id in came_again:
                self._give_up(message)

    def _give_up(self, message: ReceivedMessage, end: Callable[..., object] | None = None) -> None:
        """End a message that was not acknowledged: ``FAILED`` when the application put it off, else without outcome."""
        if not self._release(message) or message.call is None:
            return
        code, end_ns = ContextCode.FAILED, message.postponed_ns
        if end_ns is None:
            code, end_ns = ContextCode.RETURNNULL, min(message.until_ns, self.hook.now_ns())
        (end or self.hook.after)(message.call, code=code, end_ns=end_ns)

    def _release(self, message: ReceivedMessage) -> bool:
        """Return ``True`` to exactly one caller: that one ends the span or hands it on."""
        try:
            del self._held[message]
        except KeyError:
            return False
        return True


def _leave(turn: Sequence[ReceivedMessage]) -> ReceivedMessage | None:
    """Restore what was current before the messages of ``turn``; return the one that was."""
    current = next((each for each in turn if each.call is not None and each.call.is_current), None)
    if current is not None and current.call is not None:
        current.call.leave()
    return current


def _enter_first(turn: Sequence[ReceivedMessage]) -> None:
    call = next((each.call for each in turn if each.call is not None and each.call.is_open), None)
    if call is not None:
        call.previous_ctx = ambient_context()  # what was current at the receipt may be over
        call.enter()


def _duration_ns(seconds: float | None) -> int:
    return int((_DEFAULT_INVISIBLE_S if seconds is None else seconds) * _NS_PER_S)


@guarded("rocketmq.client")
def consumer_state(consumer: Any) -> RocketMqConsumerState | None:
    """Return the consumer's state; ``None`` while nothing is traced."""
    return active.state_of(consumer, RocketMqConsumerState)


def _leave_to_listener(call: ProcessSpan, code: ContextCode, exception: BaseException | None, **_later: bool) -> None:
    """Set the outcome of a block inside a listener, for the listener's message, unless the listener's is worse.

    An exception is left to the listener, which raises it again or has handled it.
    """
    if exception is None:
        call.handling.outcome(code)


class _ReceivedMessages:
    """The received messages; a source of ``process``. Of those left to blocks the last 10,000 are awaited."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._awaited: OrderedDict[int, bool] = OrderedDict()
        restart_in_child(self)
        ends_at_exit.append(self.clear)

    def await_block(self, message: ReceivedMessage) -> None:
        """Await the block of a message that has no span."""
        message.awaited = number = next(self._numbers)
        self._awaited[number] = True
        if len(self._awaited) > MAX_MESSAGES:
            self._count_oldest()

    def clear(self) -> None:
        """Count the messages that still wait for their blocks: none will come."""
        while self._count_oldest():
            pass

    def after_fork(self) -> None:
        """In a child: leave the counting of the parent's messages to the parent."""
        self._awaited.clear()

    def _count_oldest(self) -> bool:
        try:
            self._awaited.popitem(last=False)
        except KeyError:  # there is none, or another thread was here as well
            return False
        count_missing(UNHANDLED)
        return True

    def owner_of(self, message: object, consumer: object | None) -> Owner | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = active.tracing
        if tracing is None or not isinstance(message, Message) or message.receipt_handle is None:
            return None
        received = received_of(message)
        if received.listening and received.call is not None:
            return Owner(received.call, partial(_leave_to_listener, received.call))
        holder: RocketMqConsumerState | None = received.holder
        if holder is not None and self._is_awaited(received):
            holder.explicit.record_block()
        taken = None if holder is None else holder.take(received)
        if taken is not None:
            return taken
        known = None if consumer is None else consumer_state(consumer)
        owner = known or holder or RocketMqConsumerState(ClientInfo(system="rocketmq"))
        opened = owner.open(message, tracing)
        if opened is not None:
            received.handled_in = opened.call.otel_ctx
        return opened

    def _is_awaited(self, message: ReceivedMessage) -> bool:
        """Return ``True`` for a message that waits for its block, once."""
        number, message.awaited = message.awaited, None
        return number is not None and self._awaited.pop(number, False)


received_messages: Final = _ReceivedMessages()


def _invisible_s(args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> float | None:
    seconds: float | None = args[index] if len(args) > index else kwargs.get("invisible_duration")
    return seconds


def _traced_receive(*, enter: bool) -> Wrapper:
    """``receive``; ``receive_async`` hands over in a thread of the client, where none of the messages is entered."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
            state = consumer_state(self)
            if state is None:
                return original(self, *args, **kwargs)
            state.next_turn()
            start_ns = state.hook.now_ns()
            seconds = _invisible_s(args, kwargs, 1)

            @guarded("rocketmq.receive")
            def observe(messages: Any, exception: BaseException | None) -> None:
                if state.tracing is not active.tracing:  # switched off while it waited
                    return
                if exception is not None:
                    state.hook.poll_failed(start_ns=start_ns, **describe_failure(exception), batch=True)
                else:
                    state.hand_over(messages or (), seconds, start_ns=start_ns, enter=enter)

            return observe_call(lambda: original(self, *args, **kwargs), observe, ambient_context())

        return receive

    return wrap


def _shut_down(consumer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    state = consumer_state(consumer)
    if state is not None:
        state.close(closing_exception(()))


# -- settling -------------------------------------------------------------------------------------------------------
def _traced_settling(
    operation: str,
    *,
    before: Callable[[RocketMqConsumerState, ReceivedMessage], object] | None = None,
    after: Callable[[RocketMqConsumerState, ReceivedMessage, float | None], object] | None = None,
) -> Wrapper:
    """A method that settles a message, or its async form; ``after`` gets the new invisible duration.

    An acknowledged message is handled ``before`` the broker answers, and its settlement ends with that answer. One
    whose invisible duration changed stays in flight for longer, or returns after it.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def settle(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
            state = consumer_state(self)
            if state is None or not isinstance(message, Message):  # the client refuses it itself
                return original(self, message, *args, **kwargs)
            received = received_of(message)
            observe = _begin_settlement(state, operation, message)
            if before is not None:
                before(state, received)
            settle_message = partial(original, self, message, *args, **kwargs)
            result = settle_message() if observe is None else observe_call(settle_message, observe, None)
            if after is not None:
                after(state, received, _invisible_s(args, kwargs, 0))
            return result

        return settle

    return wrap


@guarded("rocketmq.settle")
def _begin_settlement(state: RocketMqConsumerState, operation: str, message: Any) -> Observe | None:
    """Begin a settlement, under the message's own span unless the application has another one open."""
    current = context.get_current()
    is_own_open = ambient_context() is current and trace.get_current_span(current).get_span_context().is_valid
    handled_in = None if is_own_open else received_of(message).handled_in
    with nullcontext() if handled_in is None else BlockScope(handled_in):
        call = state.settle.before(operation)
    if call is None:
        return None
    settled = SettledOffset(message.topic, creation=creation_of_message(message), msg_id=message.message_id)
    return partial(record_settlement, state.settle, call, [settled], describe_failure)


# -- the listener of a push consumer --------------------------------------------------------------------------------
_CODES: Final[Mapping[str, ContextCode]] = {"SUCCESS": ContextCode.SUCCESS, "FAILURE": ContextCode.FAILED}
"""``ConsumeResult`` by name: the oldest clients have none."""


class TracedListener:
    """The application's listener, with a process span for each call; without tracing, that listener alone.

    A FIFO consumer calls again for a message that was not consumed, here and now: each call is a separate try.
    """

    def __init__(self, listener: Any, consumer: Any) -> None:
        self._listener = listener
        self._consumer = ref(consumer)

    def consume(self, message: Any) -> Any:
        """Call the listener; what it raises goes to the client, which takes it for a failure."""
        state = consumer_state(self._consumer())
        end = None if state is None else _open(state, message)
        if end is None:
            return self._listener.consume(message)
        try:
            result = self._listener.consume(message)
        except BaseException as exception:
            end(ContextCode.EXCEPTION, exception)
            raise
        end(_CODES.get(getattr(result, "name", ""), ContextCode.RETURNNULL), None)
        return result


@guarded("rocketmq.listener")
def _open(state: RocketMqConsumerState, message: Any) -> Callable[[ContextCode, BaseException | None], object] | None:
    """Open the span of a message for its listener; return what ends it with the listener's outcome."""
    received = received_of(message)
    received.tries += 1
    calls = state.hook.before([incoming(message)])
    if not calls:
        return None
    received.holder, received.listening = state, True
    received.handle_in(calls[0])
    state.in_listener[id(calls[0])] = calls[0]
    return partial(_end, state, received, calls[0], BlockScope(calls[0].otel_ctx))


@guarded("rocketmq.listened")
def _end(  # noqa: PLR0913, PLR0917 - what was opened, and how it ended
    state: RocketMqConsumerState,
    received: ReceivedMessage,
    call: ProcessSpan,
    scope: BlockScope,
    code: ContextCode,
    exception: BaseException | None,
) -> None:
    scope.leave()
    received.listening, received.call = False, None
    state.in_listener.pop(id(call), None)
    state.hook.after(call, code=code, exception=exception)


_ack: Final = _traced_settling("ack", before=RocketMqConsumerState.settled)
_change: Final = _traced_settling("change_invisible_duration", after=RocketMqConsumerState.postponed)
SIMPLE_CONSUMER_METHODS: Final[Wrappers] = {
    "receive": _traced_receive(enter=True),
    "receive_async": _traced_receive(enter=False),
    "ack": _ack,
    "ack_async": _ack,
    "change_invisible_duration": _change,
    "change_invisible_duration_async": _change,
    "shutdown": observe_calls(_shut_down),
}
"""Method of ``SimpleConsumer`` → how to wrap it."""
PUSH_CONSUMER_METHODS: Final[Wrappers] = {
    "_ack": _traced_settling("ack"),
    "_change_invisible_duration": _traced_settling("nack"),
}
"""Method of ``PushConsumer``, which settles by itself after its listener has answered → how to wrap it."""
