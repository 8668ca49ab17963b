"""This module knows what is recorded of one poll: when it really began, what it returned, or why it failed.

Counted always, for the messaging metrics; a ``poll T`` CLIENT span only by the option ``receive_spans``, and of a poll
that returned nothing only by ``empty_poll_spans`` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.hooks._ending import say_failure
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._propagation import propagator_in_force
from otel_mqtrace.hooks._scope import ambient_context
from otel_mqtrace.hooks.incoming import IncomingMessage, MessageReader, Reading
from otel_mqtrace.spans.mapping import Attributes, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.hooks.metrics import MessagingMetrics
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["ReceiveHook"]

_POLL: Final = Operation(None, "poll", "receive", SpanKind.CLIENT)


class ReceiveHook:
    """One call for each poll, once it is over. None ever raises, and all cost next to nothing when nobody listens."""

    def __init__(self, tracing: Tracing, facts: ClientFacts, reader: MessageReader) -> None:
        self._tracing = tracing
        self._reader = reader
        self._spans = tracing.settings.receive_spans
        self._empty = tracing.settings.receive_spans and tracing.settings.empty_poll_spans
        self._constant: Attributes = {
            **facts.attributes(),
            semconv.MESSAGING_OPERATION_NAME: _POLL.name,
            semconv.MESSAGING_OPERATION_TYPE: _POLL.type or "",
        }
        if facts.group_name is not None:
            self._constant[semconv.MESSAGING_CONSUMER_GROUP_NAME] = facts.group_name

    def listens(self, metrics: MessagingMetrics | None) -> bool:
        """Whether anybody wants to know of polls, where ``metrics`` are collected now."""
        return self._spans or metrics is not None

    def received(self, messages: Sequence[IncomingMessage], *, start_ns: int, batch: bool) -> None:
        """Count the messages a poll returned and, when asked for, record the poll."""
        if self.listens(self._tracing.collecting):
            self._received(messages, start_ns, batch=batch)

    @property
    def records(self) -> bool:
        """Whether each poll is to be a span."""
        return self._spans

    @guarded("ConsumeHook.count")
    def count(self, topic: str, start_ns: int) -> None:
        """Count one message and measure its poll."""
        tracing = self._tracing
        if (metrics := tracing.collecting) is not None:
            attributes = {**self._constant, semconv.MESSAGING_DESTINATION_NAME: topic}
            metrics.received(attributes, 1)
            metrics.operated(attributes, max(tracing.clock.wall_ns() - start_ns, 0))

    def empty(self, *, start_ns: int, batch: bool) -> None:
        """Record, when asked for, a poll that returned nothing."""
        if self._empty:
            self._without_messages({}, start_ns, batch=batch)

    def failed(
        self, *, start_ns: int, error: str | None, description: str | None, exception: BaseException | None, batch: bool
    ) -> None:
        """Measure and, when asked for, record a poll that raised or returned an error."""
        if self.listens(self._tracing.collecting):
            error = error or ("_OTHER" if exception is None else type(exception).__qualname__)
            failure: Attributes = {semconv.ERROR_TYPE: error}
            self._without_messages(failure, start_ns, batch=batch, description=description, exception=exception)

    @guarded("ConsumeHook.received")
    def _received(self, messages: Sequence[IncomingMessage], start_ns: int, *, batch: bool) -> None:
        tracing = self._tracing
        traced = [message for message in messages if tracing.traces(message.topic)]
        if not traced:
            return
        topics = {message.topic for message in traced}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = self._constant.copy()
        if topic is not None:
            attributes[semconv.MESSAGING_DESTINATION_NAME] = topic
        end_ns = max(tracing.clock.wall_ns(), start_ns)
        if (metrics := tracing.collecting) is not None:
            metrics.received(attributes, len(traced))
            metrics.operated(attributes, end_ns - start_ns)
        if self._spans:
            self._record(topic, traced, attributes, (start_ns, end_ns), batch=batch)

    def _record(
        self,
        topic: str | None,
        messages: Sequence[IncomingMessage],
        attributes: Attributes,
        times_ns: tuple[int, int],
        *,
        batch: bool,
    ) -> None:
        if batch:
            attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
        # A poll is one span: of more messages than it can name, which the count tells, it names the first.
        reading = Reading(
            self._reader, messages, propagator_in_force(), attributes, (), batch, most=self._tracing.links_per_span
        )
        reading()  # the messages are the caller's, and a poll's span is an option
        span = self._tracing.open(
            _POLL, topic, context=ambient_context(), attributes=attributes, later=reading, start_ns=times_ns[0]
        )
        if span.is_recording():
            self._tracing.told_of_messages(span, messages)
        span.end(times_ns[1])

    @guarded("ConsumeHook.poll")
    def _without_messages(
        self,
        said: Attributes,
        start_ns: int,
        *,
        batch: bool,
        description: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        tracing = self._tracing
        if not is_instrumentation_enabled():
            return
        attributes = {**self._constant, **said}
        end_ns = max(tracing.clock.wall_ns(), start_ns)
        if (metrics := tracing.collecting) is not None:
            metrics.operated(attributes, end_ns - start_ns)
        if not self._spans:
            return
        if batch:
            attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = 0
        span = tracing.open(_POLL, None, context=ambient_context(), attributes=attributes, start_ns=start_ns)
        if said:
            say_failure(span, description, exception)
        span.end(end_ns)
