"""This module knows how confluent-kafka is patched and restored: one list of changes, walked both ways.

The client's classes are immutable C types, so three things are done: a traced subclass takes the place of the class
under every name a loaded module knows it by; the Python subclasses that exist already are changed in place; and nothing
else. What cannot be traced in place is kept in ``Patches.untraceable`` for ``mqtrace doctor``.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

from otel_mqtrace.clients.confluent_kafka.consumer import CONSUMER_METHODS, ORIGINAL_CONSUMER
from otel_mqtrace.clients.confluent_kafka.handover import handed_over
from otel_mqtrace.clients.confluent_kafka.leaders import forget_leaders
from otel_mqtrace.clients.confluent_kafka.live import live
from otel_mqtrace.clients.confluent_kafka.producer import ORIGINAL_PRODUCER, PRODUCER_METHODS
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.process import sources

if TYPE_CHECKING:
    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Patches", "TracedConsumer", "TracedProducer", "apply", "foreign_wrapper"]

Wrappers = Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any] | None]]
_ABSENT: Final = object()
_OURS: Final = "otel_mqtrace."


class _StandsIn(ABCMeta):
    """Keeps ``isinstance(x, Producer)`` true for everything it was true for before the name was rebound.

    An ``ABCMeta``, because applications mix abstract bases into their clients and metaclasses must not clash.
    """

    _original: type[Any]

    def __instancecheck__(cls, instance: object) -> bool:
        original = cls.__dict__.get("_mqtrace_original")
        return super().__instancecheck__(instance) if original is None else isinstance(instance, original)

    def __subclasscheck__(cls, subclass: type[Any]) -> bool:
        original = cls.__dict__.get("_mqtrace_original")
        return super().__subclasscheck__(subclass) if original is None else issubclass(subclass, original)


def _stand_in(original: type[Any], wrappers: Wrappers) -> type[Any]:
    body: dict[str, Any] = {
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "_mqtrace_original": original,
    }
    for name, wrap in wrappers.items():
        method = getattr(original, name, None)
        if method is not None:
            body[name] = wrap(method)
    return _StandsIn(original.__name__, (original,), body)


TracedProducer: Final = _stand_in(ORIGINAL_PRODUCER, PRODUCER_METHODS)
TracedConsumer: Final = _stand_in(ORIGINAL_CONSUMER, CONSUMER_METHODS)
_CLASSES: Final = (
    (ORIGINAL_PRODUCER, TracedProducer, PRODUCER_METHODS),
    (ORIGINAL_CONSUMER, TracedConsumer, CONSUMER_METHODS),
)


def foreign_wrapper() -> str | None:
    """Return the module of another instrumentation that has rebound the client's names, or ``None``."""
    for name, (original, traced, _) in zip(("Producer", "Consumer"), _CLASSES, strict=True):
        found = getattr(confluent_kafka, name)
        if found is not original and found is not traced:
            return str(found.__module__)
    return None


@dataclass(frozen=True, slots=True)
class _Change:
    owner: Any
    name: str
    before: Any
    after: Any

    def apply(self) -> None:
        setattr(self.owner, self.name, self.after)

    def undo(self) -> None:
        """Put back what was there, unless somebody else has changed it since."""
        if vars(self.owner).get(self.name) is not self.after:
            return
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


@dataclass(slots=True)
class Patches:
    """The changes made by one ``instrument()``; ``restore`` undoes exactly those, in reverse order."""

    changes: list[_Change] = field(default_factory=list)
    untraceable: list[str] = field(default_factory=list)

    @classmethod
    def apply(cls, tracing: Tracing) -> Patches:
        """Patch everything that can be reached and start tracing; broken off half-way, nothing stays changed."""
        patches = cls()
        live.tracing = tracing
        sources.append(handed_over)
        try:
            for original, traced, wrappers in _CLASSES:
                for subclass in original.__subclasses__():
                    if subclass is not traced:
                        patches._change_in_place(subclass, wrappers)
                patches._rebind(original, traced)
        except BaseException:
            patches.restore()
            raise
        return patches

    def restore(self) -> None:
        """Undo every change and stop tracing; clients that are still alive go on untraced."""
        live.tracing = None
        forget_leaders()
        if handed_over in sources:
            sources.remove(handed_over)
        while self.changes:
            _undo(self.changes.pop())

    def _change_in_place(self, subclass: type[Any], wrappers: Wrappers) -> None:
        said = f"{subclass.__module__}.{subclass.__qualname__}"
        if not subclass.__dictoffset__:  # its own objects have no place for a state; those of its subclasses may
            self.untraceable.append(said)
        for name, wrap in wrappers.items():
            try:
                traced = self._change_method(subclass, name, wrap)
            except Exception:  # noqa: BLE001 - a metaclass may refuse; one class must not cost all the others
                traced = False
            if not traced:
                self.untraceable.append(f"{said}.{name}")

    def _change_method(
        self, subclass: type[Any], name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any] | None]
    ) -> bool:
        method = getattr(subclass, name, None)
        if method is None:
            return True
        wrapped = wrap(method)
        if wrapped is None:
            return False
        self._make(_Change(subclass, name, subclass.__dict__.get(name, _ABSENT), wrapped))
        return True

    def _rebind(self, original: type[Any], traced: type[Any]) -> None:
        for module, name in list(_names_bound_to(original)):
            self._make(_Change(module, name, original, traced))

    def _make(self, change: _Change) -> None:
        change.apply()
        self.changes.append(change)


def apply(tracing: Tracing) -> Patches:
    """Patch the client and start tracing."""
    return Patches.apply(tracing)


@guarded("Patches.restore")
def _undo(change: _Change) -> None:
    """One name that cannot be put back must not keep all the others."""
    change.undo()


def _names_bound_to(original: type[Any]) -> Iterator[tuple[Any, str]]:
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if module_name.startswith(_OURS) or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is original:
                yield module, name
