"""This module knows how a thing is done by one thread, once, however many come to it at the same moment."""

from __future__ import annotations

__all__ = ["Once"]


class Once:
    """Something that one caller may take. A list is popped, which no other thread can come between; no lock is held."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: list[None] = [None]

    @property
    def is_left(self) -> bool:
        """Whether nobody has taken it yet."""
        return bool(self._left)

    def take(self) -> bool:
        """Return ``True`` to exactly one caller."""
        try:
            self._left.pop()
        except IndexError:
            return False
        return True
