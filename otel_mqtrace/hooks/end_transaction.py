"""This module knows what is recorded of the end of one message's transaction: one ``end_transaction T`` CLIENT span.

As RocketMQ's ``EndTransactionHook``, it is told once it is over; the end may be the answer to a broker that asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.trace import Link, SpanContext

from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._message import say_rocketmq
from otel_mqtrace.model import MessageType, TraceBean, TraceType, TransactionState
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, cost_ms

if TYPE_CHECKING:
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["EndTransactionHook"]

_END: Final = OPERATIONS[TraceType.END_TRANSACTION]


class EndTransactionHook:
    """Records ends that succeeded; one that failed may be tried again. Never raises."""

    def __init__(self, tracing: Tracing, facts: ClientFacts) -> None:
        self._tracing = tracing
        self._facts = facts

    def now_ns(self) -> int:
        """Return the wall clock of this hook: when the end was asked for."""
        return self._tracing.clock.wall_ns()

    @guarded("EndTransactionHook.ended")
    def ended(
        self,
        message: TraceBean,
        state: TransactionState,
        *,
        start_ns: int,
        creation: SpanContext = trace.INVALID_SPAN_CONTEXT,
        from_transaction_check: bool = False,
    ) -> None:
        """Record that the transaction of ``message`` ended in ``state``; ``creation`` is the span it was sent in.

        Without an ambient span the end belongs to the trace of its send, and is sampled as that was.
        """
        tracing, topic = self._tracing, message.topic or ""
        if not tracing.traces(topic):
            return
        end_ns = max(tracing.clock.wall_ns(), start_ns)
        bean = replace(
            message,
            msg_type=MessageType.TRANS_COMMIT,
            transaction_state=state,
            from_transaction_check=from_transaction_check,
        )
        attributes = bean_attributes(bean)
        if self._facts.is_rocketmq:
            say_rocketmq(attributes, {})
        operation = tracing.sending(
            TraceType.END_TRANSACTION,
            self._facts,
            request_id=tracing.new_id(),
            cost_ms=cost_ms(start_ns, end_ns),
            success=True,
        )
        ambient = context.get_current()
        if creation.is_valid and not trace.get_current_span(ambient).get_span_context().is_valid:
            ambient = trace.set_span_in_context(trace.NonRecordingSpan(creation), ambient)
        span = tracing.open(
            _END,
            topic,
            context=ambient,
            attributes={**self._facts.attributes(), **operation, **attributes},
            links=[Link(creation)] if creation.is_valid else (),
            start_ns=start_ns,
        )
        span.end(end_ns)
