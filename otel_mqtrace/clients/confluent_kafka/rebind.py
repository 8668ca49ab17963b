"""Names that hold the client's C classes: those that are rebound and, for ``mqtrace doctor``, those out of reach.

Rebound are globals of modules and attributes of classes. What holds a class in any other way (a default argument, a
container, a closure, an object) is only reported.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import Counter
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.patching import Change, identify_class

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet


_OURS: Final = "otel_mqtrace."
_CLIENT: Final = "confluent_kafka"
_MAX_ENTRIES: Final = 1_000
"""A container longer than this is data, not a choice of classes."""
_NEVER_A_FACTORY: Final = frozenset({"typing", "types", "abc", "functools"})


def find_names(replacements: Mapping[type[Any], type[Any]]) -> list[Change]:
    """Return every name that can be rebound, for original → traced classes; our own modules keep what they hold."""
    traced = {id(original): replacement for original, replacement in replacements.items()}
    return [
        Change(owner, name, value, traced[id(value)])
        for owner in _search_modules(traced)
        for name, value in list(vars(owner).items())
        if id(value) in traced
    ]


def _search_modules(originals: Mapping[int, object]) -> Iterator[Any]:
    """Yield the modules that refer to the client, and the classes that they define.

    ``originals`` are the classes by their ``id()``: comparing objects could run code of theirs.
    """
    for module_name, module in _find_modules():
        values = list(vars(module).values())
        if any(id(each) in originals or _is_client(each) for each in values):
            yield module
            # type(), not isinstance(): reading the __class__ of a lazy object may run any code
            classes = (each for each in values if issubclass(type(each), type) and each.__module__ == module_name)
            yield from (each for each in classes if "_mqtrace_original" not in vars(each))


def _find_modules() -> list[tuple[str, Any]]:
    """Return the modules by name, but for ours and for objects that only stand in for one."""
    others = (each for each in list(sys.modules.items()) if not each[0].startswith(_OURS))
    return [(name, each) for name, each in others if isinstance(getattr(each, "__dict__", None), dict)]


def owner_name(owner: Any) -> str:
    """Return the name of a module or class."""
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _is_client(value: Any) -> bool:
    return type(value) is ModuleType and value.__name__.split(".")[0] == _CLIENT


# -- out of reach: found through every object there is, by the garbage collector, for `mqtrace doctor` only ------------
def find_later_classes(originals: Iterable[type[Any]], known: Collection[type[Any]]) -> list[type[Any]]:
    """Return the subclasses of the original classes that were not changed: made of a name that was not rebound."""
    return [
        subclass
        for original in originals
        for subclass in original.__subclasses__()
        if subclass not in known and identify_class("confluent-kafka", subclass) is None
    ]


def find_untraced_clients(classes: Collection[type[Any]]) -> list[str]:
    """Return the clients alive that are objects of exactly these classes, as ``name: count``.

    A client made before ``instrument()`` is one, or one made through a name that still holds the original class.
    """
    counts = Counter(each.__name__ for each in map(type, gc.get_objects()) if each in classes)
    return [f"{name}: {count}" for name, count in sorted(counts.items())]


def find_unreached(originals: Collection[type[Any]]) -> list[str]:
    """Return the names of all places that hold one of the original classes."""
    owners = [module for _, module in _find_modules()]
    owners += (each for each in gc.get_objects() if type(each) is FunctionType or issubclass(type(each), type))
    for holder in gc.get_referrers(*originals):
        held_by = (holder,) if type(holder) is not dict else (holder, *gc.get_referrers(holder))
        owners += (each for each in held_by if not issubclass(type(each), (type, FunctionType, ModuleType)))
    ids = set(map(id, originals))
    return sorted({place for owner in owners for place in _find_places(owner, ids)})


def _find_places(owner: Any, ids: AbstractSet[int]) -> Iterator[str]:
    """Yield where a function, class, module or other object holds one of the classes."""
    kind = type(owner)  # not isinstance(): as in _search_modules()
    if kind is FunctionType:
        name = f"{owner.__module__}.{owner.__qualname__}"
        defaults = (*(owner.__defaults__ or ()), *(owner.__kwdefaults__ or {}).values())
        held = {"defaults": defaults, "closure": gc.get_referents(*(owner.__closure__ or ()))}
        places = [place for place, values in held.items() if not ids.isdisjoint(map(id, values))]
        yield from (f"the {place} of {name}" for place in places if not name.startswith(_OURS))
    elif issubclass(kind, (type, ModuleType)):
        attributes = {} if "_mqtrace_original" in vars(owner) else dict(vars(owner))
        for name, value in attributes.items():
            if not ids.isdisjoint(map(id, (value, *(() if name.startswith("__") else _inside(value))))):
                yield f"{owner_name(owner)}.{name}"
    elif kind.__dictoffset__ and kind.__module__ not in _NEVER_A_FACTORY:
        with suppress(AttributeError, TypeError):
            attributes = dict(object.__getattribute__(owner, "__dict__"))
            yield from (f"{name} of a {owner_name(kind)} object" for name in attributes if id(attributes[name]) in ids)


def _inside(value: Any) -> Iterable[Any]:
    kind = type(value)
    if kind is functools.partial:
        return value.func, *value.args
    if kind in {list, tuple, dict} and len(value) <= _MAX_ENTRIES:
        return list(value.values()) if kind is dict else value
    return ()
