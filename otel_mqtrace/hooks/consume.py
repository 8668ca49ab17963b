"""Record the handling of received messages, and the polls that returned them.

The hook for a client of your own, as RocketMQ's ``ConsumeMessageHook``::

    hook = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000")
    for call in hook.before([IncomingMessage(topic="orders", partition=0, offset=7, headers=headers)]):
        handle(...)
        hook.after(call)                              # or hook.after(call, code=ContextCode.FAILED)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link

from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.guard import guarded, note_failure
from otel_mqtrace.hooks.outcome import (
    Handling,
    SingleEnd,
    code_of,
    deferred_ends,
    drain_deferred_ends,
    is_failed,
    process_generation,
    record_failure,
    text_of,
)
from otel_mqtrace.hooks.propagation import BESIDE, SPECIAL_HEADERS, TRACEPARENT, index_headers, propagator_in_force
from otel_mqtrace.hooks.receive import ReceiveHook
from otel_mqtrace.hooks.sampling import is_never_recorded
from otel_mqtrace.hooks.scope import (
    ambient_context,
    current_context,
    processing_context,
    release_span,
)
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
from otel_mqtrace.model import ContextCode, MessageType, TraceType
from otel_mqtrace.records.batch import BatchSpan, HandledBatch
from otel_mqtrace.records.event import EventSpan
from otel_mqtrace.records.handled import DESCRIBING, Handled, HandledSpan
from otel_mqtrace.records.ids import read_origin
from otel_mqtrace.records.plan import Plan
from otel_mqtrace.records.span import UnsampledSpan, WritableRecordSpan
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes, cost_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.trace import Span, SpanContext

    from otel_mqtrace.hooks.metrics import MessagingMetrics
    from otel_mqtrace.hooks.propagation import Header, HeaderIndex, PropagatorInForce
    from otel_mqtrace.hooks.sampling import TracerState
    from otel_mqtrace.records.batch import BatchRow
    from otel_mqtrace.records.handled import MessageRow
    from otel_mqtrace.records.ids import IdPool
    from otel_mqtrace.records.plan import LeaderSource

__all__ = ["ConsumeHook", "EndedIds", "IncomingMessage", "ProcessSpan", "ended_span"]

_PROCESS: Final = OPERATIONS[TraceType.SUB_BEFORE]
_NS_PER_MS: Final = 1_000_000
_SAMPLED, _DROP = Decision.RECORD_AND_SAMPLE, Decision.DROP
_NO_CONTEXT: Final = Context()
_MAX_PLANS: Final = 1_024
_MAX_NAMES: Final = 256
_READ: Final = DESCRIBING | {TRACEPARENT, semconv.HEADER_UNIQ_KEY}
"""Headers that a record has a field for."""
_get_propagator: Final = propagate.get_global_textmap

EndedIds = bytes
"""What is kept of a message whose recorded handling has ended: 24 bytes of ids and one of flags."""
_ONE_BYTE: Final = tuple(bytes((flags,)) for flags in range(4))


@dataclass(slots=True)
class ProcessSpan(SingleEnd):
    """The handling of one or several messages.

    ``previous_ctx`` was current before, ``process_ctx`` lies behind the span while the messages are handled;
    ``indexes`` are the positions of the messages among those given to :meth:`ConsumeHook.before`.
    """

    span: Span
    process_ctx: Context
    messages: int
    start_ns: int
    attributes: Attributes
    previous_ctx: Context
    indexes: tuple[int, ...] = (0,)
    _handling: Handling | None = field(default=None, init=False, repr=False, compare=False)
    _current: Context | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def handling(self) -> Handling:
        """What ``process.current()`` returns while the messages are handled."""
        if self._handling is None:
            self._handling = Handling(self.span)
        return self._handling

    @property
    def otel_ctx(self) -> Context:
        """The context to be current while the messages are handled."""
        if self._current is None:
            self._current = processing_context(self.process_ctx, self.handling)  # self: a reference cycle
        return self._current

    @property
    def ended_ids(self) -> EndedIds | None:
        """What to keep of a recorded handling once it has ended; ``None`` where the span is no record's."""
        span = self.span
        if type(span) is not HandledSpan:
            return None
        record = span.record
        return record.ids + _ONE_BYTE[record.flags]

    def release_span(self) -> None:
        """Keep only the ids of the ended span: this object may be remembered for long.

        An SDK span with its attributes and links is four fifths of it; the previous context may hold one too.
        """
        self.span = ended = trace.NonRecordingSpan(self.span.get_span_context())
        if self._handling is not None:
            self._handling.span = ended
        if self._current is not None:
            release_span(self._current, ended)
        self.attributes = {}
        if self.previous_ctx:
            outside = trace.get_current_span(self.previous_ctx).get_span_context()
            self.previous_ctx = trace.set_span_in_context(trace.NonRecordingSpan(outside), self.previous_ctx)


