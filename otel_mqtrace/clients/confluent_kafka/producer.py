"""This module knows when a confluent-kafka producer sends: the call, its failure, the delivery report, the end of all.

It knows nothing of attributes. Every method is wrapped the same way, on our own subclass and on the application's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import cimpl
from opentelemetry import context

from otel_mqtrace import semconv
from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.confluent_kafka.live import known_state, live, remembering, state_of
from otel_mqtrace.clients.confluent_kafka.messages import PRODUCE_ORDER, error_type, parameter_order, replaced
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import EnteredScope
from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendCall, SendHook
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.hooks.transaction import TransactionHook
from otel_mqtrace.model import TransactionState

__all__ = ["ORIGINAL_PRODUCER", "PRODUCER_METHODS", "ProducerState"]

ORIGINAL_PRODUCER: Final[type[Any]] = cimpl.Producer
Callback = Callable[[Any, Any], object]
_ABANDONED: Final = "the producer was closed or collected before the broker answered"


class ProducerState:
    """What one producer needs to be traced; it never refers to the producer, or neither would ever be collected."""

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        known = conf or {}
        self.facts = ClientFacts.of_kafka(known, group_name=None)
        self.leaders = leaders_of(known)
        self.default_callback: Callback | None = known.get("on_delivery")
        only_errors = str(known.get("delivery.report.only.error", "false")).lower() in {"true", "1", "t"}
        self.reports_success = not only_errors
        self.default_is_known = conf is not None
        self.in_flight: dict[int, SendCall] = {}
        self.hook: SendHook | None = None
        self.transaction: TransactionHook | None = None
        self._tracing: Tracing | None = None

    def bind(self, tracing: Tracing) -> SendHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self.hook is None or self._tracing is not tracing:
            self.hook = SendHook(tracing=tracing, facts=self.facts)
            self.transaction = TransactionHook(tracing, self.facts)
            self._tracing = tracing
        return self.hook

    @guarded("ProducerState.abandon")
    def abandon(self) -> None:
        """End, by name, every span that can no longer get an answer."""
        while self.in_flight:
            _, call = self.in_flight.popitem()
            if self.hook is not None:
                name = semconv.SEND_ABANDONED
                self.hook.after(call, error=name, description=_ABANDONED, outcome=name)


class _Sending:
    """One message between ``produce`` and its answer; called with the delivery report, it ends the span.

    It then calls the application's callback in the context that was sent from.
    """

    __slots__ = ("_awaited", "_call", "_hook", "_state", "_user")

    def __init__(self, state: ProducerState, hook: SendHook, call: SendCall, user: Callback | None) -> None:
        self._state = state
        self._hook = hook
        self._call = call
        self._user = user
        self._awaited = False

    def __call__(self, error: Any, message: Any) -> None:
        """Take the delivery report; what the application's callback raises goes on to its ``poll`` or ``flush``."""
        call = self._call
        self._state.in_flight.pop(id(call), None)
        if call.recorded:
            self._settle(error, message)
        user = self._user
        if user is None:
            return
        scope = None if call.ambient is context.get_current() else EnteredScope(call.ambient)
        try:  # always: an exception must have passed a handler before the C code can hand it on (Python 3.11)
            user(error, message)
        finally:
            if scope is not None:
                scope.leave()

    @guarded("Delivery.settle")
    def _settle(self, error: Any, message: Any) -> None:
        value = message.value()
        partition = message.partition()
        leaders = self._state.leaders
        self._hook.after(
            self._call,
            partition=partition,
            offset=message.offset() if error is None else None,
            store_host=None if leaders is None else leaders.of(self._call.topic, partition),
            body_length=len(value) if value is not None else 0,
            error=None if error is None else error.name(),
            description=None if error is None else error.str(),
        )

    def await_answer(self) -> None:
        """The delivery report will come; until then the message counts as in flight."""
        self._awaited = True
        if self._call.recorded:
            self._state.in_flight[id(self._call)] = self._call

    @guarded("produce.raised")
    def raised(self, exception: BaseException) -> None:
        """The call itself failed: nothing was sent."""
        self._state.in_flight.pop(id(self._call), None)
        self._hook.after(self._call, error=error_type(exception), description=text_of(exception), exception=exception)

    @guarded("produce.returned")
    def returned(self) -> None:
        """The message is queued; a span nobody will answer ends here."""
        transaction = self._state.transaction
        if transaction is not None and transaction.transaction_id is not None:
            transaction.joined(self._call)
        if not self._awaited:
            self._hook.after(self._call, outcome=semconv.SEND_NOT_AWAITED)


