"""Record one send: from the call until the broker's answer, or until none can come."""

from __future__ import annotations

import logging
from binascii import hexlify
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry import context, propagate, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._workers import process_generation
from otel_mqtrace.hooks.attributes import add_known_fields, add_rocketmq_fields, remove_kafka_fields
from otel_mqtrace.hooks.guard import note_failure
from otel_mqtrace.hooks.outcome import SingleEnd, deferred_ends, drain_deferred_ends, read_time, record_failure
from otel_mqtrace.hooks.propagation import (
    SPECIAL_HEADERS,
    TRACEPARENT,
    header_name,
    headers_under,
    index_headers,
    pairs_of,
    propagator_in_force,
    replace_headers,
)
from otel_mqtrace.hooks.scope import OWN_KEYS, current_context
from otel_mqtrace.hooks.tracing import RecordingHook
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.records.message import DESCRIBING, add_header_fields, header_text, key_text, position_attributes
from otel_mqtrace.records.plan import Plan
from otel_mqtrace.records.sent import Sent, SentSpan
from otel_mqtrace.records.span import context_of, new_tuple, open_sdk_span
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes, compute_cost_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue

    from otel_mqtrace.hooks.propagation import PropagatorInForce
    from otel_mqtrace.hooks.sampling import TracerState
    from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
    from otel_mqtrace.records.message import Header, HeaderIndex
    from otel_mqtrace.records.plan import LeaderSource


_log: Final = logging.getLogger(__name__)
UNKNOWN_BODY: Final = object()
"""A body that is not bytes yet, because a serializer will make them: its size comes with :meth:`SendHook.after`."""

_SEND: Final = OPERATIONS[TraceType.PUB]
_NORMAL: Final = MessageType.NORMAL.value
_HALF: Final = MessageType.TRANS_HALF.value
_NO_HEADERS: Final[HeaderIndex] = {}
_SAMPLED, _DROP = Decision.RECORD_AND_SAMPLE, Decision.DROP
_BAGGAGE: Final = frozenset({"baggage"})
_MAX_NAMES: Final = 1_024
_PARTITION_BITS: Final = 31  # a larger number, which the client refuses, may be too long to be printed
_get_propagator: Final = propagate.get_global_textmap
_harmless: Final[set[str]] = set()
"""Names of headers that carry nothing of a trace."""


@dataclass(slots=True)
class SendCall(SingleEnd):
    """One message in flight. ``headers`` are the ones to send, ``None`` where the caller's are sent unchanged.

    ``current_ctx`` and ``transaction_id`` are the context and the transaction it was sent in, ``attributes`` those of
    its span so far. ``is_recorded`` is false where nothing will ever read them. A message that carries no id is named
    by its physical one, which :meth:`SendHook.after` learns.
    """

    topic: str
    span: Span
    headers: list[Header] | None
    current_ctx: Context
    start_ns: int
    attributes: Attributes
    is_recorded: bool = True
    transaction_id: str | None = None

    @property
    def span_context(self) -> SpanContext:
        """The ids of the send span."""
        return self.span.get_span_context()


