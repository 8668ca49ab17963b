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


def _search_modules(originals: Mapping[int, object], *, everywhere: bool = False) -> Iterator[Any]:
    """Yield the modules that refer to the client, and the classes that they define; or ``everywhere``, all of them.

    ``originals`` are the classes by their ``id()``: comparing objects could run code of theirs.
    """
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_OURS) or not isinstance(getattr(module, "__dict__", None), dict):
            continue
        values = list(vars(module).values())
        if not everywhere and not any(id(each) in originals or _is_client(each) for each in values):
            continue
        yield module
        for each in values:
            # type(), not isinstance(): reading the __class__ of a lazy object may run any code
            if (
                issubclass(type(each), type)
                and each.__module__ == module_name
                and "_mqtrace_original" not in vars(each)
            ):
                yield each


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
    ids = {id(each): each for each in originals}
    names = {name for owner in _search_modules(ids, everywhere=True) for name in _held_by(owner, ids)}
    for each in gc.get_objects():
        kind = type(each)  # never isinstance: reading the __class__ of a lazy object may run any code
        if kind is FunctionType:
            names.update(_held_by_function(each, ids))
        elif issubclass(kind, type) and "_mqtrace_original" not in vars(each):
            names.update(_held_by(each, ids))
    for holder in gc.get_referrers(*originals):
        owners = (holder,) if type(holder) is not dict else (holder, *gc.get_referrers(holder))
        for owner in owners:
            names.update(_held_by_object(owner, ids))
    return sorted(names)


def _held_by(owner: Any, ids: Collection[int]) -> Iterator[str]:
    for name, value in list(vars(owner).items()):
        if id(value) in ids or (not name.startswith("__") and _is_among(_inside(value), ids)):
            yield f"{owner_name(owner)}.{name}"


def _held_by_function(function: FunctionType, ids: Collection[int]) -> Iterator[str]:
    name = f"{function.__module__}.{function.__qualname__}"
    if name.startswith(_OURS):
        return
    if _is_among((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()), ids):
        yield f"the defaults of {name}"
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty still
            if id(cell.cell_contents) in ids:
                yield f"the closure of {name}"


def _held_by_object(owner: Any, ids: Collection[int]) -> Iterator[str]:
    kind = type(owner)
    if (
        not kind.__dictoffset__
        or kind.__module__ in _NEVER_A_FACTORY
        or issubclass(kind, (type, FunctionType, ModuleType))
    ):
        return
    with suppress(AttributeError, TypeError):
        for name, value in dict(object.__getattribute__(owner, "__dict__")).items():
            if id(value) in ids:
                yield f"{name} of a {kind.__module__}.{kind.__qualname__} object"


def _inside(value: Any) -> Iterable[Any]:
    kind = type(value)
    if kind is functools.partial:
        return value.func, *value.args
    if kind in {list, tuple, dict} and len(value) <= _MAX_ENTRIES:
        return list(value.values()) if kind is dict else value
    return ()


def _is_among(values: Iterable[Any], ids: Collection[int]) -> bool:
    return any(id(each) in ids for each in values)
