"""The client is patched wherever it is known, and restored completely."""

import copy
import functools
import inspect
import pickle
import sys
from operator import attrgetter
from types import SimpleNamespace
from typing import get_type_hints
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer, cimpl
from confluent_kafka.serialization import IntegerSerializer, StringSerializer

from otel_mqtrace.clients.confluent_kafka import ClientPatches
from otel_mqtrace.clients.confluent_kafka.client import active, registry
from otel_mqtrace.clients.confluent_kafka.producer import ORIGINAL_PRODUCER
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.instrumentor import AioKafkaInstrumentor, MqTraceInstrumentor, RocketMqInstrumentor
from tests.support.opentelemetry_release import needs_sdk


class Shop(cimpl.Producer):
    def produce(self, *args, **kwargs):
        return super().produce(*args, **kwargs)


def _fingerprint():
    modules = [each for name, each in sys.modules.items() if name.split(".")[0] in {"confluent_kafka", "application"}]
    classes = SerializingProducer, DeserializingConsumer, confluent_kafka.admin.AdminClient, Shop
    return [dict(vars(each)) for each in (*modules, *classes)]


def _send(producer, topic):
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0


def test_instrumenting_again_makes_one_span_each(application, instrument, kafka, spans, topic, consumer_of):
    conf = {"bootstrap.servers": kafka.bootstrap_servers}
    instrument()
    old = application.Producer(conf)
    MqTraceInstrumentor().uninstrument()
    _send(old, topic)
    spans.assert_empty()
    instrument()
    instrument()
    for producer in (old, application.Producer(conf)):
        _send(producer, topic)
    with consumer_of(topic) as consumer:
        assert len(consumer.consume(3, 10)) == 3
    assert len(spans.take_all(f"send {topic}")) == 2
    assert len(spans.take_all(f"process {topic}")) == 1


def test_serializing_producer_is_traced(producer_of, spans, topic):
    serializers = {"key_serializer": IntegerSerializer(), "value_serializer": StringSerializer("utf_16")}
    producer = producer_of(make_producer=SerializingProducer, **serializers)
    producer.produce(topic, 71, "ab")
    producer.flush(10)
    span = spans.take(f"send {topic}")
    assert span.attributes["messaging.message.body.size"] == len("ab".encode("utf_16"))
    assert span.attributes["messaging.kafka.message.key"] == "71"
    with pytest.raises(confluent_kafka.error.ValueSerializationError):
        producer.produce(topic, value=5)
    assert spans.take(f"send {topic}").attributes["error.type"] == "_VALUE_SERIALIZATION"


@pytest.mark.parametrize("is_imported_later", [False, True])
def test_avro_producer_has_one_span_for_what_its_serialiser_refuses(
    instrument, producer_of, spans, topic, short_lived, monkeypatch, is_imported_later
):
    def produce(self, **kwargs):
        if type(kwargs["value"]) is not bytes:
            raise KeyError(5)
        confluent_kafka.Producer.produce(self, **kwargs)

    if is_imported_later:
        instrument()
    avro = short_lived("AvroProducer", confluent_kafka.Producer, type(confluent_kafka.Producer), produce=produce)
    monkeypatch.setitem(sys.modules, "confluent_kafka.avro", SimpleNamespace(AvroProducer=avro))
    producer = producer_of(make_producer=avro)
    with pytest.raises(KeyError):
        producer.produce(topic=topic, value=5)
    assert spans.take(f"send {topic}").attributes["error.type"] == "KeyError"
    producer.produce(topic=topic, value=b"ab")
    producer.flush(10)
    assert spans.take(f"send {topic}").attributes["messaging.message.body.size"] == 2


def test_isinstance_holds_for_original_and_traced_classes(instrument, kafka):
    early = ORIGINAL_PRODUCER({"bootstrap.servers": kafka.bootstrap_servers})
    instrument()
    assert isinstance(early, confluent_kafka.Producer)
    assert issubclass(SerializingProducer, confluent_kafka.Producer)
    assert not isinstance("x", confluent_kafka.Producer)

    class Mine(confluent_kafka.Producer):
        pass

    assert isinstance(Mine({"bootstrap.servers": kafka.bootstrap_servers}), Mine)
    assert not isinstance(early, Mine)


@needs_sdk(40, "OpenTelemetry's instrumentation of that time wraps the client in another way")
def test_client_of_another_instrumentation_is_traced_by_both_if_configured(
    incumbent, producer_of, spans, topic, consumer_of
):
    theirs = incumbent()
    _send(producer_of({"on_conflict": "wrap"}), topic)
    spans.take(f"send {topic}")
    with consumer_of(topic) as consumer:
        names = [name for name, _ in consumer.poll(10).headers()]
    assert (names.count("traceparent"), names.count("UNIQ_KEY")) == (1, 1)
    spans.take(f"process {topic}")
    assert [span.name for span in theirs.take_all()] == [f"{topic} send", "recv"]


