"""This module knows what is recorded of one send: from the call until the broker's answer, or until nobody can answer.

The manual door for any client, as RocketMQ's ``SendMessageHook`` is::

    hook = SendHook(system="mybroker", group_name="orders-producer", servers="broker:9000")
    call = hook.before("orders", body=b"...", headers=[("TAGS", b"paid")])
    client.send("orders", b"...", headers=call.headers if call else headers)
    hook.after(call, partition=3, offset=42)          # or hook.after(call, error="TIMEOUT")
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode

from otel_mqtrace import semconv
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import HEADER_GETTER, HEADER_SETTER, Header, header_text, pairs_of, rewritten
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, context_attributes, cost_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue

__all__ = ["UNKNOWN_BODY", "SendCall", "SendHook", "key_text", "offset_msg_id"]

UNKNOWN_BODY: Final = object()
"""The body is not bytes yet (a serialiser will make them): its size comes with :meth:`SendHook.after`."""

_SEND: Final = OPERATIONS[TraceType.PUB]


@dataclass(slots=True)
class SendCall:
    """One message on its way. ``headers`` are the ones to send; ``ambient`` is the context it was sent in."""

    topic: str
    span: Span
    bean: TraceBean
    headers: list[Header] | None
    ambient: Context
    start_ns: int
    metric_attributes: dict[str, AttributeValue]
    _open: list[None] = field(default_factory=lambda: [None])

    @property
    def span_context(self) -> SpanContext:
        """The ids of the send span."""
        return self.span.get_span_context()

    def claim(self) -> bool:
        """Return ``True`` to exactly one caller: whoever gets it ends the span (list.pop is atomic)."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return True


class SendHook:
    """``before`` opens a ``send T`` PRODUCER span and writes the headers, ``after`` ends it. Neither ever raises."""

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
            trace_type=TraceType.PUB,
            region_id=settings.region_id,
            region_name=settings.region_name,
            group_name=settings.group_name or self._facts.group_name,
        )
        self._constant = {**self._facts.attributes(), **context_attributes(operation)}

    @guarded("SendHook.before")
    def before(
        self,
        topic: str,
        *,
        body: object = None,
        key: object = None,
        headers: object = None,
        transaction_id: str | None = None,
    ) -> SendCall | None:
        """Open the span of one message; ``None`` when this topic is not traced now.

        ``headers`` may be a mapping, a list of pairs or ``None`` and is never changed. ``body`` is bytes, text or
        ``None`` (a tombstone), or :data:`UNKNOWN_BODY`.
        """
        if not self._tracing.traces(topic):
            return None
        self._tracing.before_span()
        pairs = pairs_of(headers)
        bean = self._bean(topic, body, pairs or [], transaction_id)
        attributes = {**self._constant, **bean_attributes(bean), **_about_key_and_body(key, body)}
        ambient = context.get_current()
        start_ns = self._tracing.clock.wall_ns()
        span = self._tracing.tracer.start_span(
            _SEND.span_name(topic),
            context=ambient,
            kind=_SEND.kind,
            attributes=attributes,
            links=_links_to_earlier(pairs or [], ambient),
            start_time=start_ns,
        )
        return SendCall(
            topic=topic,
            span=span,
            bean=bean,
            headers=None if pairs is None else self._headers(pairs, span, ambient, bean),
            ambient=ambient,
            start_ns=start_ns,
            metric_attributes=attributes,
        )

    @guarded("SendHook.after")
    def after(  # noqa: PLR0913 - the public door: what the broker answered, each fact by its name
        self,
        call: SendCall | None,
        *,
        partition: int | None = None,
        offset: int | None = None,
        store_host: str | None = None,
        body_length: int | None = None,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
        outcome: str | None = None,
    ) -> None:
        """End the span of ``call``, once; ``error`` is its ``error.type``, ``outcome`` names an end without answer.

        Without a ``store_host`` (no partition was chosen, or its leader is not known yet) the first server is named.
        """
        if call is None or not call.claim():
            return
        end_ns = max(self._tracing.clock.wall_ns(), call.start_ns)
        learned = TraceBean(
            offset_msg_id=offset_msg_id(call.topic, partition, offset),
            store_host=store_host or self._facts.server,
            body_length=body_length if call.bean.body_length is None else None,
        )
        # Only what is new: the SDK pays for every attribute it is given again.
        attributes = bean_attributes(learned) | _answer(partition, offset, error, outcome)
        call.bean = _completed(call.bean, learned)
        attributes[semconv.MQTRACE_COST_TIME] = cost_ms(call.start_ns, end_ns)
        if exception is not None:
            call.span.record_exception(exception)
        if error is not None:
            call.span.set_status(Status(StatusCode.ERROR, description))
        call.span.set_attributes(attributes)
        call.span.end(end_ns)
        if self._tracing.metrics is not None:
            self._tracing.metrics.sent({**call.metric_attributes, **attributes}, end_ns - call.start_ns)

    def _bean(self, topic: str, body: object, headers: list[Header], transaction_id: str | None) -> TraceBean:
        return TraceBean(
            topic=topic,
            msg_id=header_text(headers, semconv.HEADER_UNIQ_KEY) or self._tracing.new_id(),
            tags=header_text(headers, semconv.HEADER_TAGS),
            keys=header_text(headers, semconv.HEADER_KEYS),
            client_host=self._facts.client_host,
            body_length=_length(body),
            msg_type=_message_type(headers, transaction_id),
            transaction_id=transaction_id,
        )

    def _headers(self, headers: list[Header], span: Span, ambient: Context, bean: TraceBean) -> list[Header]:
        sent = list(headers)
        if self._tracing.writes_trace_headers:
            written: dict[str, str] = {}
            propagate.inject(written, context=trace.set_span_in_context(span, ambient), setter=HEADER_SETTER)
            sent = rewritten(headers, written, frozenset(propagate.get_global_textmap().fields))
        if header_text(headers, semconv.HEADER_UNIQ_KEY) is None and bean.msg_id is not None:
            sent.append((semconv.HEADER_UNIQ_KEY, bean.msg_id.encode()))
        return sent


