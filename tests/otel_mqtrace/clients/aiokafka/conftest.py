"""The instrumentor of aiokafka, on the strict spans of every test."""

import pytest

from otel_mqtrace.instrumentor import AioKafkaInstrumentor
from otel_mqtrace.testing import recording_provider


@pytest.fixture
def instrument(spans):
    """Switch tracing on with given options (and off again), spans going to ``spans``; returns the provider."""
    provider = recording_provider(spans)

    def switch_on(**options):
        options.setdefault("exporters", ())
        AioKafkaInstrumentor().instrument(tracer_provider=provider, **options)
        return provider

    yield switch_on
    if AioKafkaInstrumentor().is_instrumented_by_opentelemetry:
        AioKafkaInstrumentor().uninstrument()
