"""Read received messages, and measure the polls that returned them; ``receive_spans`` records them, too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Link, SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import IncomingMessage, add_known_fields, add_rocketmq_fields
from otel_mqtrace.hooks.guard import guarded, note_failure
from otel_mqtrace.hooks.outcome import deferred_ends, drain_deferred_ends, record_failure
from otel_mqtrace.hooks.propagation import index_headers, propagator_in_force
from otel_mqtrace.hooks.scope import ambient_context
from otel_mqtrace.hooks.tracing import RecordingHook
from otel_mqtrace.model import MessageType
from otel_mqtrace.records.message import add_header_fields, header_text, key_text, position_attributes
from otel_mqtrace.spans.mapping import Attributes, Operation, share_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks.metrics import MessagingMetrics
    from otel_mqtrace.hooks.propagation import PropagatorInForce
    from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
    from otel_mqtrace.records.message import HeaderIndex


_POLL: Final = Operation(None, "poll", "receive", SpanKind.CLIENT)
_NORMAL: Final = MessageType.NORMAL.value
_MAX_RETRIES: Final = 0x7FFF_FFFF  # RocketMQ's count is a Java int
_MAX_RETRY_DIGITS: Final = 10
_OWN_IN_A_BATCH: Final = (semconv.MESSAGING_KAFKA_OFFSET, semconv.MESSAGING_KAFKA_MESSAGE_KEY)
"""Attributes that stay on the link where a call may return several messages, even when it returned one.

