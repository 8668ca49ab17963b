"""A producer's sends, ends of transactions and recalls. One send is one span, retries included."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from opentelemetry import context
from rocketmq.grpc_protocol import Code, TransactionResolution, TransactionSource

from otel_mqtrace import semconv
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.rocketmq.client import (
    OutgoingMessage,
    active,
    bean_of_message,
    creation_of_message,
    describe_failure,
    first_address,
    info_of,
    observe_call,
    open_send,
)
from otel_mqtrace.clients.state import ClientState, take_all
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import defer_end
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.settle import EndTransactionHook, RecallHook
from otel_mqtrace.model import TransactionState
from otel_mqtrace.spans.mapping import bean_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.clients.patching import Observe, Wrappers
    from otel_mqtrace.hooks.send import SendCall
    from otel_mqtrace.hooks.tracing import Tracing

_STATES: Final[Mapping[int, TransactionState]] = {
    TransactionResolution.COMMIT: TransactionState.COMMIT_MESSAGE,
    TransactionResolution.ROLLBACK: TransactionState.ROLLBACK_MESSAGE,
}
"""What a resolution is called; any other is ``UNKNOW``: the broker will check (again)."""


class _ProducerState(ClientState):
    """The hooks of one producer under the Tracing in force."""

    send: SendHook
    end: EndTransactionHook
    recall: RecallHook

    def __init__(self, producer: Any) -> None:
        self._info = info_of(producer)
        self.in_flight: dict[int, SendCall] = {}

    def make_hooks(self, tracing: Tracing) -> None:
        self.send = SendHook(tracing=tracing, info=self._info)
        self.end = EndTransactionHook(tracing=tracing, info=self._info)
        self.recall = RecallHook(tracing=tracing, info=self._info)

    def abandon(self) -> None:
        """Nothing to do: every send ends with its call or its future."""

    def switch_off(self) -> None:
        """Defer the end of every send that is open: the exporters will be gone when its call or future is done."""
        for call in take_all(self.in_flight):
            defer_end(self.send, call, outcome=semconv.SEND_NOT_AWAITED)


@guarded("rocketmq.client")
def _producer_state(producer: Any) -> _ProducerState | None:
    return active.state_of(producer, _ProducerState)


@guarded("rocketmq.answered")
def _answered(state: _ProducerState, call: SendCall, receipt: Any, exception: BaseException | None) -> None:
    """End the span. A receipt names the queue of the request; the proxy may store in another, so it is left out."""
    state.in_flight.pop(id(call), None)
    hook = state.send
    if exception is None:
        hook.after(call, msg_id=receipt.message_id, store_host=first_address(receipt.message_queue.endpoints))
    else:
        hook.after(call, **describe_failure(exception))


def _traced_send(original: Callable[..., Any]) -> Callable[..., Any]:
    """``send`` and ``send_async``, which takes no transaction."""

    @functools.wraps(original)
    def send(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        transaction = args[0] if args else kwargs.get("transaction")
        state = _producer_state(self)
        sent = None if state is None else open_send(state.send, message, transactional=transaction is not None)
        if state is None or sent is None:
            return original(self, message, *args, **kwargs)
        state.in_flight[id(sent.call)] = sent.call
        observe = functools.partial(_answered, state, sent.call)
        return observe_call(lambda: original(self, sent, *args, **kwargs), observe, sent.call.current_ctx)

    return send


# -- the end of a transaction: by the application, or on the broker's check ------------------------------------------
def _traced_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Producer.end_transaction``, which ``Transaction.commit`` and ``rollback`` go through."""

    @functools.wraps(original)
    def end_transaction(  # noqa: PLR0913, PLR0917 - the client's own arguments
        self: Any, endpoints: Any, message: Any, transaction_id: Any, result: Any, source: Any
    ) -> Any:
        state = _producer_state(self)
        start_ns = 0 if state is None else state.end.now_ns()
        response = original(self, endpoints, message, transaction_id, result, source)
        if state is not None:
            _ended(state.end, message, transaction_id, result, source, response, start_ns)
        return response

    return end_transaction