@guarded("produce.before")
def _prepare(
    producer: Any, order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool
) -> tuple[_Sending | None, tuple[Any, ...], dict[str, Any]] | None:
    """Open the span of one ``produce`` and return the arguments to call it with."""
    tracing = live.tracing
    given = {**dict(zip(order, args)), **kwargs} if args else kwargs  # noqa: B905 - this is every send's: no keyword
    topic = given.get("topic")
    if tracing is None or not isinstance(topic, str):
        return None
    state: ProducerState | None = state_of(producer, ProducerState)
    if state is None:
        return None
    hook = state.bind(tracing)
    value = given.get("value")
    call = hook.before(
        topic,
        body=value if raw or value is None else UNKNOWN_BODY,
        key=given.get("key"),
        headers=given.get("headers"),
        transaction_id=None if state.transaction is None else state.transaction.transaction_id,
    )
    if call is None:
        return None
    if state.leaders is not None and call.recorded:
        state.leaders.want(topic)
    changes: dict[str, Any] = {} if call.headers is None else {"headers": call.headers}
    if not call.recorded and not call.ambient:
        # Nothing to end and no context to restore: the message goes its way with our headers and nothing else.
        return None, *replaced(order, args, kwargs, changes)
    # An explicit callback=None hides on_delivery in the C code (it asks for NULL, not for None): so do we.
    name = "callback" if "callback" in given else "on_delivery" if "on_delivery" in order else "callback"
    user = given.get(name)
    told = state.default_callback if user is None else user
    sending = _Sending(state, hook, call, told)
    if (user is not None or state.default_is_known) and (call.recorded or told is not None):
        changes[name] = sending
        if state.reports_success:
            sending.await_answer()
    return sending, *replaced(order, args, kwargs, changes)


def _traced_produce(original: Callable[..., Any]) -> Callable[..., Any] | None:
    order = parameter_order(original)
    if order is None:
        return None
    raw = order is PRODUCE_ORDER

    @functools.wraps(original)
    def produce(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = _prepare(self, order, args, kwargs, raw=raw)
        if prepared is None:
            return original(self, *args, **kwargs)
        sending, changed_args, changed_kwargs = prepared
        if sending is None:
            return original(self, *changed_args, **changed_kwargs)
        try:
            result = original(self, *changed_args, **changed_kwargs)
        except BaseException as exception:
            sending.raised(exception)
            raise
        sending.returned()
        return result

    return produce


def _traced_close(original: Callable[..., Any]) -> Callable[..., Any]:
    """``close`` and ``__exit__``: the client flushes, then nobody can answer any more."""

    @functools.wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        state = known_state(self)
        if state is not None:
            state.abandon()
        return result

    return close


def _traced_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def begin_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        transaction = _transaction_of(self)
        if transaction is not None:
            transaction.begin()
        return result

    return begin_transaction


def _traced_end(end: TransactionState) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def end_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
            transaction = _transaction_of(self)
            start_ns = 0 if transaction is None else transaction.now_ns()
            result = original(self, *args, **kwargs)
            if transaction is not None:
                transaction.ended(end, start_ns=start_ns)
            return result

        return end_transaction

    return wrap


@guarded("Producer.transaction")
def _transaction_of(producer: Any) -> TransactionHook | None:
    if live.tracing is None:
        return None
    state: ProducerState | None = state_of(producer, ProducerState)
    if state is None:
        return None
    state.bind(live.tracing)
    return state.transaction


PRODUCER_METHODS: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any] | None]]] = {
    "__init__": remembering("Producer.__init__", ProducerState),
    "produce": _traced_produce,
    "close": _traced_close,
    "__exit__": _traced_close,
    "begin_transaction": _traced_begin,
    "commit_transaction": _traced_end(TransactionState.COMMIT_MESSAGE),
    "abort_transaction": _traced_end(TransactionState.ROLLBACK_MESSAGE),
}
"""Method → how to wrap it; ``None`` from a wrapper means that this one cannot be traced in place."""
