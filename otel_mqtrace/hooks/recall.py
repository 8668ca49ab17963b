"""This module knows what is recorded of one recall: a delayed message taken back before it was delivered.

The manual door for any client, as RocketMQ's ``DefaultRecallMessageTraceHook`` is::

    call = hook.before("reminders")
    msg_id = client.recall("reminders", handle)
    hook.after(call, msg_id=msg_id)                   # or hook.after(call, exception=problem)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context

from otel_mqtrace import semconv
from otel_mqtrace.hooks._ending import Ending, say_failure
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes, cost_ms

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["RecallCall", "RecallHook"]

_RECALL: Final = OPERATIONS[TraceType.RECALL]


@dataclass(slots=True)
class RecallCall(Ending):
    """One recall under way."""

    span: Span
    start_ns: int


class RecallHook:
    """``before`` opens a ``recall T`` CLIENT span, ``after`` ends it. Neither ever raises."""

    def __init__(self, tracing: Tracing, facts: ClientFacts) -> None:
        self._tracing = tracing
        self._constant = {**facts.attributes(), **tracing.sending(TraceType.RECALL, facts)}

    @guarded("RecallHook.before")
    def before(self, topic: str) -> RecallCall | None:
        """Open the span; ``None`` when ``topic`` is not traced now."""
        tracing = self._tracing
        if not tracing.traces(topic):
            return None
        start_ns = tracing.clock.wall_ns()
        attributes: Attributes = {**self._constant, semconv.MESSAGING_DESTINATION_NAME: topic}
        span = tracing.open(_RECALL, topic, context=context.get_current(), attributes=attributes, start_ns=start_ns)
        return RecallCall(span, start_ns)

    @guarded("RecallHook.after")
    def after(
        self,
        call: RecallCall | None,
        *,
        msg_id: str | None = None,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """End the span of ``call``, once; ``error`` is its ``error.type``, the class of ``exception`` unless said."""
        if call is None or not call.claim():
            return
        if error is None and exception is not None:
            error = type(exception).__qualname__
        end_ns = max(self._tracing.clock.wall_ns(), call.start_ns)
        learned: Attributes = {
            semconv.MQTRACE_COST_TIME: cost_ms(call.start_ns, end_ns),
            semconv.MQTRACE_SUCCESS: error is None,
            semconv.MQTRACE_REQUEST_ID: self._tracing.new_id(),
        }
        if msg_id is not None:
            learned[semconv.MESSAGING_MESSAGE_ID] = msg_id
        if error is not None:
            learned[semconv.ERROR_TYPE] = error
        try:
            self._tracing.say(call.span, learned)
            if error is not None:
                say_failure(call.span, description, exception)
        finally:
            call.span.end(end_ns)