As ``KafkaBatchRecordAttributes`` of OpenTelemetry's Java instrumentation: readers look in one place only.
"""


def _read_retries(headers: HeaderIndex, name: str) -> int:
    text = header_text(headers, name) if headers else None
    if text is None or len(text) > _MAX_RETRY_DIGITS or not (text.isascii() and text.isdigit()):
        return 0
    return int(text)


class ReceiveHook(RecordingHook):
    """The half of :class:`~otel_mqtrace.hooks.consume.ConsumeHook` that a client which polls calls once a poll is over.

    No method ever raises, and each costs next to nothing while nothing records or measures polls.
    """

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        super()._set_up(tracing, info)
        self._retry_header = tracing.settings.retry_header
        self._poll_constant: Attributes = {
            **info.consumer_attributes(),
            semconv.MESSAGING_OPERATION_NAME: _POLL.name,
            semconv.MESSAGING_OPERATION_TYPE: _POLL.type or "",
        }
        self._poll_metrics: MessagingMetrics | None = None
        self._polls = False  # a client that reports polls counts messages when they are received
        self.records_polls = tracing.settings.receive_spans
        """Whether each poll is a span, by ``receive_spans``."""
        self.is_watched = partial(bool, True) if self.records_polls else self._may_measure  # noqa: FBT003 - its result
        """Whether :meth:`poll_begins` has anything to return. No call of ours: for each poll."""
        self._records_empty_polls = tracing.settings.receive_spans and tracing.settings.empty_poll_spans

    def poll_begins(self) -> int | None:
        """Return when the poll that begins now did, to be passed on at its end; ``None`` while nothing measures polls.

        From then on messages count when they are received; those of a client that never polls count when they are
        handled.
        """
        self._polls = True
        self._poll_metrics = metrics = self._tracing.collecting
        return self.now_ns() if metrics is not None or self.records_polls else None

    @guarded("ConsumeHook.poll")
    def received(self, messages: Sequence[IncomingMessage], *, start_ns: int | None, batch: bool = False) -> None:
        """Measure a poll that began at ``start_ns`` and returned ``messages``; ``receive_spans`` records it, too."""
        self._polls = True
        if start_ns is None or not messages:
            return
        if deferred_ends:
            drain_deferred_ends()
        self._record_poll(messages, start_ns, batch=batch)

    def empty(self, *, start_ns: int | None, batch: bool = False) -> None:
        """Record an empty poll, with ``receive_spans`` and ``empty_poll_spans``."""
        if start_ns is None or not self._records_empty_polls:
            return
        try:
            self._record_poll((), start_ns, batch=batch)
        except:  # noqa: E722 - as guarded() does; this is every empty poll's
            note_failure("ConsumeHook.poll")

    @guarded("ConsumeHook.poll")
    def poll_failed(
        self,
        *,
        start_ns: int | None,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
        batch: bool = False,
    ) -> None:
        """Measure and record a failed poll (the end of a partition does not count); ``error`` is its ``error.type``."""
        if start_ns is not None:
            error = error or ("_OTHER" if exception is None else type(exception).__qualname__)
            self._record_poll((), start_ns, batch=batch, error=error, description=description, exception=exception)

    def _record_poll(  # noqa: PLR0913 - what it returned, or why it failed
        self,
        messages: Sequence[IncomingMessage],
        start_ns: int,
        *,
        batch: bool,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Measure and record a poll that is over; one that returned only untraced messages leaves nothing."""
        tracing = self._tracing
        metrics = tracing.collecting
        traced = [message for message in messages if tracing.is_traced(message.topic)]
        is_traced = bool(traced) if messages else is_instrumentation_enabled()
        if not is_traced or (metrics is None and not self.records_polls):
            return
        topics = {message.topic for message in traced}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = self._poll_constant.copy()
        if topic is not None:
            attributes[semconv.MESSAGING_DESTINATION_NAME] = topic
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error
        end_ns = max(tracing.clock.wall_ns(), start_ns)
        if metrics is not None:
            if traced:
                metrics.received(attributes, len(traced))
            metrics.operated(attributes, end_ns - start_ns)
        if not self.records_polls:
            return
        if batch or len(traced) > 1:
            attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(traced)
        # one span a poll: beyond the limit of links it links the first messages; the count has all
        whole, links = self._attributes_and_links(
            traced, attributes, propagator_in_force(), batch=batch, most=tracing.links_per_span
        )
        span = tracing.start_span(
            _POLL, topic, context=ambient_context(), attributes=whole, links=links, start_ns=start_ns
        )
        if traced and span.is_recording():
            tracing.call_consume_hook(span, traced)
        if error is not None:
            record_failure(span, description, exception)
        tracing.end_span(span, end_ns, {})

    def _attributes_and_links(  # noqa: PLR0913 - the parts of a span of messages
        self,
        messages: Sequence[IncomingMessage],
        constant: Attributes,
        propagator: PropagatorInForce,
        others: Sequence[Link] = (),
        *,
        batch: bool,
        creation: SpanContext | None = None,
        is_linked: bool = True,
        most: int | None = None,
    ) -> tuple[Attributes, list[Link]]:
        """Return the attributes of the span and its links.

        ``others`` are further links, ``creation`` that of a message which comes alone, ``is_linked`` adds a link to its
        creation, ``most`` bounds the links to messages.
        """
        headers = [index_headers(each.headers) for each in messages]
        creations = [creation] if creation is not None else list(map(propagator.creation_of, headers))
        shared, of_links = share_attributes(list(map(self._message_attributes, messages, headers)))
        if batch and not of_links:
            own: Attributes = {name: shared.pop(name) for name in _OWN_IN_A_BATCH if name in shared}
            of_links = (own,) if own else ()
        if of_links:
            links = [Link(each, attributes) for each, attributes in zip(creations, of_links, strict=True)]
        else:
            links = [Link(each, {}) for each in creations if each.is_valid] if is_linked else []
        return shared | constant, [*links[:most], *others]

    def _message_attributes(self, message: IncomingMessage, headers: HeaderIndex) -> Attributes:
        """Return the attributes of one message; a TraceBean in between would cost more than all the rest."""
        topic = message.topic
        attributes = position_attributes(topic, message.partition, message.offset)
        # RocketMQ's getMsgId() has the same fallback: the physical id of a message without a unique one
        msg_id = (
            message.msg_id
            or header_text(headers, semconv.HEADER_UNIQ_KEY)
            or attributes.get(semconv.MQTRACE_OFFSET_MSG_ID)
        )
        attributes[semconv.MESSAGING_DESTINATION_NAME] = topic
        retries = _read_retries(headers, self._retry_header) if message.retry_times is None else message.retry_times
        attributes[semconv.MQTRACE_RETRY_TIMES] = retries if 0 <= retries <= _MAX_RETRIES else 0
        attributes[semconv.MQTRACE_MSG_TYPE] = _NORMAL
        if headers:
            add_header_fields(attributes, headers)
        optional = {
            semconv.MESSAGING_MESSAGE_ID: msg_id,
            semconv.MQTRACE_STORE_HOST: message.store_host or self._server,
            semconv.MQTRACE_STORE_TIME: message.timestamp_ms,
            semconv.MESSAGING_MESSAGE_BODY_SIZE: message.body_length,
            semconv.MESSAGING_KAFKA_MESSAGE_KEY: key_text(message.key),
            semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE: True if message.tombstone else None,
            semconv.MESSAGING_KAFKA_CLUSTER_ID: message.cluster_id,
        }
        for name, value in optional.items():
            if value is not None:
                attributes[name] = value
        if message.tags is not None or message.keys or message.msg_type is not None:
            add_known_fields(attributes, tags=message.tags, keys=message.keys, msg_type=message.msg_type)
        if (capture := self._tracing.capture) is not None and message.headers:
            attributes.update(capture.attributes(message.headers))
        if self._is_rocketmq:
            add_rocketmq_fields(attributes, headers, message_group=message.message_group)
        return attributes
