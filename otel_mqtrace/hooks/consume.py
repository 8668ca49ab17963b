"""Record the handling of received messages, and the polls that returned them."""

from __future__ import annotations

from binascii import unhexlify
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._workers import process_generation
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.guard import guarded, note_failure
from otel_mqtrace.hooks.outcome import (
    code_of,
    deferred_ends,
    drain_deferred_ends,
    is_failed,
    read_time,
    record_failure,
    text_of,
)
from otel_mqtrace.hooks.propagation import BESIDE, SPECIAL_HEADERS, TRACEPARENT, index_headers, propagator_in_force
from otel_mqtrace.hooks.receive import ReceiveHook
from otel_mqtrace.hooks.scope import ONE_BYTE, ProcessSpan, ambient_context, current_context
from otel_mqtrace.model import ContextCode, MessageType, TraceType
from otel_mqtrace.records.batch import BatchSpan, HandledBatch, read_uniform
from otel_mqtrace.records.handled import Handled, HandledSpan, outcome_attributes
from otel_mqtrace.records.message import DESCRIBING, match_traceparent, read_traceparent
from otel_mqtrace.records.plan import Plan
from otel_mqtrace.records.span import ENDED, PARTS, UNREAD, UnsampledSpan, new_tuple
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks.metrics import MessagingMetrics
    from otel_mqtrace.hooks.sampling import TracerState
    from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
    from otel_mqtrace.records.batch import BatchHeaders
    from otel_mqtrace.records.handled import MessageRow
    from otel_mqtrace.records.message import Header, HeaderIndex
    from otel_mqtrace.records.plan import LeaderSource

_PROCESS: Final = OPERATIONS[TraceType.SUB_BEFORE]
_SUCCESS: Final = ContextCode.SUCCESS
_SAMPLED, _DROP = Decision.RECORD_AND_SAMPLE, Decision.DROP
_NO_CONTEXT: Final = Context()
_MAX_NAMES: Final = 256
_UNIQ_KEY: Final = semconv.HEADER_UNIQ_KEY
_NO_HEADERS: Final[HeaderIndex] = {}
_get_propagator: Final = propagate.get_global_textmap
_RECORDED: Final = (HandledSpan, BatchSpan)


