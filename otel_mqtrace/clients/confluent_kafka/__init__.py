"""Patch confluent-kafka and restore it.

The client's classes are immutable C types: a traced subclass takes the place of each in the names that hold it; the
Python subclasses that exist already are changed in place. Its asyncio classes and its Avro producer are plain Python:
they are changed in place, and never imported for that; one imported later is changed when it makes its first client.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import confluent_kafka

from otel_mqtrace.clients.confluent_kafka.aio import (
    AIO_CONSUMER_METHODS,
    AIO_PRODUCER_METHODS,
    ASYNC_DESERIALIZING_CONSUMER_METHODS,
)
from otel_mqtrace.clients.confluent_kafka.client import active, registry
from otel_mqtrace.clients.confluent_kafka.consumer import CONSUMER_METHODS, ORIGINAL_CONSUMER
from otel_mqtrace.clients.confluent_kafka.leaders import forget_leaders
from otel_mqtrace.clients.confluent_kafka.producer import ORIGINAL_PRODUCER, PRODUCER_METHODS
from otel_mqtrace.clients.confluent_kafka.rebind import (
    find_later_classes,
    find_names,
    find_unreached,
    find_untraced_clients,
    owner_name,
)
from otel_mqtrace.clients.confluent_kafka.share import ORIGINAL_SHARE_CONSUMER, SHARE_CONSUMER_METHODS
from otel_mqtrace.clients.confluent_kafka.statistics import make_configure
from otel_mqtrace.clients.patching import Patches, Wrappers, call_after, identify_class, replacement_class
from otel_mqtrace.clients.state import kept_in_children
from otel_mqtrace.hooks.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_mqtrace.hooks.tracing import Tracing


_NAME: Final = "confluent-kafka"
_HEAP_TYPE: Final = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: the client's own classes are static C types, all others are not."""


class _Kind(NamedTuple):
    """A C class of the client, the class that takes its place, and what is wrapped in both."""

    original: type[Any]
    traced: type[Any]
    wrappers: Wrappers


_KINDS: Final = tuple(
    _Kind(original, replacement_class(original, wrappers), wrappers)
    for original, wrappers in (
        (ORIGINAL_PRODUCER, PRODUCER_METHODS),
        (ORIGINAL_CONSUMER, CONSUMER_METHODS),
        (ORIGINAL_SHARE_CONSUMER, SHARE_CONSUMER_METHODS),
    )
    if original is not None
)
_PLAIN_CLASSES: Final[Mapping[str, Wrappers]] = {
    "AIOProducer": AIO_PRODUCER_METHODS,
    "AIOConsumer": AIO_CONSUMER_METHODS,
    "AsyncDeserializingConsumer": ASYNC_DESERIALIZING_CONSUMER_METHODS,
    "AvroProducer": {"produce": PRODUCER_METHODS["produce"]},  # what its serialiser refuses reaches no other method
    "AdminClient": {"__init__": call_after(lambda client, *_: kept_in_children.add(client))},  # it is not traced
}
"""Name in one of the packages → what is wrapped in that class."""
_PACKAGES: Final = ("aio", "experimental.aio", "avro", "admin")


def find_foreign_class(classes: Iterable[tuple[type[Any], type[Any]]]) -> str | None:
    """Return the name of what has replaced one of the client's classes (original, ours), or ``None``.

    Either the package's name has been given to another class, or what was in the C module was no C class to begin with.
    """
    for original, ours in classes:
        current = getattr(confluent_kafka, ours.__name__, original)
        for candidate in (current if current is not ours else original, original):
            if candidate is not original or original.__flags__ & _HEAP_TYPE:
                return identify_class(_NAME, candidate) or f"the module {candidate.__module__}"
    return None


def _report_client(_client: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
    """Report the first client of another instrumentation that is not active yet."""
    on_new_client = active.on_new_client  # read once: another thread may switch off between two reads
    if on_new_client is not None:
        on_new_client()


_WATCH: Final[Wrappers] = {"__init__": call_after(_report_client)}


class ClientPatches(Patches):
    """The changes made to confluent-kafka by one ``instrument()``."""

    name = _NAME
    active = active
    source = registry
    ending = (registry.clear, forget_leaders)

    def __init__(self) -> None:
        super().__init__()
        self._to_come = list(_PLAIN_CLASSES)

    def patch(self, tracing: Tracing) -> None:
        """Change subclasses, names and plain classes."""
        active.configure = make_configure(tracing)
        for kind in _KINDS:
            for subclass in kind.original.__subclasses__():
                if subclass is not kind.traced:
                    asleep = tracing.writes_trace_headers and identify_class(_NAME, subclass) is not None
                    self._change_in_place(subclass, _WATCH if asleep else kind.wrappers)
        for change in find_names({kind.original: kind.traced for kind in _KINDS}):
            self.make(change)
        self._change_plain_classes()

    @staticmethod
    def find_conflict() -> str | None:
        """Return the other instrumentation at work in the client and how to switch it off, or ``None``."""
        return find_foreign_class((kind.original, kind.traced) for kind in _KINDS)

    @guarded("Patches.on_new_client")
    def on_new_client(self) -> None:
        """Change what was imported since, and warn of another instrumentation."""
        super().on_new_client()
        if self._to_come:
            self._change_plain_classes()

    def survey(self) -> dict[str, list[str]]:
        """Return what is not traced now, by kind. For ``mqtrace doctor``."""
        originals = [each.original for each in _KINDS]
        changed = self._changed_classes()
        later = find_later_classes(originals, changed | {each.traced for each in _KINDS})
        return {
            **super().survey(),
            "unreached": find_unreached(originals),
            "classes_made_later": [owner_name(each) for each in later],
            "clients_untraced": find_untraced_clients({*originals, *later}),
        }

    def _changed_classes(self) -> set[Any]:
        return {each.owner for each in self.changes if isinstance(each.owner, type)}

    def _change_plain_classes(self) -> None:
        for name in tuple(self._to_come):
            packages = [sys.modules.get(f"confluent_kafka.{each}") for each in _PACKAGES]
            classes: set[Any] = {getattr(package, name, None) for package in packages} - {None}
            try:
                if classes:
                    self._to_come.remove(name)
            except ValueError:
                continue  # another thread makes its first client at this moment
            for plain in classes - self._changed_classes():
                self._change_in_place(plain, _PLAIN_CLASSES[name])

    def _change_in_place(self, subclass: type[Any], wrappers: Wrappers) -> None:
        if not subclass.__dictoffset__ and wrappers is not _WATCH:
            self.untraceable.append(owner_name(subclass))  # its objects have no place for a state
        for name, wrap in wrappers.items():
            try:
                traced = not hasattr(subclass, name) or self.wrap_method(subclass, name, wrap)
            except Exception:  # noqa: BLE001 - a metaclass may refuse; one class must not cost all the others
                traced = False
            if not traced:
                self.untraceable.append(f"{owner_name(subclass)}.{name}")
