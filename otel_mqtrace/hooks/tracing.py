"""This module knows what every hook is given: the tracer, the clock, the settings, and who the client is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import Meter, MeterProvider, get_meter

from otel_mqtrace import semconv
from otel_mqtrace._clock import Clock, SystemClock
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks._capture import HeaderCapture
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._naming import Naming
from otel_mqtrace.hooks._propagation import propagator_in_force
from otel_mqtrace.hooks._sampling import TopicSampling
from otel_mqtrace.hooks._sdk import links_kept
from otel_mqtrace.hooks._start import SpanStart, under
from otel_mqtrace.hooks._unread import Later, UnreadSpan, all_of
from otel_mqtrace.hooks.metrics import MessagingMetrics
from otel_mqtrace.message_id import new_unique_id, own_address
from otel_mqtrace.model import TraceContext, TraceType
from otel_mqtrace.spans.mapping import Attributes, Operation, context_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context

    from otel_mqtrace.hooks._headers import Header
    from otel_mqtrace.hooks._start import Ground

__all__ = ["ClientFacts", "Tracing", "host_and_port"]

_SCOPE: Final = "otel_mqtrace"
_MOST_LINKS: Final = 128
_TOPICS_REMEMBERED: Final = 1_024


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """The collaborators of all hooks, bound once. ``before_span`` is called before every span (late attachment).

    ``writes_trace_headers`` is off where another instrumentation writes them already: there must be one of each kind.
    ``produce_hook(span, call)`` and ``consume_hook(span, messages)`` are the application's own, called with each span
    that records, once it is open; what they raise is counted and goes no further. ``naming`` are older names asked for
    (``None``: none), ``capture`` and ``sampling`` what the settings say of headers and topics (``None``: nothing).
    """

    tracer: trace.Tracer
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=SystemClock)
    metrics: MessagingMetrics | None = None
    meter: Meter | None = None
    new_id: Callable[[], str] = new_unique_id
    before_span: Callable[[], None] = _nothing
    writes_trace_headers: bool = True
    produce_hook: Callable[..., None] | None = None
    consume_hook: Callable[..., None] | None = None
    naming: Naming | None = None
    capture: HeaderCapture | None = field(init=False, compare=False)
    sampling: TopicSampling | None = field(init=False, compare=False)
    excludes: Callable[[str], bool] = field(init=False, compare=False)
    starting: SpanStart = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Make of the settings what is asked at every message; ``None`` is what nobody asked for."""
        object.__setattr__(self, "capture", HeaderCapture.of(self.settings))
        object.__setattr__(self, "sampling", TopicSampling.of(self.settings))
        object.__setattr__(self, "starting", SpanStart(self.tracer))
        object.__setattr__(self, "excludes", lru_cache(maxsize=_TOPICS_REMEMBERED)(self.settings.excludes))

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
        tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider, schema_url=semconv.SCHEMA_URL)
        meter = get_meter(_SCOPE, meter_provider=meter_provider, schema_url=semconv.SCHEMA_URL)
        return cls(
            tracer=tracer,
            settings=settings or Settings.from_env(),
            metrics=MessagingMetrics(meter),
            meter=meter,
            **{"naming": Naming.from_env(), **collaborators},
        )

    @property
    def collecting(self) -> MessagingMetrics | None:
        """The metrics, when anybody collects them now."""
        metrics = self.metrics
        return metrics if metrics is not None and metrics.collected else None

    def ground_of_records(self) -> Ground | None:
        """Return the ground that records start from; ``None`` where an event needs its span from the start."""
        self.before_span()
        ground = self.starting.ground()
        if ground is None or not ground.can_record:
            return None
        return ground if propagator_in_force().is_default else None

    @property
    def allows_records(self) -> bool:
        """Whether no setting and no hook of the application asks for a span while it is open."""
        return self.sampling is None and self.naming is None and self.capture is None

    @property
    def links_per_span(self) -> int:
        """How many messages one span can name: 128, fewer where its provider keeps fewer links, never none.

        Asked each time, because the provider may come late.
        """
        limit = links_kept(self.tracer)
        return _MOST_LINKS if limit is None else max(1, min(_MOST_LINKS, limit))

    def operation(self, trace_type: TraceType, group_name: str | None, **outcome: Any) -> Attributes:
        """Return what every operation of ``group_name`` says; ``outcome`` are further fields of the TraceContext."""
        settings = self.settings
        said = TraceContext(
            trace_type=trace_type,
            region_id=settings.region_id,
            region_name=settings.region_name,
            group_name=group_name,
            **outcome,
        )
        return context_attributes(said)

    def sending(self, trace_type: TraceType, facts: ClientFacts, **outcome: Any) -> Attributes:
        """The same for an operation of a producer, whose group may be a setting."""
        return self.operation(trace_type, self.settings.group_name or facts.group_name, **outcome)

    def open(  # noqa: PLR0913 - what a span starts with, each by its name
        self,
        operation: Operation,
        topic: str | None,
        *,
        context: Context,
        attributes: Attributes,
        start_ns: int,
        links: Sequence[trace.Link] = (),
        later: Later | None = None,
        kind: trace.SpanKind | None = None,
        above: trace.SpanContext | None = None,
    ) -> trace.Span:
        """Start the span of one operation: every span of ours starts here. ``start_ns`` is nanoseconds of the epoch.

        ``above`` is its parent where that has not been put into ``context``.
        ``attributes`` and those of the links have their names of today; ``kind`` is the operation's own by default.
        ``later`` returns all attributes and links, of which ``attributes`` are a part: it is called when somebody reads
        the span.
        """
        self.before_span()
        sampling, naming = self.sampling, self.naming
        if sampling is not None and topic is not None:
            left_out = sampling.left_out(topic, under(above, context), self.tracer)
            if left_out is not None:
                return left_out
        if kind is None:
            kind = operation.kind
        try:
            if naming is None:
                name = operation.span_name(topic)
                return self.starting.start(name, context, kind, attributes, links, later, start_ns, above)
            said, linked = (attributes, links) if later is None else all_of(later)
            name, named = naming.span_name(operation, topic), naming.attributes(said)
            return self.starting.start(name, context, kind, named, naming.links(linked), None, start_ns, above)
        finally:
            if sampling is not None:
                sampling.forget()

    def say(self, span: trace.Span, attributes: Attributes) -> None:
        """Set what was learned later; every attribute of ours that comes after the start goes this way, or the next."""
        naming = self.naming
        named = attributes if naming is None else naming.attributes(attributes)
        if type(span) is UnreadSpan:
            span.tell(named)
        else:
            span.set_attributes(named)

    def say_later(self, span: trace.Span, attributes: Callable[[], Attributes]) -> None:
        """Set what was learned, not asked for before somebody reads the span; it must not change any more by then."""
        if self.naming is None and type(span) is UnreadSpan:
            span.tell(attributes)
        else:
            self.say(span, attributes())

    @guarded("Tracing.say_captured")
    def say_captured(self, span: trace.Span, headers: Sequence[Header]) -> None:
        """Set what the settings want to see of ``headers``; a value that cannot be printed costs no more than that."""
        if self.capture is not None:
            self.say(span, self.capture.attributes(headers))

    @guarded("produce_hook")
    def told_of_send(self, span: trace.Span, call: object) -> None:
        """Call the application's ``produce_hook``, if it has one, with a span that records."""
        if self.produce_hook is not None:
            self.produce_hook(span, call)

    @guarded("consume_hook")
    def told_of_messages(self, span: trace.Span, messages: Sequence[object]) -> None:
        """Call the application's ``consume_hook``, if it has one, with a span that records."""
        if self.consume_hook is not None:
            self.consume_hook(span, messages)

    def traces(self, topic: str) -> bool:
        """Whether messages of ``topic`` are traced here and now: not excluded, and tracing not suppressed."""
        # An empty context suppresses nothing.
        return not self.excludes(topic) and (not get_current() or is_instrumentation_enabled())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """What a client's configuration says about every message: system, group, client id, first server.

    ``namespace`` (none is a name too) and ``consumption_model`` (``clustering``, ``broadcasting``) are RocketMQ's.
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
    def of_kafka(cls, conf: Mapping[str, Any], *, group_name: str | None) -> ClientFacts:
        """Read librdkafka's configuration; nothing secret is kept."""
        address, port = host_and_port(str(conf.get("bootstrap.servers") or conf.get("metadata.broker.list") or ""))
        client_id = str(conf["client.id"]) if conf.get("client.id") else None
        return cls(
            client_id=client_id,
            group_name=group_name or client_id,
            server_address=address,
            server_port=port,
            client_host=own_address(),
        )

    @classmethod
    def named(cls, system: str, *, group_name: str | None, client_id: str | None, servers: str | None) -> ClientFacts:
        """Read what somebody at the manual door says of a client of any system."""
        conf = {"bootstrap.servers": servers, "client.id": client_id}
        return replace(cls.of_kafka(conf, group_name=group_name), system=system)

    @property
    def is_rocketmq(self) -> bool:
        """Whether the registry's ``messaging.rocketmq.*`` attributes apply."""
        return self.system == semconv.SYSTEM_ROCKETMQ

    @property
    def server(self) -> str | None:
        """``host:port`` of the first server, or ``None`` when it is unknown."""
        if self.server_address is None:
            return None
        return self.server_address if self.server_port is None else f"{self.server_address}:{self.server_port}"

    def attributes(self) -> dict[str, str | int]:
        """Return the span attributes that never change for this client."""
        said = {
            semconv.MESSAGING_SYSTEM: self.system,
            semconv.MESSAGING_CLIENT_ID: self.client_id,
            semconv.SERVER_ADDRESS: self.server_address,
            semconv.SERVER_PORT: self.server_port,
            semconv.MQTRACE_CLIENT_HOST: self.client_host,
        }
        if self.is_rocketmq:
            said[semconv.MESSAGING_ROCKETMQ_NAMESPACE] = self.namespace or ""  # required by the conventions
            said[semconv.MESSAGING_ROCKETMQ_CONSUMPTION_MODEL] = self.consumption_model
        return {name: value for name, value in said.items() if value is not None}


def host_and_port(servers: str) -> tuple[str | None, int | None]:
    """Return the first server of a bootstrap list: ``scheme://`` dropped, IPv6 brackets taken off, port as a number."""
    first = servers.split(",", maxsplit=1)[0].strip().rpartition("://")[2]
    if not first:
        return None, None
    host, separator, port = first.rpartition(":")
    if not separator or (first.count(":") > 1 and not first.startswith("[")) or not port.isdigit():
        return first.strip("[]"), None
    return host.strip("[]"), int(port)
