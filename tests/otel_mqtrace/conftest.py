"""What every instrumentation test shares: a real broker, our instrumentor, strict spans, coroutine tests."""

import asyncio
import inspect
import sys
import textwrap
from collections import defaultdict
from functools import partial
from itertools import count

import confluent_kafka
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.testing import ManualClock, RecordingExporter, embedded_kafka, recording_provider
from tests.support.programs import run_python
from tests.support.topics import put_messages

PATIENCE_S = 30
_numbers = count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine function in an event loop of its own, for at most :data:`PATIENCE_S`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), PATIENCE_S))
    return True


@pytest.fixture(scope="session")
def run_code():
    """Run a program in a process of its own; return what it printed, once it has ended well and said nothing else."""

    def run(code, *arguments):
        done = run_python(textwrap.dedent(code), *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


kafka = pytest.fixture(scope="session")(embedded_kafka)
"""One broker for the whole run; every test has its own topic."""


@pytest.fixture
def topic(kafka):
    name = f"orders-{next(_numbers)}"
    kafka.create_topic(name, partitions=1)
    return name


@pytest.fixture
def spans():
    """A recording exporter that fails the test when a span was not taken, a context leaked or our code raised."""
    exporter = RecordingExporter()
    failures_before = guard.failures()
    before = context.get_current()
    yield exporter
    drain_deferred_ends()
    left = [span.name for span in exporter.take_all()]
    leaked = trace.get_current_span()
    context.attach(before)
    assert left == []
    assert not leaked.get_span_context().is_valid
    assert guard.failures() == failures_before


@pytest.fixture
def no_failures_yet():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "_failures", defaultdict(int))
        yield


@pytest.fixture
def impatient():
    """Have threads take turns as often as can be."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def points(reader):
    """Return the points of a metric, each with its attributes."""

    def read(name):
        data = reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        metrics = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        return [(dict(point.attributes), point) for metric in metrics for point in metric.data.data_points]

    return read


@pytest.fixture
def instrumentor():
    """The instrumentor under test; a folder of another client has its own."""
    return MqTraceInstrumentor()


@pytest.fixture
def instrument(spans, instrumentor):
    """Switch tracing on with given options (and off again), spans going to ``spans``; returns the provider."""
    provider = recording_provider(spans)

    def switch_on(**options):
        instrumentor.instrument(tracer_provider=provider, **{"exporters": (), **options})
        return provider

    yield switch_on
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.fixture
def tracer(spans):
    return recording_provider(spans).get_tracer("application")


@pytest.fixture
def consumer_of(kafka, request):
    """Make consumers that read a topic from its beginning; all are closed at the end."""

    def make(topic, *, make_consumer=None, group="billing", **conf):
        own = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
        own |= {name.replace("_", "."): value for name, value in conf.items()}
        consumer = (make_consumer or confluent_kafka.Consumer)(own)
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        request.addfinalizer(consumer.close)
        return consumer

    return make


@pytest.fixture
def fill(kafka):
    return partial(put_messages, kafka.bootstrap_servers)
