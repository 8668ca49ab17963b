"""This module knows every place that holds one of the client's classes, and which of them can be given another.

A name in a module, an attribute of a class, a default argument and an entry of a module's own list or dict are rebound.
A tuple, a ``functools.partial``, a closure and an attribute of an object are finished business, and may be somebody's
way round us on purpose: they are told to ``mqtrace doctor`` instead.
"""

from __future__ import annotations

import functools
import gc
import sys
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Binding", "holders_of", "names_bound_to"]

ABSENT: Final = object()
_OURS: Final = "otel_mqtrace."
_NEVER_A_FACTORY: Final = frozenset({"typing", "types", "abc"})


@dataclass(frozen=True, slots=True)
class Binding:
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
        if isinstance(owner, FunctionType):
            return getattr(owner, name)
        return vars(owner).get(name, ABSENT)

    def _put(self, value: Any) -> None:
        if isinstance(self.owner, (dict, list)):
            self.owner[self.name] = value
        elif value is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


def names_bound_to(original: type[Any]) -> Iterator[tuple[Any, str]]:
    """Yield each loaded module, but for ours, with every name in it that is bound to ``original``."""
    for module in _foreign_modules().values():
        for name, value in list(vars(module).items()):
            if value is original:
                yield module, name


def holders_of(original: type[Any], traced: type[Any]) -> tuple[list[Binding], list[str]]:
    """Return what else can be rebound from ``original`` to ``traced``, and the names of what cannot.

    Asks the garbage collector, once: a walk over all that modules hold would take longer and see less.
    """
    search = _Search(original, traced)
    search.run()
    return search.found, search.unreached


def _foreign_modules() -> dict[int, Any]:
    """Every loaded module by the identity of its namespace."""
    return {
        id(vars(module)): module
        for name, module in list(sys.modules.items())
        if not name.startswith(_OURS) and isinstance(getattr(module, "__dict__", None), dict)
    }


class _Search:
    """One look at all that refers to a class, and at what refers to that."""

    def __init__(self, original: type[Any], traced: type[Any]) -> None:
        self._original = original
        self._traced = traced
        self._modules = _foreign_modules()
        self._known = {id(vars(module)) for module in list(sys.modules.values()) if hasattr(module, "__dict__")}
        self.found: list[Binding] = []
        self.unreached: list[str] = []

    def run(self) -> None:
        held_by = [each for each in gc.get_referrers(self._original) if id(each) not in self._known]
        containers = [each for each in held_by if isinstance(each, (dict, list, tuple, functools.partial))]
        for container, owner in _owned(containers):
            self._consider(container, owner)
        closures = [owner for _, owner in _owned([each for each in held_by if isinstance(each, CellType)])]
        for _, function in _owned([each for each in closures if isinstance(each, tuple)]):
            if isinstance(function, FunctionType) and not function.__module__.startswith(_OURS):
                self.unreached.append(f"the closure of {function.__module__}.{function.__qualname__}")

    def _consider(self, container: Any, owner: Any) -> None:
        if isinstance(owner, FunctionType):
            self._function(container, owner)
        elif isinstance(owner, type):
            self._class(container, owner)
        elif id(owner) in self._modules:
            self._module(container, self._modules[id(owner)])
        elif isinstance(container, dict) and getattr(owner, "__dict__", None) is container:
            self._object(container, owner)

    def _function(self, container: Any, function: FunctionType) -> None:
        if container is function.__defaults__:
            after = tuple(self._traced if each is self._original else each for each in function.__defaults__ or ())
            self.found.append(Binding(function, "__defaults__", container, after))
        elif container is function.__kwdefaults__ or container is function.__dict__:
            self._items(container)

    def _class(self, container: Any, owner: type[Any]) -> None:
        if not isinstance(container, dict) or "_mqtrace_original" in vars(owner):
            return
        for name, value in list(vars(owner).items()):
            if value is self._original:
                self._bind(owner, name)

    def _module(self, container: Any, module: Any) -> None:
        if isinstance(container, (dict, list)):
            self._items(container)
            return
        names = [name for name, value in list(vars(module).items()) if value is container]
        self.unreached += [f"{module.__name__}.{name}" for name in names]

    def _object(self, namespace: Any, owner: Any) -> None:
        kind = type(owner)
        if kind.__module__ not in _NEVER_A_FACTORY:
            names = [name for name, value in list(namespace.items()) if value is self._original]
            self.unreached += [f"{name} of a {kind.__module__}.{kind.__qualname__} object" for name in names]

    def _items(self, container: Any) -> None:
        pairs = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
        for name, value in pairs:
            if value is self._original:
                self._bind(container, name)

    def _bind(self, owner: Any, name: Any) -> None:
        if not any(each.owner is owner and each.name == name for each in self.found):
            self.found.append(Binding(owner, name, self._original, self._traced))


def _owned(containers: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each container with everything that refers to it."""
    identities = {id(each): each for each in containers}
    for owner in gc.get_referrers(*containers) if containers else ():
        if owner is not containers and owner is not identities:
            yield from ((each, owner) for each in gc.get_referents(owner) if id(each) in identities)
