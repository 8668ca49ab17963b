"""This module knows how markup is written so that no text from a trace becomes markup: everything else is escaped."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Markup", "element", "joined", "void"]


class Markup(str):
    """Text that is markup already: what :func:`element` returns, and nothing that came from outside."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it as it is: the name by which template engines ask whether a text is markup."""
        return self


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return ``<tag …>children</tag>``.

    Children that are not :class:`Markup` (or a template engine's own) are escaped, lists are their items, ``None`` is
    nothing. In an attribute's name ``_`` stands for ``-`` and one at the end is dropped; ``None`` leaves it out.
    """
    return Markup(f"<{tag}{_written(attributes)}>{joined(children)}</{tag}>")


def void(tag: str, /, **attributes: object) -> Markup:
    """Return ``<tag …>``, an element that has no content."""
    return Markup(f"<{tag}{_written(attributes)}>")


def joined(children: Iterable[object]) -> Markup:
    """Return ``children`` one behind the other."""
    return Markup("".join(map(_markup, children)))


def _markup(child: object) -> str:
    if child is None:
        return ""
    if hasattr(child, "__html__"):
        return str(child.__html__())
    if isinstance(child, (list, tuple)):
        return joined(child)
    return html.escape(_plain(child))


def _written(attributes: dict[str, object]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    )


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").removesuffix(".") if isinstance(value, float) else str(value)
