"""This module knows the other instrumentations of confluent-kafka: how each is recognised and switched off."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

from otel_mqtrace.clients.neighbours import NEIGHBOURS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["neighbour_of", "warn_of_latecomer", "wrapper_among"]

_log: Final = logging.getLogger(__name__)
_HEAP_TYPE: Final = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: the client's own classes are static C types, everybody else's are not."""


def neighbour_of(found: object) -> str | None:
    """Return who made this class, proxy or function, and how to switch that off; ``None`` for nobody we know."""
    modules = [str(getattr(found, "__module__", "")), type(found).__module__]
    modules += [each.__module__ for each in getattr(found, "__mro__", ())]
    neighbours = NEIGHBOURS["confluent-kafka"]
    known = (each for each in neighbours for module in modules if f"{module}.".startswith(f"{each.module}."))
    return next((str(each) for each in known), None)


def wrapper_among(classes: Iterable[tuple[type[Any], type[Any]]]) -> str | None:
    """Return who stands where a class (original, ours) of the client should, or ``None``.

    Either the package's name has been given to another class, or what was in the C module was no C class to begin with.
    """
    for original, ours in classes:
        found = getattr(confluent_kafka, ours.__name__, original)
        for stranger in (found if found is not ours else original, original):
            if stranger is not original or original.__flags__ & _HEAP_TYPE:
                return neighbour_of(stranger) or f"the module {stranger.__module__}"
    return None


def warn_of_latecomer(name: str) -> None:
    """Say that somebody wraps the client on top of us: by both, or by its classes that know nothing of ours."""
    _log.warning(
        "mqtrace: %s wraps confluent-kafka on top of mqtrace, so messages are traced twice, or by it alone: "
        "switch it off, or uninstrument mqtrace",
        name,
    )
