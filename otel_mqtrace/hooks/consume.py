"""This module knows what is recorded of one listener call: the messages it was handed, and how it ended.

The manual door for any client, as RocketMQ's ``ConsumeMessageHook`` is::

    hook = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000")
    for call in hook.before([IncomingMessage(topic="orders", partition=0, offset=7, headers=headers)]):
        handle(...)
        hook.after(call)                              # or hook.after(call, code=ContextCode.FAILED)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from otel_mqtrace import semconv
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import HEADER_GETTER, Header, header_text
from otel_mqtrace.hooks._scope import ambient_context
from otel_mqtrace.hooks.send import key_text, offset_msg_id
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import ContextCode, MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import (
    OPERATIONS,
    Attributes,
    Operation,
    SpanAttributes,
    bean_attributes,
    context_attributes,
    cost_ms,
    share_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConsumeHook", "IncomingMessage", "ProcessCall"]

_PROCESS: Final = OPERATIONS[TraceType.SUB_BEFORE]
_POLL: Final = Operation(None, "poll", "receive", SpanKind.CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """One message as the client handed it over; ``body_length`` in bytes, ``timestamp_ms`` when it was stored.

    ``store_host`` is the broker it came from (``host:port``); unknown, the client's first server stands for it.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    key: object = None
    body_length: int | None = None
    tombstone: bool = False
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None
    store_host: str | None = None


