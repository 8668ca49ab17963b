"""This module knows when a confluent-kafka producer sends: the call, its failure, the delivery report, the end of all.

It knows nothing of attributes. Every method is wrapped the same way, on our own subclass and on the application's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import cimpl

from otel_mqtrace import semconv
from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.confluent_kafka.live import STATE, configuration_of, known_state, live, state_of
from otel_mqtrace.clients.confluent_kafka.messages import PRODUCE_ORDER, error_type, parameter_order, replaced
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


class _Delivery:
    """The delivery callback of one message: ends its span, then calls the application's in the context it sent from."""

    __slots__ = ("_call", "_hook", "_state", "_user")

    def __init__(self, state: ProducerState, hook: SendHook, call: SendCall, user: Callback | None) -> None:
        self._hook = hook
        self._call = call
        self._state = state
        self._user = user

    def __call__(self, error: Any, message: Any) -> None:
        """Take the delivery report; what the application's callback raises goes on to its ``poll`` or ``flush``."""
        self._state.in_flight.pop(id(self._call), None)
        self._settle(error, message)
        if self._user is not None:
            scope = EnteredScope(self._call.ambient)
            try:
                self._user(error, message)
            finally:
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


@dataclass(slots=True)
class _Prepared:
    """One ``produce`` about to happen: the arguments to use, and what to do with its outcome."""

    state: ProducerState
    hook: SendHook
    call: SendCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    awaited: bool

    @guarded("produce.raised")
    def raised(self, exception: BaseException) -> None:
        """The call itself failed: nothing was sent."""
        self.state.in_flight.pop(id(self.call), None)
        self.hook.after(self.call, error=error_type(exception), description=str(exception), exception=exception)

    @guarded("produce.returned")
    def returned(self) -> None:
        """The message is queued; a span nobody will answer ends here."""
        if self.state.transaction is not None:
            self.state.transaction.joined(self.call)
        if not self.awaited:
            self.hook.after(self.call, outcome=semconv.SEND_NOT_AWAITED)


@guarded("produce.before")
def _prepare(
    producer: Any, order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool
) -> _Prepared | None:
    tracing = live.tracing
    given = {**dict(zip(order, args, strict=False)), **kwargs}
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
    if state.leaders is not None:
        state.leaders.want(topic)
    # An explicit callback=None hides on_delivery in the C code (it asks for NULL, not for None): so do we.
    name = "callback" if "callback" in given else "on_delivery" if "on_delivery" in order else "callback"
    user = given.get(name)
    changes: dict[str, Any] = {} if call.headers is None else {"headers": call.headers}
    chained = user is not None or state.default_is_known
    if chained:
        changes[name] = _Delivery(state, hook, call, user if user is not None else state.default_callback)
    awaited = chained and state.reports_success
    if awaited:
        state.in_flight[id(call)] = call
    return _Prepared(state, hook, call, *replaced(order, args, kwargs, changes), awaited=awaited)


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
        try:
            result = original(self, *prepared.args, **prepared.kwargs)
        except BaseException as exception:
            prepared.raised(exception)
            raise
        prepared.returned()
        return result

    return produce


def _traced_init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
        original(self, *args, **kwargs)
        _remember(self, args, kwargs)

    return __init__


@guarded("Producer.__init__")
def _remember(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if known_state(producer) is None and hasattr(producer, "__dict__"):
        state = ProducerState(configuration_of(args, kwargs))
        producer.__dict__[STATE] = state
        weakref.finalize(producer, state.abandon)


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
    "__init__": _traced_init,
    "produce": _traced_produce,
    "close": _traced_close,
    "__exit__": _traced_close,
    "begin_transaction": _traced_begin,
    "commit_transaction": _traced_end(TransactionState.COMMIT_MESSAGE),
    "abort_transaction": _traced_end(TransactionState.ROLLBACK_MESSAGE),
}
"""Method → how to wrap it; ``None`` from a wrapper means that this one cannot be traced in place."""