class ConsumeHook(ReceiveHook):
    """``before`` opens ``process T`` CONSUMER spans, ``after`` ends one. Neither ever raises.

    A client that polls reports each poll once it is over: ``received``, ``empty`` or ``poll_failed``.
    """

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        super()._set_up(tracing, info)
        settings = tracing.settings
        self._constant: Attributes = {**info.attributes(), **tracing.operation(TraceType.SUB_BEFORE, info.group_name)}
        self._mode = settings.process_context
        self._may_record = (
            tracing.consume_hook is None and tracing.allows_records and self._mode == "auto" and not info.is_rocketmq
        )
        self._timeout_ns = settings.process_timeout_ms * NS_PER_MS
        self.drops_all = False
        """Whether the sampler drops every message, as far as is known: then :meth:`record` needs no row."""
        self._plain_names = frozenset({TRACEPARENT, _UNIQ_KEY})

    # -- handling, recorded without a span ---------------------------------------------------------------------------
    def _current_state(self) -> TracerState | None:
        """Return the tracer's state as it is now; ``None`` where :meth:`before` must open a span."""
        state = super()._current_state()
        self.drops_all = state is not None and all(
            decision is _DROP for decision, _ in (state.as_root, *state.under_remote)
        )
        return state

    def record(  # noqa: C901, PLR0912 - every poll's: in one call
        self,
        topic: str,
        row: MessageRow | None,
        headers: Sequence[Header],
        leaders: LeaderSource | None,
        start_ns: int | None = None,
    ) -> ProcessSpan | None:
        """Record one ordinary message of a poll begun at ``start_ns``; ``None``: :meth:`before` must open a span."""
        if deferred_ends:
            drain_deferred_ends()
        state = self._state
        if state is None or state.read(state.tracer) != state.identity or _get_propagator() is not state.propagator:
            state = self._current_state()
        if state is None or current_context():
            return None
        plan = self._plans.get(topic)
        if plan is None or plan.state is not state:
            plan = self._plan(topic, state, leaders)
        by_name: HeaderIndex = dict(headers)
        header, unique_id = by_name.get(TRACEPARENT), by_name.get(_UNIQ_KEY)
        is_plain = self._plain_names.issuperset(by_name)
        if (header is None or unique_id is None or not is_plain) and None in by_name.values():
            by_name = index_headers(headers)
            header, unique_id = by_name.get(TRACEPARENT), by_name.get(_UNIQ_KEY)
        origin, origin_flags, process_ctx, trace_state, describing = None, 0, _NO_CONTEXT, None, _NO_HEADERS
        if not is_plain:
            if not self._has_fields_for(by_name):
                return None
            process_ctx, trace_state = _carried_beside(by_name)
            describing = {name: by_name[name] for name in DESCRIBING & by_name.keys()}
        decision, flags = state.as_root
        if header is not None:  # as read_traceparent() does, without a call: every message comes here
            plain = match_traceparent(header) if type(header) is bytes else None
            if plain is None:
                return None
            trace_id, span_id, digit = plain.groups()
            origin, origin_flags = unhexlify(trace_id + span_id), digit[0] & 3
            decision, flags = state.under_remote[origin_flags]
        is_dropped = decision is _DROP
        is_unfit = self.records_polls if is_dropped else decision is not _SAMPLED or row is None
        if plan is None or is_unfit:
            return None
        try:
            ids = state.ids.pop()
        except IndexError:
            ids = state.ids.draw()
        if origin is not None:
            ids = origin[:16] + ids[16:]
        kept = None if process_ctx else ids + ONE_BYTE[flags]  # a block that comes late still has the baggage
        now_ns = self.now_ns() if not is_dropped or self._may_measure() else 0
        if now_ns and (start_ns is not None or not self._polls):
            self._count_received(plan, start_ns, 1)
        if is_dropped or row is None:
            return ProcessSpan(self, UnsampledSpan(ids, flags, trace_state), now_ns, plan.constants, process_ctx, kept)
        parts: Any = plan, ids, origin, flags, now_ns, *row, unique_id, describing, {}, origin_flags, trace_state
        record = new_tuple(Handled, parts)
        for processor in state.starts:
            processor.offer_record_start(record)
        return ProcessSpan(self, HandledSpan(record), now_ns, plan.constants, process_ctx, kept)

    def record_batch(  # noqa: PLR0913 - as record(), and how
        self,
        topic: str,
        rows: Sequence[MessageRow],
        headers: BatchHeaders,
        leaders: LeaderSource | None,
        start_ns: int | None = None,
        *,
        is_dropped: bool = False,
    ) -> ProcessSpan | None:
        """Record that one poll returned messages of one topic; ``None`` as :meth:`record`.

        ``is_dropped``: the rows hold places only, for :attr:`drops_all` was true.
        """
        if deferred_ends:
            drain_deferred_ends()
        known = self._state
        state = known if known is not None and known.is_current() else self._current_state()
        if state is None or current_context() or len(rows) > self._tracing.links_per_span:
            return None
        plan = self._plans.get(topic)
        if plan is None or plan.state is not state:
            plan = self._plan(topic, state, leaders)
        read = _read_parent(headers)
        if plan is None or read is None:
            return None
        origin, origin_flags = read
        decision, flags = state.as_root if origin is None else state.under_remote[origin_flags]
        is_sampled = decision is _SAMPLED
        is_unfit = is_dropped if is_sampled else decision is not _DROP or self.records_polls
        if is_unfit:
            return None
        ids = state.ids.take()
        if origin is not None:
            ids = origin[:16] + ids[16:]
        now_ns = self.now_ns() if is_sampled or self._may_measure() else 0
        span: BatchSpan | UnsampledSpan = UnsampledSpan(ids, flags)
        if is_sampled:
            sends = read_uniform(headers, plan.retry_header)
            kept = headers if sends is None else []
            record = HandledBatch(plan, ids, flags, now_ns, rows, kept, sends, {}, origin, origin_flags)
            span = BatchSpan(record)
            for processor in state.starts:
                processor.offer_record_start(BatchSpan(record))  # one of its own: it may be read before the end
        call = ProcessSpan(self, span, now_ns, plan.constants, ids=ids + ONE_BYTE[flags])
        if start_ns is not None or (now_ns and not self._polls):
            self._count_received(plan, start_ns, len(rows))
        call.messages, call.indexes = len(rows), tuple(range(len(rows)))
        return call

    @guarded("ConsumeHook.count")
    def _count_received(self, plan: Plan, start_ns: int | None, messages: int) -> None:
        """Measure messages of one topic: with their poll, or alone where the client does not poll."""
        metrics = self._tracing.collecting
        if metrics is None:
            return
        if start_ns is None:
            metrics.received(plan.constants, messages)
            return
        attributes = {**self._poll_constant, semconv.MESSAGING_DESTINATION_NAME: plan.topic}
        metrics.received(attributes, messages)
        metrics.operated(attributes, max(self.now_ns() - start_ns, 0))

    def _has_fields_for(self, by_name: HeaderIndex) -> bool:
        others = by_name.keys() - self._plain_names - DESCRIBING - BESIDE
        if any(name.lower() in SPECIAL_HEADERS or name == self._retry_header for name in others):
            return False
        if len(self._plain_names) < _MAX_NAMES:
            self._plain_names |= others
        return True

    def _make_plan(self, topic: str, state: TracerState, leaders: LeaderSource | None) -> Plan:
        message = self._message_attributes(IncomingMessage(topic), {})
        message.pop(semconv.MQTRACE_STORE_HOST, None)
        return Plan(
            _PROCESS,
            topic,
            state=state,
            constants={**self._constant, **message},
            native={
                "msg_type": MessageType.NORMAL,
                "retry_times": 0,
                "success": True,
                "context_code": ContextCode.SUCCESS,
            },
            leaders=leaders,
            server=self._server,
            make_batch=self._batch_attributes,
            new_id=self._tracing.new_id,
            retry_header=self._retry_header,
        )

    def _batch_attributes(self, span: BatchSpan) -> tuple[Attributes, list[Link]]:
        """Return all attributes and links of recorded messages, as :meth:`before` and :meth:`after` set them."""
        record = span.record
        plan = record.plan
        messages = []
        for (partition, offset, timestamp_ms, body_length, key), headers in zip(
            record.rows, record.carried, strict=True
        ):
            place = plan.place_of(partition)
            is_tombstone = body_length is None
            messages.append(
                IncomingMessage(
                    plan.topic,
                    partition,
                    offset,
                    key,
                    body_length or 0,
                    is_tombstone,
                    headers or (),
                    timestamp_ms,
                    place.store_host,
                    place.cluster_id,
                )
            )
        constant: Attributes = {
            **self._constant,
            semconv.MESSAGING_DESTINATION_NAME: plan.topic,
            semconv.MESSAGING_BATCH_MESSAGE_COUNT: len(messages),
            semconv.MQTRACE_REQUEST_ID: record.request_id,
        }
        attributes, links = self._attributes_and_links(messages, constant, propagator_in_force(), batch=True)
        return {**attributes, **span.outcome}, links

    # -- handling with a span ----------------------------------------------------------------------------------------
    def before(self, messages: Sequence[IncomingMessage], *, batch: bool = False) -> list[ProcessSpan]:
        """Open the spans of the messages of one poll; empty if none is traced now.

        One span per topic and per 128 messages (fewer where the SDK keeps fewer links), so that no link is dropped.
        ``batch``: the client's call can return several messages, even if it returned one.
        """
        try:
            if deferred_ends:
                drain_deferred_ends()
            if len(messages) != 1:
                return self._open_each(messages, batch=batch)
            topic = messages[0].topic
            return [self._open(topic, messages, batch=batch)] if self._tracing.is_traced(topic) else []
        except:  # noqa: E722 - as guarded() does
            note_failure("ConsumeHook.before")
            return []

    def _open_each(self, messages: Sequence[IncomingMessage], *, batch: bool) -> list[ProcessSpan]:
        """Open the spans topic by topic; a failure for one costs no other's."""
        open_one = guarded("ConsumeHook.open")(self._open)
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(index)
        size = self._tracing.links_per_span
        calls = []
        for topic in filter(self._tracing.is_traced, by_topic):
            for start in range(0, len(by_topic[topic]), size):
                indexes = tuple(by_topic[topic][start : start + size])
                call = open_one(topic, [messages[index] for index in indexes], batch=batch)
                if call is not None:
                    call.indexes = indexes
                    calls.append(call)
        return calls

    def _open(self, topic: str, messages: Sequence[IncomingMessage], *, batch: bool) -> ProcessSpan:
        tracing = self._tracing
        current_ctx = ambient_context()
        propagator = propagator_in_force()
        # what else travelled with one message, such as baggage, lies behind its span; several have nothing in common
        creation, process_ctx = None, current_ctx
        if len(messages) == 1:
            by_name = index_headers(messages[0].headers)
            process_ctx = trace.set_span_in_context(trace.INVALID_SPAN, current_ctx) if current_ctx else _NO_CONTEXT
            if by_name:
                process_ctx = propagator.extract(by_name, process_ctx)
            creation = trace.get_current_span(process_ctx).get_span_context()
        parent_ctx, others = self._parent(creation, process_ctx, current_ctx)
        constant: Attributes = {**self._constant, semconv.MESSAGING_DESTINATION_NAME: topic}
        if batch or len(messages) > 1:
            constant[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
        constant[semconv.MQTRACE_REQUEST_ID] = tracing.new_id()
        attributes, links = self._attributes_and_links(
            messages, constant, propagator, others, batch=batch, creation=creation, is_linked=self._mode != "parent"
        )
        if not self._polls and (metrics := tracing.collecting) is not None:
            metrics.received(attributes, len(messages))  # may fail: before a span is open
        start_ns = tracing.clock.wall_ns()
        span = tracing.start_span(
            _PROCESS, topic, context=parent_ctx, attributes=attributes, links=links, start_ns=start_ns
        )
        try:
            if span.is_recording():
                tracing.call_consume_hook(span, messages)
        except:  # a call that is not returned would never end
            span.end()
            raise
        call = ProcessSpan(self, span, start_ns, attributes, process_ctx)
        call.messages, call.previous_ctx = len(messages), current_ctx
        return call

    def _parent(
        self, creation: SpanContext | None, extracted: Context, current_ctx: Context
    ) -> tuple[Context, Sequence[Link]]:
        """Choose the parent (the option ``process_context``); ``creation`` is that of a message which comes alone.

        Return the context to start in, and a link to the current span where it is not the parent.
        """
        mode = self._mode
        if not current_ctx and mode != "link" and creation is not None:
            return extracted, ()
        here = trace.get_current_span(current_ctx).get_span_context()
        if mode == "link" or creation is None or (mode == "auto" and here.is_valid) or not creation.is_valid:
            return current_ctx, ()
        remote = trace.set_span_in_context(trace.NonRecordingSpan(creation), current_ctx)
        return remote, (Link(here),) if here.is_valid else ()

    # -- the end -----------------------------------------------------------------------------------------------------
    def end_turn(self, call: ProcessSpan) -> None:
        """End a handling whose consumer polls again: with success or the worst of its blocks, now or with the last one.

        Never raises.
        """
        try:
            call.leave()
            if deferred_ends:
                drain_deferred_ends()
            span = call.span
            if type(span) is UnsampledSpan and not call.start_ns:  # nothing measured its start
                return
            if type(span) is HandledSpan and call.known_handling is None and not call.process_ctx:
                if getattr(call, "began_in", None) != process_generation():
                    return
                start_ns, parts = call.start_ns, span.__dict__
                took_ns = max(self.now_ns() - start_ns, 0)
                is_untouched = len(parts) == UNREAD or PARTS.isdisjoint(parts)
                # as end_as_record() does, without a call: every message comes here
                if is_untouched and took_ns < self._timeout_ns and parts.setdefault("_written", ENDED) is ENDED:
                    span.end_ns = start_ns + took_ns
                    plan = span.record.plan
                    plan.tracer.span_processor.on_end(span)
                    if self._poll_metrics is not None:
                        self._poll_metrics.processed(plan.constants, took_ns)
                    return
            if not call.leave_to_blocks():
                code, exception = call.worst
                self.after(call, code=code, exception=exception)
        except:  # noqa: E722 - as guarded() does; this is every message's
            note_failure("ConsumeHook.end_turn")

    def after(
        self,
        call: ProcessSpan,
        *,
        code: ContextCode = ContextCode.SUCCESS,
        exception: BaseException | None = None,
        error: str | None = None,
        end_ns: int | None = None,
    ) -> None:
        """End the span of ``call``, once, now or at ``end_ns``.

        A success slower than the limit becomes ``TIME_OUT``, as RocketMQ's does. The handler's own outcome replaces a
        success: from ``process.current()``, or the status ERROR of the span (``FAILED``). An unknown ``code`` becomes
        ``RETURNNULL``, a success with an ``exception`` an ``EXCEPTION``. ``error`` is its ``error.type``, by default
        the class of the exception.
        """
        try:
            if deferred_ends:
                drain_deferred_ends()
            if not call.try_end():
                return
            span: Any = call.span
            kind = type(span)
            metrics = self._tracing.collecting if self._may_measure() else None
            if kind is UnsampledSpan and (metrics is None or not call.start_ns):  # as in end_turn()
                return
            start_ns = call.start_ns
            given_ns = None if end_ns is None else read_time(end_ns)
            end_ns = max(self.now_ns() if given_ns is None else given_ns, start_ns)
            if (
                kind in _RECORDED
                and (code is _SUCCESS and exception is None and error is None)
                and not call.has_outcome
                and end_ns - start_ns < self._timeout_ns
                and span.end_as_record(end_ns)
            ):
                plan = span.record.plan
                plan.tracer.span_processor.on_end(span)
                if metrics is not None:
                    metrics.processed(plan.constants, end_ns - start_ns)
                if kind is BatchSpan or call.process_ctx:  # remembered for long: it holds what its messages carried
                    call.span = UnsampledSpan(span.record.ids, span.record.flags, span.record.trace_state)
            elif metrics is not None or span.is_recording():
                self._end(call, span, code, exception, error, end_ns, metrics)
        except:  # noqa: E722 - as guarded() does; this is every message's
            note_failure("ConsumeHook.after")

    def _end(  # noqa: PLR0913, PLR0917 - the parts of an end
        self,
        call: ProcessSpan,
        span: Any,
        code: ContextCode,
        exception: BaseException | None,
        error: str | None,
        end_ns: int,
        metrics: MessagingMetrics | None,
    ) -> None:
        if exception is not None and code is ContextCode.SUCCESS:  # the default
            code = ContextCode.EXCEPTION
        was_failed = is_failed(span)
        outcome = self._outcome(call, code_of(code), end_ns, was_failed=was_failed)
        attributes = outcome_attributes(call.start_ns, end_ns, call.messages, outcome)
        is_success = attributes[semconv.MQTRACE_SUCCESS]
        if not is_success:
            attributes[semconv.ERROR_TYPE] = error or _error_type(span, outcome, exception)
        try:
            if not is_success and not (was_failed and exception is None):
                record_failure(span, None if exception is None else text_of(exception), exception)
        finally:
            self._tracing.end_span(span, end_ns, attributes)
        opening = call.attributes
        call.release_span()
        if metrics is not None:
            metrics.processed({**opening, **attributes}, end_ns - call.start_ns)

    def _outcome(self, call: ProcessSpan, code: ContextCode, end_ns: int, *, was_failed: bool) -> ContextCode:
        if code is ContextCode.SUCCESS:
            code = call.handling.code
        if code is not ContextCode.SUCCESS:
            return code
        if was_failed:
            return ContextCode.FAILED
        is_late = (end_ns - call.start_ns) >= self._timeout_ns
        return ContextCode.TIME_OUT if is_late else code


def _read_parent(headers: BatchHeaders) -> tuple[bytes | None, int] | None:
    """Return ids and flags of the parent, which one message alone has; ``None`` where the propagator has to read it."""
    if len(headers) > 1:
        return None, 0
    by_name = index_headers(headers[0] or ())
    if not BESIDE.isdisjoint(by_name):
        return None
    header = by_name.get(TRACEPARENT)
    return (None, 0) if header is None else read_traceparent(header)


def _carried_beside(by_name: HeaderIndex) -> tuple[Context, trace.TraceState | None]:
    """Return what travelled with a message beside its trace: what lies behind its span, and the trace state."""
    if BESIDE.isdisjoint(by_name):
        return _NO_CONTEXT, None
    process_ctx = propagator_in_force().extract(by_name, _NO_CONTEXT)
    return process_ctx, trace.get_current_span(process_ctx).get_span_context().trace_state


def _error_type(span: Any, outcome: ContextCode, exception: BaseException | None) -> str:
    """Return the class of the exception, what the application set itself, or RocketMQ's word for the outcome."""
    if exception is not None:
        return type(exception).__qualname__
    written = (getattr(span, "attributes", None) or {}).get(semconv.ERROR_TYPE)
    return written if isinstance(written, str) else outcome.name
