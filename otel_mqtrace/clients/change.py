"""This module knows one change made to a client, and how many are undone: each, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from otel_mqtrace.hooks._guard import guarded

__all__ = ["ABSENT", "Change", "Wrapper", "Wrappers", "each_of"]

ABSENT: Final = object()
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any] | None]
"""A client's method → what takes its place; ``None`` means that this one cannot be traced in place."""
Wrappers = Mapping[str, Wrapper]
"""Method → how to wrap it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place and what it holds: ``before``, and ``after`` while instrumented; ``ABSENT`` stands for nothing.

    ``owner`` is a module or a class for an attribute, a function for its defaults, a list or a dict for an item.
    """

    owner: Any
    name: Any
    before: Any
    after: Any

    def apply(self) -> None:
        """Put ``after`` there."""
        self._put(self.after)

    def undo(self) -> None:
        """Put back what was there, unless somebody else has changed it since."""
        if self._held() is self.after:
            self._put(self.before)

    def _held(self) -> Any:
        owner, name = self.owner, self.name
        if isinstance(owner, dict):
            return owner.get(name, ABSENT)
        if isinstance(owner, list):
            return owner[name] if name < len(owner) else ABSENT
        if isinstance(owner, FunctionType) or name == "__bases__":
            return getattr(owner, name)
        return vars(owner).get(name, ABSENT)

    def _put(self, value: Any) -> None:
        if isinstance(self.owner, (dict, list)):
            self.owner[self.name] = value
        elif value is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


def each_of(*steps: Callable[[], object]) -> None:
    """Take every step of an undoing; one that fails is counted and keeps none of the others."""
    for step in steps:
        _taken(step)


@guarded("Patches.restore")
def _taken(step: Callable[[], object]) -> None:
    step()
