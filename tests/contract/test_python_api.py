"""The Python interface: every bullet of its section of the contract, by name."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import entry_points

import confluent_kafka
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import otel_mqtrace
from otel_mqtrace import ConsumeHook, ContextCode, MqTraceInstrumentor, MqTraceSpanProcessor, SendHook, process, testing
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import ManualClock, RecordingExporter, recording_provider
from otel_mqtrace.wire.native import DIALECTS, decode_body, encode_context
from tests.support.consuming import consume, current_span_id, poll
from tests.support.native_spans import pub


def test_public_names():
    """The five names of the contract, from the package itself."""
    for name in ("MqTraceInstrumentor", "MqTraceSpanProcessor", "process", "SendHook", "ConsumeHook"):
        assert name in otel_mqtrace.__all__
        assert getattr(otel_mqtrace, name) is not None


def test_instrument_takes_providers_and_settings(clean, own_kafka, send):
    """``tracer_provider=``, ``meter_provider=`` and any setting in lower case."""
    exporter, reader = RecordingExporter(), InMemoryMetricReader()
    MqTraceInstrumentor().instrument(
        tracer_provider=recording_provider(exporter),
        meter_provider=MeterProvider([reader]),
        exporters=(),
        region_id="north",
    )
    send()
    assert exporter.take("send orders").attributes["mqtrace.region_id"] == "north"
    assert reader.get_metrics_data() is not None


def test_configuration_is_a_dataclass_type():
    """Declarative configuration validates its options with it: every setting is a field with a default."""
    assert dataclasses.is_dataclass(MqTraceInstrumentor.configuration)
    assert MqTraceInstrumentor.configuration() == MqTraceInstrumentor.configuration()
    assert {"trace_topic", "exporters", "process_context"} <= {
        each.name for each in dataclasses.fields(MqTraceInstrumentor.configuration)
    }


def test_entry_point_of_the_instrumentor():
    """Another name than the incumbent's, so that disabling one does not disable the other."""
    (point,) = entry_points(group="opentelemetry_instrumentor", name="mqtrace_confluent_kafka")
    assert point.load() is MqTraceInstrumentor


def test_instrument_never_raises(clean, caplog):
    """Whatever is given, the instrumentors after ours get their turn."""
    with caplog.at_level(logging.WARNING):
        MqTraceInstrumentor().instrument(tracer_provider=object(), exporters=[object()], no_such_setting=1)
    assert caplog.records


def test_uninstrument_is_complete(clean):
    """Names and classes are the very objects they were."""
    names = ("Producer", "Consumer", "SerializingProducer", "DeserializingConsumer")
    before = [getattr(confluent_kafka, name) for name in names]
    methods = dict(vars(confluent_kafka.SerializingProducer))
    for _ in range(2):
        MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters=())
        assert confluent_kafka.Producer is not before[0]
        MqTraceInstrumentor().uninstrument()
    assert [getattr(confluent_kafka, name) for name in names] == before
    assert dict(vars(confluent_kafka.SerializingProducer)) == methods


@pytest.fixture
def incumbent():
    """Another instrumentation that came first, and goes last: what stands on it goes before it."""
    ConfluentKafkaInstrumentor().instrument(tracer_provider=TracerProvider())
    yield
    ConfluentKafkaInstrumentor().uninstrument()


@pytest.mark.parametrize(("on_conflict", "traced"), [("step_back", False), ("wrap", True)])
def test_another_instrumentation_makes_us_step_back_or_wrap(
    incumbent, clean, caplog, own_kafka, send, on_conflict, traced
):
    """Stepping back is told by a warning that names the other; wrapping is an option."""
    exporter = RecordingExporter()
    with caplog.at_level(logging.WARNING):
        MqTraceInstrumentor().instrument(
            tracer_provider=recording_provider(exporter), exporters=(), on_conflict=on_conflict
        )
    assert ("already wraps confluent-kafka" in caplog.text) is not traced
    send()
    assert bool(exporter.take_all("send orders")) is traced


def test_process_as_a_block(instrument, spans, fill, consumer_of, topic):
    """Current inside, baggage restored, ended with the block."""
    instrument()
    token = context.attach(baggage.set_baggage("customer", "42"))
    producer = confluent_kafka.Producer({"bootstrap.servers": _servers(consumer_of, topic)})
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0
    context.detach(token)
    with process(poll(consumer_of(topic))):
        inside, customer = current_span_id(), baggage.get_baggage("customer")
    assert (spans.take(f"process {topic}").context.span_id, customer) == (inside, "42")
    assert current_span_id() == 0
    spans.take(f"send {topic}")


