"""Add up what tasks return, field by field: counts, first and last times, tables, histograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_Part = TypeVar("_Part")
_RULE: Final = "sum"


def by(rule: Callable[[Sequence[Any]], Any]) -> dict[str, Any]:
    """Return the metadata of a dataclass field; ``rule`` makes one value of those that several parts have."""
    return {_RULE: rule}


def sum_of(kind: type[_Part], parts: Iterable[Any]) -> _Part:
    """Return the sum of instances of the dataclass ``kind``; of none it is ``kind()``.

    Numbers and counters are added, tuples and tables joined, dictionaries added key by key. A class with ``merge`` is
    added up by that, a field with a rule (:func:`by`) by its rule. The sum of one is itself, not a copy.
    """
    some = list(parts)
    found: _Part = _add_up(some) if some else kind()
    return found


def _add_up(values: Sequence[Any]) -> Any:
    first = values[0]
    if len(values) == 1:
        return first
    if hasattr(first, "merge"):
        return first.merge(values)
    if is_dataclass(first):
        rules = {one.name: one.metadata.get(_RULE, _add_up) for one in fields(first)}
        found = {name: rule([getattr(each, name) for each in values]) for name, rule in rules.items()}
        return type(first)(**found)  # type: ignore[misc]
    if isinstance(first, Mapping):
        return _add_by_key(values)
    if isinstance(first, pa.Table):
        return pa.concat_tables(values)
    return tuple(chain(*values)) if isinstance(first, tuple) else sum(values)


def _add_by_key(maps: Sequence[Mapping[Any, Any]]) -> Mapping[Any, Any]:
    by_key: dict[Any, list[Any]] = {}
    for key, value in chain.from_iterable(each.items() for each in maps):
        by_key.setdefault(key, []).append(value)
    found = {key: _add_up(values) for key, values in by_key.items()}
    return Counter(found) if isinstance(maps[0], Counter) else found


def least(values: Iterable[Any]) -> Any:
    """Return the least known value; ``None`` if none is known."""
    return min((value for value in values if value is not None), default=None)


def greatest(values: Iterable[Any]) -> Any:
    """Return the greatest known value; ``None`` if none is known."""
    return max((value for value in values if value is not None), default=None)
