"""Every place that can hold a class of the client: rebound where that is safe, named where it is not."""

from __future__ import annotations

import functools
import gc
import inspect
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

    @staticmethod
    def make(factory=Producer):
        return factory

    def typed(self, producer: Producer) -> Producer:
        return producer


MADE = enclosing()
"""


@pytest.fixture
def application():
    """A module that holds the client's class in every way there is, from before instrument()."""
    module = ModuleType("application")
    sys.modules["application"] = module
    exec(compile(APPLICATION, "application.py", "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules["application"]
    vars(module).clear()
    gc.collect()  # classes live on until then, for everybody who asks for all there are


def _held(module):
    return {
        "name": module.Producer,
        "registry": module.REGISTRY["kafka"],
        "list": module.CHOICES[0],
        "default": module.make.__defaults__[0],
        "keyword default": module.make.__kwdefaults__["fallback"],
        "class attribute": module.Settings.factory,
        "registry of a class": module.Settings.registry["kafka"],
        "default of a static method": inspect.signature(module.Settings.make).parameters["factory"].default,
    }


PLACES = (
    "name",
    "registry",
    "list",
    "default",
    "keyword default",
    "class attribute",
    "registry of a class",
    "default of a static method",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_class_held_before_is_traced_and_put_back(application, instrument, place):
    """Ours while instrumented, the very original before and after."""
    assert _held(application)[place] is ours.ORIGINAL_PRODUCER
    instrument()
    assert _held(application)[place] is confluent_kafka.Producer
    assert _held(application)[place] is not ours.ORIGINAL_PRODUCER
    MqTraceInstrumentor().uninstrument()
    assert _held(application)[place] is ours.ORIGINAL_PRODUCER


def test_what_is_finished_is_left_alone_and_named(application, instrument):
    """A tuple, a partial and a closure: somebody's way round us, perhaps, and told to the doctor."""
    instrument()
    unreached = MqTraceInstrumentor().patches.survey()["unreached"]
    named = [each for each in unreached if "application" in each]
    assert named == ["application.PAIR", "application.PARTIAL", "the closure of application.enclosing.<locals>.made"]
    assert application.PARTIAL.func is ours.ORIGINAL_PRODUCER
    assert isinstance(application.PARTIAL, functools.partial)


def test_annotations_stay_as_they_were_written(application, instrument):
    """A traced object is an object of the original class: nothing has to be changed there."""
    annotations = application.Settings.typed.__annotations__
    instrument()
    assert annotations["producer"] is ours.ORIGINAL_PRODUCER
    assert issubclass(confluent_kafka.Producer, ours.ORIGINAL_PRODUCER)


def test_what_somebody_else_changed_meanwhile_stays_changed(application, instrument):
    """uninstrument() takes back what we did and nothing more."""
    instrument()
    application.Producer = application.REGISTRY["kafka"] = str
    application.CHOICES.clear()
    MqTraceInstrumentor().uninstrument()
    assert (application.Producer, application.REGISTRY["kafka"], application.CHOICES) == (str, str, [])


def test_a_long_list_is_data(application, instrument):
    """Nobody keeps a choice of classes in a list of a million; nobody wants us to walk over it."""
    application.CHOICES.extend(range(2_000))
    instrument()
    assert application.CHOICES[0] is ours.ORIGINAL_PRODUCER