def _servers(consumer_of, topic):
    brokers = consumer_of(topic, group="onlooker").list_topics(timeout=10).brokers.values()
    return ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


@pytest.mark.parametrize(
    ("outcome", "code", "success"),
    [(None, "SUCCESS", True), (ContextCode.FAILED, "FAILED", False), ("RETURNNULL", "RETURNNULL", False)],
)
def test_outcome_becomes_the_context_code(instrument, spans, fill, consumer_of, topic, outcome, code, success):
    """Silence is SUCCESS; a code or its name is that."""
    instrument()
    fill(topic, {"value": b"x"})
    with process(poll(consumer_of(topic))) as handling:
        if outcome is not None:
            handling.outcome(outcome)
    attributes = spans.take(f"process {topic}").attributes
    assert (attributes["mqtrace.context_code"], attributes["mqtrace.success"]) == (code, success)


def test_exceptions_are_recorded_and_go_on(instrument, spans, fill, consumer_of, topic):
    """EXCEPTION, the error's type, and the exception itself reaches the application."""
    instrument()
    fill(topic, {"value": b"x"})
    message = poll(consumer_of(topic))
    with pytest.raises(ZeroDivisionError), process(message):
        raise ZeroDivisionError
    span = spans.take(f"process {topic}")
    assert (span.attributes["mqtrace.context_code"], span.attributes["error.type"]) == (
        "EXCEPTION",
        "ZeroDivisionError",
    )
    assert [event.name for event in span.events] == ["exception"]


def test_process_as_a_decorator(instrument, spans, fill, consumer_of, topic):
    """The function's message is the first argument that looks like one."""
    instrument()
    fill(topic, {"value": b"x"})
    seen = []

    @process
    def handle(message):
        seen.append(current_span_id())

    handle(poll(consumer_of(topic)))
    assert [spans.take(f"process {topic}").context.span_id] == seen


def test_process_each_is_an_iterator(instrument, spans, fill, consumer_of, topic):
    """Each message has its span current until the next is asked for."""
    instrument()
    fill(topic, {"value": b"1"}, {"value": b"2"})
    current = {current_span_id() for _ in process.each(consume(consumer_of(topic), 2))}
    assert current <= {span.context.span_id for span in spans.take_all(f"process {topic}")}
    assert 0 not in current


def test_automatic_mode_needs_no_call(instrument, spans, fill, consumer_of, topic):
    """From the poll that returned a message until the next one."""
    instrument()
    fill(topic, {"value": b"x"})
    consumer = consumer_of(topic)
    poll(consumer)
    inside = current_span_id()
    consumer.close()
    assert spans.take(f"process {topic}").context.span_id == inside


def test_processor_signature_and_defaults():
    """Names and defaults of the contract; a SpanProcessor."""
    assert issubclass(MqTraceSpanProcessor, SpanProcessor)
    processor = MqTraceSpanProcessor(RecordingExporter(), background=False)
    settings = processor.settings
    assert (settings.max_queue_size, settings.max_export_batch_size, settings.drop_policy) == (2048, 100, "newest")
    times = (settings.schedule_delay_ms, settings.export_timeout_ms, settings.shutdown_timeout_ms)
    assert times == (500, 30_000, 30_000)
    named = inspect.signature(MqTraceSpanProcessor).parameters
    assert {"drop_policy", "meter_provider", "clock", "export_timeout_millis", "shutdown_timeout_millis"} <= set(named)
    assert inspect.signature(processor.force_flush).parameters["timeout_millis"].default == 30_000
    processor.shutdown()


def test_processor_has_a_lane_for_each_exporter():
    """One queue and one worker each."""
    processor = MqTraceSpanProcessor(RecordingExporter(), RecordingExporter(), background=False)
    assert len(processor.lanes) == len(processor.stats()) == 2
    processor.shutdown()


@pytest.mark.parametrize(("preset", "expected"), [("rocketmq4", (1024, 100, 500)), ("rocketmq5", (2048, 10, 5000))])
def test_processor_presets(preset, expected):
    """A RocketMQ generation each."""
    settings = MqTraceSpanProcessor.preset(preset, RecordingExporter(), background=False).settings
    assert (settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_ms) == expected