class SendHook(RecordingHook):
    """``before`` opens a ``send T`` span and writes the headers, ``after`` ends it. Neither ever raises.

    The span is of kind PRODUCER when its ids travel with the message, else CLIENT, as the conventions require.
    """

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        super()._set_up(tracing, info)
        self._constant = {**info.attributes(), **tracing.producer_operation(TraceType.PUB, info)}
        self._propagates = tracing.settings.propagation
        # RocketMQ's broker sets UNIQ_KEY itself and refuses a message whose properties have one
        self._names_messages = self._propagates and not self._is_rocketmq
        self._keeps_creation = tracing.settings.creation_context == "keep"
        self._may_record = (
            self._names_messages
            and tracing.writes_trace_headers
            and tracing.produce_hook is None
            and tracing.allows_records
        )

    def before(  # noqa: C901, PLR0913 - the public hook: the client's fields of the message, by name
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

        ``headers`` may be a mapping, a list or tuple of pairs, or ``None``, and is never changed. ``body`` is bytes,
        text or ``None`` (a tombstone), or :data:`UNKNOWN_BODY`. ``partition`` is the one the caller chose. The client's
        fields (``msg_id`` to ``delivery_timestamp_ms``) win over the headers. ``carries_headers=False``: headers cannot
        reach the broker, so ``headers`` is ignored and none is written.
        """
        tracing = self._tracing
        try:
            if deferred_ends:
                drain_deferred_ends()
            topic = str.__str__(topic)  # an Enum of texts prints its own name
            if not tracing.is_traced(topic):
                if topic == tracing.settings.trace_topic and is_instrumentation_enabled():
                    _warn_of_trace_topic(topic)
                return None
            pairs = pairs_of(headers) if carries_headers else None
            by_name = index_headers(pairs) if pairs else _NO_HEADERS
            attributes = self._attributes(topic, _length(body), key, by_name, partition, is_tombstone=body is None)
            if transaction_id is not None:
                attributes[semconv.MQTRACE_TRANSACTION_ID] = transaction_id
                attributes[semconv.MQTRACE_MSG_TYPE] = _HALF
            if tags is not None or keys is not None or msg_type is not None:
                add_known_fields(attributes, tags=tags, keys=keys, msg_type=msg_type)
            if self._is_rocketmq:
                add_rocketmq_fields(
                    attributes, by_name, message_group=message_group, delivery_timestamp_ms=delivery_timestamp_ms
                )
            if by_name and not msg_id:
                msg_id = header_text(by_name, semconv.HEADER_UNIQ_KEY)
            if not msg_id and pairs is not None and self._names_messages:  # an empty one names nothing
                msg_id = tracing.new_id()
            if msg_id:
                attributes[semconv.MESSAGING_MESSAGE_ID] = msg_id
            return self._open(topic, pairs, by_name, attributes, transaction_id)
        except:  # noqa: E722 - as guarded() does, which would pass on a dozen arguments
            note_failure("SendHook.before")
            return None

    def record(  # noqa: C901, PLR0912, PLR0913, PLR0917 - every send's: in one call
        self, topic: str, body: object, key: object, headers: object, leaders: LeaderSource | None, partition: object
    ) -> tuple[Sent | None, list[Header]] | None:
        """Record the start of one ordinary send to the caller's ``partition``; return it with the headers to send.

        The record is ``None`` for a send that the sampler leaves out and no metric counts. ``None`` instead of both:
        the send needs a span from the start, by :meth:`before`.
        """
        if deferred_ends:
            drain_deferred_ends()
        state = self._state
        if state is None or state.read(state.tracer) != state.identity or _get_propagator() is not state.propagator:
            state = self._current_state()
        length = len(body) if type(body) is bytes else _length(body)
        if state is None or length is None:
            return None
        plan = self._plans.get(topic)
        if plan is None or plan.state is not state:
            plan = self._plan(topic, state, leaders)
        copied = None if plan is None else _copy_ordinary_headers(headers)
        if plan is None or copied is None:
            return None
        pairs, describing = copied
        current_ctx = current_context()
        parent = None
        decision, flags = state.as_root
        if current_ctx:
            if not (current_ctx.keys() <= OWN_KEYS or is_instrumentation_enabled()):
                return None
            span_ctx = trace.get_current_span(current_ctx).get_span_context()
            parent = span_ctx if span_ctx.is_valid else None
            decision, flags = state.decision_under(span_ctx)
        ids = None
        if decision is None and parent is None and state.root_bound is not None:
            ids = state.ids.take()
            decision, flags = state.decision_on(ids)
        if decision is not _SAMPLED and decision is not _DROP:
            return None
        is_needed = decision is _SAMPLED or self._may_measure()  # metrics count what the sampler leaves out as well
        start_ns = self.now_ns() if is_needed else 0
        if ids is None:
            try:
                ids = state.ids.pop()
            except IndexError:
                ids = state.ids.draw()
        msg_id = self._tracing.new_id()
        if parent is not None:
            ids = parent.trace_id.to_bytes(16, "big") + ids[16:]
        if current_ctx:
            pairs += headers_under(parent, ids, flags, current_ctx)
        else:
            digits = hexlify(ids)
            pairs.append((TRACEPARENT, b"00-%b-%b-0%d" % (digits[:32], digits[32:], flags)))
        pairs.append((semconv.HEADER_UNIQ_KEY, msg_id.encode()))
        if not is_needed:
            return None, pairs
        size = None if body is None else length
        generation = process_generation()
        parts = plan, ids, parent, flags, msg_id, start_ns, size, key, describing, current_ctx, generation, partition
        return new_tuple(Sent, parts), pairs

    def end_record(self, sent: Sent, partition: int, offset: int) -> None:
        """Hand the span of a delivered message to the span processors, if it is sampled."""
        if sent.generation != process_generation():
            return  # the parent process ends it
        end_ns = max(self.now_ns(), sent.start_ns)
        if sent.flags & TraceFlags.SAMPLED:
            sent.plan.tracer.span_processor.on_end(SentSpan(sent, end_ns, partition, offset))
        if self._may_measure() and (metrics := self._tracing.collecting) is not None:
            metrics.sent(sent.plan.constants, end_ns - sent.start_ns)

    def reopen(self, sent: Sent) -> SendCall:
        """Return the open call of a recorded send that did not simply succeed."""
        plan, chosen = sent.plan, sent.chosen_partition
        partition = chosen if isinstance(chosen, int) and chosen.bit_length() <= _PARTITION_BITS else None
        attributes = plan.constants | sent.own_attributes | position_attributes(plan.topic, partition, None)
        span_ctx = context_of(sent.ids, sent.flags, sent.trace_state, remote=False)
        span: Span = NonRecordingSpan(span_ctx)
        if span_ctx.trace_flags.sampled:
            span = open_sdk_span(sent, span_ctx, attributes)
        call = SendCall(plan.topic, span, None, sent.current_ctx, sent.start_ns, attributes)
        call.began_in = sent.generation
        return call

    def _make_plan(self, topic: str, state: TracerState, leaders: LeaderSource | None) -> Plan:
        if leaders is not None and state.can_record:
            leaders.want(topic)
        return Plan(
            _SEND,
            topic,
            state=state,
            constants=self._attributes(topic, None, None, _NO_HEADERS, None, is_tombstone=False),
            native={"msg_type": MessageType.NORMAL, "success": True},
            leaders=leaders,
            server=self._server,
            new_id=self._tracing.new_id,
        )

    def _open(
        self,
        topic: str,
        pairs: list[Header] | None,
        by_name: HeaderIndex,
        attributes: Attributes,
        transaction_id: str | None,
    ) -> SendCall:
        """Open the span and write the headers, if any are to be written."""
        tracing = self._tracing
        current_ctx = context.get_current()
        propagator = propagator_in_force()
        earlier = propagator.creation_of(by_name) if by_name else trace.INVALID_SPAN_CONTEXT
        is_kept = self._keeps_creation and earlier.is_valid
        writes = self._propagates and pairs is not None
        writes_trace = writes and not is_kept and tracing.writes_trace_headers
        start_ns = tracing.clock.wall_ns()
        span = tracing.start_span(
            _SEND,
            topic,
            context=current_ctx,
            attributes=attributes,
            links=_links(earlier, current_ctx, is_kept=is_kept) if earlier.is_valid else (),
            start_ns=start_ns,
            kind=SpanKind.PRODUCER if writes_trace and propagator.names - _BAGGAGE else SpanKind.CLIENT,
        )
        try:
            is_recorded = span.is_recording()
            sent = None
            if writes and pairs is not None:
                carried = (span, current_ctx) if writes_trace else None
                # baggage that came without a trace belongs to no earlier trace: it gives way to the context's alone
                dropped = propagator.names - (frozenset() if earlier.is_valid else _BAGGAGE)
                try:
                    sent = self._headers(pairs, by_name, attributes, propagator, carried, dropped)
                except:  # noqa: E722 - the application's propagator: any failure
                    note_failure("SendHook.headers")
                    if self._names_messages and not header_text(by_name, semconv.HEADER_UNIQ_KEY):
                        del attributes[semconv.MESSAGING_MESSAGE_ID]  # it does not travel; `after` gets the position
            if is_recorded:
                tracing.set_captured_headers(span, sent or pairs or ())
            # the end of a transaction is another span, which may be recorded where the send was not
            is_needed = is_recorded or transaction_id is not None or tracing.collecting is not None
            call = SendCall(topic, span, sent, current_ctx, start_ns, attributes, is_needed, transaction_id)
            if is_recorded:
                tracing.call_produce_hook(span, call)
        except:  # a call that is not returned would never end
            span.end()
            raise
        return call

    def withdraw_headers(self, call: SendCall, headers: object) -> None:
        """Note that the message goes with the caller's ``headers`` alone, since the client takes no more.

        It is named as one that carries no id, unless they have one.
        """
        call.headers = None
        if not header_text(index_headers(pairs_of(headers) or ()), semconv.HEADER_UNIQ_KEY):
            call.attributes.pop(semconv.MESSAGING_MESSAGE_ID, None)

    def after(  # noqa: PLR0913 - the public hook: what the broker answered, each fact by its name
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
        """End the span of ``call``, once, now or at ``end_ns``.

        ``error`` is its ``error.type``, ``outcome`` names an end without answer. Without a ``store_host`` (the leader
        is not known yet) the first server is named. ``msg_id`` and ``offset_msg_id`` are those the broker gave.
        """
        try:
            if deferred_ends:
                drain_deferred_ends()
            if call is None or not call.try_end() or not call.is_recorded:
                return
            if error is None and exception is not None:
                error = type(exception).__qualname__
            tracing, span, start_ns = self._tracing, call.span, call.start_ns
            given_ns = None if end_ns is None else read_time(end_ns)
            end_ns = max(tracing.clock.wall_ns() if given_ns is None else given_ns, start_ns)
            size = call.attributes.get(semconv.MESSAGING_MESSAGE_BODY_SIZE, body_length)
            optional = {
                semconv.MQTRACE_STORE_HOST: store_host or self._server,
                semconv.MESSAGING_MESSAGE_BODY_SIZE: size,
                semconv.MQTRACE_SEND_OUTCOME: outcome,
                semconv.ERROR_TYPE: error,
                semconv.MESSAGING_KAFKA_CLUSTER_ID: cluster_id,
                semconv.MQTRACE_OFFSET_MSG_ID: offset_msg_id,
                semconv.MESSAGING_MESSAGE_ID: msg_id,
            }
            answer: Attributes = {}
            try:
                answer = self._answer(call, end_ns, optional, partition, offset)
                call.attributes = call.attributes | answer
                if error is not None:
                    record_failure(span, description, exception)
            finally:
                tracing.end_span(span, end_ns, answer)
            if (metrics := tracing.collecting) is not None:
                metrics.sent(call.attributes, end_ns - start_ns)
        except:  # noqa: E722 - as above
            note_failure("SendHook.after")

    def _answer(
        self,
        call: SendCall,
        end_ns: int,
        optional: Mapping[str, AttributeValue | None],
        partition: int | None,
        offset: int | None,
    ) -> Attributes:
        """Return the attributes that an answer adds to those of ``call``; ``optional`` ones may be ``None``."""
        known, start_ns = call.attributes, call.start_ns
        answer = position_attributes(call.topic, partition, offset)
        cost = compute_cost_ms(start_ns, end_ns)
        error, outcome = optional[semconv.ERROR_TYPE], optional[semconv.MQTRACE_SEND_OUTCOME]
        answer[semconv.MQTRACE_COST_TIME] = cost
        answer[semconv.MQTRACE_SUCCESS] = error is None
        answer[semconv.MQTRACE_REQUEST_ID] = self._tracing.new_id()
        if error is None and outcome is None:  # half-way, as RocketMQ's SendMessageTraceHookImpl estimates it
            answer[semconv.MQTRACE_STORE_TIME] = start_ns // NS_PER_MS + cost // 2
        answer |= {name: value for name, value in optional.items() if value is not None}
        if self._is_rocketmq:
            remove_kafka_fields(answer)
        if semconv.MESSAGING_MESSAGE_ID not in answer and semconv.MESSAGING_MESSAGE_ID not in known:
            # a message without an id is named by its physical one on both sides, if it has a position
            physical_id = answer.get(semconv.MQTRACE_OFFSET_MSG_ID)
            answer[semconv.MESSAGING_MESSAGE_ID] = physical_id or self._tracing.new_id()
        return answer

    def _attributes(  # noqa: PLR0913 - the fields of a message, each by its name
        self,
        topic: str,
        length: int | None,
        key: object,
        by_name: HeaderIndex,
        partition: int | None,
        *,
        is_tombstone: bool,
    ) -> Attributes:
        """Return the attributes of a message before its answer, in the names of the mapping's table."""
        attributes = self._constant.copy()
        attributes[semconv.MESSAGING_DESTINATION_NAME] = topic
        attributes[semconv.MQTRACE_MSG_TYPE] = _NORMAL
        if by_name:
            add_header_fields(attributes, by_name)
        if length is not None:
            attributes[semconv.MESSAGING_MESSAGE_BODY_SIZE] = length
        if (text := key_text(key)) is not None:
            attributes[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = text
        if is_tombstone:
            attributes[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
        if partition is not None and partition >= 0:
            attributes[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(partition)
        return attributes

    def _headers(  # noqa: PLR0913, PLR0917 - the message's, and what is written over them
        self,
        headers: list[Header],
        by_name: HeaderIndex,
        attributes: Attributes,
        propagator: PropagatorInForce,
        carried: tuple[Span, Context] | None,
        dropped: frozenset[str],
    ) -> list[Header]:
        """Return ``headers``, a copy, with what we add; ``carried`` is a span and its context, where they travel.

        ``dropped`` are the headers, in lower case, that go with the span even where it writes none of that name.
        """
        sent = headers
        if carried is not None:
            sent = replace_headers(headers, propagator.headers_of(*carried), dropped)
        if self._names_messages:
            msg_id = str(attributes[semconv.MESSAGING_MESSAGE_ID])
            if not by_name or header_text(by_name, semconv.HEADER_UNIQ_KEY) != msg_id:  # the last one of a name counts
                others = [pair for pair in sent if header_name(pair[0]) != semconv.HEADER_UNIQ_KEY]
                return [*others, (semconv.HEADER_UNIQ_KEY, msg_id.encode())]
        return sent


def _links(earlier: SpanContext, current_ctx: Context, *, is_kept: bool) -> Sequence[Link]:
    if not is_kept and earlier.span_id == trace.get_current_span(current_ctx).get_span_context().span_id:
        return ()
    return [Link(earlier)]


def _copy_ordinary_headers(headers: object) -> tuple[list[Header], HeaderIndex] | None:
    """Return a copy of ``headers``, and an index of them where they describe the message.

    ``None`` where one carries a trace, names the message or delays it, and for what the client refuses.
    """
    if headers is None:
        return [], _NO_HEADERS
    if not isinstance(headers, (list, dict)):
        return None
    pairs = headers.copy() if type(headers) is list else pairs_of(headers)
    if pairs is None:
        return None
    describing = _NO_HEADERS
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2:  # noqa: PLR2004 - a pair
            return None
        name = pair[0]
        if name in _harmless:
            continue
        if name in DESCRIBING:
            describing = index_headers(pairs)
        elif type(name) is not str or name.lower() in SPECIAL_HEADERS:
            return None
        elif len(_harmless) < _MAX_NAMES:
            _harmless.add(name)
    return pairs, describing


@lru_cache
def _warn_of_trace_topic(topic: str) -> None:
    _log.warning(
        "mqtrace: the application sends to %s, which is the trace topic: its messages there are not traced, and trace "
        "records go among them: name another topic in MQTRACE_TRACE_TOPIC",
        topic,
    )


def _length(body: object) -> int | None:
    if body is None:
        return 0
    if isinstance(body, str):
        return len(body.encode("utf-8", "surrogatepass"))  # the client refuses such a text, and the span says so
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else None
