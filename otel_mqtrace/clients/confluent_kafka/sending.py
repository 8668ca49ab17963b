"""The messages a producer has accepted, each until its delivery report or until none can come.

The delivery callback of a message is a :class:`Sending`. Where the client will not call it
(``delivery.report.only.error``), it releases the callback once the broker has acknowledged the message, and a
:class:`SilentSending` ends its span then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context

from otel_mqtrace import semconv
from otel_mqtrace.clients.confluent_kafka.client import ConfiguredState, describe_failure
from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.state import KafkaProducerState, take_all
from otel_mqtrace.hooks.guard import guarded, note_failure
from otel_mqtrace.hooks.outcome import defer_end
from otel_mqtrace.hooks.scope import BlockScope
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.records.sent import Sent

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from otel_mqtrace.hooks.send import SendCall, SendHook

Callback = Callable[[Any, Any], object]
_ABANDONED: Final = "the producer was closed or collected before a delivery report was taken"
_DROPPED: Final = (semconv.SEND_ABANDONED, "the asyncio producer dropped the message before sending it")


class ProducerState(ConfiguredState, KafkaProducerState):
    """The state of one producer.

    ``layers`` are the topics of calls that a subclass's own ``produce`` is handling, by thread; ``behind_asyncio``: an
    asyncio producer sends through this one, and opens the spans; ``dropping`` is the error, and its text, of a message
    which that one has thrown away.
    """

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        known = conf or {}
        super().__init__(ClientInfo.of_kafka(known, group_name=None))
        self.leaders = leaders_of(known)
        self.default_callback: Callback | None = known.get("on_delivery")
        only_errors = str(known.get("delivery.report.only.error", "false")).lower() in {"true", "1", "t"}
        self.default_is_known = conf is not None
        self.sending: type[Sending] = Sending if self.default_is_known and not only_errors else SilentSending
        self.in_flight: dict[int, SendCall | Sent] = {}
        self.layers: dict[int, str] = {}
        self.behind_asyncio = False
        self.dropping = _DROPPED

    @guarded("ProducerState.abandon")
    def abandon(self) -> None:
        """Defer the end of every span that can no longer get a delivery report; the finaliser of the producer."""
        name = semconv.SEND_ABANDONED
        self._end_open(error=name, description=_ABANDONED, outcome=name)

    @guarded("ProducerState.switch_off")
    def switch_off(self) -> None:
        """Defer the end of every span that is open: the exporters will be gone when its delivery report comes."""
        self._end_open(outcome=semconv.SEND_NOT_AWAITED)

    def _end_open(self, **outcome: str) -> None:
        for call in take_all(self.in_flight):
            opened = self.hook.reopen(call) if isinstance(call, Sent) else call
            defer_end(self.hook, opened, **outcome)


def run_in_context(otel_ctx: Context, user: Callback | None, error: Any, message: Any) -> None:
    """Call the application's delivery callback in the context that was sent from."""
    if user is None:
        return
    is_emptied = BlockScope is None  # at exit, Python empties our modules before the application's clients are gone
    scope = None if is_emptied or otel_ctx is context.get_current() else BlockScope(otel_ctx)
    try:  # always: an exception must have passed a handler before the C code can hand it on (Python 3.11)
        user(error, message)
    finally:
        if scope is not None:
            scope.leave()


class Sending:
    """One message between the call and its answer; called with the delivery report, it ends the span.

    It then calls the application's callback in the context that was sent from.
    """

    __slots__ = ("_hook", "_state", "awaited", "call", "user")
    call_user = staticmethod(run_in_context)  # at exit, Python empties our modules, but not our classes

    def __init__(self, state: ProducerState, hook: SendHook, call: SendCall, user: Callback | None) -> None:
        self._state = state
        self._hook = hook
        self.call = call
        self.user = user
        self.awaited = False
        """Whether the delivery report will come."""

    def __call__(self, error: Any, message: Any) -> None:
        """Take the delivery report; what the application's callback raises goes on to its ``poll`` or ``flush``."""
        call = self.call
        try:
            if self._state.in_flight.pop(id(call), None) is not None:  # it was not abandoned
                self._settle(error, message)
        except:  # noqa: E722 - as guarded() does; this is every message's
            note_failure("Delivery.settle")
        self.call_user(call.current_ctx, self.user, error, message)

    def _settle(self, error: Any, message: Any) -> None:
        value = message.value()
        partition = message.partition()
        leaders = self._state.leaders
        self._hook.after(
            self.call,
            partition=partition,
            offset=message.offset() if error is None else None,
            store_host=None if leaders is None else leaders.of(self.call.topic, partition),
            cluster_id=None if leaders is None else leaders.cluster_id,
            body_length=len(value) if value is not None else 0,
            error=None if error is None else error.name(),
            description=None if error is None else error.str(),
        )

    def await_answer(self) -> None:
        """The delivery report will come; until then the message counts as in flight."""
        self.awaited = True
        if self.call.is_recorded:
            self._state.in_flight[id(self.call)] = self.call

    @guarded("produce.headers")
    def withdraw_headers(self, headers: Any) -> None:
        """The client takes the message with the caller's own ``headers`` alone."""
        self._hook.withdraw_headers(self.call, headers)

    @guarded("produce.raised")
    def raised(self, exception: Any) -> None:
        """The client refused the message, by raising or by handing back its ``KafkaError``: nothing was sent."""
        self._state.in_flight.pop(id(self.call), None)
        self._hook.after(self.call, **describe_failure(exception))

    @guarded("produce.returned")
    def returned(self) -> None:
        """The message is queued; a span that gets no delivery report ends here."""
        if self.call.transaction_id is not None:
            self._state.transaction.joined(self.call)
        if not self.awaited:
            self.forgotten()

    @guarded("produce.forgotten")
    def forgotten(self) -> None:
        """End the span: the client will not report the outcome."""
        self._state.in_flight.pop(id(self.call), None)
        self._hook.after(self.call, outcome=semconv.SEND_NOT_AWAITED)

    def dropped(self) -> None:
        """An asyncio producer has thrown the message out of its buffer; called by the finaliser of what it held."""
        error, description = self._state.dropping
        self._defer_end(error=error, description=description, outcome=None if error != _DROPPED[0] else error)

    def _defer_end(self, **outcome: str | None) -> None:
        self._state.in_flight.pop(id(self.call), None)
        defer_end(self._hook, self.call, **outcome)


def reopen_sending(state: ProducerState, hook: SendHook, sent: Sent | None, user: Callback | None) -> Sending | None:
    """Return a recorded message, if it is one, as one with a span, for an end that is not a plain success."""
    if sent is None:
        return None
    state.in_flight.pop(id(sent), None)
    sending = Sending(state, hook, hook.reopen(sent), user)
    sending.await_answer()
    return sending


class SilentSending(Sending):
    """A message whose success shows only as the released callback; its offset stays unknown (``not_awaited``)."""

    __slots__ = ()

    def __del__(self) -> None:
        """The client has no use for the callback any more: the broker has the message."""
        self._defer_end(outcome=semconv.SEND_NOT_AWAITED)
