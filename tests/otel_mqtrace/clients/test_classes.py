"""Which classes are traced: subclasses, names taken early, and the classes of other instrumentations."""

import abc
import copy
import functools
import json
import pickle

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, cimpl
from typing_extensions import Protocol

from otel_mqtrace.clients.confluent_kafka import find_foreign_class
from otel_mqtrace.clients.confluent_kafka import producer as ours
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from tests.support.opentelemetry_release import needs_sdk


class ByName(cimpl.Producer):
    def produce(self, topic, *, value=None, headers=None, on_delivery=None):
        super().produce(topic, value, headers=headers, on_delivery=on_delivery)


class ByPosition(cimpl.Producer):
    def produce(self, topic, value, /):
        super().produce(topic, value)


class WithoutHeaders(cimpl.Producer):
    def produce(self, topic, value):
        super().produce(topic, value)


class AnyName(cimpl.Producer):
    """Takes names only, its own among them, as AvroProducer does."""

    def produce(self, **kwargs):
        kwargs.pop("schema", None)
        super().produce(kwargs.pop("topic"), kwargs.pop("value"), **kwargs)


class OneName(cimpl.Producer):
    """Names one of the two names of a callback, and passes the other on."""

    def produce(self, topic, value=None, headers=None, callback=None, **others):
        if callback is not None:
            others["callback"] = callback
        super().produce(topic, value, headers=headers, **others)


class AsFields(cimpl.Producer):
    """What it takes by name is the message: anything of ours among it would be sent."""

    def produce(self, topic, **fields):
        super().produce(topic, json.dumps(fields))


class ToOneTopic(cimpl.Producer):
    def produce(self, value, topic="orders-of-one", headers=None, callback=None):
        super().produce(topic, value, headers=headers, callback=callback)


class ThroughTheName(cimpl.Producer):
    """Calls the client's class by the name of a module, which is ours while tracing."""

    def produce(self, topic, value=None, headers=None, callback=None):
        wrapped = None if callback is None else lambda *report: callback(*report) or report
        confluent_kafka.Producer.produce(self, topic, value, headers=headers, callback=wrapped)


class WithACopy(ThroughTheName):
    def produce(self, topic, value=None, headers=None, callback=None):
        confluent_kafka.Producer.produce(self, f"{topic}-copy", value)
        super().produce(topic, value, headers, callback)


class AddsOne(cimpl.Producer):
    def produce(self, topic, value=None, headers=None, on_delivery=None):
        super().produce(topic, value, headers=self.add(headers), on_delivery=on_delivery)


class AddsToAnything(cimpl.Producer):
    """The same, but passes everything on and takes the headers out of it."""

    def produce(self, topic, *args, **kwargs):
        super().produce(topic, *args, headers=self.add(kwargs.pop("headers", None)), **kwargs)


def _append(headers):
    headers = headers or []
    headers.append(("app", b"1"))
    return headers


def _set(headers):
    headers = headers or {}
    headers["app"] = b"1"
    return headers


def _call(headers):
    headers = headers or {}
    headers.setdefault("app", b"1")
    headers.update({"gone": b"1"}, also=b"1")
    del headers["gone"]
    assert (headers.pop("also"), headers.pop("also", None)) == (b"1", None)
    assert (headers["app"], headers.get("gone")) == (b"1", None)
    assert ("app" in headers, "gone" in headers) == (True, False)
    assert [*zip(headers.keys(), headers.values(), strict=True)] == [*headers.items()]
    return headers


class InBatches(cimpl.Producer):
    def produce_batch(self, topic, messages, tenant=None):
        return super().produce_batch(topic, [{"value": each, "key": tenant} for each in messages])


@pytest.fixture
def sent_by(producer_of, topic, stored):
    def send(make_producer, *args, **kwargs):
        producer = producer_of(make_producer=make_producer)
        producer.produce(*args, **kwargs)
        assert producer.flush(10) == 0
        return stored(topic, 1)[0]

    return send


@pytest.mark.parametrize(
    ("make_producer", "name"),
    [*((each, "on_delivery") for each in (ByName, AnyName, OneName)), (ThroughTheName, "callback")],
)
def test_produce_with_other_arguments_has_one_span_and_its_callback(sent_by, spans, topic, make_producer, name):
    reports = []
    message = sent_by(make_producer, topic=topic, value="x", **{name: lambda *report: reports.append(report)})
    send = spans.take(f"send {topic}")
    assert len(reports) == 1
    assert message.value() == b"x"
    assert dict(message.headers())["UNIQ_KEY"].decode() == send.attributes["messaging.message.id"]
    assert [name for name, _ in message.headers()].count("traceparent") == 1
    assert send.attributes["messaging.kafka.offset"] == 0


