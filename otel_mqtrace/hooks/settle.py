"""Record one settlement: offsets committed or stored, messages acknowledged, transactions ended, messages recalled."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Link, SpanContext, SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import TOO_LONG, SingleEnd, count_missing, missing_counts, record_failure
from otel_mqtrace.hooks.tracing import ClientHook
from otel_mqtrace.model import MessageType, TraceBean, TraceType, TransactionState
from otel_mqtrace.spans.mapping import (
    OPERATIONS,
    Attributes,
    Operation,
    bean_attributes,
    bean_of,
    compute_cost_ms,
    share_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context

    from otel_mqtrace.hooks.send import SendCall
    from otel_mqtrace.hooks.tracing import ClientInfo, Tracing


_SETTLE: Final = "settle"


class SettledOffset(NamedTuple):
    """One position that was settled; ``creation`` is the context its message was created in, where that is known.

    ``offset`` is the number the application gave: the next one to read for a commit, the message's own for an
    acknowledgement. ``msg_id`` names the message where it was settled by its id.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    creation: SpanContext | None = None
    msg_id: str | None = None


@dataclass(slots=True)
class SettleCall(SingleEnd):
    """One settlement under way: its operation, when it began, and what was current then."""

    operation: str
    start_ns: int
    current_ctx: Context


