"""What the SDK tells in private, asked of the SDK that is installed: a version that hides it elsewhere fails here."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider, get_meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_OFF, DEFAULT_ON, Decision, ParentBased
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

from otel_mqtrace.hooks._sdk import (
    NEVER,
    is_collected,
    links_kept,
    parent_based_on,
    processors_of,
    replace_ids,
    sampler_of,
    static_decision,
    take_off,
)
from otel_mqtrace.testing import RecordingExporter

NOBODYS = (NoOpTracerProvider().get_tracer("x"), ProxyTracerProvider().get_tracer("x"))


def test_a_tracer_tells_its_sampler():
    """Also behind the API's stand-in; a tracer that records nothing has one that says so."""
    assert sampler_of(TracerProvider(sampler=ALWAYS_ON).get_tracer("x")) is ALWAYS_ON
    assert [sampler_of(tracer) for tracer in NOBODYS] == [NEVER, NEVER]
    assert sampler_of(object()) is None


def test_the_sdks_own_samplers_tell_what_they_never_record():
    """And any other, a subclass too, tells nothing."""

    class Own(ParentBased):
        def should_sample(self, *args, **kwargs):
            return super().should_sample(*args, **kwargs)

    decisions = [static_decision(each) for each in (ALWAYS_OFF, ALWAYS_ON, DEFAULT_OFF)]
    assert decisions == [Decision.DROP, Decision.RECORD_AND_SAMPLE, None]
    assert parent_based_on(DEFAULT_ON) == (ALWAYS_ON, ALWAYS_OFF, ALWAYS_ON, ALWAYS_OFF, ALWAYS_ON)
    assert parent_based_on(DEFAULT_OFF)[0] is ALWAYS_OFF
    assert parent_based_on(ALWAYS_OFF) is parent_based_on(Own(ALWAYS_OFF)) is None


def test_a_tracer_tells_how_many_links_it_keeps():
    """Not knowing is no limit."""
    assert links_kept(TracerProvider(span_limits=SpanLimits(max_links=7)).get_tracer("x")) == 7
    assert [links_kept(tracer) for tracer in NOBODYS] == [None, None]


def test_a_tracer_takes_another_id_generator_and_its_provider_keeps_its_own():
    """Only our spans are drawn from it."""

    class Same(RandomIdGenerator):
        def __init__(self, inner):
            self.inner = inner

        def generate_trace_id(self):
            return 7

    provider = TracerProvider()
    tracer = provider.get_tracer("x")
    ids = replace_ids(tracer, Same)
    assert isinstance(ids, IdGenerator)
    assert ids.inner is provider.id_generator
    assert tracer.start_span("x").get_span_context().trace_id == 7
    assert provider.get_tracer("y").start_span("y").get_span_context().trace_id != 7
    assert [replace_ids(nobodys, Same) for nobodys in NOBODYS] == [None, None]


@pytest.mark.parametrize(("provider", "collected"), [(MeterProvider(), True), (NoOpMeterProvider(), False)])
def test_a_counter_tells_whether_anybody_counts(provider, collected):
    """A no-op provider makes counters too."""
    assert is_collected(get_meter("x", meter_provider=provider).create_counter("c")) is collected


def test_a_processor_can_be_taken_off_again():
    """The others stay and go on."""
    kept, gone = RecordingExporter(), RecordingExporter()
    provider = TracerProvider()
    processors = [SimpleSpanProcessor(kept), SimpleSpanProcessor(gone)]
    for each in processors:
        provider.add_span_processor(each)
    assert list(processors_of(provider)) == processors
    take_off(provider, processors[1])
    provider.get_tracer("x").start_span("x").end()
    assert ([span.name for span in kept.take_all()], gone.take_all()) == (["x"], [])
    take_off(trace.NoOpTracerProvider(), processors[0])
    assert processors_of(trace.NoOpTracerProvider()) == ()
