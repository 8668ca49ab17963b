"""This module knows what is recorded of one send: from the call until the broker's answer, or until nobody can answer.

The manual door for any client, as RocketMQ's ``SendMessageHook`` is::

    hook = SendHook(system="mybroker", group_name="orders-producer", servers="broker:9000")
    call = hook.before("orders", body=b"...", headers=[("TAGS", b"paid")])
    client.send("orders", b"...", headers=call.headers if call else headers)
    hook.after(call, partition=3, offset=42)          # or hook.after(call, error="TIMEOUT")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext

from otel_mqtrace import semconv
from otel_mqtrace.hooks._ending import Ending, say_failure
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import (
    HEADER_GETTER,
    HEADER_SETTER,
    Header,
    HeaderIndex,
    header_text,
    indexed,
    pairs_of,
    rewritten,
)
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes, cost_ms, keys_attribute

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

__all__ = ["UNKNOWN_BODY", "SendCall", "SendHook", "key_text", "place_attributes", "say_headers"]

UNKNOWN_BODY: Final = object()
"""The body is not bytes yet (a serialiser will make them): its size comes with :meth:`SendHook.after`."""

_SEND: Final = OPERATIONS[TraceType.PUB]
_NORMAL: Final = MessageType.NORMAL.value
_DELAY: Final = MessageType.DELAY.value
_HALF: Final = MessageType.TRANS_HALF.value


@dataclass(slots=True)
class SendCall(Ending):
    """One message on its way. ``headers`` are the ones to send; ``ambient`` is the context it was sent in.

    ``attributes`` are those of the span; ``recorded`` says whether anybody will ever look at them.
    """

    topic: str
    span: Span
    headers: list[Header] | None
    ambient: Context
    start_ns: int
    attributes: dict[str, AttributeValue]
    recorded: bool = True

    @property
    def span_context(self) -> SpanContext:
        """The ids of the send span."""
        return self.span.get_span_context()


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
        facts = facts or ClientFacts.named(system, group_name=group_name, client_id=client_id, servers=servers)
        self._constant = {**facts.attributes(), **self._tracing.sending(TraceType.PUB, facts)}
        self._server = facts.server

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
        return self._before(topic, body, key, headers, transaction_id)

    @guarded("SendHook.before")
    def _before(
        self, topic: str, body: object, key: object, headers: object, transaction_id: str | None
    ) -> SendCall | None:
        tracing = self._tracing
        if not tracing.traces(topic):
            return None
        tracing.before_span()
        pairs = pairs_of(headers)
        found = indexed(pairs or ())
        ambient = context.get_current()
        attributes = self._attributes(topic, body, key, found, transaction_id)
        start_ns = tracing.clock.wall_ns()
        span = tracing.tracer.start_span(
            _SEND.span_name(topic),
            context=ambient,
            kind=_SEND.kind,
            attributes=attributes,
            links=_links_to_earlier(found, ambient) if found else None,
            start_time=start_ns,
        )
        return SendCall(
            topic,
            span,
            None if pairs is None else self._headers(pairs, found, span, ambient, attributes),
            ambient,
            start_ns,
            attributes,
            # An end of transaction has a span of its own and may be recorded where the send was not.
            recorded=span.is_recording() or transaction_id is not None or tracing.collecting is not None,
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
        if call is None or not call.claim() or not call.recorded:
            return
        if error is None and exception is not None:
            error = type(exception).__qualname__
        end_ns = max(self._tracing.clock.wall_ns(), call.start_ns)
        span = call.span
        try:
            # Only what is new: the SDK pays for every attribute it is given again.
            learned = place_attributes(call.topic, partition, offset)
            learned[semconv.MQTRACE_COST_TIME] = cost = cost_ms(call.start_ns, end_ns)
            learned[semconv.MQTRACE_SUCCESS] = error is None
            learned[semconv.MQTRACE_REQUEST_ID] = self._tracing.new_id()
            if error is None and outcome is None:  # stored half-way, as SendMessageTraceHookImpl of RocketMQ has it
                learned[semconv.MQTRACE_STORE_TIME] = call.start_ns // 1_000_000 + cost // 2
            if (host := store_host or self._server) is not None:
                learned[semconv.MQTRACE_STORE_HOST] = host
            if body_length is not None and semconv.MESSAGING_MESSAGE_BODY_SIZE not in call.attributes:
                learned[semconv.MESSAGING_MESSAGE_BODY_SIZE] = body_length
            if outcome is not None:
                learned[semconv.MQTRACE_SEND_OUTCOME] = outcome
            if error is not None:
                learned[semconv.ERROR_TYPE] = error
            span.set_attributes(learned)
            if error is not None:
                say_failure(span, description, exception)
        finally:
            span.end(end_ns)
        call.attributes.update(learned)
        if (metrics := self._tracing.collecting) is not None:
            metrics.sent(call.attributes, end_ns - call.start_ns)

    def _attributes(
        self, topic: str, body: object, key: object, found: HeaderIndex, transaction_id: str | None
    ) -> Attributes:
        """Say the message in the names of the mapping's table; a TraceBean in between costs more than the rest."""
        said = self._constant.copy()
        said[semconv.MESSAGING_DESTINATION_NAME] = topic
        said[semconv.MESSAGING_MESSAGE_ID] = header_text(found, semconv.HEADER_UNIQ_KEY) or self._tracing.new_id()
        said[semconv.MQTRACE_MSG_TYPE] = _NORMAL
        if found:
            say_headers(said, found)
        if (length := _length(body)) is not None:
            said[semconv.MESSAGING_MESSAGE_BODY_SIZE] = length
        if transaction_id is not None:
            said[semconv.MQTRACE_TRANSACTION_ID] = transaction_id
            said[semconv.MQTRACE_MSG_TYPE] = _HALF
        if (text := key_text(key)) is not None:
            said[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = text
        if body is None:
            said[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
        return said

    @guarded("SendHook.headers")
    def _headers(
        self, headers: list[Header], found: HeaderIndex, span: Span, ambient: Context, attributes: Attributes
    ) -> list[Header]:
        sent = headers  # a copy already
        if self._tracing.writes_trace_headers:
            written: dict[str, str] = {}
            propagate.inject(written, context=trace.set_span_in_context(span, ambient), setter=HEADER_SETTER)
            sent = rewritten(headers, written, _propagated_names())
        if semconv.HEADER_UNIQ_KEY not in found:
            sent.append((semconv.HEADER_UNIQ_KEY, str(attributes[semconv.MESSAGING_MESSAGE_ID]).encode()))
        return sent


def say_headers(said: Attributes, found: HeaderIndex) -> None:
    """Add what RocketMQ's own headers say of a message: tags, keys, delay."""
    if (tags := header_text(found, semconv.HEADER_TAGS)) is not None:
        said[semconv.MQTRACE_TAGS] = tags
    keys = header_text(found, semconv.HEADER_KEYS)
    if keys is not None and (split := keys_attribute(keys)) is not None:
        said[semconv.MQTRACE_KEYS] = split
    if semconv.HEADER_DELAY in found:
        said[semconv.MQTRACE_MSG_TYPE] = _DELAY


def place_attributes(topic: str, partition: int | None, offset: int | None) -> Attributes:
    """Return where a message lies: partition, offset and ``{topic}-{partition}@{offset}``, as far as known."""
    place: Attributes = {}
    if offset is not None and offset >= 0:
        place[semconv.MESSAGING_KAFKA_OFFSET] = offset
    if partition is not None and partition >= 0:
        place[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(partition)
        if offset is not None and offset >= 0:
            place[semconv.MQTRACE_OFFSET_MSG_ID] = f"{topic}-{partition}@{offset}"
    return place


def _length(body: object) -> int | None:
    if body is None:
        return 0
    if isinstance(body, str):
        return len(body.encode())
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else None


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


def _propagated_names() -> frozenset[str]:
    """Return the header names of the propagator in force, lower case; making the set costs more than a whole header."""
    propagator = propagate.get_global_textmap()
    if _names_of.propagator is not propagator:
        _names_of.names = frozenset(name.lower() for name in propagator.fields)
        _names_of.propagator = propagator
    return _names_of.names


class _NamesOf:
    propagator: object = None
    names: frozenset[str] = frozenset()


_names_of: Final = _NamesOf()


def _links_to_earlier(found: HeaderIndex, ambient: Context) -> list[Link]:
    """A message sent on with the headers it came with: its earlier context is replaced on the wire, not forgotten."""
    if _propagated_names().isdisjoint(map(str.lower, found)):
        return []
    earlier = trace.get_current_span(propagate.extract(found, Context(), HEADER_GETTER)).get_span_context()
    current = trace.get_current_span(ambient).get_span_context()
    return [Link(earlier)] if earlier.is_valid and earlier.span_id != current.span_id else []
