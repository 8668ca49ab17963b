"""Find the names that hold one of the client's C classes: globals of modules, attributes of classes.

What holds a class in any other way (a default argument, a container, a closure, an object) is reported by
``mqtrace doctor``, see :mod:`.coverage`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.patching import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


OURS: Final = "otel_mqtrace."
_CLIENT: Final = "confluent_kafka"


def find_names(replacements: Mapping[type[Any], type[Any]]) -> list[Change]:
    """Return every name that can be rebound, for original → traced classes; our own modules keep what they hold."""
    traced = {id(original): replacement for original, replacement in replacements.items()}
    return [
        Change(owner, name, value, traced[id(value)])
        for owner in search_modules(traced)
        for name, value in list(vars(owner).items())
        if id(value) in traced
    ]


def search_modules(originals: Mapping[int, object], *, everywhere: bool = False) -> Iterator[Any]:
    """Yield the modules that refer to the client, and the classes that they define; or ``everywhere``, all of them.

    ``originals`` are the classes by their ``id()``: comparing objects could run code of theirs.
    """
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(OURS) or not isinstance(getattr(module, "__dict__", None), dict):
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