@dataclass(slots=True)
class ProcessCall:
    """One listener call under way. ``otel_ctx`` is what should be current while the messages are handled.

    ``indexes`` tell which of the messages given to :meth:`ConsumeHook.before` it stands for.
    """

    span: Span
    otel_ctx: Context
    messages: int
    start_ns: int
    metric_attributes: Attributes
    indexes: tuple[int, ...] = ()
    _open: list[None] = field(default_factory=lambda: [None])

    @property
    def is_open(self) -> bool:
        """Whether the span has not ended yet."""
        return bool(self._open)

    def claim(self) -> bool:
        """Return ``True`` to exactly one caller: whoever gets it ends the span (list.pop is atomic)."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return True


class ConsumeHook:
    """``before`` opens ``process T`` CONSUMER spans, ``after`` ends one. Neither ever raises."""

    def __init__(  # noqa: PLR0913 - the public door: who the client is, each fact by its name
        self,
        *,
        system: str = "kafka",
        group_name: str | None = None,
        client_id: str | None = None,
        servers: str | None = None,
        tracing: Tracing | None = None,
        facts: ClientFacts | None = None,
    ) -> None:
        self._tracing = tracing or Tracing.create()
        conf = {"bootstrap.servers": servers, "client.id": client_id}
        self._facts = facts or replace(ClientFacts.of_kafka(conf, group_name=group_name), system=system)
        settings = self._tracing.settings
        operation = TraceContext(
            trace_type=TraceType.SUB_BEFORE,
            region_id=settings.region_id,
            region_name=settings.region_name,
            group_name=self._facts.group_name,
        )
        self._constant = {**self._facts.attributes(), **context_attributes(operation)}

    def before(self, messages: Sequence[IncomingMessage], *, batch: bool = False) -> list[ProcessCall]:
        """Open the spans for what one poll returned; empty when nothing of it is traced now.

        One span per topic and per 128 messages (fewer when the SDK keeps fewer links), so that no link is dropped.
        ``batch`` says that the client's call can return several messages, even when it returned one.
        """
        return self._before(messages, batch=batch) or []

    @guarded("ConsumeHook.before")
    def _before(self, messages: Sequence[IncomingMessage], *, batch: bool) -> list[ProcessCall]:
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(index)
        size = self._tracing.links_per_span
        calls = []
        for topic in filter(self._tracing.traces, by_topic):
            for start in range(0, len(by_topic[topic]), size):
                indexes = tuple(by_topic[topic][start : start + size])
                call = self._open(topic, [messages[index] for index in indexes], batch=batch)
                call.indexes = indexes
                calls.append(call)
        return calls

    @guarded("ConsumeHook.after")
    def after(
        self,
        call: ProcessCall,
        *,
        code: ContextCode = ContextCode.SUCCESS,
        exception: BaseException | None = None,
    ) -> None:
        """End the span of ``call``, once. A success slower than the limit says ``TIME_OUT``, as RocketMQ's does."""
        if not call.claim():
            return
        end_ns = max(self._tracing.clock.wall_ns(), call.start_ns)
        success = code in {ContextCode.SUCCESS, ContextCode.TIME_OUT}
        late = (end_ns - call.start_ns) >= self._tracing.settings.process_timeout_ms * 1_000_000
        said = ContextCode.TIME_OUT if late and code is ContextCode.SUCCESS else code
        attributes: Attributes = {
            semconv.MQTRACE_COST_TIME: cost_ms(call.start_ns, end_ns, call.messages),
            semconv.MQTRACE_SUCCESS: success,
            semconv.MQTRACE_CONTEXT_CODE: said.name,
        }
        if not success:
            attributes[semconv.ERROR_TYPE] = said.name if exception is None else type(exception).__qualname__
            call.span.set_status(Status(StatusCode.ERROR, None if exception is None else str(exception)))
        if exception is not None:
            call.span.record_exception(exception)
        call.span.set_attributes(attributes)
        call.span.end(end_ns)
        if self._tracing.metrics is not None:
            self._tracing.metrics.processed({**call.metric_attributes, **attributes}, end_ns - call.start_ns)

    @guarded("ConsumeHook.received")
    def received(self, messages: Sequence[IncomingMessage], *, start_ns: int, batch: bool = False) -> None:
        """Count the messages a poll returned and, when asked for by ``receive_spans``, record the poll as a span."""
        traced = [message for message in messages if self._tracing.traces(message.topic)]
        if not traced:
            return
        topics = {message.topic for message in traced}
        topic = topics.pop() if len(topics) == 1 else None
        attributes: Attributes = {**self._facts.attributes(), semconv.MESSAGING_OPERATION_NAME: _POLL.name}
        if topic is not None:
            attributes[semconv.MESSAGING_DESTINATION_NAME] = topic
        if self._facts.group_name is not None:
            attributes[semconv.MESSAGING_CONSUMER_GROUP_NAME] = self._facts.group_name
        end_ns = max(self._tracing.clock.wall_ns(), start_ns)
        if self._tracing.metrics is not None:
            self._tracing.metrics.received(attributes, len(traced))
            self._tracing.metrics.operated(attributes, end_ns - start_ns)
        if self._tracing.settings.receive_spans:
            self._receive_span(topic, traced, attributes, (start_ns, end_ns), batch=batch)

    def now_ns(self) -> int:
        """Return the wall clock of this hook: when a poll began."""
        return self._tracing.clock.wall_ns()

    def _receive_span(
        self,
        topic: str | None,
        messages: Sequence[IncomingMessage],
        attributes: Attributes,
        times_ns: tuple[int, int],
        *,
        batch: bool,
    ) -> None:
        self._tracing.before_span()
        split = share_attributes([self._message_attributes(message) for message in messages])
        span = self._tracing.tracer.start_span(
            _POLL.span_name(topic),
            context=ambient_context(),
            kind=_POLL.kind,
            attributes={
                **attributes,
                **split.span,
                semconv.MESSAGING_OPERATION_TYPE: _POLL.type or "",
                **({semconv.MESSAGING_BATCH_MESSAGE_COUNT: len(messages)} if batch else {}),
            },
            links=self._links([_creation(message) for message in messages], split),
            start_time=times_ns[0],
        )
        span.end(times_ns[1])

    def _open(self, topic: str, messages: Sequence[IncomingMessage], *, batch: bool) -> ProcessCall:
        self._tracing.before_span()
        split = share_attributes([self._message_attributes(message) for message in messages])
        attributes: Attributes = {**self._constant, **split.span, semconv.MQTRACE_REQUEST_ID: self._tracing.new_id()}
        if batch:
            attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
        ambient = ambient_context()
        creations = [_creation(message) for message in messages]
        parent, others = self._parent(creations, ambient)
        start_ns = self._tracing.clock.wall_ns()
        span = self._tracing.tracer.start_span(
            _PROCESS.span_name(topic),
            context=parent,
            kind=_PROCESS.kind,
            attributes=attributes,
            links=[*self._links(creations, split), *others],
            start_time=start_ns,
        )
        current = trace.set_span_in_context(span, _with_baggage(messages, ambient))
        return ProcessCall(span, current, len(messages), start_ns, attributes)

    def _parent(self, creations: Sequence[SpanContext], ambient: Context) -> tuple[Context, list[Link]]:
        """Choose the parent (the option ``process_context``); several messages have no single parent."""
        mode = self._tracing.settings.process_context
        here = trace.get_current_span(ambient).get_span_context()
        if mode == "link" or len(creations) != 1 or (mode == "auto" and here.is_valid):
            return ambient, []
        if not creations[0].is_valid:
            return ambient, []
        remote = trace.set_span_in_context(trace.NonRecordingSpan(creations[0]), ambient)
        return remote, [Link(here)] if here.is_valid else []

    def _links(self, creations: Sequence[SpanContext], split: SpanAttributes) -> list[Link]:
        if split.links:
            return [Link(creation, own) for creation, own in zip(creations, split.links, strict=True)]
        if self._tracing.settings.process_context == "parent":
            return []
        return [Link(creation) for creation in creations if creation.is_valid]

    def _message_attributes(self, message: IncomingMessage) -> Attributes:
        physical = offset_msg_id(message.topic, message.partition, message.offset)
        headers = message.headers
        delayed = header_text(headers, semconv.HEADER_DELAY) is not None
        bean = TraceBean(
            topic=message.topic,
            # RocketMQ's getMsgId() has the same fall-back: a message without a unique id goes by its physical one.
            msg_id=header_text(headers, semconv.HEADER_UNIQ_KEY) or physical,
            offset_msg_id=physical,
            tags=header_text(headers, semconv.HEADER_TAGS),
            keys=header_text(headers, semconv.HEADER_KEYS),
            store_host=message.store_host or self._facts.server,
            client_host=self._facts.client_host,
            store_time_ms=message.timestamp_ms,
            retry_times=_retry_times(headers),
            body_length=message.body_length,
            msg_type=MessageType.DELAY if delayed else MessageType.NORMAL,
        )
        attributes = bean_attributes(bean)
        if message.partition is not None:
            attributes[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(message.partition)
        if message.offset is not None:
            attributes[semconv.MESSAGING_KAFKA_OFFSET] = message.offset
        if (key := key_text(message.key)) is not None:
            attributes[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = key
        if message.tombstone:
            attributes[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
        return attributes


def _creation(message: IncomingMessage) -> SpanContext:
    extracted = propagate.extract(message.headers, Context(), HEADER_GETTER)
    return trace.get_current_span(extracted).get_span_context()


def _with_baggage(messages: Sequence[IncomingMessage], ambient: Context) -> Context:
    """Baggage belongs to one message; several have no common one."""
    if len(messages) != 1:
        return ambient
    return propagate.extract(messages[0].headers, ambient, HEADER_GETTER)


def _retry_times(headers: Sequence[Header]) -> int:
    text = header_text(headers, semconv.HEADER_RECONSUME_TIMES)
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
