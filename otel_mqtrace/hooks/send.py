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

from opentelemetry import context, trace
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.hooks._answer import Answer
from otel_mqtrace.hooks._ending import Ending, process_generation, say_failure
from otel_mqtrace.hooks._guard import note_failure
from otel_mqtrace.hooks._headers import (
    TELLING,
    Header,
    HeaderIndex,
    header_text,
    indexed,
    pairs_of,
    rewritten,
)
from otel_mqtrace.hooks._left_behind import end_left_behind, left_behind
from otel_mqtrace.hooks._message import key_text, place_attributes, say_given, say_headers, say_rocketmq
from otel_mqtrace.hooks._propagation import TRACEPARENT, propagator_in_force, traceparent
from otel_mqtrace.hooks._scope import OWN_KEYS
from otel_mqtrace.hooks._unread import UnreadSpan
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.records.handled import DESCRIBING
from otel_mqtrace.records.plan import Plan
from otel_mqtrace.records.sent import Sent, SentSpan
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context

    from otel_mqtrace.hooks._propagation import PropagatorInForce
    from otel_mqtrace.hooks._start import Ground
    from otel_mqtrace.records.plan import LeaderSource

__all__ = ["UNKNOWN_BODY", "SendCall", "SendHook", "key_text", "place_attributes", "say_headers"]

UNKNOWN_BODY: Final = object()
"""The body is not bytes yet (a serialiser will make them): its size comes with :meth:`SendHook.after`."""

_SEND: Final = OPERATIONS[TraceType.PUB]
_NORMAL: Final = MessageType.NORMAL.value
_HALF: Final = MessageType.TRANS_HALF.value
_NO_HEADERS: Final[HeaderIndex] = {}
_PRODUCER: Final = SpanKind.PRODUCER
_CLIENT: Final = SpanKind.CLIENT
_UNIQ_KEY: Final = semconv.HEADER_UNIQ_KEY.lower()
_SAMPLED: Final = Decision.RECORD_AND_SAMPLE
_MOST_PLANS: Final = 1_024


@dataclass(slots=True)
class SendCall(Ending):
    """One message on its way. ``headers`` are the ones to send, ``None`` when the caller's go as they are.

    ``ambient`` and ``transaction_id`` are the context and the transaction it was sent in, ``opened_with`` is what its
    span was told at the start, ``answer`` what became of it; ``recorded`` says whether anybody will ever look at them.
    A message that carries no id goes by its physical one: ``after`` knows it first.
    """

    topic: str
    span: Span
    headers: list[Header] | None
    ambient: Context
    start_ns: int
    opened_with: Attributes
    recorded: bool = True
    transaction_id: str | None = None
    answer: Answer | None = None

    @property
    def attributes(self) -> Attributes:
        """All that its span has been told until now."""
        answer = self.answer
        return self.opened_with if answer is None else {**self.opened_with, **answer.attributes()}

    @property
    def span_context(self) -> SpanContext:
        """The ids of the send span."""
        return self.span.get_span_context()


