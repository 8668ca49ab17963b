"""This module knows what is recorded of one listener call: the messages it was handed, and how it ended.

The manual door for any client, as RocketMQ's ``ConsumeMessageHook`` is::

    hook = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000")
    for call in hook.before([IncomingMessage(topic="orders", partition=0, offset=7, headers=headers)]):
        handle(...)
        hook.after(call)                              # or hook.after(call, code=ContextCode.FAILED)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.hooks._ending import Ending, code_of, say_failure, text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import HEADER_GETTER, Header, HeaderIndex, header_text, indexed
from otel_mqtrace.hooks._scope import ambient_context
from otel_mqtrace.hooks.send import key_text, place_attributes, say_headers
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import ContextCode, MessageType, TraceType
from otel_mqtrace.spans.mapping import (
    OPERATIONS,
    Attributes,
    Operation,
    SpanAttributes,
    cost_ms,
    share_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConsumeHook", "IncomingMessage", "ProcessCall"]

_MOST_RETRIES: Final = 0x7FFF_FFFF
"""RocketMQ's count is a Java int."""
_RETRY_DIGITS: Final = 10
_PROCESS: Final = OPERATIONS[TraceType.SUB_BEFORE]
_NORMAL: Final = MessageType.NORMAL.value
_POLL: Final = Operation(None, "poll", "receive", SpanKind.CLIENT)


