"""This module knows when the producer sends, ends a transaction or recalls, and how each was answered.

It knows nothing of attributes. One send is one span, however often the client tries.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context
from rocketmq.grpc_protocol import Code, TransactionResolution, TransactionSource

from otel_mqtrace.clients.rocketmq.errors import error_type
from otel_mqtrace.clients.rocketmq.futures import heard_first
from otel_mqtrace.clients.rocketmq.live import Bound, first_address
from otel_mqtrace.clients.rocketmq.outgoing import OutgoingMessage, opened
from otel_mqtrace.clients.rocketmq.received import bean_of_message, creation_of_message
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.end_transaction import EndTransactionHook
from otel_mqtrace.hooks.recall import RecallHook
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.model import TransactionState
from otel_mqtrace.spans.mapping import bean_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.hooks.recall import RecallCall
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["PRODUCER_METHODS", "STATES", "producers"]

STATES: Final[Mapping[int, TransactionState]] = {
    TransactionResolution.COMMIT: TransactionState.COMMIT_MESSAGE,
    TransactionResolution.ROLLBACK: TransactionState.ROLLBACK_MESSAGE,
}
"""What a resolution is called; any other is ``UNKNOW``: the broker will ask (again)."""


@dataclass(frozen=True, slots=True)
class _ProducerHooks:
    send: SendHook
    end: EndTransactionHook
    recall: RecallHook

    @classmethod
    def made(cls, tracing: Tracing, facts: ClientFacts) -> _ProducerHooks:
        return cls(
            SendHook(tracing=tracing, facts=facts),
            EndTransactionHook(tracing, facts),
            RecallHook(tracing, facts),
        )


producers: Final = Bound(_ProducerHooks.made)


@dataclass(frozen=True, slots=True)
class _Sending:
    """One message between the call and its answer."""

    hook: SendHook
    message: OutgoingMessage

    @guarded("rocketmq.answered")
    def answered(self, receipt: Any, exception: BaseException | None = None) -> None:
        """End the span. A receipt names the queue that was asked at; the proxy may store in another: it is not said."""
        if exception is not None:
            said = text_of(exception)
            self.hook.after(self.message.call, error=error_type(exception), description=said, exception=exception)
            return
        self.hook.after(
            self.message.call,
            msg_id=receipt.message_id,
            store_host=first_address(receipt.message_queue.endpoints),
        )


@guarded("rocketmq.send")
def _sending(producer: Any, message: Any, *, transactional: bool) -> _Sending | None:
    hooks = producers.of(producer)
    outgoing = None if hooks is None else opened(hooks.send, message, transactional=transactional)
    return None if hooks is None or outgoing is None else _Sending(hooks.send, outgoing)


def _traced_send(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        transaction = args[0] if args else kwargs.get("transaction")
        sending = _sending(self, message, transactional=transaction is not None)
        if sending is None:
            return original(self, message, *args, **kwargs)
        try:
            receipt = original(self, sending.message, *args, **kwargs)
        except BaseException as exception:
            sending.answered(None, exception)
            raise
        sending.answered(receipt)
        return receipt

    return send


def _traced_send_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send_async(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        sending = _sending(self, message, transactional=False)
        if sending is None:
            return original(self, message, *args, **kwargs)
        try:
            answer = original(self, sending.message, *args, **kwargs)
        except BaseException as exception:
            sending.answered(None, exception)
            raise
        return heard_first(answer, sending.answered, sending.message.call.ambient)

    return send_async


# -- the end of a transaction: by the application, or when the broker asks ------------------------------------------
def _traced_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Producer.end_transaction``, which ``Transaction.commit`` and ``rollback`` go through."""

    @functools.wraps(original)
    def end_transaction(  # noqa: PLR0913, PLR0917 - the client's own arguments
        self: Any, endpoints: Any, message: Any, transaction_id: Any, result: Any, source: Any
    ) -> Any:
        hooks = producers.of(self)
        start_ns = 0 if hooks is None else hooks.end.now_ns()
        response = original(self, endpoints, message, transaction_id, result, source)
        if hooks is not None:
            _ended(hooks.end, message, transaction_id, result, source, response, start_ns)
        return response

    return end_transaction


@guarded("rocketmq.end_transaction")
def _ended(  # noqa: PLR0913, PLR0917 - the client's own arguments, its answer, and when it was asked
    hook: EndTransactionHook,
    message: Any,
    transaction_id: str,
    result: int,
    source: int,
    response: Any,
    start_ns: int,
) -> None:
    if response.status.code != Code.OK:
        return
    ours = isinstance(message, OutgoingMessage)
    bean = bean_of(message.call.attributes) if ours else bean_of_message(message)
    hook.ended(
        replace(bean, transaction_id=transaction_id),
        STATES.get(result, TransactionState.UNKNOW),
        start_ns=start_ns,
        creation=message.call.span_context if ours else creation_of_message(message),
        from_transaction_check=source == TransactionSource.SOURCE_SERVER_CHECK,
    )


# -- recall ---------------------------------------------------------------------------------------------------------
def _traced_recall(original: Callable[..., Any]) -> Callable[..., Any]:
    """``recall_message`` and its async form."""

    @functools.wraps(original)
    def recall_message(self: Any, topic: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = producers.of(self)
        call = None if hooks is None else hooks.recall.before(topic)
        if hooks is None or call is None:
            return original(self, topic, *args, **kwargs)
        hook = hooks.recall

        def hear(msg_id: Any, exception: BaseException | None) -> None:
            _recalled(hook, call, msg_id, exception)

        ambient = context.get_current()
        try:
            answer = original(self, topic, *args, **kwargs)
        except BaseException as exception:
            hear(None, exception)
            raise
        return heard_first(answer, hear, ambient)

    return recall_message


@guarded("rocketmq.recall")
def _recalled(hook: RecallHook, call: RecallCall, msg_id: Any, exception: BaseException | None) -> None:
    if exception is None:
        hook.after(call, msg_id=str(msg_id) if msg_id else None)
    else:
        hook.after(call, error=error_type(exception), description=text_of(exception), exception=exception)


PRODUCER_METHODS: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "send": _traced_send,
    "send_async": _traced_send_async,
    "end_transaction": _traced_end,
    "recall_message": _traced_recall,
    "recall_message_async": _traced_recall,
}
"""Method of ``Producer`` → how to wrap it; the questions of the broker are in :mod:`.checker`."""
