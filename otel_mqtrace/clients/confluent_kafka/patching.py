"""This module knows how confluent-kafka is patched and restored: one list of changes, walked both ways.

The client's classes are immutable C types, so three things are done: a traced subclass takes the place of the class
wherever it is held (``bindings``); the Python subclasses that exist already are changed in place; and nothing else. Its
asyncio classes are plain Python: they are changed in place, and never imported for that; those imported later are
changed when they make their first client. What cannot be traced is kept for ``mqtrace doctor``.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace.clients.change import ABSENT, Change, Wrapper, Wrappers, each_of
from otel_mqtrace.clients.confluent_kafka.cluster.leaders import forget_leaders
from otel_mqtrace.clients.confluent_kafka.cluster.statistics import configuring
from otel_mqtrace.clients.confluent_kafka.consume.aio_consumer import (
    AIO_CONSUMER_METHODS,
    ASYNC_DESERIALIZING_CONSUMER_METHODS,
)
from otel_mqtrace.clients.confluent_kafka.consume.consumer import CONSUMER_METHODS, ORIGINAL_CONSUMER
from otel_mqtrace.clients.confluent_kafka.consume.consumer_state import abandon_consumers
from otel_mqtrace.clients.confluent_kafka.consume.handover import handed_over
from otel_mqtrace.clients.confluent_kafka.consume.share import ORIGINAL_SHARE_CONSUMER, SHARE_CONSUMER_METHODS
from otel_mqtrace.clients.confluent_kafka.live import live
from otel_mqtrace.clients.confluent_kafka.produce.aio_producer import AIO_PRODUCER_METHODS
from otel_mqtrace.clients.confluent_kafka.produce.producer import ORIGINAL_PRODUCER, PRODUCER_BETWEEN, PRODUCER_METHODS
from otel_mqtrace.clients.confluent_kafka.rebinding.bindings import places_left, places_of
from otel_mqtrace.clients.confluent_kafka.rebinding.neighbours import neighbour_of, warn_of_latecomer, wrapper_among
from otel_mqtrace.clients.confluent_kafka.rebinding.standing_in import stand_in
from otel_mqtrace.clients.confluent_kafka.rebinding.survey import classes_made_later, clients_untraced
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import end_left_behind
from otel_mqtrace.hooks._once import Once
from otel_mqtrace.hooks.process import sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Patches", "apply", "foreign_wrapper"]


class _Kind(NamedTuple):
    """A C class of the client, the class that stands in for it, and what is wrapped in both."""

    original: type[Any]
    traced: type[Any]
    wrappers: Wrappers


_KINDS: Final = tuple(
    _Kind(original, stand_in(original, wrappers), wrappers)
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
}
"""Name in the client's asyncio package → what is wrapped in that class."""
_ASYNCIO_PACKAGES: Final = ("confluent_kafka.aio", "confluent_kafka.experimental.aio")


def foreign_wrapper() -> str | None:
    """Return whose instrumentation is at work in the client already and how to switch it off, or ``None``."""
    return wrapper_among((kind.original, kind.traced) for kind in _KINDS)


