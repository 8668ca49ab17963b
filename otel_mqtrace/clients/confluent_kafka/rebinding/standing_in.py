"""This module knows the class that takes the place of one of the client's C classes, which cannot be changed."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_mqtrace.clients.change import Wrappers

__all__ = ["stand_in"]


class _StandsIn(ABCMeta):
    """Keeps ``isinstance(x, Producer)`` true for everything it was true for before the name was rebound.

    An ``ABCMeta``, because applications mix abstract bases into their clients and metaclasses must not clash.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        original = cls.__dict__.get("_mqtrace_original")
        return super().__instancecheck__(instance) if original is None else isinstance(instance, original)

    def __subclasscheck__(cls, subclass: type[Any]) -> bool:
        original = cls.__dict__.get("_mqtrace_original")
        return super().__subclasscheck__(subclass) if original is None else issubclass(subclass, original)

    def __dir__(cls) -> list[str]:
        original = cls.__dict__.get("_mqtrace_original")  # the stand-in's own bookkeeping is no member of the client's
        return list(super().__dir__()) if original is None else dir(original)


def stand_in(original: type[Any], wrappers: Wrappers) -> type[Any]:
    """Return a subclass of ``original``, looking like it from all sides, whose ``wrappers`` are in place."""
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