def ended_span(ids: EndedIds) -> ProcessSpan:
    """Return a handling that is over and of which only the ids are known."""
    call = ProcessSpan(UnsampledSpan(ids[:24], ids[24]), _NO_CONTEXT, 1, 0, {}, _NO_CONTEXT)
    call.try_end()
    return call


class ConsumeHook(ReceiveHook):
    """``before`` opens ``process T`` CONSUMER spans, ``after`` ends one. Neither ever raises.

    A client that polls reports each poll once it is over: ``received``, ``empty`` or ``poll_failed``.
    """

    def __init__(  # noqa: PLR0913 - the public hook: who the client is, each fact by its name
        self,
        *,
        system: str = "kafka",
        group_name: str | None = None,
        client_id: str | None = None,
        servers: str | None = None,
        tracing: Tracing | None = None,
        info: ClientInfo | None = None,
    ) -> None:
        tracing = tracing or Tracing.create()
        settings = tracing.settings
        info = info or ClientInfo.named(system, group_name=group_name, client_id=client_id, servers=servers)
        super().__init__(tracing, info)
        self._constant: Attributes = {
            **info.attributes(),
            **tracing.operation(TraceType.SUB_BEFORE, info.group_name),
        }
        self._server = info.server
        self._mode = settings.process_context
        self._may_record = (
            tracing.consume_hook is None and tracing.allows_records and self._mode == "auto" and not info.is_rocketmq
        )
        self._retry_header = settings.retry_header
        self._timeout_ns = settings.process_timeout_ms * _NS_PER_MS
        self._state: TracerState | None = None
        self._plans: dict[str, Plan] = {}
        self._plain_names: frozenset[str] = _READ

    def now_ns(self) -> int:
        """Return the wall clock of this hook: nanoseconds of the epoch."""
        return self._tracing.clock.wall_ns()

    # -- handling, recorded without a span ---------------------------------------------------------------------------
    def _current_state(self) -> TracerState | None:
        """Return the tracer's state as it is now; ``None`` where :meth:`before` must open a span."""
        self._state = None
        if self._may_record:
            state = self._tracing.tracer_state()
            self._state = state if state.can_drop else None
        return self._state

    def record(  # noqa: C901, PLR0912 - every poll's: in one call
        self, topic: str, row: MessageRow, headers: Sequence[Header], leaders: LeaderSource | None
    ) -> ProcessSpan | None:
        """Record that one ordinary message was handed over; ``None`` where :meth:`before` must open a span."""
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
        if None in by_name.values():
            by_name = index_headers(headers)
        process_ctx, trace_state = _NO_CONTEXT, None
        if plan is None or not (by_name.keys() <= self._plain_names or self._has_fields_for(by_name)):
            return None
        if not BESIDE.isdisjoint(by_name):
            process_ctx = propagator_in_force().extract(by_name, _NO_CONTEXT)
            trace_state = trace.get_current_span(process_ctx).get_span_context().trace_state
        read = read_origin(by_name)
        if read is None:
            return None
        origin, origin_flags = read
        decision = state.certain[0 if origin is None else 1 + (origin_flags & 1)]
        if decision is _DROP:
            return self._unsampled(state, read, process_ctx, trace_state)
        if decision is not _SAMPLED or not state.can_record:
            return None
        start_ns = self._tracing.clock.wall_ns()
        try:
            ids = state.sampled.pop()[0]
        except IndexError:
            ids = state.sampled.draw()[0]
        flags = state.root_flags
        if origin is not None:
            ids, flags = origin[:16] + ids[16:], (origin_flags & state.random_mask) + 1
        record = Handled(plan, ids, origin, flags, start_ns, *row, by_name, {}, origin_flags, trace_state)
        for processor in state.starts:
            processor.on_start(HandledSpan(record))  # type: ignore[arg-type]  # it only reads the span
        if not self._polls and (metrics := self._tracing.collecting) is not None:
            metrics.received(plan.constants, 1)
        return ProcessSpan(HandledSpan(record), process_ctx, 1, start_ns, plan.constants, _NO_CONTEXT)

    def record_batch(  # noqa: C901 - as record()
        self, topic: str, rows: Sequence[BatchRow], leaders: LeaderSource | None
    ) -> ProcessSpan | None:
        """Record that messages of one topic were handed over together; ``None`` as :meth:`record`."""
        if deferred_ends:
            drain_deferred_ends()
        state = self._current_state()
        if state is None or current_context() or len(rows) > self._tracing.links_per_span:
            return None
        plan = self._plans.get(topic)
        if plan is None or plan.state is not state:
            plan = self._plan(topic, state, leaders)
        read: tuple[bytes | None, int] | None = (None, 0)
        if len(rows) == 1:  # one message has a parent
            by_name = index_headers(rows[0][-1] or ())
            read = read_origin(by_name) if BESIDE.isdisjoint(by_name) else None
        if plan is None or read is None:
            return None
        origin, origin_flags = read
        decision = state.certain[0 if origin is None else 1 + (origin_flags & 1)]
        if decision is _DROP:
            return self._unsampled(state, read, _NO_CONTEXT, None, len(rows))
        if decision is not _SAMPLED or not state.can_record:
            return None
        start_ns = self._tracing.clock.wall_ns()
        ids, flags = _drawn(state.sampled), state.root_flags
        if origin is not None:
            ids, flags = origin[:16] + ids[16:], (origin_flags & state.random_mask) + 1
        record = HandledBatch(plan, ids, flags, start_ns, rows, {}, origin, origin_flags)
        for processor in state.starts:
            processor.on_start(BatchSpan(record))  # type: ignore[arg-type]  # as above
        if not self._polls and (metrics := self._tracing.collecting) is not None:
            metrics.received(plan.constants, len(rows))
        indexes = tuple(range(len(rows)))
        return ProcessSpan(BatchSpan(record), _NO_CONTEXT, len(rows), start_ns, plan.constants, _NO_CONTEXT, indexes)

    def _unsampled(
        self,
        state: TracerState,
        read: tuple[bytes | None, int],
        process_ctx: Context,
        trace_state: trace.TraceState | None,
        messages: int = 1,
    ) -> ProcessSpan | None:
        """Return the handling of messages that are not recorded; ``None`` where the metrics need it."""
        if self._tracing.collecting is not None:
            return None
        origin, origin_flags = read
        ids, flags = _drawn(state.unsampled), state.root_flags - 1
        if origin is not None:
            ids, flags = origin[:16] + ids[16:], origin_flags & state.random_mask
        span = UnsampledSpan(ids, flags, trace_state)
        return ProcessSpan(span, process_ctx, messages, 0, {}, _NO_CONTEXT, tuple(range(messages)))

    def _has_fields_for(self, by_name: HeaderIndex) -> bool:
        """Whether a record has fields for all that these headers tell of a message and its trace."""
        others = by_name.keys() - _READ - BESIDE
        if any(name.lower() in SPECIAL_HEADERS or name == self._retry_header for name in others):
            return False
        if len(self._plain_names) < _MAX_NAMES:
            self._plain_names |= others
        return True

    def _plan(self, topic: str, state: TracerState, leaders: LeaderSource | None) -> Plan | None:
        """Return the plan of ``topic`` for this state; ``None`` for a topic that is not traced."""
        tracing = self._tracing
        if tracing.is_excluded(topic):
            return None
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        message = self._reader.attributes(IncomingMessage(topic), {})
        message.pop(semconv.MQTRACE_STORE_HOST, None)
        plan = self._plans[topic] = Plan(
            topic,
            verb=_PROCESS.name,
            kind=_PROCESS.kind,
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
            make_attributes=self._record_attributes,
            make_batch=self._batch_attributes,
            new_id=tracing.new_id,
            retry_header=self._retry_header,
        )
        return plan

    def _record_attributes(self, span: HandledSpan) -> Attributes:
        """Return all attributes of a recorded message, as :meth:`before` and :meth:`after` set them."""
        record, end_ns = span.record, span.end_ns
        details = record.details
        message = IncomingMessage(
            record.plan.topic,
            record.partition,
            record.offset,
            record.key,
            record.body_length or 0,
            record.body_length is None,
            (),
            record.timestamp_ms,
            details.store_host,
            details.cluster_id,
        )
        attributes = {
            **self._reader.attributes(message, record.headers),
            **self._constant,
            semconv.MQTRACE_REQUEST_ID: details.request_id,
        }
        if end_ns is not None:
            attributes[semconv.MQTRACE_COST_TIME] = cost_ms(record.start_ns, end_ns)
            attributes[semconv.MQTRACE_SUCCESS] = True
            attributes[semconv.MQTRACE_CONTEXT_CODE] = ContextCode.SUCCESS.name
        return attributes

    def _batch_attributes(self, span: BatchSpan) -> tuple[Attributes, list[Link]]:
        """Return all attributes and links of recorded messages, as :meth:`before` and :meth:`after` set them."""
        record = span.record
        plan = record.plan
        messages = []
        for partition, offset, timestamp_ms, body_length, key, headers in record.rows:
            store_host, cluster_id = plan.facts_of(partition)
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
                    store_host,
                    cluster_id,
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
        """Open the spans of the messages of one poll; empty when nothing of it is traced now.

        One span per topic and per 128 messages (fewer where the SDK keeps fewer links), so that no link is dropped.
        ``batch`` tells that the client's call can return several messages, even when it returned one.
        """
        try:
            if deferred_ends:
                drain_deferred_ends()
            if len(messages) != 1:
                return self._open_each(messages, batch=batch)
            topic = messages[0].topic
            return [self._open(topic, messages, batch=batch)] if self._tracing.is_traced(topic) else []
        except Exception:  # noqa: BLE001 - as guarded() does
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
            process_ctx = _extract(propagator, index_headers(messages[0].headers), current_ctx)
            creation = trace.get_current_span(process_ctx).get_span_context()
        parent_ctx, parent, others = self._parent(creation, process_ctx, current_ctx)
        attributes: Attributes = {**self._constant, semconv.MESSAGING_DESTINATION_NAME: topic}
        links: Sequence[Link] = ()
        if not is_never_recorded(tracing.tracer, parent):  # else only the metrics read the attributes
            if batch:
                attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
            attributes[semconv.MQTRACE_REQUEST_ID] = tracing.new_id()
            attributes, links = self._attributes_and_links(
                messages,
                attributes,
                propagator,
                others,
                batch=batch,
                creation=creation,
                is_linked=self._mode != "parent",
            )
        if not self._polls and (metrics := tracing.collecting) is not None:
            metrics.received(attributes, len(messages))  # may fail: before a span is open
        start_ns = tracing.clock.wall_ns()
        span = tracing.start_span(
            _PROCESS, topic, context=parent_ctx, attributes=attributes, links=links, start_ns=start_ns
        )
        if tracing.consume_hook is not None and span.is_recording():
            tracing.call_consume_hook(span, messages)
        return ProcessSpan(span, process_ctx, len(messages), start_ns, attributes, current_ctx)

    def _parent(
        self, creation: SpanContext | None, extracted: Context, current_ctx: Context
    ) -> tuple[Context, SpanContext, Sequence[Link]]:
        """Choose the parent (the option ``process_context``); ``creation`` is that of a message which comes alone.

        Return the context to start in, the parent in it, and a link to the current span where it is not the parent.
        """
        mode = self._mode
        if not current_ctx and mode != "link" and creation is not None:
            return extracted, creation, ()
        here = trace.get_current_span(current_ctx).get_span_context()
        if mode == "link" or creation is None or (mode == "auto" and here.is_valid) or not creation.is_valid:
            return current_ctx, here, ()
        remote = trace.set_span_in_context(trace.NonRecordingSpan(creation), current_ctx)
        return remote, creation, (Link(here),) if here.is_valid else ()

    # -- the end -----------------------------------------------------------------------------------------------------
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

        A success slower than the limit becomes ``TIME_OUT``, as RocketMQ's does. A success gives way to what the
        handler said: by ``process.current()``, or by setting the status of the span to ERROR (``FAILED``). An unknown
        ``code`` becomes ``RETURNNULL``. ``error`` is its ``error.type``, by default the class of ``exception``.
        """
        try:
            if deferred_ends:
                drain_deferred_ends()
            try:
                call._unended.pop()  # noqa: SLF001 - try_end() without the call, for every message
            except IndexError:
                return
            span: Any = call.span
            metrics = self._poll_metrics if self._polls else self._tracing.collecting
            if call._began_in != process_generation() or (metrics is None and type(span) is UnsampledSpan):  # noqa: SLF001 - as above
                return
            end_ns = max(self._tracing.clock.wall_ns() if end_ns is None else end_ns, call.start_ns)
            if (
                isinstance(span, WritableRecordSpan)
                and type(span) is not EventSpan
                and (code is ContextCode.SUCCESS and exception is None and error is None)
                and (call._handling is None or call._handling.code is ContextCode.SUCCESS)  # noqa: SLF001 - as above
                and end_ns - call.start_ns < self._timeout_ns
                and span.end_as_record(end_ns)
            ):
                record: Any = span.record
                plan = record.plan
                plan.tracer.span_processor.on_end(span)
                if metrics is not None:
                    metrics.processed(plan.constants, end_ns - call.start_ns)
                if type(span) is BatchSpan:  # it may be remembered for long, and holds what its messages carried
                    call.span = UnsampledSpan(record.ids, record.flags)
            elif metrics is not None or span.is_recording():
                self._end(call, span, code, exception, error, end_ns, metrics)
        except Exception:  # noqa: BLE001 - as guarded() does; this is every message's
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
        was_failed = is_failed(span)
        outcome = self._outcome(
            call, code if type(code) is ContextCode else code_of(code), end_ns, was_failed=was_failed
        )
        is_success = outcome is ContextCode.SUCCESS or outcome is ContextCode.TIME_OUT
        attributes: Attributes = {
            semconv.MQTRACE_COST_TIME: cost_ms(call.start_ns, end_ns, call.messages),
            semconv.MQTRACE_SUCCESS: is_success,
            semconv.MQTRACE_CONTEXT_CODE: outcome.name,
        }
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


def _drawn(pool: IdPool) -> bytes:
    try:
        return pool.pop()[0]
    except IndexError:
        return pool.draw()[0]


def _extract(propagator: PropagatorInForce, by_name: HeaderIndex, current_ctx: Context) -> Context:
    """Return what travelled with one message on top of ``current_ctx``, without the current span."""
    extracted = trace.set_span_in_context(trace.INVALID_SPAN, current_ctx) if current_ctx else _NO_CONTEXT
    return propagator.extract(by_name, extracted) if by_name else extracted


def _error_type(span: Any, outcome: ContextCode, exception: BaseException | None) -> str:
    """Return the class of the exception, what the application set itself, or RocketMQ's word for the outcome."""
    if exception is not None:
        return type(exception).__qualname__
    written = (getattr(span, "attributes", None) or {}).get(semconv.ERROR_TYPE)
    return written if isinstance(written, str) else outcome.name