class Decorated:
    """A method as an application's own decorator leaves it: it can be called through an object only."""

    def __init__(self, method):
        self._method = method

    def __call__(self, *args, **kwargs):
        return self._method(*args, **kwargs)

    def __get__(self, instance, owner):
        return functools.partial(self, instance)


class Wrapped(cimpl.Producer):
    """An application's class with decorated methods, made before anybody instruments."""

    @Decorated
    def produce(self, *args, **kwargs):
        return super().produce(*args, **kwargs)

    flush = Decorated(cimpl.Producer.flush)


class Unusual(cimpl.Producer):
    """An application's class whose methods are no plain functions, made before anybody instruments."""

    produce = functools.partialmethod(cimpl.Producer.produce, "unusual")
    poll = Decorated(cimpl.Producer.poll)
    abort_transaction = dict

    @staticmethod
    def flush(timeout=0):
        return timeout


def test_methods_that_are_no_functions_work_as_before(producer_of):
    plain, traced = producer_of(False, Unusual), producer_of(make_producer=Unusual)
    for producer in (plain, traced):
        assert producer.produce("x") is None
        assert producer.abort_transaction() == {}
        assert producer.poll(60) == 1
        assert producer.flush(3) == type(producer).flush(3) == 3


class Slim:
    """Applications' classes without a ``__dict__``."""

    class Producer(cimpl.Producer):
        __slots__ = ()

    class Consumer(cimpl.Consumer):
        __slots__ = ()


class Unreferenced(cimpl.Producer):
    """A producer that no weak reference can hold."""

    __slots__ = ("__dict__",)


@pytest.mark.parametrize("make_producer", [Wrapped, Unreferenced])
def test_unusual_class_of_the_application_is_traced(producer_of, spans, topic, make_producer):
    _send(producer_of(make_producer=make_producer), topic)
    spans.take(f"send {topic}")


def test_client_without_attributes_works_untraced_and_is_reported(producer_of, consumer_of, spans, topic):
    _send(producer_of(make_producer=Slim.Producer), topic)
    with consumer_of(topic, make_consumer=Slim.Consumer) as consumer:
        assert consumer.consume(1, 10)[0].value() == b"x"
    consumer_of(topic, make_consumer=Slim.Consumer)
    untraceable = [name for name in MqTraceInstrumentor().patches.untraceable if "Slim" in name]
    assert [name.rpartition("Slim.")[2] for name in untraceable] == ["Producer", "Consumer"]


class _Interrupted(type):
    def __getattribute__(cls, name):
        if name == "poll":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_class_that_cannot_be_changed_is_reported_and_the_others_are_traced(
    short_lived, producer_of, kafka, spans, topic
):
    unchanging = type("Unchanging", (type,), {"__setattr__": Mock(side_effect=RuntimeError)})
    frozen = short_lived("Guest", cimpl.Producer, unchanging, __module__=__name__)
    producer = producer_of()
    assert f"{__name__}.Guest.produce" in MqTraceInstrumentor().patches.untraceable
    _send(producer, topic)
    spans.take(f"send {topic}")
    assert frozen({"bootstrap.servers": kafka.bootstrap_servers}).flush(0) == 0


def test_interrupted_patching_is_taken_back(short_lived, application):
    before = _fingerprint()
    short_lived("Guest", cimpl.Consumer, _Interrupted)
    with pytest.raises(KeyboardInterrupt):
        ClientPatches.apply(Tracing.create(settings=Settings()))
    assert _fingerprint() == before
    assert active.tracing is None
    assert registry not in sources


def test_uninstrument_restores_every_name_ten_times(application, instrument):
    before, known_sources = _fingerprint(), list(sources)
    for _ in range(10):
        instrument()
        assert _fingerprint() != before
        MqTraceInstrumentor().uninstrument()
        assert _fingerprint() == before
    assert sources == known_sources
    assert (active.tracing, active.on_new_client, active.configure) == (None, None, None)


in_place = pytest.mark.parametrize(
    ("instrumentor", "classes"),
    [
        (AioKafkaInstrumentor(), "aiokafka: AIOKafkaProducer AIOKafkaConsumer cluster.ClusterMetadata"),
        (
            RocketMqInstrumentor(),
            "rocketmq: Producer Message SimpleConsumer PushConsumer LiteSimpleConsumer LitePushConsumer",
        ),
    ],
    ids=["aiokafka", "rocketmq"],
    indirect=["classes"],
)
"""Clients whose methods are changed in place: the classes, the producer first."""


@pytest.fixture
def classes(request):
    module, names = request.param.split(":")
    client = pytest.importorskip(module, reason="tested where the client is installed")
    return [attrgetter(name)(client) for name in names.split()]


