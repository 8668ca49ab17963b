"""This module knows every place that holds one of the client's classes, and which of them can be given another.

A name in a module, an attribute of a class, a default argument and an entry of a list or dict of either are rebound. A
tuple, a ``functools.partial``, a closure and an attribute of an object are finished business, and may be somebody's way
round us on purpose: they are told to ``mqtrace doctor`` instead.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.change import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["places_left", "places_of"]

_OURS: Final = "otel_mqtrace."
_CLIENT: Final = "confluent_kafka"
_METHODS: Final = frozenset({staticmethod, classmethod})
_NEVER_A_FACTORY: Final = frozenset({"typing", "types", "abc"})
_FINISHED: Final = frozenset({tuple, functools.partial})
_NO_OBJECTS: Final = frozenset({FunctionType, ModuleType, functools.partial})
_MOST_ENTRIES: Final = 1_000
"""A list or dict longer than this is data, not a choice of classes."""


def places_of(classes: Mapping[type[Any], type[Any]]) -> list[Change]:
    """Return every place that can be rebound, for original → traced ``classes``; our own modules keep what they hold.

    A default argument and an attribute of a class are looked for in the modules that know the client.
    """
    search = _Search(classes)
    search.modules()
    return list(search.found.values())


def places_left(classes: Mapping[type[Any], type[Any]]) -> list[str]:
    """Return the names of all places that hold one of the original ``classes``, whether it could be rebound or not.

    Asks the garbage collector about every object there is: for the doctor, not for every start.
    """
    search = _Search(classes)
    search.modules(all_of_them=True)
    search.everything()
    return sorted(set(search.unreached) | set(search.found))


class _Search:
    """One look at all that may hold one of some classes: ``found`` can be rebound, by name, ``unreached`` cannot."""

    def __init__(self, classes: Mapping[type[Any], type[Any]]) -> None:
        self._traced = {id(original): (original, traced) for original, traced in classes.items()}
        self.found: dict[str, Change] = {}
        self.unreached: list[str] = []

    def modules(self, *, all_of_them: bool = False) -> None:
        for name, module in list(sys.modules.items()):
            if not name.startswith(_OURS) and isinstance(getattr(module, "__dict__", None), dict):
                values = list(vars(module).values())
                if all_of_them or self._holds(values) or any(_is_the_client(each) for each in values):
                    self._namespace(module, name)
                    self._members(values, name)

    def everything(self) -> None:
        """What no module leads to: functions and classes made inside functions, attributes of objects."""
        for each in gc.get_objects():
            kind = type(each)  # never isinstance: a lazy object may do who knows what when asked for its class
            if kind is FunctionType:
                self._function(each)
            elif issubclass(kind, type):
                self._class(each)
        modules = {id(vars(each)) for each in list(sys.modules.values()) if type(each) is ModuleType}
        holders = gc.get_referrers(*(original for original, _ in self._traced.values()))
        dicts = [each for each in holders if type(each) is dict and id(each) not in modules]
        for owner in [*holders, *(gc.get_referrers(*dicts) if dicts else ())]:
            self._object(owner)

    def _members(self, values: list[Any], module_name: str) -> None:
        for value in values:
            kind = type(value)
            if kind is FunctionType:
                self._function(value)
            elif issubclass(kind, type) and value.__module__ == module_name:
                self._class(value)
                for each in list(vars(value).values()):
                    function = getattr(each, "__func__", each) if type(each) in _METHODS else each
                    if type(function) is FunctionType:
                        self._function(function)

    def _namespace(self, owner: Any, said: str) -> None:
        for name, value in list(vars(owner).items()):
            kind = type(value)
            if id(value) in self._traced:
                self._bind(owner, name, value, f"{said}.{name}")
            elif kind is dict or kind is list:
                if name != "__annotations__":
                    self._items(value, f"{said}.{name}")
            elif kind in _FINISHED and not name.startswith("__") and self._holds(_inside(value)):
                self.unreached.append(f"{said}.{name}")

    def _class(self, owner: type[Any]) -> None:
        if "_mqtrace_original" not in owner.__dict__:
            self._namespace(owner, f"{owner.__module__}.{owner.__qualname__}")

    def _function(self, function: FunctionType) -> None:
        said = f"{function.__module__}.{function.__qualname__}"
        if said.startswith(_OURS):
            return
        defaults, keywords, closure = function.__defaults__, function.__kwdefaults__, function.__closure__
        if defaults and self._holds(defaults):
            after = tuple(self._traced.get(id(each), (None, each))[1] for each in defaults)
            self.found[f"the defaults of {said}"] = Change(function, "__defaults__", defaults, after)
        if keywords:
            self._items(keywords, f"the defaults of {said}")
        if closure and self._holds(_enclosed(closure)):
            self.unreached.append(f"the closure of {said}")

    def _object(self, owner: Any) -> None:
        kind = type(owner)
        if kind.__dictoffset__ and kind.__module__ not in _NEVER_A_FACTORY and kind not in _NO_OBJECTS:
            self.unreached += [
                f"{name} of a {kind.__module__}.{kind.__qualname__} object"
                for name, value in _attributes(owner).items()
                if id(value) in self._traced
            ]

    def _items(self, container: dict[Any, Any] | list[Any], said: str) -> None:
        values = container.values() if isinstance(container, dict) else container
        if len(container) > _MOST_ENTRIES or not self._holds(values):
            return
        pairs = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
        for name, value in pairs:
            if id(value) in self._traced:
                self._bind(container, name, value, f"{said}[{name!r}]")

    def _bind(self, owner: Any, name: Any, original: Any, said: str) -> None:
        self.found[said] = Change(owner, name, original, self._traced[id(original)][1])

    def _holds(self, values: Iterable[Any]) -> bool:
        return not self._traced.keys().isdisjoint(map(id, values))


def _is_the_client(value: Any) -> bool:
    return type(value) is ModuleType and value.__name__.split(".")[0] == _CLIENT


def _attributes(owner: Any) -> dict[str, Any]:
    """Past whatever the object makes of being asked; a class is none of these."""
    try:
        return {} if issubclass(type(owner), type) else dict(object.__getattribute__(owner, "__dict__"))
    except (AttributeError, TypeError):
        return {}


def _inside(value: Any) -> tuple[Any, ...]:
    return value[:_MOST_ENTRIES] if isinstance(value, tuple) else (value.func, *value.args)


def _enclosed(closure: tuple[Any, ...]) -> Iterator[Any]:
    for cell in closure:
        with contextlib.suppress(ValueError):  # it is empty still
            yield cell.cell_contents