def _completed(bean: TraceBean, learned: TraceBean) -> TraceBean:
    length = bean.body_length if learned.body_length is None else learned.body_length
    return replace(bean, offset_msg_id=learned.offset_msg_id, store_host=learned.store_host, body_length=length)


def offset_msg_id(topic: str, partition: int | None, offset: int | None) -> str | None:
    """Return ``{topic}-{partition}@{offset}``, Kafka's physical message id, or ``None`` while a part is unknown."""
    if partition is None or offset is None or partition < 0 or offset < 0:
        return None
    return f"{topic}-{partition}@{offset}"


def _answer(partition: int | None, offset: int | None, error: str | None, outcome: str | None) -> dict[str, Any]:
    said: Mapping[str, Any] = {
        semconv.MESSAGING_DESTINATION_PARTITION_ID: str(partition)
        if partition is not None and partition >= 0
        else None,
        semconv.MESSAGING_KAFKA_OFFSET: offset if offset is not None and offset >= 0 else None,
        semconv.ERROR_TYPE: error,
        semconv.MQTRACE_SEND_OUTCOME: outcome,
        semconv.MQTRACE_SUCCESS: error is None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _message_type(headers: list[Header], transaction_id: str | None) -> MessageType:
    if transaction_id is not None:
        return MessageType.TRANS_HALF
    return MessageType.NORMAL if header_text(headers, semconv.HEADER_DELAY) is None else MessageType.DELAY


def _length(body: object) -> int | None:
    if body is None:
        return 0
    if isinstance(body, str):
        return len(body.encode())
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else None


def _about_key_and_body(key: object, body: object) -> dict[str, AttributeValue]:
    said: dict[str, AttributeValue] = {}
    text = key_text(key)
    if text is not None:
        said[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = text
    if body is None:
        said[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
    return said


def key_text(key: object) -> str | None:
    """Return a key as text when it has a canonical one (text, UTF-8 bytes); else ``None``, as the conventions ask."""
    if isinstance(key, str):
        return key
    if isinstance(key, (bytes, bytearray)):
        try:
            return key.decode()
        except UnicodeDecodeError:
            return None
    return None


def _links_to_earlier(headers: list[Header], ambient: Context) -> list[Link]:
    """A message sent on with the headers it came with: its earlier context is replaced on the wire, not forgotten."""
    if not headers:
        return []
    earlier = trace.get_current_span(propagate.extract(headers, Context(), HEADER_GETTER)).get_span_context()
    current = trace.get_current_span(ambient).get_span_context()
    return [Link(earlier)] if earlier.is_valid and earlier.span_id != current.span_id else []
