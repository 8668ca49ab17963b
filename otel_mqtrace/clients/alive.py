"""This module knows what exists at this moment of one kind of object, without keeping any of it.

A ``WeakSet`` or ``WeakKeyDictionary`` that is gone through while another thread makes such an object raises; here every
step is one atomic call.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Alive"]

_T = TypeVar("_T")


class Alive(Generic[_T]):
    """Objects held weakly; callable from any thread and from the garbage collector."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[_T]] = {}

    def add(self, it: _T) -> None:
        """Know ``it`` for as long as it exists."""
        self._known[id(it)] = weakref.ref(it, _forgetter(self._known, id(it)))

    def all(self) -> list[_T]:
        """Return what exists now."""
        # Values, never items: those are tuples made on the way, and the collector may run whenever something is made.
        found = [reference() for reference in list(self._known.values())]
        return [each for each in found if each is not None]


def _forgetter(known: dict[int, weakref.ref[_T]], key: int) -> Callable[[weakref.ref[_T]], None]:
    def forget(reference: weakref.ref[_T]) -> None:
        if known.get(key) is reference:  # an id is used again, but not before this
            known.pop(key, None)

    return forget
