"""What every hook shares: the tracer, the clock, the settings, who the client is, and the plans of its records."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import Meter, MeterProvider, NoOpCounter, get_meter
from opentelemetry.sdk.trace.sampling import Decision

from otel_mqtrace import semconv
from otel_mqtrace._clock import Clock, SystemClock
from otel_mqtrace.client_properties import servers_of
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.attributes import HeaderCapture, LegacyNames
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.metrics import MessagingMetrics
from otel_mqtrace.hooks.sampling import MAX_TOPICS, TopicSampling, TracerState, actual_tracer, max_links
from otel_mqtrace.message_id import new_unique_id, own_address
from otel_mqtrace.model import TraceContext, TraceType
from otel_mqtrace.records.span import Event, EventSpan, SpanShape
from otel_mqtrace.spans.mapping import Attributes, Operation, context_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context

    from otel_mqtrace.records.message import Header
    from otel_mqtrace.records.plan import LeaderSource, Plan


_MAX_LINKS: Final = 128
_NEXT_ADDRESS: Final = re.compile(r",(?=\s*[\w.+-]+://)")
_AFTER_HOST: Final = re.compile("[/?#]")


@dataclass(slots=True, kw_only=True, eq=False)
class Tracing:
    """The collaborators of all hooks. ``before_span`` is called before every span (late attachment).

    ``writes_trace_headers`` is off where another instrumentation writes them already. ``produce_hook(span, call)`` and
    ``consume_hook(span, messages)`` are the application's own, called with each recording span once it is open; their
    exceptions are counted and swallowed. ``naming`` are older names, ``capture`` and ``sampling`` the configured
    headers and topics, or ``None``.
    """

    tracer: trace.Tracer
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=SystemClock)
    metrics: MessagingMetrics | None = None
    meter: Meter | None = None
    new_id: Callable[[], str] = new_unique_id
    before_span: Callable[[], None] = lambda: None
    writes_trace_headers: bool = True
    produce_hook: Callable[..., None] | None = None
    consume_hook: Callable[..., None] | None = None
    naming: LegacyNames | None = None
    capture: HeaderCapture | None = field(init=False)
    sampling: TopicSampling | None = field(init=False)
    is_excluded: Callable[[str], bool] = field(init=False)
    _state: TracerState | None = field(init=False, repr=False, default=None)
    _shapes: dict[tuple[str, trace.SpanKind], SpanShape] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Read from the settings what every message needs."""
        settings, headers = self.settings, self.settings.capture_headers
        self.capture = HeaderCapture(headers, settings.redact_headers) if headers else None
        self.sampling = TopicSampling(settings) if settings.topic_sampling else None
        self.is_excluded = lru_cache(maxsize=MAX_TOPICS)(settings.excludes)

    @classmethod
    def create(
        cls,
        *,
        settings: Settings | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **collaborators: Any,
    ) -> Tracing:
        """Return a Tracing on the given providers, the global ones by default, and the environment's settings."""
        tracer = trace.get_tracer(semconv.SCOPE, tracer_provider=tracer_provider, schema_url=semconv.SCHEMA_URL)
        meter = get_meter(semconv.SCOPE, meter_provider=meter_provider, schema_url=semconv.SCHEMA_URL)
        return cls(
            tracer=tracer,
            settings=(settings or Settings.from_env()).without_secrets(),
            metrics=MessagingMetrics(meter),
            meter=meter,
            **{"naming": LegacyNames.from_env(), **collaborators},
        )

    @property
    def collecting(self) -> MessagingMetrics | None:
        """The metrics, where a MeterProvider collects them now."""
        metrics = self.metrics
        instrument = None if metrics is None else metrics.find_instrument()
        return None if instrument is None or type(instrument) is NoOpCounter else metrics

    def tracer_state(self) -> TracerState:
        """Return the state of the tracer as it is now, after a late attachment."""
        self.before_span()
        tracer = actual_tracer(self.tracer)
        state = self._state
        if state is None or state.tracer is not tracer or not state.is_current():
            self._state = state = TracerState(tracer)
        return state

    @property
    def allows_records(self) -> bool:
        """Return whether no setting needs a span while it is open."""
        return self.sampling is None and self.naming is None and self.capture is None

    @property
    def links_per_span(self) -> int:
        """How many messages one span can name: 128, fewer if its provider (which may come late) keeps fewer links."""
        limit = max_links(self.tracer)
        return _MAX_LINKS if limit is None else max(1, min(_MAX_LINKS, limit))

    def operation(self, trace_type: TraceType, group_name: str | None, **outcome: Any) -> Attributes:
        """Return the attributes of an operation of ``group_name``; ``outcome`` are further TraceContext fields."""
        settings = self.settings
        trace_ctx = TraceContext(
            trace_type=trace_type,
            region_id=settings.region_id,
            region_name=settings.region_name,
            group_name=group_name,
            **outcome,
        )
        return context_attributes(trace_ctx)

    def producer_operation(self, trace_type: TraceType, info: ClientInfo, **outcome: Any) -> Attributes:
        """Return the same for an operation of a producer, whose group may be a setting."""
        return self.operation(trace_type, self.settings.group_name or info.group_name, **outcome)

    def start_span(  # noqa: PLR0913 - the parts of a span, by their names
        self,
        operation: Operation,
        topic: str | None,
        *,
        context: Context,
        attributes: Attributes,
        start_ns: int,
        links: Sequence[trace.Link] = (),
        kind: trace.SpanKind | None = None,
    ) -> trace.Span:
        """Start the span of one operation; ``start_ns`` is nanoseconds of the epoch.

        ``attributes`` and those of the links have their names of today; ``kind`` is the operation's own by default.
        """
        self.before_span()
        tracer, naming = self.tracer, self.naming
        name, kind = operation.span_name(topic), kind or operation.kind
        if self.sampling is not None and topic is not None:
            unsampled, tracer = self.sampling.decide(topic, context, tracer)
            if unsampled is not None:
                return unsampled
        if self.allows_records:
            state, parent = self.tracer_state(), trace.get_current_span(context).get_span_context()
            decision, flags = state.decision_under(parent)
            if decision is Decision.RECORD_AND_SAMPLE:
                shape = self._shape(state.tracer, name, kind)
                return _record_event(state, shape, parent, flags, start_ns, attributes, links)
        if naming is not None:
            name = naming.span_name(operation, topic)
            attributes, links = naming.attributes(attributes), naming.links(links)
        return tracer.start_span(name, context, kind, attributes, links, start_ns)

    def end_span(self, span: trace.Span, end_ns: int, attributes: Attributes) -> None:
        """End the span of one operation, with what was learned since its start."""
        if type(span) is EventSpan and span.end_with(attributes, end_ns):
            span.record.plan.tracer.span_processor.on_end(span)
            return
        try:
            self.set_attributes(span, attributes)
        finally:
            span.end(end_ns)

    def _shape(self, tracer: Any, name: str, kind: trace.SpanKind) -> SpanShape:
        shapes = self._shapes
        shape = shapes.get((name, kind))
        if shape is None or shape.tracer is not tracer:
            if len(shapes) >= MAX_TOPICS:
                shapes.clear()
            shape = shapes[name, kind] = SpanShape(tracer, name, kind)
        return shape

    def set_attributes(self, span: trace.Span, attributes: Attributes) -> None:
        """Set attributes known only after the start, under the requested names."""
        span.set_attributes(attributes if self.naming is None else self.naming.attributes(attributes))

    @guarded("Tracing.set_captured_headers")
    def set_captured_headers(self, span: trace.Span, headers: Sequence[Header]) -> None:
        """Set the headers that the settings capture; a value that cannot be printed costs no more than these."""
        if self.capture is not None:
            self.set_attributes(span, self.capture.attributes(headers))

    @guarded("produce_hook")
    def call_produce_hook(self, span: trace.Span, call: object) -> None:
        """Call the application's ``produce_hook``, if it has one, with a recording span."""
        if self.produce_hook is not None:
            self.produce_hook(span, call)

    @guarded("consume_hook")
    def call_consume_hook(self, span: trace.Span, messages: Sequence[object]) -> None:
        """Call the application's ``consume_hook``, if it has one, with a recording span."""
        if self.consume_hook is not None:
            self.consume_hook(span, messages)

    def is_traced(self, topic: str) -> bool:
        """Return whether messages of ``topic`` are traced here and now: not excluded, and tracing not suppressed."""
        # an empty context suppresses nothing
        return not self.is_excluded(topic) and (not get_current() or is_instrumentation_enabled())