class SettleHook(ClientHook):
    """``before`` notes when a settlement began, ``after`` records its ``commit T`` CLIENT span. Neither ever raises.

    The span is a child of what is current when the settlement begins: the process span, inside a handler.
    """

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        self._is_enabled = tracing.settings.settle_spans
        self._constant: Attributes = {**info.consumer_attributes(), semconv.MESSAGING_OPERATION_TYPE: _SETTLE}

    @guarded("SettleHook.before")
    def before(self, operation: str = "commit") -> SettleCall | None:
        """Begin a settlement; ``None`` while none is recorded.

        ``operation`` is the client's own word: ``commit``, ``store``, ``ack``, ``release``, ``reject``.
        """
        if not (self._is_enabled and is_instrumentation_enabled()):
            return None
        return SettleCall(operation, self._tracing.clock.wall_ns(), context.get_current())

    @guarded("SettleHook.after")
    def after(
        self,
        call: SettleCall | None,
        settled: Sequence[SettledOffset] = (),
        *,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Record the settlement, once; ``error`` is its ``error.type``, by default the class of ``exception``.

        Positions of topics that are not traced are left out; without any left no span is recorded. Without any position
        from the client the span has no destination.
        """
        if call is None or not call.try_end():
            return
        tracing = self._tracing
        traced = [each for each in settled if tracing.is_traced(each.topic)]
        if settled and not traced:
            return
        if error is None and exception is not None:
            error = type(exception).__qualname__
        end_ns = max(tracing.clock.wall_ns(), call.start_ns)
        shared, of_links = share_attributes(list(map(self._position, traced)))
        attributes = {**shared, **self._constant, semconv.MESSAGING_OPERATION_NAME: call.operation}
        topics = {each.topic for each in traced}
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error
        span = tracing.start_span(
            Operation(None, call.operation, _SETTLE, SpanKind.CLIENT),
            topics.pop() if len(topics) == 1 else None,
            context=call.current_ctx,
            attributes=attributes,
            links=_links(traced, of_links)[: tracing.links_per_span],
            start_ns=call.start_ns,
        )
        if error is not None:
            record_failure(span, description, exception)
        tracing.end_span(span, end_ns, {})
        if (metrics := tracing.collecting) is not None:
            metrics.operated(attributes, end_ns - call.start_ns)

    def _position(self, settled: SettledOffset) -> Attributes:
        attributes: Attributes = {semconv.MESSAGING_DESTINATION_NAME: settled.topic}
        if settled.partition is not None and settled.partition >= 0:
            attributes[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(settled.partition)
        if settled.offset is not None and settled.offset >= 0 and not self._is_rocketmq:
            attributes[semconv.MESSAGING_KAFKA_OFFSET] = settled.offset
        if settled.msg_id is not None:
            attributes[semconv.MESSAGING_MESSAGE_ID] = settled.msg_id
        return attributes


def _links(settled: Sequence[SettledOffset], own: Sequence[Attributes]) -> list[Link]:
    attributes = own or [{}] * len(settled)
    return [
        Link(position.creation, each)
        for position, each in zip(settled, attributes, strict=True)
        if position.creation is not None and position.creation.is_valid
    ]


MAX_MESSAGES: Final = 1_000
"""Messages of one open transaction that are remembered; the ones above are only counted.

Their ends come in one burst, on the thread that commits: less than the smallest preset's queue (1024), half of a queue
that is set smaller.
"""
_END: Final = OPERATIONS[TraceType.END_TRANSACTION]
_RECALL: Final = OPERATIONS[TraceType.RECALL]
_log: Final = logging.getLogger(__name__)


class EndTransactionHook(ClientHook):
    """Records one ``end_transaction T`` CLIENT span per successful end, as RocketMQ's hook does. Never raises."""

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

        Without a current span the end belongs to the trace of its send, and is sampled as that was.
        """
        tracing, topic = self._tracing, message.topic or ""
        if not tracing.is_traced(topic):
            return
        end_ns = max(tracing.clock.wall_ns(), start_ns)
        bean = message._replace(
            msg_type=MessageType.TRANS_COMMIT, transaction_state=state, from_transaction_check=from_transaction_check
        )
        attributes = bean_attributes(bean)
        if self._is_rocketmq:
            add_rocketmq_fields(attributes, {})
        operation = tracing.producer_operation(
            TraceType.END_TRANSACTION,
            self._info,
            request_id=tracing.new_id(),
            cost_ms=compute_cost_ms(start_ns, end_ns),
            success=True,
        )
        current_ctx = context.get_current()
        if creation.is_valid and not trace.get_current_span(current_ctx).get_span_context().is_valid:
            current_ctx = trace.set_span_in_context(trace.NonRecordingSpan(creation), current_ctx)
        span = tracing.start_span(
            _END,
            topic,
            context=current_ctx,
            attributes={**self._info.attributes(), **operation, **attributes},
            links=[Link(creation)] if creation.is_valid else (),
            start_ns=start_ns,
        )
        tracing.end_span(span, end_ns, {})


@dataclass(slots=True)
class _Transaction:
    """One transaction. Messages come from any thread, until ``end`` is set and after: each is taken by one caller."""

    id: str
    sent: deque[SendCall] = field(default_factory=deque)
    above: int = 0
    end: tuple[TransactionState, int] | None = None
    """The requested outcome and the time of the request."""


class TransactionHook:
    """The open transaction of one producer. Only an end that succeeded is recorded; a failed one may be tried again.

    ``before`` is its hook under an earlier ``instrument()``. If a transaction was open then, later sends are in one.
    That may be the next one, begun while tracing was off: no end is recorded for the earlier sends.
    """

    def __init__(self, tracing: Tracing, info: ClientInfo, before: TransactionHook | None = None) -> None:
        self._tracing = tracing
        self._end = EndTransactionHook(tracing=tracing, info=info)
        self.now_ns = self._end.now_ns
        queue_size = tracing.settings.queue_size
        self._max_messages = MAX_MESSAGES if queue_size is None else min(MAX_MESSAGES, max(1, queue_size // 2))
        self._latest: _Transaction | None = None
        self.transaction_id: str | None = None
        if before is not None and before.transaction_id is not None:
            self.begin()

    @guarded("TransactionHook.begin")
    def begin(self) -> None:
        """A transaction was opened: messages sent from now on belong to it."""
        self._latest = latest = _Transaction(self._tracing.new_id())
        self.transaction_id = latest.id

    @guarded("TransactionHook.joined")
    def joined(self, call: SendCall) -> None:
        """Remember a message of the transaction it was sent in; one that has just ended is ended for it, too."""
        latest = self._latest
        if latest is None or call.transaction_id != latest.id:
            return
        if len(latest.sent) >= self._max_messages:
            latest.above += 1
            return
        latest.sent.append(call)
        if latest.end is not None:
            self._end_sent(latest, *latest.end)

    @guarded("TransactionHook.ended")
    def ended(self, state: TransactionState, *, start_ns: int) -> None:
        """Record for each message that the transaction ended; ``start_ns`` is when commit or abort was called."""
        latest = self._latest
        if latest is None or self.transaction_id is None:
            return
        self.transaction_id = None
        shown, above = len(latest.sent), latest.above
        latest.end = state, start_ns
        if above:
            if not missing_counts()[TOO_LONG]:
                _log.warning(
                    "mqtrace: a transaction of %d messages shows the end of its first %d; the rest is only counted",
                    shown + above,
                    shown,
                )
            for _ in range(above):
                count_missing(TOO_LONG)
        self._end_sent(latest, state, start_ns)

    def _end_sent(self, transaction: _Transaction, state: TransactionState, start_ns: int) -> None:
        while True:
            try:
                call = transaction.sent.popleft()
            except IndexError:
                return
            if semconv.MESSAGING_MESSAGE_ID not in call.attributes:
                named: Attributes = {semconv.MESSAGING_MESSAGE_ID: self._tracing.new_id()}
                call.attributes = {**call.attributes, **named}
                self._tracing.set_attributes(call.span, named)
            self._end.ended(bean_of(call.attributes), state, start_ns=start_ns, creation=call.span_context)


class RecallHook(ClientHook):
    """Records one ``recall T`` CLIENT span per recall, as RocketMQ's DefaultRecallMessageTraceHook. Never raises."""

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        self._constant = {**info.attributes(), **tracing.producer_operation(TraceType.RECALL, info)}

    @guarded("RecallHook.recalled")
    def recalled(  # noqa: PLR0913 - when and where it began, and what the broker answered, each fact by its name
        self,
        topic: str,
        *,
        start_ns: int,
        current_ctx: Context,
        msg_id: str | None = None,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Record that a recall is over; ``error`` is its ``error.type``, by default the class of ``exception``."""
        tracing = self._tracing
        if error is None and exception is not None:
            error = type(exception).__qualname__
        end_ns = max(tracing.clock.wall_ns(), start_ns)
        attributes: Attributes = {
            **self._constant,
            semconv.MESSAGING_DESTINATION_NAME: topic,
            semconv.MQTRACE_COST_TIME: compute_cost_ms(start_ns, end_ns),
            semconv.MQTRACE_SUCCESS: error is None,
            semconv.MQTRACE_REQUEST_ID: tracing.new_id(),
        }
        if msg_id is not None:
            attributes[semconv.MESSAGING_MESSAGE_ID] = msg_id
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error
        span = tracing.start_span(_RECALL, topic, context=current_ctx, attributes=attributes, start_ns=start_ns)
        if error is not None:
            record_failure(span, description, exception)
        tracing.end_span(span, end_ns, {})
