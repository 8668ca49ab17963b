"""This module knows what of the client goes untraced at this moment; asked by ``mqtrace doctor``, never on the way."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_mqtrace.clients.confluent_kafka.rebinding.neighbours import neighbour_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["classes_made_later", "clients_untraced"]


def classes_made_later(originals: Iterable[type[Any]], known: Collection[type[Any]]) -> list[type[Any]]:
    """Return the subclasses of the original classes that nobody changed: made of a name that was not rebound."""
    return [
        subclass
        for original in originals
        for subclass in original.__subclasses__()
        if subclass not in known and neighbour_of(subclass) is None
    ]


def clients_untraced(classes: Collection[type[Any]]) -> list[str]:
    """Return the clients alive that are objects of exactly these classes, as ``name: count``.

    A client made before ``instrument()`` is one, or one made through a name that still holds the original class.
    """
    counts = Counter(each.__name__ for each in map(type, gc.get_objects()) if each in classes)
    return [f"{name}: {count}" for name, count in sorted(counts.items())]
