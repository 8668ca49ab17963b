"""What the tests of several clients share."""

import gc
import signal
import sys
from types import ModuleType

import confluent_kafka
import pytest
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_mqtrace.hooks.outcome import missing_counts
from otel_mqtrace.testing import RecordingExporter, recording_provider
from tests.support.consuming import consume

APPLICATION = """
import functools
from confluent_kafka import Producer

REGISTRY = {"kafka": Producer, "none": None}
CHOICES = [Producer]
PAIR = (Producer, "kafka")
PARTIAL = functools.partial(Producer, {})
DATA = [Producer, *range(2_000)]


def make(conf, factory=Producer, *, fallback=Producer):
    return factory(conf)


def enclosing():
    kept = Producer

    def made(conf):
        return kept(conf)

    return made


class Settings:
    factory = Producer
    registry = {"kafka": Producer}

    def typed(self, producer: Producer) -> Producer:
        return producer


MADE = enclosing()
"""


@pytest.fixture
def application():
    """A module that has taken the class before instrumentation, under its name and in many other ways."""
    module = ModuleType("application")
    sys.modules["application"] = module
    exec(compile(APPLICATION, "application.py", "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules["application"]
    vars(module).clear()
    gc.collect()  # classes live on until then, for everybody who asks for all there are


@pytest.fixture
def unhandled():
    """Return what has been counted of messages without a span, or of outcomes without one, since the test began."""
    before = missing_counts()
    return lambda: {name: count - before[name] for name, count in missing_counts().items() if count != before[name]}


@pytest.fixture
def short_lived():
    """Make classes that are collected after the test."""
    made = []

    def make(name, base, metaclass=type, **body):
        made.append(metaclass(name, (base,), body))
        return made[-1]

    yield make
    made.clear()
    gc.collect()


@pytest.fixture
def incumbent():
    """Switch on OpenTelemetry's own instrumentation; return its exporter."""
    instrumentor = ConfluentKafkaInstrumentor()

    def switch_on():
        exporter = RecordingExporter()
        instrumentor.instrument(tracer_provider=recording_provider(exporter))
        return exporter

    yield switch_on
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.fixture
def consuming(instrument, fill, consumer_of, topic):
    """Put messages on the topic, switch tracing on with options, and return a consumer that reads from the beginning.

    A message is its value or the arguments of ``produce``; the default is one.
    """

    def start(*messages, conf=None, **options):
        fill(topic, *messages or [b"x"])
        instrument(**options)
        return consumer_of(topic, **(conf or {}))

    return start


@pytest.fixture
def stored(consumer_of):
    """Read a number of messages of a topic as they lie there, untraced."""

    def read(topic, count):
        with suppress_instrumentation(), consumer_of(topic, group="reader") as consumer:
            return consume(consumer, count)

    return read


@pytest.fixture
def producer_of(instrument, kafka, request):
    """Make a producer with more properties, traced with options (``False``: not traced).

    A property has underscores for dots. All are closed at the end: the client leaks what a callback raised, with every
    frame on its way.
    """

    def make(options=None, make_producer=None, **conf):
        if options is not False:
            instrument(**(options or {}))
        own = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop", "log_level": 0}
        own |= {name if name == "on_delivery" else name.replace("_", "."): value for name, value in conf.items()}
        producer = (make_producer or confluent_kafka.Producer)(own)
        request.addfinalizer(producer.close)
        return producer

    return make


@pytest.fixture
def producer(producer_of):
    return producer_of()


@pytest.fixture
def interrupted():
    """Call a method; a signal handler raises once the client has queued a message or a batch, or is reading a report."""

    def limit(*_):
        raise TimeoutError

    def interrupt(_frame, event, called):
        if event == "c_return" and called.__name__ in {"produce", "produce_batch", "partition"}:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    def call(method, *args):
        before = signal.signal(signal.SIGUSR1, limit)
        sys.setprofile(interrupt)
        with pytest.raises(TimeoutError):
            method(*args)
        signal.signal(signal.SIGUSR1, before)

    return call
