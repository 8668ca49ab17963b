"""Names that hold a class of the client: rebound where that is safe, reported where it is not."""

from __future__ import annotations

import functools
import gc
import sys
from types import ModuleType

import confluent_kafka
import pytest

from otel_mqtrace.clients.confluent_kafka.produce import producer as ours
from otel_mqtrace.instrumentor import MqTraceInstrumentor

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
    module = ModuleType("application")
    sys.modules["application"] = module
    exec(compile(APPLICATION, "application.py", "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules["application"]
    vars(module).clear()
    gc.collect()  # classes live on until then, for everybody who asks for all there are


def _held(module):
    return module.Producer, module.Settings.factory


def test_module_and_class_attribute_are_rebound_and_restored(application, instrument):
    assert _held(application) == (ours.ORIGINAL_PRODUCER, ours.ORIGINAL_PRODUCER)
    instrument()
    assert _held(application) == (confluent_kafka.Producer, confluent_kafka.Producer)
    assert confluent_kafka.Producer is not ours.ORIGINAL_PRODUCER
    MqTraceInstrumentor().uninstrument()
    assert _held(application) == (ours.ORIGINAL_PRODUCER, ours.ORIGINAL_PRODUCER)


def test_class_held_in_another_way_is_left_alone_and_reported(application, instrument):
    instrument()
    application.late = ours.ORIGINAL_PRODUCER
    unreached = MqTraceInstrumentor().patches.survey()["unreached"]
    assert [each for each in unreached if "application" in each] == [
        "application.CHOICES",
        "application.PAIR",
        "application.PARTIAL",
        "application.REGISTRY",
        "application.Settings.registry",
        "application.late",
        "the closure of application.enclosing.<locals>.made",
        "the defaults of application.make",
    ]
    assert application.PARTIAL.func is ours.ORIGINAL_PRODUCER
    assert isinstance(application.PARTIAL, functools.partial)
    assert application.make.__defaults__ == (ours.ORIGINAL_PRODUCER,)


def test_annotation_stays_as_it_was_written(application, instrument):
    instrument()
    assert application.Settings.typed.__annotations__["producer"] is ours.ORIGINAL_PRODUCER
    assert issubclass(confluent_kafka.Producer, ours.ORIGINAL_PRODUCER)


def test_name_changed_by_the_application_meanwhile_stays_changed(application, instrument):
    instrument()
    application.Producer = str
    MqTraceInstrumentor().uninstrument()
    assert application.Producer is str
