"""Names, classes and objects of the client that are not traced at this moment; for ``mqtrace doctor`` only.

It goes through every object there is, with the garbage collector's help: nothing that an application waits for.
"""

from __future__ import annotations

import functools
import gc
from collections import Counter
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.rebind import OURS, owner_name, search_modules
from otel_mqtrace.clients.patching import identify_class

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


_MAX_ENTRIES: Final = 1_000
"""A container longer than this is data, not a choice of classes."""
_NEVER_A_FACTORY: Final = frozenset({"typing", "types", "abc", "functools"})


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
    names = {name for owner in search_modules(ids, everywhere=True) for name in _held_by(owner, ids)}
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
    if name.startswith(OURS):
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