def test_stats_add_up():
    """``offered = exported + dropped + failed + pending`` before, while and after."""
    processor = MqTraceSpanProcessor(RecordingExporter(), max_queue_size=2, max_export_batch_size=2, background=False)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    seen = []
    for step in range(4):
        provider.get_tracer("t").start_span("s").end()
        if step == 3:
            processor.force_flush()
        (lane,) = processor.stats().values()
        assert lane["offered"] == lane["exported"] + sum(lane["dropped"].values()) + lane["failed"] + lane["pending"]
        seen.append((lane["offered"], lane["exported"], lane["dropped"].get("queue_full", 0), lane["pending"]))
    assert seen == [(1, 0, 0, 1), (2, 0, 0, 2), (3, 0, 1, 2), (4, 2, 2, 0)]


def test_tunables_come_from_ours_then_from_opentelemetrys(monkeypatch):
    """``MQTRACE_*`` before ``OTEL_BSP_*`` before the default; code before all."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "300")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "30")
    monkeypatch.setenv("MQTRACE_QUEUE_SIZE", "200")
    settings = MqTraceSpanProcessor(RecordingExporter(), schedule_delay_millis=7, background=False).settings
    assert (settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_ms) == (200, 30, 7)


@pytest.mark.parametrize("name", ["mqtrace_native", "mqtrace_native_file", "mqtrace_native_rocketmq"])
def test_exporters_are_entry_points_with_plain_keywords(name):
    """Declarative configuration calls them with the YAML mapping."""
    (point,) = entry_points(group="opentelemetry_traces_exporter", name=name)
    parameters = inspect.signature(point.load()).parameters.values()
    assert {each.kind for each in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(each.default is not inspect.Parameter.empty for each in parameters)


def test_send_hook_and_consume_hook_are_the_manual_door():
    """Before and after, for a client we know nothing of."""
    exporter = RecordingExporter()
    tracing = Tracing.create(tracer_provider=recording_provider(exporter), clock=ManualClock())
    send = SendHook(system="mybroker", group_name="shop", servers="broker:9000", tracing=tracing)
    call = send.before("orders", body=b"x")
    send.after(call, partition=3, offset=42)
    consume_hook = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000", tracing=tracing)
    for handling in consume_hook.before([IncomingMessage(topic="orders", offset=42, headers=call.headers)]):
        consume_hook.after(handling, code=ContextCode.FAILED)
    sent, received = exporter.take("send orders"), exporter.take("process orders")
    assert received.parent.span_id == sent.context.span_id
    assert received.attributes["mqtrace.context_code"] == "FAILED"


def test_codec_is_standard_library_only():
    """Encode, decode, the table of dialects; a fresh interpreter loads nothing else for them."""
    encoded = encode_context(pub(0), dialect="5.5.0")
    assert isinstance(encoded.body, bytes)
    assert isinstance(encoded.keys, frozenset)
    decoded = decode_body(encoded.body, msg_type_map="a")
    assert (len(decoded.contexts), decoded.errors) == (1, ())
    assert "5.5.0" in DIALECTS
    assert "otel_mqtrace.wire.native" in sys.modules


def test_the_test_kit():
    """Manual clock, fixed ids, recording exporter, embedded broker."""
    exporter, clock = RecordingExporter(), ManualClock()
    clock.advance(ms=1)
    provider = recording_provider(exporter, fixed_ids=True)
    provider.get_tracer("t").start_span("s").end()
    assert exporter.take().context.span_id == 1
    with contextmanager(testing.embedded_kafka)() as broker:
        broker.create_topic("orders")
        assert broker.bootstrap_servers


def test_a_client_imported_before_or_after_is_traced(clean, own_kafka):
    """By a name taken before, and by the name the package has afterwards."""
    namespace = {}
    exec("from confluent_kafka import Producer", namespace)
    module = type(sys)("application")
    vars(module).update(namespace)
    sys.modules["application"] = module
    try:
        exporter = RecordingExporter()
        MqTraceInstrumentor().instrument(tracer_provider=recording_provider(exporter), exporters=())
        for cls in (module.Producer, confluent_kafka.Producer):
            producer = cls({"bootstrap.servers": own_kafka.bootstrap_servers})
            producer.produce("orders", b"x")
            assert producer.flush(20) == 0
    finally:
        del sys.modules["application"]
    assert Counter(span.name for span in exporter.take_all()) == {"send orders": 2}
    assert not trace.get_current_span().get_span_context().is_valid
