"""This module knows how to make many objects of the model at the price of plain ones.

A frozen dataclass stores each of its fields by ``object.__setattr__``, which is most of what reading a record costs. So
a plain class with the same slots is filled instead, and its instance then gets the model's class: Python allows that to
classes of one layout, and what comes out is an object of the model like any other.
"""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["maker_of"]

_T = TypeVar("_T")


def maker_of(model: type[_T]) -> Callable[..., _T]:
    """Return what makes a ``model``, a dataclass with slots, of the values of all its fields, in their order."""

    def become(made: Any) -> None:
        made.__class__ = model

    names = [field.name for field in fields(cast("Any", model))]
    twin = make_dataclass(model.__name__, names, namespace={"__post_init__": become}, slots=True, eq=False, repr=False)
    return cast("Callable[..., _T]", twin)
