"""Write markup in which every text from a trace is escaped, the head of a page, and links."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Markup(str):
    """Text that is markup already: the result of :func:`element`, never input."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the markup; template engines call this instead of escaping."""
        return self


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return ``<tag …>children</tag>``.

    Children that are not :class:`Markup` (or that of a template engine) are escaped; lists stand for their items,
    ``None`` for nothing. In the name of an attribute ``_`` stands for ``-`` and one at the end is dropped; an attribute
    of ``None`` is left out.
    """
    return Markup(f"<{tag}{_attributes(attributes)}>{joined(children)}</{tag}>")


def void(tag: str, /, **attributes: object) -> Markup:
    """Return ``<tag …>``, an element without content."""
    return Markup(f"<{tag}{_attributes(attributes)}>")


def joined(children: Iterable[object]) -> Markup:
    """Return the markup of ``children`` in order."""
    return Markup("".join(map(_markup, children)))


def _markup(child: object) -> str:
    if child is None:
        return ""
    if hasattr(child, "__html__"):
        return str(child.__html__())
    if isinstance(child, (list, tuple)):
        return joined(child)
    return html.escape(_text(child))


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").removesuffix(".") if isinstance(value, float) else str(value)


@cache
def style_sheet(package: str, name: str = "style.css") -> str:
    """Return the style sheet of every page, followed by the sheet ``name`` of ``package``."""
    shared, own = (files(of) / sheet for of, sheet in (("bridge.page", "style.css"), (package, name)))
    return shared.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def content_policy(style: str, script: str | None = None) -> str:
    """Return the content security policy of a page: no request, and no script or style but these two."""
    allowed = [
        f"{part}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for part, text in (("style", style), ("script", script))
        if text is not None
    ]
    return "; ".join(("default-src 'none'", *allowed, "img-src data:", "base-uri 'none'", "form-action 'none'"))


_NAME: Final = re.compile(r"\{(\w*)\}")


def check_template(template: str, fields: Collection[str]) -> str:
    """Return ``template`` if it is a valid link template; ``fields`` are the names that it may contain.

    Raises:
        UsageError: it is not a web address, or contains no name or an unknown one.
    """
    if not re.match(r"https?://[^\s/]+", template):
        raise UsageError(f"--link-template {template!r} is not a web address: begin it with http:// or https://")
    names = _NAME.findall(template)
    unknown = sorted(set(names) - set(fields))
    if unknown or not names:
        problem = f"{{{unknown[0]}}} is unknown" if unknown else "it contains no field"
        raise UsageError(f"--link-template: {problem}; use {', '.join(f'{{{name}}}' for name in fields)}")
    return template


def fill_template(template: str, value_of: Callable[[str], Any]) -> str | None:
    """Return the address with every value quoted, or ``None`` if a name in it has no value."""
    values = {name: value_of(name) for name in _NAME.findall(template)}
    if None in values.values():
        return None
    return _NAME.sub(lambda hit: quote(str(values[hit[1]]).encode("utf-8", "replace"), safe=""), template)