def test_topic_may_be_a_default_of_produce(producer_of, spans):
    producer = producer_of(make_producer=ToOneTopic)
    producer.produce(b"x")
    assert producer.flush(10) == 0
    spans.take("send orders-of-one")


@pytest.mark.parametrize("make_producer", [AddsOne, AddsToAnything])
@pytest.mark.parametrize(
    ("given", "add"),
    [
        ({}, _append),
        ({}, lambda headers: [("app", b"1"), *((name, value) for name, value in headers or [])]),
        ({"headers": [("theirs", b"2")]}, _append),
        ({}, _set),
        ({}, _call),
        ({}, lambda headers: {"app": b"1"} | {**(headers or {})} | dict(headers or {})),
        ({}, lambda headers: {} | (headers or {}) | {"app": b"1"}),
        ({"headers": {"theirs": b"2"}}, _set),
    ],
)
def test_headers_that_produce_adds_are_sent_with_those_of_the_trace(
    sent_by, spans, topic, monkeypatch, make_producer, given, add
):
    monkeypatch.setattr(make_producer, "add", staticmethod(add), raising=False)
    message = sent_by(make_producer, topic, b"x", **given)
    send = spans.take(f"send {topic}")
    names = [name for name, _ in message.headers()]
    assert sorted(names) == sorted({"app", "traceparent", "UNIQ_KEY", *dict(given.get("headers", ()))})
    assert dict(message.headers())["app"] == b"1"
    assert dict(message.headers())["UNIQ_KEY"].decode() == send.attributes["messaging.message.id"]


@pytest.mark.parametrize(
    ("make_producer", "args", "fields"),
    [(ByPosition, [b"x"], {}), (WithoutHeaders, [b"x"], {}), (AsFields, [], {"value": "x"})],
)
def test_produce_without_room_for_headers_sends_its_own_message_and_is_reported(
    sent_by, spans, topic, make_producer, args, fields
):
    message = sent_by(make_producer, topic, *args, **fields)
    assert (message.value(), message.headers()) == (b"x" if args else b'{"value": "x"}', None)
    spans.assert_empty()
    assert f"{__name__}.{make_producer.__name__}.produce" in MqTraceInstrumentor().patches.untraceable


@pytest.mark.parametrize("module", ["shop", "confluent_kafka_helpers.producer"])
def test_own_produce_is_called_once_for_a_message_too_large(producer_of, short_lived, spans, topic, module):
    """Unlike the client's: it may have an effect of its own."""
    sizes = []

    def produce(self, topic, value=None, headers=None, on_delivery=None):
        sizes.append(len(value))
        cimpl.Producer.produce(self, topic, value, headers=headers, on_delivery=on_delivery)

    produce.__module__ = module
    make_producer = short_lived("Own", cimpl.Producer, produce=produce)
    producer = producer_of(make_producer=make_producer, message_max_bytes=10_000)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer.produce(topic, b"x" * 9_900)
    assert sizes == [9_900]
    assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"


def test_class_made_while_tracing_is_traced(sent_by, instrument, spans, topic):
    instrument()

    class Named(Protocol):
        name: str

    class Late(confluent_kafka.Producer, abc.ABC, Named):
        def produce(self, value, /, *, where):
            super().produce(where, value)

    MqTraceInstrumentor().uninstrument()
    sent_by(Late, b"x", where=topic)
    spans.take(f"send {topic}")


class Portable(cimpl.Producer):
    """Is copied and pickled by what it has, as jobs of Dask or Spark do with their arguments."""

    def __init__(self, configuration):
        self.configuration = configuration
        super().__init__(configuration)

    def __getstate__(self):
        return dict(vars(self))

    def __setstate__(self, state):
        self.__init__(state.pop("configuration"))
        vars(self).update(state)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copied_producer_is_traced_as_the_first(instrument, kafka, spans, topic, duplicate):
    instrument()
    first = Portable({"bootstrap.servers": kafka.bootstrap_servers})
    first.produce(topic, b"1")
    second = duplicate(first)
    second.produce(topic, b"2")
    assert [first.flush(20), second.flush(20)] == [0, 0]
    assert len(spans.take_all(f"send {topic}")) == 2