def _say_so(original: Callable[..., Any]) -> Callable[..., Any]:
    """A class of a neighbour that slept when we came: should it be woken, its first client says so."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
        original(self, *args, **kwargs)
        begin = live.begin  # read once: another thread may switch off between two looks
        if begin is not None:
            begin()

    return __init__


_WATCH: Final[Wrappers] = {"__init__": _say_so}


@dataclass(slots=True)
class Patches:
    """The changes made by one ``instrument()``; ``restore`` undoes those, in reverse order, whatever one of them meets.

    ``untraceable`` names classes and methods that could not be changed.
    """

    changes: list[Change] = field(default_factory=list)
    untraceable: list[str] = field(default_factory=list)
    _to_come: list[str] = field(default_factory=lambda: list(_PLAIN_CLASSES))
    _latecomer: Once = field(default_factory=Once)

    @classmethod
    def apply(cls, tracing: Tracing) -> Patches:
        """Patch everything that can be reached and start tracing; broken off half-way, nothing stays changed."""
        patches = cls()
        live.tracing = tracing
        live.begin = patches.begin
        live.configure = configuring(tracing)
        sources.append(handed_over)
        if foreign_wrapper() is not None:
            patches._latecomer.take()  # it was here first, and we were told to wrap all the same
        try:
            for kind in _KINDS:
                patches._change_subclasses(kind, wrap_all=not tracing.writes_trace_headers)
            patches._rebind()
            patches._change_plain_classes()
        except BaseException:
            patches.restore()
            raise
        return patches

    def restore(self) -> None:
        """Undo every change and stop tracing; clients that are still alive go on untraced."""
        live.tracing = live.begin = live.configure = None
        undoing = [change.undo for change in reversed(self.changes)]
        self.changes = []
        each_of(*undoing, _leave_sources, abandon_consumers, end_left_behind, handed_over.forget, forget_leaders)

    @guarded("Patches.begin")
    def begin(self) -> None:
        """A client is being made: change what was imported since, and see whether somebody came after us."""
        if self._to_come:
            self._change_plain_classes()
        if self._latecomer.is_left:
            name = foreign_wrapper()
            if name is not None and self._latecomer.take():
                warn_of_latecomer(name)

    def survey(self) -> dict[str, list[str]]:
        """Return what goes untraced now, by kind, and ``wrappers``: who stands before us."""
        changed = {each.owner for each in self.changes if isinstance(each.owner, type)}
        ours = {each.traced for each in _KINDS} | {PRODUCER_BETWEEN}
        later = classes_made_later([each.original for each in _KINDS], changed | ours)
        wrapper = foreign_wrapper()
        return {
            "untraceable": list(self.untraceable),
            "unreached": places_left({kind.original: kind.traced for kind in _KINDS}),
            "classes_made_later": [f"{each.__module__}.{each.__qualname__}" for each in later],
            "clients_untraced": clients_untraced({each.original for each in _KINDS} | set(later)),
            "wrappers": [] if wrapper is None else [wrapper],
        }

    def _change_subclasses(self, kind: _Kind, *, wrap_all: bool) -> None:
        for subclass in kind.original.__subclasses__():
            if subclass in {kind.traced, PRODUCER_BETWEEN}:
                continue
            asleep = not wrap_all and neighbour_of(subclass) is not None
            self._change_in_place(subclass, _WATCH if asleep else kind.wrappers)

    def _change_plain_classes(self) -> None:
        for name in tuple(self._to_come):
            found: set[Any] = {getattr(sys.modules.get(each), name, None) for each in _ASYNCIO_PACKAGES} - {None}
            try:
                if found:
                    self._to_come.remove(name)
            except ValueError:
                continue  # another thread makes its first client at this moment
            for plain in found:
                self._change_in_place(plain, _PLAIN_CLASSES[name])

    def _change_in_place(self, subclass: type[Any], wrappers: Wrappers) -> None:
        said = f"{subclass.__module__}.{subclass.__qualname__}"
        if not subclass.__dictoffset__ and wrappers is not _WATCH:
            self.untraceable.append(said)  # its own objects have no place for a state; those of its subclasses may
        for name, wrap in wrappers.items():
            try:
                traced = self._change_method(subclass, name, wrap)
            except Exception:  # noqa: BLE001 - a metaclass may refuse; one class must not cost all the others
                traced = False
            if not traced and not self._trace_below(subclass, name):
                self.untraceable.append(f"{said}.{name}")

    def _trace_below(self, subclass: type[Any], name: str) -> bool:
        """Put a traced class under ``subclass``, so that what its own method ``name`` calls is traced."""
        before = subclass.__bases__
        if PRODUCER_BETWEEN in before:
            return True
        if ORIGINAL_PRODUCER not in before or name not in vars(PRODUCER_BETWEEN):
            return False
        after = tuple(PRODUCER_BETWEEN if each is ORIGINAL_PRODUCER else each for each in before)
        try:
            self._make(Change(subclass, "__bases__", before, after))
        except Exception:  # noqa: BLE001 - as above; a layout of its own may refuse, too
            return False
        return True

    def _change_method(self, subclass: type[Any], name: str, wrap: Wrapper) -> bool:
        method = getattr(subclass, name, None)
        if method is None:
            return True
        wrapped = wrap(method)
        if wrapped is None:
            return False
        self._make(Change(subclass, name, subclass.__dict__.get(name, ABSENT), wrapped))
        return True

    def _rebind(self) -> None:
        for change in places_of({kind.original: kind.traced for kind in _KINDS}):
            self._make(change)

    def _make(self, change: Change) -> None:
        change.apply()
        self.changes.append(change)


def apply(tracing: Tracing) -> Patches:
    """Patch the client and start tracing."""
    return Patches.apply(tracing)


def _leave_sources() -> None:
    if handed_over in sources:
        sources.remove(handed_over)