def _record_event(  # noqa: PLR0913, PLR0917 - the parts of an event
    state: TracerState,
    shape: SpanShape,
    parent: trace.SpanContext,
    flags: int,
    start_ns: int,
    attributes: Attributes,
    links: Sequence[trace.Link],
) -> EventSpan:
    """Begin a recorded event, and give its start to the processors that export it."""
    ids = state.ids.take()
    trace_state, above = None, None
    if parent.is_valid:
        above, trace_state = parent, parent.trace_state or None
        ids = parent.trace_id.to_bytes(16, "big") + ids[16:]
    valid = tuple(
        trace.Link(each.context, each.attributes or {})  # the SDK's are never None either
        for each in links
        if each.context.is_valid or each.attributes or each.context.trace_state
    )
    kept = {name: tuple(value) if type(value) is list else value for name, value in attributes.items()}  # as the SDK
    record = Event(shape, ids, above, flags, trace_state, start_ns, kept, valid)
    if attributes.get(semconv.MQTRACE_TRACE_TYPE) == semconv.TRACE_TYPE_SUB:
        for processor in state.starts:
            processor.on_start(EventSpan(record))  # type: ignore[arg-type]  # it reads it
    return EventSpan(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo:
    """Facts about every message from a client's configuration: system, group, client id, first server.

    ``namespace`` (an empty one is a name too) and ``consumption_model`` (``clustering``, ``broadcasting``) are
    RocketMQ's.
    """

    system: str = "kafka"
    client_id: str | None = None
    group_name: str | None = None
    server_address: str | None = None
    server_port: int | None = None
    client_host: str | None = None
    namespace: str | None = None
    consumption_model: str | None = None

    @classmethod
    def of_kafka(cls, conf: Mapping[str, Any], *, group_name: str | None) -> ClientInfo:
        """Read librdkafka's configuration; nothing secret is kept."""
        address, port = host_and_port(servers_of(conf))
        client_id = str(conf["client.id"]) if conf.get("client.id") else None
        return cls(
            client_id=client_id,
            group_name=group_name or client_id,
            server_address=address,
            server_port=port,
            client_host=own_address(),
        )

    @classmethod
    def named(cls, system: str, *, group_name: str | None, client_id: str | None, servers: str | None) -> ClientInfo:
        """Return the info of a client of any system, as a caller of a manual hook gives it."""
        conf = {"bootstrap.servers": servers, "client.id": client_id}
        return replace(cls.of_kafka(conf, group_name=group_name), system=system)

    @property
    def is_rocketmq(self) -> bool:
        """Return whether the registry's ``messaging.rocketmq.*`` attributes apply."""
        return self.system == semconv.SYSTEM_ROCKETMQ

    @property
    def server(self) -> str | None:
        """``host:port`` of the first server, or ``None`` when it is unknown."""
        if self.server_address is None:
            return None
        return self.server_address if self.server_port is None else f"{self.server_address}:{self.server_port}"

    def attributes(self) -> dict[str, str | int]:
        """Return the span attributes that never change for this client."""
        attributes = {
            semconv.MESSAGING_SYSTEM: self.system,
            semconv.MESSAGING_CLIENT_ID: self.client_id,
            semconv.SERVER_ADDRESS: self.server_address,
            semconv.SERVER_PORT: self.server_port,
            semconv.MQTRACE_CLIENT_HOST: self.client_host,
        }
        if self.is_rocketmq:
            attributes[semconv.MESSAGING_ROCKETMQ_NAMESPACE] = self.namespace or ""  # required by the conventions
            attributes[semconv.MESSAGING_ROCKETMQ_CONSUMPTION_MODEL] = self.consumption_model
        return {name: value for name, value in attributes.items() if value is not None}

    def consumer_attributes(self) -> dict[str, str | int]:
        """Return the same for a consumer: with its group, where that is known."""
        group = {} if self.group_name is None else {semconv.MESSAGING_CONSUMER_GROUP_NAME: self.group_name}
        return {**self.attributes(), **group}


class ClientHook:
    """A hook of one client, which ``info`` describes or, without it, the other arguments."""

    def __init__(  # noqa: PLR0913 - the public hooks: who the client is, each fact by its name
        self,
        *,
        system: str = "kafka",
        group_name: str | None = None,
        client_id: str | None = None,
        servers: str | None = None,
        tracing: Tracing | None = None,
        info: ClientInfo | None = None,
    ) -> None:
        info = info or ClientInfo.named(system, group_name=group_name, client_id=client_id, servers=servers)
        self._tracing = tracing = tracing or Tracing.create()
        self._info = info
        self._is_rocketmq = info.is_rocketmq
        self._server = info.server
        self.now_ns: Callable[[], int] = tracing.clock.wall_ns
        """The wall clock: nanoseconds of the epoch."""
        self._may_measure: Callable[[], object] = bool if tracing.metrics is None else tracing.metrics.find_instrument
        """Return whether a MeterProvider may collect; in C, because each message needs it."""
        self._set_up(tracing, info)

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        """Compute what never changes."""


class RecordingHook(ClientHook):
    """A hook that records ordinary events without a span, where ``_may_record`` and the tracer's state allow it."""

    _may_record: bool
    _state: TracerState | None

    def _set_up(self, tracing: Tracing, info: ClientInfo) -> None:
        del tracing, info
        self._state = None
        self._plans: dict[str, Plan] = {}

    def _current_state(self) -> TracerState | None:
        """Return the tracer's state as it is now; ``None`` where each event needs a span."""
        self._state = None
        if self._may_record:
            state = self._tracing.tracer_state()
            self._state = state if state.can_drop else None
        return self._state

    def _plan(self, topic: str, state: TracerState, leaders: LeaderSource | None) -> Plan | None:
        """Return a new plan of ``topic`` for this state; ``None`` for a topic that is not traced."""
        if self._tracing.is_excluded(topic):
            return None
        if len(self._plans) >= MAX_TOPICS:
            # every 16th: if the oldest or all were dropped, 4,097 topics used in turn would never find a plan
            for each in list(self._plans)[::16]:
                self._plans.pop(each, None)
        plan = self._plans[topic] = self._make_plan(topic, state, leaders)
        return plan

    @abstractmethod
    def _make_plan(self, topic: str, state: TracerState, leaders: LeaderSource | None) -> Plan:
        """Return what all messages of ``topic`` have in common."""


def host_and_port(servers: str) -> tuple[str | None, int | None]:
    """Return the first server of a bootstrap list: IPv6 brackets taken off, port as a number.

    Of an address such as ``amqp://user:password@host:port/path?query`` nothing else stays: it stands on each span.
    """
    _, scheme, first = _NEXT_ADDRESS.split(servers, maxsplit=1)[0].rpartition("://")
    first = first.partition("@")[2] or first  # before the comma is looked for: a password may hold one
    first = first.partition(",")[0].rpartition("@")[2].strip()
    if scheme:
        first = _AFTER_HOST.split(first, maxsplit=1)[0]
    if not first:
        return None, None
    host, separator, port = first.rpartition(":")
    if not separator or (first.count(":") > 1 and not first.startswith("[")) or not port.isdigit():
        return first.strip("[]"), None
    return host.strip("[]"), int(port)
