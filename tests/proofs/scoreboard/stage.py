"""The stage of a probe: one subject, one broker, and what can be observed from outside.

The same user code runs for every subject; each subject is imported in a process of its own.
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import Any

import confluent_kafka
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_TOPIC = "orders"
_HEAP_TYPE = 1 << 9
_WAIT_S = 20


def _no_block(_message: object) -> AbstractContextManager[None]:
    return nullcontext()


def _our_block(message: object) -> AbstractContextManager[Any]:
    block: AbstractContextManager[Any] = import_module("otel_mqtrace").process(message)
    return block


@dataclass(frozen=True, slots=True)
class Subject:
    """An instrumentation: the distribution, where its instrumentor is, and its block around one message."""

    name: str
    distribution: str
    home: str
    handling: Callable[[object], AbstractContextManager[Any]]

    @property
    def version(self) -> str:
        return version(self.distribution)

    def instrumentor(self) -> Any:
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)()


INCUMBENT = Subject(
    "incumbent",
    "opentelemetry-instrumentation-confluent-kafka",
    "opentelemetry.instrumentation.confluent_kafka:ConfluentKafkaInstrumentor",
    _no_block,
)
OURS = Subject("ours", "otel-mqtrace", "otel_mqtrace:MqTraceInstrumentor", _our_block)
SUBJECTS = {subject.name: subject for subject in (INCUMBENT, OURS)}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one probe saw: ``yes`` is ``True``, ``False`` or ``"partly"``; ``evidence`` is what was observed."""

    yes: bool | str
    evidence: str

    @property
    def word(self) -> str:
        return self.yes if isinstance(self.yes, str) else "yes" if self.yes else "no"


@dataclass
class Stage:
    """One probe's world. ``topic`` belongs to this probe and this subject alone and has one partition."""

    subject: Subject
    servers: str
    topic: str
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader])
        self.tracer = self.provider.get_tracer("the application")
        logging.getLogger().addHandler(_Listening(self.complaints))

    # -- switching -------------------------------------------------------------------------------------------------
    def instrument(self, **options: Any) -> None:
        """Switch the subject on. An option that a subject does not know is no error to it."""
        given = {"tracer_provider": self.provider, "meter_provider": self.meter_provider, "exporters": (), **options}
        self.subject.instrumentor().instrument(**given)

    def uninstrument(self) -> None:
        self.subject.instrumentor().uninstrument()

    # -- the application -------------------------------------------------------------------------------------------
    def producer(self, **conf: Any) -> Any:
        return confluent_kafka.Producer(self._conf(conf))

    def consumer(self, offset: int = 0, **conf: Any) -> Any:
        """Make a consumer that stands at the beginning of the topic, or at ``offset``."""
        options = {"group.id": "billing", "enable.auto.commit": False, **conf}
        consumer = confluent_kafka.Consumer(self._conf(options))
        consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, offset)])
        return consumer

    def send(self, count: int = 1, **message: Any) -> None:
        """Send ``count`` messages as the application does, traced as far as the subject traces."""
        producer = self.producer()
        for _ in range(count):
            producer.produce(**{"topic": self.topic, "value": b"an order", **message})
        assert producer.flush(_WAIT_S) == 0

    def fill(self, *messages: dict[str, Any]) -> None:
        producer = untraced(confluent_kafka.Producer)(self._conf({}))
        for message in messages or ({"value": b"an order"},):
            producer.produce(self.topic, **message)
        assert producer.flush(_WAIT_S) == 0

    def poll(self, consumer: Any) -> Any:
        for _ in range(_WAIT_S):
            message = consumer.poll(1)
            if message is not None:
                return message
        raise AssertionError("no message came")

    def poll_one(self, offset: int = 0, **conf: Any) -> Any:
        """Poll one message with a consumer of its own and close it."""
        consumer = self.consumer(offset, **conf)
        message = self.poll(consumer)
        consumer.close()
        return message

    def handle_one(self, **conf: Any) -> None:
        """Poll one message with a consumer of its own, handle it, and close the consumer."""
        consumer = self.consumer(**conf)
        with self.handling(self.poll(consumer)):
            pass
        consumer.close()

    def _conf(self, conf: dict[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, "log_level": 0, **conf}

    # -- what is seen ----------------------------------------------------------------------------------------------
    def spans(self, word: str = "") -> list[ReadableSpan]:
        """Return the subject's ended spans with ``word`` in the name, in the order they ended."""
        ours = (span for span in self.exporter.get_finished_spans() if _scope(span) != "the application")
        return [span for span in ours if word in span.name.replace(self.topic, "").split()] if word else list(ours)

    def names(self) -> str:
        """Return the names of all ended spans as evidence, counted, in the order they first ended."""
        counted: dict[str, int] = {}
        for span in self.spans():
            counted[span.name] = counted.get(span.name, 0) + 1
        return self.mask_topic(", ".join(f"{count} {name}" for name, count in counted.items()) or "no span")

    def mask_topic(self, text: str) -> str:
        """Return evidence without what differs from run to run: the probe's own topic."""
        return text.replace(self.topic, _TOPIC)

    def on_the_wire(self, count: int = 1) -> list[list[tuple[str, bytes | None]]]:
        """Return the headers of the first ``count`` messages as any other client reads them."""
        conf = {"group.id": "onlooker", "enable.auto.commit": False}
        consumer = untraced(confluent_kafka.Consumer)(self._conf(conf))
        consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
        try:
            return [message.headers() or [] for message in consumer.consume(count, _WAIT_S)]
        finally:
            consumer.close()

    def metrics(self) -> set[str]:
        data = self.reader.get_metrics_data()
        if data is None:
            return set()
        metrics = (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.data.data_points)
        return {metric.name for metric in metrics}

    @contextmanager
    def handling(self, message: Any) -> Iterator[Any]:
        """Handle one message: with the subject's own block if it has one, else simply here."""
        with self.subject.handling(message) as given:
            yield given

    def forget(self) -> None:
        gc.collect()


class _Listening(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def untraced(cls: type[Any]) -> type[Any]:
    """Return the C class behind a class of the client, whatever replaced it."""
    return next(each for each in cls.__mro__ if each is not object and not each.__flags__ & _HEAP_TYPE)


def current_span_id() -> int:
    """Return the id of the span that is current here; 0 for none."""
    return trace.get_current_span().get_span_context().span_id


def span_id(span: ReadableSpan) -> int:
    """Return the id of an ended span."""
    return span.context.span_id if span.context else 0


def _scope(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""