def test_message_sent_inside_produce_has_its_own_span(sent_by, kafka, spans, topic):
    kafka.create_topic(f"{topic}-copy", 1)
    sent_by(WithACopy, topic, b"x")
    spans.take(f"send {topic}-copy")
    spans.take(f"send {topic}")


def test_own_produce_batch_sends_its_own_messages_and_is_reported(producer_of, spans, topic):
    producer = producer_of({}, InBatches)
    assert producer.produce_batch(topic, [b"1", b"2"], tenant="t1") == 2
    assert producer.flush(10) == 0
    spans.assert_empty()
    assert f"{__name__}.InBatches.produce_batch" in MqTraceInstrumentor().patches.untraceable


def test_module_and_class_attribute_are_rebound_and_other_references_reported(application, instrument):
    instrument()
    assert confluent_kafka.Producer is not ours.ORIGINAL_PRODUCER
    assert [application.Producer, application.Settings.factory] == [confluent_kafka.Producer] * 2
    application.late = ours.ORIGINAL_PRODUCER
    unreached = MqTraceInstrumentor().patches.survey()["unreached"]
    assert [each for each in unreached if "application" in each] == [
        *(f"application.{name}" for name in ("CHOICES", "PAIR", "PARTIAL", "REGISTRY", "Settings.registry", "late")),
        "the closure of application.enclosing.<locals>.made",
        "the defaults of application.make",
    ]
    assert application.PARTIAL.func is ours.ORIGINAL_PRODUCER
    assert isinstance(application.PARTIAL, functools.partial)
    assert application.make.__defaults__ == (ours.ORIGINAL_PRODUCER,)
    assert application.Settings.typed.__annotations__["producer"] is ours.ORIGINAL_PRODUCER
    application.Producer = str  # what the application changes stays changed
    MqTraceInstrumentor().uninstrument()
    assert [application.Producer, application.Settings.factory] == [str, ours.ORIGINAL_PRODUCER]


SHAPES = {
    "Datadog's ddtrace": "ddtrace.contrib.internal.kafka.patch",
    "New Relic's agent": "newrelic.hooks.messagebroker_confluentkafka",
    "OpenTelemetry's own instrumentation": "opentelemetry.instrumentation.confluent_kafka",
    "SkyWalking's agent": "skywalking.plugins.sw_confluent_kafka",
}
"""Neighbour → the module its classes come from, as seen with ddtrace 4.16, newrelic 14.1 and contrib 0.66b1."""


@pytest.fixture
def stranger(short_lived):
    return lambda module, base=None: short_lived("Producer", base or confluent_kafka.Producer, __module__=module)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_instrument_steps_back_for_another_instrumentation(stranger, instrument, monkeypatch, caplog, name):
    theirs = stranger(SHAPES[name])
    monkeypatch.setattr(confluent_kafka, "Producer", theirs)
    instrument()
    assert confluent_kafka.Producer is theirs
    assert MqTraceInstrumentor().patches is None
    (warning,) = [record.getMessage() for record in caplog.records if "already wraps" in record.getMessage()]
    assert all(word in warning for word in (name, "off with", "MQTRACE_ON_CONFLICT=wrap"))


def test_class_replaced_in_the_c_module_is_found(stranger, monkeypatch):
    """As New Relic does before the package imports it: what we took for the original is none."""
    swapped = stranger(SHAPES["New Relic's agent"])
    monkeypatch.setattr(confluent_kafka, "Producer", swapped)
    assert "New Relic" in find_foreign_class([(swapped, stranger("cimpl", swapped))])


@needs_sdk(40, "OpenTelemetry's instrumentation of that time wraps the client in another way")
def test_later_instrumentation_is_reported_and_no_message_is_traced_twice(
    instrument, incumbent, kafka, topic, spans, caplog
):
    instrument()
    incumbent()
    producer, _another = (confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers}) for _ in range(2))
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0
    name = "OpenTelemetry's own instrumentation"
    assert [name in line for line in caplog.messages] == [True]
    assert MqTraceInstrumentor().patches.survey()["wrappers"][0].startswith(name)
    spans.assert_empty()