@guarded("rocketmq.end_transaction")
def _ended(  # noqa: PLR0913, PLR0917 - the client's own arguments, its answer, and the time of the call
    hook: EndTransactionHook, message: Any, transaction_id: str, result: int, source: int, response: Any, start_ns: int
) -> None:
    if response.status.code != Code.OK:
        return
    ours = isinstance(message, OutgoingMessage)
    bean = bean_of(message.call.attributes) if ours else bean_of_message(message)
    hook.ended(
        bean._replace(transaction_id=transaction_id),
        _STATES.get(result, TransactionState.UNKNOW),
        start_ns=start_ns,
        creation=message.call.span_context if ours else creation_of_message(message),
        from_transaction_check=source == TransactionSource.SOURCE_SERVER_CHECK,
    )


# -- recall ---------------------------------------------------------------------------------------------------------
def _traced_recall(original: Callable[..., Any]) -> Callable[..., Any]:
    """``recall_message`` and its async form."""

    @functools.wraps(original)
    def recall_message(self: Any, topic: Any, *args: Any, **kwargs: Any) -> Any:
        observe = _begin_recall(self, topic)
        if observe is None:
            return original(self, topic, *args, **kwargs)
        return observe_call(lambda: original(self, topic, *args, **kwargs), observe, context.get_current())

    return recall_message


@guarded("rocketmq.recall")
def _begin_recall(producer: Any, topic: str) -> Observe | None:
    state = active.state_of(producer, _ProducerState)
    if state is None or not state.tracing.is_traced(topic):
        return None
    hook = state.recall
    record = functools.partial(hook.recalled, topic, start_ns=hook.now_ns(), current_ctx=context.get_current())
    return functools.partial(_recalled, record)


@guarded("rocketmq.recall")
def _recalled(record: Callable[..., None], msg_id: Any, exception: BaseException | None) -> None:
    if exception is None:
        record(msg_id=str(msg_id) if msg_id else None)
    else:
        record(**describe_failure(exception))


# -- the broker checks a transaction --------------------------------------------------------------------------------
_MAX_CHECKS: Final = 10_000
_checkers: Final[WeakKeyDictionary[Any, ref[TracedChecker]]] = WeakKeyDictionary()
"""Weakly held at both ends: the application's checker may refer to its producer."""


class TracedChecker:
    """The application's checker; its result is recorded as the end of the transaction that the broker checks.

    As in RocketMQ's own clients it is recorded when it is known, before the broker gets it.
    """

    def __init__(self, checker: Any, producer: Any) -> None:
        self._checker = checker
        self._producer = ref(producer)
        self._transactions: dict[str, str] = {}
        _checkers[producer] = ref(self)

    def expect(self, msg_id: str, transaction_id: str) -> None:
        """Remember which transaction a message belongs to: the checker is only given the message."""
        self._transactions[msg_id] = transaction_id
        while len(self._transactions) > _MAX_CHECKS:
            self._transactions.pop(next(iter(self._transactions)), None)

    def check(self, message: Any) -> Any:
        """Call the application's checker; what it raises goes to the client."""
        state = _producer_state(self._producer())
        if state is None:
            return self._checker.check(message)
        start_ns = state.end.now_ns()
        resolution = self._checker.check(message)
        self._record(state.end, message, resolution, start_ns)
        return resolution

    @guarded("rocketmq.check")
    def _record(self, hook: EndTransactionHook, message: Any, resolution: int, start_ns: int) -> None:
        hook.ended(
            bean_of_message(message)._replace(transaction_id=self._transactions.pop(message.message_id, None)),
            _STATES.get(resolution, TransactionState.UNKNOW),
            start_ns=start_ns,
            creation=creation_of_message(message),
            from_transaction_check=True,
        )


@guarded("rocketmq.check_expected")
def _expect(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The broker checks a transaction: remember which."""
    given = {**dict(zip(("endpoints", "msg", "transaction_id"), args, strict=False)), **kwargs}
    known = _checkers.get(producer)
    checker = None if known is None else known()
    if checker is not None:
        checker.expect(given["msg"].system_properties.message_id, given["transaction_id"])


PRODUCER_METHODS: Final[Wrappers] = {
    "send": _traced_send,
    "send_async": _traced_send,
    "end_transaction": _traced_end,
    "recall_message": _traced_recall,
    "recall_message_async": _traced_recall,
    "on_recover_orphaned_transaction_command": observe_calls(_expect),
}
"""Method of ``Producer`` → how to wrap it."""
