"""The two subjects: name, how it is switched on, what it alone offers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any


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
