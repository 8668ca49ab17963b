"""This module knows what is recorded of one listener call: the messages it was handed, and how it ended.

The manual door for any client, as RocketMQ's ``ConsumeMessageHook`` is::

    hook = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000")
    for call in hook.before([IncomingMessage(topic="orders", partition=0, offset=7, headers=headers)]):
        handle(...)
        hook.after(call)                              # or hook.after(call, code=ContextCode.FAILED)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link

from otel_mqtrace import semconv
from otel_mqtrace.hooks._calls import ProcessCall, RecordedCall, SilentCall
from otel_mqtrace.hooks._ending import Handling, code_of, is_failed, say_failure, text_of
from otel_mqtrace.hooks._guard import guarded, note_failure
from otel_mqtrace.hooks._headers import TELLING, indexed
from otel_mqtrace.hooks._left_behind import end_left_behind, left_behind
from otel_mqtrace.hooks._propagation import TRACEPARENT, origin_of, propagator_in_force
from otel_mqtrace.hooks._scope import ambient_context, current_context
from otel_mqtrace.hooks._unread import PlainLink, UnreadSpan
from otel_mqtrace.hooks.incoming import IncomingMessage, MessageReader, Reading
from otel_mqtrace.hooks.receive import ReceiveHook
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import ContextCode, MessageType, TraceType
from otel_mqtrace.records.handled import DESCRIBING, Handled, HandledSpan
from otel_mqtrace.records.plan import Plan
from otel_mqtrace.records.span import flags_of
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes, cost_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.trace import Span, SpanContext

    from otel_mqtrace.hooks._headers import Header, HeaderIndex
    from otel_mqtrace.hooks._propagation import PropagatorInForce
    from otel_mqtrace.hooks._start import Ground
    from otel_mqtrace.hooks.metrics import MessagingMetrics
    from otel_mqtrace.records.plan import LeaderSource

__all__ = ["ConsumeHook", "IncomingMessage", "ProcessCall"]

_PROCESS: Final = OPERATIONS[TraceType.SUB_BEFORE]
_NS_PER_MS: Final = 1_000_000
_SAMPLED: Final = Decision.RECORD_AND_SAMPLE
_NOTHING: Final = Context()
_MOST_PLANS: Final = 1_024
_MOST_NAMES: Final = 256
_READ: Final = DESCRIBING | {TRACEPARENT, semconv.HEADER_UNIQ_KEY}
"""Headers that a record has a place for."""


class ConsumeHook:
    """``before`` opens ``process T`` CONSUMER spans, ``after`` ends one. Neither ever raises.

    A client that polls tells of each poll as well, once it is over: ``received``, ``empty`` or ``poll_failed``.
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
        self._tracing = tracing or Tracing.create()
        facts = facts or ClientFacts.named(system, group_name=group_name, client_id=client_id, servers=servers)
        operation = self._tracing.operation(TraceType.SUB_BEFORE, facts.group_name)
        self._constant: Attributes = {**facts.attributes(), **operation}
        self._reader = MessageReader(self._tracing, facts)
        self._receive = ReceiveHook(self._tracing, facts, self._reader)
        self._polls = False
        self._asks_at_polls = False
        self._metrics: MessagingMetrics | None = None
        self._mode = self._tracing.settings.process_context
        # The application's hook may change a message, and headers are captured as they are now.
        self._reads_later = self._tracing.consume_hook is None and self._tracing.capture is None
        self._records = self._reads_later and self._mode == "auto" and self._tracing.allows_records
        self._retry_header = self._tracing.settings.retry_header
        self._server = facts.server
        self._plans: dict[str, Plan] = {}
        self._plain_names: frozenset[str] = _READ
        self._opens_later = self._reads_later and self._tracing.sampling is None
        self._timeout_ns = self._tracing.settings.process_timeout_ms * _NS_PER_MS

    def now_ns(self) -> int:
        """Return the wall clock of this hook: nanoseconds of the epoch."""
        return self._tracing.clock.wall_ns()

    @property
    def asks_nothing(self) -> bool:
        """Whether nobody will look at what a message says, only at its place and its headers."""
        metrics = self._metrics if self._asks_at_polls else self._tracing.collecting
        return metrics is None and self._tracing.starting.records_nothing

    def poll_begins(self) -> int | None:
        """Return when the poll that begins now did, to be told with its end; ``None`` while nobody listens to polls."""
        self._polls = self._asks_at_polls = True
        metrics = self._metrics = self._tracing.collecting
        return self._tracing.clock.wall_ns() if metrics is not None or self._receive.records else None

    def received(self, messages: Sequence[IncomingMessage], *, start_ns: int | None, batch: bool = False) -> None:
        """Count the messages a poll returned and, when asked for by ``receive_spans``, record the poll as a span.

        ``start_ns`` is when it was called (:meth:`poll_begins`). From then on messages count when they are received;
        those of a client that never polls count when their processing begins.
        """
        self._polls = True
        if start_ns is None:
            return
        if left_behind:
            end_left_behind()
        self._receive.received(messages, start_ns=start_ns, batch=batch)

    def count_received(self, topic: str, start_ns: int) -> None:
        """Count one message of a poll that began at ``start_ns``, of which no span is asked for."""
        self._receive.count(topic, start_ns)

    @property
    def records_polls(self) -> bool:
        """Whether each poll is to be a span, by ``receive_spans``."""
        return self._receive.records

    def empty(self, *, start_ns: int | None, batch: bool = False) -> None:
        """Record a poll that returned nothing, when asked for by ``receive_spans`` and ``empty_poll_spans``."""
        if start_ns is not None:
            self._receive.empty(start_ns=start_ns, batch=batch)

    def poll_failed(
        self,
        *,
        start_ns: int | None,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
        batch: bool = False,
    ) -> None:
        """Record a poll that raised, or whose answer is an error; ``error`` is its ``error.type``.

        The end of a partition is no error.
        """
        if start_ns is not None:
            self._receive.failed(
                start_ns=start_ns, error=error, description=description, exception=exception, batch=batch
            )

    def before(
        self,
        messages: Sequence[IncomingMessage],
        *,
        batch: bool = False,
        unchanging: bool = False,
        silent: bool = False,
    ) -> list[ProcessCall]:
        """Open the spans for what one poll returned; empty when nothing of it is traced now.

        One span per topic and per 128 messages (fewer when the SDK keeps fewer links), so that no link is dropped.
        ``batch`` says that the client's call can return several messages, even when it returned one. ``unchanging``
        says that the messages are nobody else's: what they say is then put together when the span is read. ``silent``
        says that :attr:`asks_nothing` and ``unchanging`` are true: the call of one message may then be opened when
        somebody looks; what several say is asked before this returns, or never.
        """
        try:
            if left_behind:
                end_left_behind()
            if len(messages) != 1:
                return self._open_each(messages, batch=batch, unchanging=unchanging and not silent)
            topic = messages[0].topic
            if silent and self._opens_later and propagator_in_force().is_default:
                return self._silent(topic, messages)
            if not self._tracing.traces(topic):
                return []
            return [self._open(topic, messages, batch=batch, unchanging=unchanging)]
        except Exception:  # noqa: BLE001 - as guarded() does; this is every poll's
            note_failure("ConsumeHook.before")
            return []

    def ground_of_records(self) -> Ground | None:
        """Return what a record can start from here and now; ``None`` where :meth:`before` must open a span."""
        if not self._records or current_context():
            return None
        return self._tracing.ground_of_records()

    def record(  # noqa: PLR0913, PLR0917 - every poll's: no keywords
        self,
        ground: Ground,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        body_length: int | None,
        headers: Sequence[Header],
        timestamp_ms: int | None,
        leaders: LeaderSource | None,
    ) -> RecordedCall | None:
        """Record that one ordinary message was handed over; ``None`` where :meth:`before` must open a span.

        ``ground`` is what :meth:`ground_of_records` returned; ``body_length`` is ``None`` for a tombstone.
        """
        if left_behind:
            end_left_behind()
        plan = self._plans.get(topic)
        if plan is None or plan.ground is not ground:
            plan = self._plan(topic, ground, leaders)
            if plan is None:
                return None
        found = indexed(headers)
        if not (found.keys() <= self._plain_names or self._has_place_for(found)):
            return None
        read = origin_of(found)
        if read is None:
            return None
        origin, origin_flags = read
        if ground.certain[0 if origin is None else 1 + (origin_flags & 1)] is not _SAMPLED:
            return None
        start_ns = self._tracing.clock.wall_ns()
        ids, flags = ground.draw().raw, ground.root_flags
        if origin is not None:
            ids = origin[:16] + ids[16:]
            flags = (origin_flags & ground.random_mask) + 1
        record = Handled(
            plan,
            ids,
            origin,
            flags,
            start_ns,
            partition,
            offset,
            timestamp_ms,
            body_length,
            key,
            found,
            {},
            origin_flags,
        )
        for processor in ground.told:
            processor.on_deferred_start(HandledSpan(record, None))
        return RecordedCall(self._open_record, record, _NOTHING)

    def _has_place_for(self, found: HeaderIndex) -> bool:
        """Whether a record has a place for all that these headers say of a message and its trace."""
        others = found.keys() - _READ
        if any(name.lower() in TELLING or name == self._retry_header for name in others):
            return False
        if len(self._plain_names) < _MOST_NAMES:
            self._plain_names |= others
        return True

    def _plan(self, topic: str, ground: Ground, leaders: LeaderSource | None) -> Plan | None:
        """Return the plan of ``topic`` on this ground; ``None`` where it is not traced."""
        tracing = self._tracing
        if tracing.excludes(topic):
            return None
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        message = self._reader.attributes(IncomingMessage(topic), {})
        message.pop(semconv.MQTRACE_STORE_HOST, None)
        plan = self._plans[topic] = Plan(
            topic,
            verb=_PROCESS.name,
            kind=_PROCESS.kind,
            ground=ground,
            constants={**self._constant, **message},
            native={
                "msg_type": MessageType.NORMAL,
                "retry_times": 0,
                "success": True,
                "context_code": ContextCode.SUCCESS,
            },
            leaders=leaders,
            server=self._server,
            make_attributes=self._attributes_of,
            new_id=tracing.new_id,
        )
        return plan

    def _attributes_of(self, span: HandledSpan) -> tuple[Attributes, list[Link]]:
        """Return attributes and links of a recorded call, as :meth:`before` and :meth:`after` put them together."""
        record, end_ns = span.record, span.end_ns
        attributes, links = self._reading_of(record)()
        if end_ns is not None:
            attributes = {
                **attributes,
                semconv.MQTRACE_COST_TIME: cost_ms(record.start_ns, end_ns),
                semconv.MQTRACE_SUCCESS: True,
                semconv.MQTRACE_CONTEXT_CODE: ContextCode.SUCCESS.name,
            }
        return attributes, [Link(each.context, each.attributes or {}) for each in links]

    def _reading_of(self, record: Handled) -> Reading:
        _, store_host, cluster_id, request_id, *_ = record.details
        topic = record.plan.topic
        message = IncomingMessage(
            topic,
            record.partition,
            record.offset,
            record.key,
            record.body_length or 0,
            record.body_length is None,
            tuple(record.found.items()),
            record.timestamp_ms,
            store_host,
            cluster_id,
        )
        constant: Attributes = {
            **self._constant,
            semconv.MESSAGING_DESTINATION_NAME: topic,
            semconv.MQTRACE_REQUEST_ID: request_id,
        }
        creation = record.parent or trace.INVALID_SPAN_CONTEXT
        return Reading(self._reader, (message,), propagator_in_force(), constant, (), batch=False, creation=creation)

    def _open_record(self, record: Handled, ambient: Context) -> ProcessCall:
        """Return the call that :meth:`before` would have opened."""
        plan, ids = record.plan, record.ids
        trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big")
        span_ctx = trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags_of(record.flags))
        reading = self._reading_of(record)
        own = (plan.tracer, plan.ground.processors, plan.tracer.resource)
        given = (*own, plan.name, span_ctx, record.parent, plan.kind, reading.constant, (), reading, record.start_ns)
        span = UnreadSpan(given)
        return ProcessCall(span, _NOTHING, 1, record.start_ns, reading.constant, ambient, handling=Handling(span))

    def end_record(self, call: RecordedCall, end_ns: int | None = None) -> bool:
        """Whether ``call`` could end, with success, as the record it is; :meth:`after` ends any other."""
        record = call.record
        start_ns = record.start_ns
        end_ns = max(self._tracing.clock.wall_ns() if end_ns is None else end_ns, start_ns)
        if end_ns - start_ns >= self._timeout_ns or not call.end_as_record(end_ns):
            return False
        record.plan.tracer.span_processor.on_end(HandledSpan(record, end_ns))
        metrics = self._metrics if self._asks_at_polls else self._tracing.collecting
        if metrics is not None:
            metrics.processed(record.plan.constants, end_ns - start_ns)
        return True

    def _open_each(self, messages: Sequence[IncomingMessage], *, batch: bool, unchanging: bool) -> list[ProcessCall]:
        """What fails for one topic costs no other's."""
        open_one = guarded("ConsumeHook.open")(self._open)
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(index)
        size = self._tracing.links_per_span
        calls = []
        for topic in filter(self._tracing.traces, by_topic):
            for start in range(0, len(by_topic[topic]), size):
                indexes = tuple(by_topic[topic][start : start + size])
                call = open_one(topic, [messages[index] for index in indexes], batch=batch, unchanging=unchanging)
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
        error: str | None = None,
        end_ns: int | None = None,
    ) -> None:
        """End the span of ``call``, once, now or at ``end_ns`` where its end comes to light late.

        A success slower than the limit says ``TIME_OUT``, as RocketMQ's does. A success gives way to what the handler
        said itself: by ``process.current()``, or by setting the status of the span to ERROR, which says ``FAILED``.
        A ``code`` that is none reads ``RETURNNULL``. ``error`` is its ``error.type``, the class of ``exception`` unless
        said.
        """
        if left_behind:
            end_left_behind()
        is_plain = code is ContextCode.SUCCESS and exception is None and error is None
        if is_plain and type(call) is RecordedCall and self.end_record(call, end_ns):
            return
        if call.is_silent or not call.claim():
            return
        metrics = self._metrics if self._asks_at_polls else self._tracing.collecting
        span = call.span
        if metrics is None and not span.is_recording():
            return
        end_ns = max(self._tracing.clock.wall_ns() if end_ns is None else end_ns, call.start_ns)
        failed_already = is_failed(span)
        said = self._said(call, code if type(code) is ContextCode else code_of(code), end_ns, failed=failed_already)
        success = said is ContextCode.SUCCESS or said is ContextCode.TIME_OUT
        attributes: Attributes = {
            semconv.MQTRACE_COST_TIME: cost_ms(call.start_ns, end_ns, call.messages),
            semconv.MQTRACE_SUCCESS: success,
            semconv.MQTRACE_CONTEXT_CODE: said.name,
        }
        if not success:
            attributes[semconv.ERROR_TYPE] = error or _error_type(span, said, exception)
        try:
            self._tracing.say(span, attributes)
            if not success and not (failed_already and exception is None):
                say_failure(span, None if exception is None else text_of(exception), exception)
        finally:
            span.end(end_ns)
        opened_with = call.attributes
        call.keep_ids()
        if metrics is not None:
            metrics.processed({**opened_with, **attributes}, end_ns - call.start_ns)

    def _said(self, call: ProcessCall, code: ContextCode, end_ns: int, *, failed: bool) -> ContextCode:
        if code is ContextCode.SUCCESS:
            code = call.handling.code
        if code is not ContextCode.SUCCESS:
            return code
        if failed:
            return ContextCode.FAILED
        late = (end_ns - call.start_ns) >= self._timeout_ns
        return ContextCode.TIME_OUT if late else code

    def _silent(self, topic: str, messages: Sequence[IncomingMessage]) -> list[ProcessCall]:
        tracing, current = self._tracing, context.get_current()
        if tracing.excludes(topic) or (current and not is_instrumentation_enabled()):
            return []
        tracing.before_span()  # late attachment must not wait for a thread that looks
        return [SilentCall(self._opened, messages, current and ambient_context())]

    def _opened(self, messages: Sequence[IncomingMessage], ambient: Context) -> ProcessCall:
        self._tracing.starting.ground()  # a look, for what is decided now is the parent of what the handler sends
        return self._open(messages[0].topic, messages, batch=False, unchanging=True, within=ambient)

    def _open(
        self,
        topic: str,
        messages: Sequence[IncomingMessage],
        *,
        batch: bool,
        unchanging: bool,
        within: Context | None = None,
    ) -> ProcessCall:
        """Open the span of one call; ``within`` is what was current where a silent one began, which stays silent."""
        tracing = self._tracing
        ambient = ambient_context() if within is None else within
        # What else was propagated, baggage, lies behind the span of one message; several have no common one.
        alone = len(messages) == 1
        propagator = propagator_in_force()
        creation, base, above = None, ambient, None
        if alone:
            found = indexed(messages[0].headers)
            above = None if ambient or self._mode == "link" else propagator.plain(found)
            creation, base = (above, _NOTHING) if above is not None else _extracted(propagator, found, ambient)
        parent, span_ctx, others = (base, above, ()) if above is not None else self._parent(creation, base, ambient)
        attributes: Attributes = {**self._constant, semconv.MESSAGING_DESTINATION_NAME: topic}
        reading = None
        if not tracing.starting.never_records(span_ctx):  # else what is left is for the metrics; nobody looks at it
            if batch:
                attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
            linked = self._mode != "parent"
            new_id = tracing.new_id
            reading = Reading(self._reader, messages, propagator, attributes, others, batch, linked, creation, new_id)
            if not (unchanging and propagator.is_default and self._reads_later):
                reading()
        if not self._polls and (metrics := tracing.collecting) is not None:
            metrics.received(attributes, len(messages))  # what may fail comes first: a span that is open has to end
        start_ns = tracing.clock.wall_ns()
        if within is not None and reading is not None:  # what records by now began too late: nobody would end it
            span: Span = trace.NonRecordingSpan(span_ctx)
        else:
            span = tracing.open(
                _PROCESS, topic, context=parent, attributes=attributes, start_ns=start_ns, later=reading, above=above
            )
        if tracing.consume_hook is not None and span.is_recording():
            tracing.told_of_messages(span, messages)
        return ProcessCall(span, base, len(messages), start_ns, attributes, ambient, handling=Handling(span))

    def _parent(
        self, creation: SpanContext | None, extracted: Context, ambient: Context
    ) -> tuple[Context, SpanContext, Sequence[PlainLink]]:
        """Choose the parent (the option ``process_context``); ``creation`` is that of a message which comes alone.

        Returned are the context to start in, the parent in it, and a link to the span that is current here, if that
        had to stand back.
        """
        mode = self._mode
        if not ambient and mode != "link" and creation is not None:
            return extracted, creation, []  # nothing is current, so nothing has to be joined with it
        here = trace.get_current_span(ambient).get_span_context()
        if mode == "link" or creation is None or (mode == "auto" and here.is_valid) or not creation.is_valid:
            return ambient, here, []
        remote = trace.set_span_in_context(trace.NonRecordingSpan(creation), ambient)
        return remote, creation, [PlainLink(here)] if here.is_valid else []


def _extracted(propagator: PropagatorInForce, found: HeaderIndex, ambient: Context) -> tuple[SpanContext, Context]:
    """Return what one message was created in, and what travelled with it on top of ``ambient``."""
    extracted = trace.set_span_in_context(trace.INVALID_SPAN, ambient) if ambient else _NOTHING
    if not found:
        return trace.INVALID_SPAN_CONTEXT, extracted
    extracted = propagator.extracted(found, extracted)
    return trace.get_current_span(extracted).get_span_context(), extracted


def _error_type(span: Span, said: ContextCode, exception: BaseException | None) -> str:
    """Return the class of the exception, what the application itself wrote, or RocketMQ's word for the outcome."""
    if exception is not None:
        return type(exception).__qualname__
    written = (getattr(span, "attributes", None) or {}).get(semconv.ERROR_TYPE)
    return written if isinstance(written, str) else said.name