@dataclass(slots=True, kw_only=True)  # not frozen: that would make building one three times as dear
class IncomingMessage:
    """One message as the client handed it over; ``body_length`` in bytes, ``timestamp_ms`` when it was stored.

    ``store_host`` is the broker it came from (``host:port``); unknown, the client's first server stands for it.
    What is given of ``msg_id``, ``tags``, ``keys``, ``msg_type`` and ``retry_times`` wins over the message's headers.
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
    msg_id: str | None = None
    tags: str | None = None
    keys: Sequence[str] | None = None
    msg_type: MessageType | None = None
    retry_times: int | None = None
    cluster_id: str | None = None
    message_group: str | None = None


@dataclass(slots=True)
class ProcessCall(Ending):
    """One listener call under way. ``otel_ctx`` is what should be current while the messages are handled.

    ``ambient`` is what was current before; ``indexes`` tell which of the messages given to :meth:`ConsumeHook.before`
    it stands for.
    """

    span: Span
    otel_ctx: Context
    messages: int
    start_ns: int
    attributes: Attributes
    ambient: Context
    indexes: tuple[int, ...] = (0,)


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
        self._facts = facts or ClientFacts.named(system, group_name=group_name, client_id=client_id, servers=servers)
        operation = self._tracing.operation(TraceType.SUB_BEFORE, self._facts.group_name)
        self._constant = {**self._facts.attributes(), **operation}
        self._server = self._facts.server

    def before(self, messages: Sequence[IncomingMessage], *, batch: bool = False) -> list[ProcessCall]:
        """Open the spans for what one poll returned; empty when nothing of it is traced now.

        One span per topic and per 128 messages (fewer when the SDK keeps fewer links), so that no link is dropped.
        ``batch`` says that the client's call can return several messages, even when it returned one.
        """
        return self._before(messages, batch=batch) or []

    @guarded("ConsumeHook.before")
    def _before(self, messages: Sequence[IncomingMessage], *, batch: bool) -> list[ProcessCall]:
        if len(messages) == 1:
            topic = messages[0].topic
            only = self._open(topic, messages, batch=batch) if self._tracing.traces(topic) else None
            return [] if only is None else [only]
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(index)
        size = self._tracing.links_per_span
        calls = []
        for topic in filter(self._tracing.traces, by_topic):
            for start in range(0, len(by_topic[topic]), size):
                indexes = tuple(by_topic[topic][start : start + size])
                call = self._open(topic, [messages[index] for index in indexes], batch=batch)
                if call is not None:
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
        """End the span of ``call``, once. A success slower than the limit says ``TIME_OUT``, as RocketMQ's does.

        A ``code`` that is none reads ``RETURNNULL``.
        """
        if not call.claim():
            return
        metrics = self._tracing.collecting
        if metrics is None and not call.span.is_recording():
            return
        end_ns = max(self._tracing.clock.wall_ns(), call.start_ns)
        code = code_of(code)
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
        try:
            call.span.set_attributes(attributes)
            if not success:
                say_failure(call.span, None if exception is None else text_of(exception), exception)
        finally:
            call.span.end(end_ns)
        if metrics is not None:
            metrics.processed({**call.attributes, **attributes}, end_ns - call.start_ns)
        call.attributes = {}  # the call may be remembered for long, to be handled late; this is its heaviest part

    def received(self, messages: Sequence[IncomingMessage], *, start_ns: int, batch: bool = False) -> None:
        """Count the messages a poll returned and, when asked for by ``receive_spans``, record the poll as a span."""
        if self._tracing.settings.receive_spans or self._tracing.collecting is not None:
            self._received(messages, start_ns, batch=batch)

    @guarded("ConsumeHook.received")
    def _received(self, messages: Sequence[IncomingMessage], start_ns: int, *, batch: bool) -> None:
        metrics = self._tracing.collecting
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
        if metrics is not None:
            metrics.received(attributes, len(traced))
            metrics.operated(attributes, end_ns - start_ns)
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
        found = [indexed(message.headers) for message in messages]
        split = share_attributes(list(map(self._message_attributes, messages, found)))
        span = self._tracing.tracer.start_span(
            _POLL.span_name(topic),
            context=ambient_context(),
            kind=_POLL.kind,
            attributes={
                **split.span,
                **attributes,
                semconv.MESSAGING_OPERATION_TYPE: _POLL.type or "",
                **({semconv.MESSAGING_BATCH_MESSAGE_COUNT: len(messages)} if batch else {}),
            },
            links=self._links([_creation(_extracted(each, Context())) for each in found], split),
            start_time=times_ns[0],
        )
        span.end(times_ns[1])

    @guarded("ConsumeHook.open")
    def _open(self, topic: str, messages: Sequence[IncomingMessage], *, batch: bool) -> ProcessCall:
        tracing = self._tracing
        tracing.before_span()
        ambient = ambient_context()
        found = [indexed(message.headers) for message in messages]
        split = share_attributes(list(map(self._message_attributes, messages, found)))
        attributes = split.span
        attributes.update(self._constant)
        attributes[semconv.MQTRACE_REQUEST_ID] = tracing.new_id()
        if batch:
            attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
        # What else was propagated, baggage, lies behind the span of one message; several have no common one.
        alone = len(found) == 1
        base = trace.set_span_in_context(trace.INVALID_SPAN, ambient) if alone and ambient else Context()
        extracted = [_extracted(each, base) for each in found]
        creations = [_creation(each) for each in extracted]
        parent, others = self._parent(creations, extracted, ambient)
        start_ns = tracing.clock.wall_ns()
        span = tracing.tracer.start_span(
            _PROCESS.span_name(topic),
            context=parent,
            kind=_PROCESS.kind,
            attributes=attributes,
            links=self._links(creations, split) + others,
            start_time=start_ns,
        )
        current = trace.set_span_in_context(span, extracted[0] if alone else ambient)
        return ProcessCall(span, current, len(messages), start_ns, attributes, ambient)

    def _parent(
        self, creations: Sequence[SpanContext], extracted: Sequence[Context], ambient: Context
    ) -> tuple[Context, list[Link]]:
        """Choose the parent (the option ``process_context``); several messages have no single parent."""
        mode = self._tracing.settings.process_context
        if not ambient and mode != "link" and len(creations) == 1:
            return extracted[0], []  # nothing is current, so nothing has to be joined with it
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

    def _message_attributes(self, message: IncomingMessage, found: HeaderIndex) -> Attributes:
        """Say the message in the names of the mapping's table; a TraceBean in between costs more than the rest."""
        topic = message.topic
        said = place_attributes(topic, message.partition, message.offset)
        # RocketMQ's getMsgId() has the same fall-back: a message without a unique id goes by its physical one.
        msg_id = header_text(found, semconv.HEADER_UNIQ_KEY) or said.get(semconv.MQTRACE_OFFSET_MSG_ID)
        said[semconv.MESSAGING_DESTINATION_NAME] = topic
        said[semconv.MQTRACE_RETRY_TIMES] = _retry_times(found)
        said[semconv.MQTRACE_MSG_TYPE] = _NORMAL
        say_headers(said, found)
        if msg_id is not None:
            said[semconv.MESSAGING_MESSAGE_ID] = msg_id
        if (host := message.store_host or self._server) is not None:
            said[semconv.MQTRACE_STORE_HOST] = host
        if message.timestamp_ms is not None:
            said[semconv.MQTRACE_STORE_TIME] = message.timestamp_ms
        if message.body_length is not None:
            said[semconv.MESSAGING_MESSAGE_BODY_SIZE] = message.body_length
        if (key := key_text(message.key)) is not None:
            said[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = key
        if message.tombstone:
            said[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
        return said


def _extracted(found: HeaderIndex, base: Context) -> Context:
    return propagate.extract(found, base, HEADER_GETTER) if found else base


def _creation(extracted: Context) -> SpanContext:
    return trace.get_current_span(extracted).get_span_context()


def _retry_times(found: HeaderIndex) -> int:
    text = header_text(found, semconv.HEADER_RECONSUME_TIMES)
    if text is None or len(text) > _RETRY_DIGITS or not (text.isascii() and text.isdigit()):
        return 0
    count = int(text)
    return count if count <= _MOST_RETRIES else 0