class SendHook:
    """``before`` opens a ``send T`` span and writes the headers, ``after`` ends it. Neither ever raises.

    The span is of kind PRODUCER when its ids travel with the message, else CLIENT, as the conventions have it.
    """

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
        self._tracing = tracing = tracing or Tracing.create()
        facts = facts or ClientFacts.named(system, group_name=group_name, client_id=client_id, servers=servers)
        self._constant = {**facts.attributes(), **tracing.sending(TraceType.PUB, facts)}
        self._server = facts.server
        self._is_rocketmq = facts.is_rocketmq
        self._propagates = tracing.settings.propagation
        # RocketMQ's broker keeps UNIQ_KEY to itself: it refuses a message that has one among its properties.
        self._names_messages = self._propagates and not self._is_rocketmq
        self._keeps_creation = tracing.settings.creation_context == "keep"
        self._records = (
            self._names_messages
            and tracing.writes_trace_headers
            and tracing.produce_hook is None
            and tracing.allows_records
        )
        self._plans: dict[str, Plan] = {}

    def now_ns(self) -> int:
        """Return the wall clock of this hook."""
        return self._tracing.clock.wall_ns()

    def before(  # noqa: PLR0913 - the public door: what the client knows of the message, each fact by its name
        self,
        topic: str,
        *,
        body: object = None,
        key: object = None,
        headers: object = None,
        partition: int | None = None,
        transaction_id: str | None = None,
        msg_id: str | None = None,
        tags: str | None = None,
        keys: Sequence[str] | None = None,
        msg_type: MessageType | None = None,
        message_group: str | None = None,
        delivery_timestamp_ms: int | None = None,
        carries_headers: bool = True,
    ) -> SendCall | None:
        """Open the span of one message; ``None`` when this topic is not traced now.

        ``headers`` may be a mapping, a list of pairs or ``None`` and is never changed. ``body`` is bytes, text or
        ``None`` (a tombstone), or :data:`UNKNOWN_BODY`. ``partition`` is the one the caller chose. What the client
        knows (``msg_id`` to ``delivery_timestamp_ms``) wins over what the headers say. ``carries_headers=False`` says
        that none will reach the broker: ``headers`` is not looked at, and nothing is written.
        """
        tracing = self._tracing
        try:
            if left_behind:
                end_left_behind()
            if not tracing.traces(topic):
                return None
            pairs = pairs_of(headers) if carries_headers else None
            found = indexed(pairs) if pairs else _NO_HEADERS
            said = self._attributes(topic, _length(body), key, found, partition, is_tombstone=body is None)
            if transaction_id is not None:
                said[semconv.MQTRACE_TRANSACTION_ID] = transaction_id
                said[semconv.MQTRACE_MSG_TYPE] = _HALF
            if tags is not None or keys is not None or msg_type is not None:
                say_given(said, tags=tags, keys=keys, msg_type=msg_type)
            if self._is_rocketmq:
                say_rocketmq(said, found, message_group=message_group, delivery_timestamp_ms=delivery_timestamp_ms)
            if found and not msg_id:
                msg_id = header_text(found, semconv.HEADER_UNIQ_KEY)
            if not msg_id and carries_headers and self._names_messages:  # an empty one names nothing
                msg_id = tracing.new_id()
            if msg_id:
                said[semconv.MESSAGING_MESSAGE_ID] = msg_id
            return self._open(topic, pairs, found, said, transaction_id)
        except Exception:  # noqa: BLE001 - as guarded() does; this is every send's, and takes many arguments by name
            note_failure("SendHook.before")
            return None

    def record(  # noqa: C901, PLR0911 - each return is a kind of send that needs a span
        self, topic: str, body: object, key: object, headers: object, leaders: LeaderSource | None
    ) -> tuple[Sent | None, list[Header]] | None:
        """Record the start of one ordinary send; return it with the headers to send.

        The record is ``None`` for a send that the sampler leaves out. Instead of both, ``None`` says that a span is
        needed from the start, or that something about the message or the tracer is out of the ordinary:
        :meth:`before` handles everything. A send that does not succeed becomes a span by :meth:`reopen`.
        """
        if left_behind:
            end_left_behind()
        ground = self._tracing.ground_of_records() if self._records else None
        length = len(body) if type(body) is bytes else _length(body)
        if ground is None or length is None:
            return None
        plan = self._plans.get(topic)
        if plan is None or plan.ground is not ground:
            plan = self._plan(topic, ground, leaders)
        copied = None if plan is None else _copied(headers)
        if plan is None or copied is None:
            return None
        pairs, found = copied
        tracing, ambient = self._tracing, context.get_current()
        if not ambient and ground.roots_are_silent:
            if tracing.collecting is not None:
                return None
            pairs += (
                (TRACEPARENT, ground.draw_silent().traceparent),
                (semconv.HEADER_UNIQ_KEY, tracing.new_id().encode()),
            )
            return None, pairs
        parent = _only_parent(ambient) if ambient else None
        if parent is None:
            if ambient or not ground.roots_are_recorded:
                return None
        elif ground.decided(parent) is not _SAMPLED:
            return None
        start_ns = tracing.clock.wall_ns()
        (ids, header), flags = ground.draw(), ground.root_flags
        if parent is not None:
            ids = parent.trace_id.to_bytes(16, "big") + ids[16:]
            flags = (parent.trace_flags & ground.random_mask) + 1
            header = traceparent(parent.trace_id, int.from_bytes(ids[16:], "big"), flags).encode()
        msg_id = tracing.new_id()
        pairs += ((TRACEPARENT, header), (semconv.HEADER_UNIQ_KEY, msg_id.encode()))
        size = None if body is None else length
        return Sent(plan, ids, parent, flags, msg_id, start_ns, size, key, found, ambient, process_generation()), pairs

    def end_record(self, sent: Sent, partition: int, offset: int) -> None:
        """The broker has the message: hand its span to the span processors. Never raises."""
        try:
            if sent.generation != process_generation():
                return  # the parent's
            end_ns = max(self._tracing.clock.wall_ns(), sent.start_ns)
            sent.plan.tracer.span_processor.on_end(SentSpan(sent, end_ns, partition, offset))
            if (metrics := self._tracing.collecting) is not None:
                metrics.sent(sent.plan.constants, end_ns - sent.start_ns)
        except Exception:  # noqa: BLE001 - as above
            note_failure("SendHook.end_record")

    def reopen(self, sent: Sent) -> SendCall:
        """Return the open call of a send that does not simply succeed, as :meth:`before` would have opened it."""
        attributes = self._opened_with(sent)
        plan, ids = sent.plan, sent.ids
        span_ctx = SpanContext(
            int.from_bytes(ids[:16], "big"),
            int.from_bytes(ids[16:], "big"),
            is_remote=False,
            trace_flags=trace.TraceFlags(sent.flags),
        )
        own = (plan.tracer, plan.ground.processors, plan.tracer.resource)
        given = (*own, plan.name, span_ctx, sent.parent, _PRODUCER, attributes, (), None, sent.start_ns)
        call = SendCall(plan.topic, UnreadSpan(given), None, sent.ambient, sent.start_ns, attributes)
        call._began_in = sent.generation  # noqa: SLF001 - a send of the parent's stays the parent's
        return call

    def _plan(self, topic: str, ground: Ground, leaders: LeaderSource | None) -> Plan | None:
        """Return the plan of ``topic`` on this ground; ``None`` where its sends cannot be recorded so."""
        tracing = self._tracing
        if tracing.excludes(topic):
            return None
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        if leaders is not None:
            leaders.want(topic)
        constants = self._attributes(topic, None, None, _NO_HEADERS, None, is_tombstone=False)
        plan = self._plans[topic] = Plan(
            topic,
            verb=_SEND.name,
            kind=_PRODUCER,
            ground=ground,
            constants={**constants, semconv.MQTRACE_SUCCESS: True},
            native={"msg_type": MessageType.NORMAL, "success": True},
            leaders=leaders,
            server=self._server,
            make_attributes=self._attributes_of,
            new_id=tracing.new_id,
        )
        return plan

    def _opened_with(self, sent: Sent) -> Attributes:
        length = sent.body_length
        attributes = self._attributes(
            sent.plan.topic, length or 0, sent.key, sent.found, None, is_tombstone=length is None
        )
        attributes[semconv.MESSAGING_MESSAGE_ID] = sent.msg_id
        return attributes

    def _attributes_of(self, span: SentSpan) -> Attributes:
        """Return all attributes of a recorded send, as :meth:`before` and :meth:`after` put them together."""
        sent = span.record
        store_host, cluster_id, request_id = span.facts
        opened_with = self._opened_with(sent)
        answer = Answer(
            opened_with,
            sent.start_ns,
            span.end_ns,
            span.partition,
            span.offset,
            store_host,
            cluster_id,
            None,
            None,
            None,
            None,
            None,
            lambda: request_id,
        )
        return {**opened_with, **answer.attributes()}

    def _open(
        self,
        topic: str,
        pairs: list[Header] | None,
        found: HeaderIndex,
        attributes: Attributes,
        transaction_id: str | None,
    ) -> SendCall:
        """Open the span and write the headers, if any are to be written."""
        tracing = self._tracing
        ambient = context.get_current()
        propagator = propagator_in_force()
        earlier = propagator.creation_of(found) if found else trace.INVALID_SPAN_CONTEXT
        kept = self._keeps_creation and earlier.is_valid
        writes = self._propagates and pairs is not None
        writes_trace = writes and not kept and tracing.writes_trace_headers
        start_ns = tracing.clock.wall_ns()
        span = tracing.open(
            _SEND,
            topic,
            context=ambient,
            attributes=attributes,
            links=_links(earlier, ambient, kept=kept) if earlier.is_valid else (),
            start_ns=start_ns,
            kind=_PRODUCER if writes_trace and propagator.carries_spans else _CLIENT,
        )
        try:
            recorded = span.is_recording()
            sent = None
            if writes and pairs is not None:
                travels = (span, ambient) if writes_trace else None
                try:
                    sent = self._headers(pairs, found, attributes, propagator, travels)
                except Exception:  # noqa: BLE001 - the application's propagator: any failure
                    note_failure("SendHook.headers")
                    if self._names_messages and not header_text(found, semconv.HEADER_UNIQ_KEY):
                        del attributes[semconv.MESSAGING_MESSAGE_ID]  # what does not travel; `after` knows the place
            if recorded and tracing.capture is not None:
                tracing.say_captured(span, sent or pairs or ())
            # An end of transaction has a span of its own and may be recorded where the send was not.
            wanted = recorded or transaction_id is not None or tracing.collecting is not None
            call = SendCall(topic, span, sent, ambient, start_ns, attributes, wanted, transaction_id)
        except BaseException:  # what is not handed out nobody else will end
            span.end()
            raise
        if recorded and tracing.produce_hook is not None:
            tracing.told_of_send(span, call)
        return call

    def after(  # noqa: PLR0913 - the public door: what the broker answered, each fact by its name, said if known
        self,
        call: SendCall | None,
        *,
        partition: int | None = None,
        offset: int | None = None,
        store_host: str | None = None,
        cluster_id: str | None = None,
        msg_id: str | None = None,
        offset_msg_id: str | None = None,
        body_length: int | None = None,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
        outcome: str | None = None,
        end_ns: int | None = None,
    ) -> None:
        """End the span of ``call``, once, now or at ``end_ns`` where its end comes to light late.

        ``error`` is its ``error.type``, ``outcome`` names an end without answer.
        Without a ``store_host`` (no partition was chosen, or its leader is not known yet) the first server is named.
        ``msg_id`` and ``offset_msg_id`` are those the broker gave, where it gives any.
        """
        try:
            if left_behind:
                end_left_behind()
            if call is None or not call.claim() or not call.recorded:
                return
            if error is None and exception is not None:
                error = type(exception).__qualname__
            tracing, span, start_ns = self._tracing, call.span, call.start_ns
            end_ns = max(tracing.clock.wall_ns() if end_ns is None else end_ns, start_ns)
            try:
                call.answer = answer = Answer(
                    call.opened_with,
                    start_ns,
                    end_ns,
                    partition,
                    offset,
                    store_host or self._server,
                    cluster_id,
                    msg_id,
                    offset_msg_id,
                    body_length,
                    error,
                    outcome,
                    tracing.new_id,
                )
                tracing.say_later(span, answer.attributes)
                if error is not None:
                    say_failure(span, description, exception)
            finally:
                span.end(end_ns)
            if (metrics := tracing.collecting) is not None:
                metrics.sent(lambda: call.attributes, end_ns - start_ns)
        except Exception:  # noqa: BLE001 - as above
            note_failure("SendHook.after")

    def _attributes(  # noqa: PLR0913 - what a message says, each by its name
        self,
        topic: str,
        length: int | None,
        key: object,
        found: HeaderIndex,
        partition: int | None,
        *,
        is_tombstone: bool,
    ) -> Attributes:
        """Say the message in the names of the mapping's table; a TraceBean in between costs more than the rest."""
        said = self._constant.copy()
        said[semconv.MESSAGING_DESTINATION_NAME] = topic
        said[semconv.MQTRACE_MSG_TYPE] = _NORMAL
        if found:
            say_headers(said, found)
        if length is not None:
            said[semconv.MESSAGING_MESSAGE_BODY_SIZE] = length
        if (text := key_text(key)) is not None:
            said[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = text
        if is_tombstone:
            said[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
        if partition is not None and partition >= 0:
            said[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(partition)
        return said

    def _headers(
        self,
        headers: list[Header],
        found: HeaderIndex,
        attributes: Attributes,
        propagator: PropagatorInForce,
        travels: tuple[Span, Context] | None,
    ) -> list[Header]:
        """Return ``headers``, a copy already, with what we add; ``travels`` is a span and its context, if they do."""
        sent = headers if travels is None else rewritten(headers, propagator.headers_of(*travels), propagator.names)
        if self._names_messages:
            msg_id = str(attributes[semconv.MESSAGING_MESSAGE_ID])
            if not found or header_text(found, semconv.HEADER_UNIQ_KEY) != msg_id:  # the last one of a name is read
                sent.append((semconv.HEADER_UNIQ_KEY, msg_id.encode()))
        return sent


def _links(earlier: SpanContext, ambient: Context, *, kept: bool) -> Sequence[Link]:
    """A message sent on with the headers it came with: its earlier context may be replaced, but is not forgotten."""
    if not kept and earlier.span_id == trace.get_current_span(ambient).get_span_context().span_id:
        return ()
    return [Link(earlier)]


_harmless: Final[set[str]] = set()
"""Names of headers that say nothing to tracing."""


def _copied(headers: object) -> tuple[list[Header], HeaderIndex] | None:
    """Return a copy of ``headers``, and an index of them where they describe the message.

    ``None`` where one carries a trace, names the message or delays it, and for what no client accepts.
    """
    if headers is None:
        return [], _NO_HEADERS
    pairs = headers.copy() if type(headers) is list else pairs_of(headers)
    if pairs is None:
        return None
    found = _NO_HEADERS
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2:  # noqa: PLR2004 - a pair
            return None
        name = pair[0]
        if name in _harmless:
            continue
        if name in DESCRIBING:
            found = indexed(pairs)
        elif type(name) is not str or name.lower() in TELLING:
            return None
        elif len(_harmless) < _MOST_PLANS:
            _harmless.add(name)
    return pairs, found


def _only_parent(ambient: Context) -> SpanContext | None:
    """Return the ids of the span in ``ambient``; ``None`` where there is none, or something else that may travel."""
    if not ambient.keys() <= OWN_KEYS:
        return None
    parent = trace.get_current_span(ambient).get_span_context()
    return parent if parent.is_valid and not parent.trace_state else None


def _length(body: object) -> int | None:
    if body is None:
        return 0
    if isinstance(body, str):
        return len(body.encode())
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else None