@in_place
def test_uninstrument_restores_every_method_ten_times(instrument, instrumentor, classes):
    def everything():
        return [dict(vars(each)) for each in classes], list(sources)

    before = everything()
    for _ in range(10):
        instrument()
        assert everything() != before
        assert instrumentor.patches.survey() == {"untraceable": [], "wrappers": []}
        instrumentor.uninstrument()
        assert everything() == before


@in_place
def test_patched_method_looks_like_the_original(instrument, instrumentor, classes):
    before = {(owner, name): value for owner in classes for name, value in vars(owner).items() if callable(value)}
    instrument()
    changed = [(owner, name) for owner, name in before if vars(owner)[name] is not before[owner, name]]
    assert len(changed) > 10
    for owner, name in changed:
        after, original = vars(owner)[name], before[owner, name]
        assert after.__wrapped__ is original
        assert (after.__name__, after.__doc__) == (name, original.__doc__)
        assert inspect.iscoroutinefunction(after) is inspect.iscoroutinefunction(original)
        assert inspect.signature(after) == inspect.signature(original)


@in_place
def test_instrument_steps_back_for_another_instrumentation(instrument, instrumentor, classes, monkeypatch, caplog):
    original = classes[0].send
    monkeypatch.setattr(classes[0], "send", functools.wraps(original)(lambda *args: original(*args)))  # noqa: PLW0108
    before = [dict(vars(each)) for each in classes]
    instrument()
    assert [dict(vars(each)) for each in classes] == before
    assert instrumentor.patches is None
    assert [f"the module {__name__}" in line for line in caplog.messages if "mqtrace" in line] == [True]


def test_client_without_configuration_is_refused(instrument):
    instrument()
    for client in (confluent_kafka.Producer, confluent_kafka.Consumer, confluent_kafka.ShareConsumer):
        with pytest.raises(TypeError):
            client()


def test_client_of_a_class_made_from_the_original_is_reported_to_the_doctor(instrument, kafka, short_lived):
    original = type(ORIGINAL_PRODUCER({"bootstrap.servers": kafka.bootstrap_servers}))
    instrument()
    later = short_lived("Later", original)({"bootstrap.servers": kafka.bootstrap_servers})
    assert "Later: 1" in MqTraceInstrumentor().patches.survey()["clients_untraced"]
    del later


def _result(ask, *arguments):
    try:
        return str(ask(*arguments))
    except (TypeError, ValueError, pickle.PicklingError) as error:
        return type(error).__name__


@pytest.mark.parametrize(
    "name", ["Producer", "Consumer", "ShareConsumer", "SerializingProducer", "DeserializingConsumer"]
)
def test_traced_class_looks_like_the_original(instrument, name):
    before = getattr(confluent_kafka, name)
    questions = (
        lambda cls: (cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__),
        pickle.dumps,
        lambda cls: copy.deepcopy(cls) is cls,
        lambda cls: [(each, getattr(cls, each).__doc__) for each in dir(before) if each[0] != "_"],
        lambda cls: sorted(dir(cls)),
        lambda cls: inspect.signature(cls.produce if "Producer" in name else cls.poll),
        lambda cls: get_type_hints(cls.produce if "Producer" in name else cls.poll),
        lambda cls: repr(cls | None),
    )
    expected = [_result(each, before) for each in questions]
    instrument()
    assert [_result(each, getattr(confluent_kafka, name)) for each in questions] == expected


def test_asyncio_classes_are_traced_from_the_first_client_on(run_code):
    run_code("""
import asyncio, sys
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor

MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters=())
assert "confluent_kafka.aio" not in sys.modules
from confluent_kafka.aio import AIOProducer

async def run():
    producer = AIOProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    assert hasattr(AIOProducer.produce, "__wrapped__")
    await producer.close()

asyncio.run(run())
MqTraceInstrumentor().uninstrument()
assert not hasattr(AIOProducer.produce, "__wrapped__")
""")


def test_failed_restore_is_repeated_and_its_failing_step_leaves_the_others_done(
    application, instrument, no_failures_yet, monkeypatch
):
    names, refuse = dict(vars(application)), Mock(side_effect=RuntimeError("Set changed size during iteration"))
    instrument()
    with monkeypatch.context() as broken:
        broken.setattr(ClientPatches, "restore", refuse)
        MqTraceInstrumentor().uninstrument()
    instrument()
    monkeypatch.setattr(ClientPatches, "ending", (*ClientPatches.ending, refuse))
    MqTraceInstrumentor().uninstrument()
    assert guard.failures() == {"MqTraceInstrumentor.uninstrument": 1, "Patches.restore": 1}
    assert dict(vars(application)) == names
    assert (active.tracing, registry in sources) == (None, False)
