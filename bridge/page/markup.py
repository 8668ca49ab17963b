"""Write markup in which every text from a trace is escaped: templates of pages, links, and drawings in SVG.

Drawings have presentation attributes only, which keep their colours without CSS. Every hue has a contrast of at least
3:1 on the light and on the dark page (WCAG 2.2, graphical objects) and always stands beside its word.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from jinja2 import Environment


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return ``<tag …>children</tag>``.

    Children that are not ``Markup`` are escaped; lists stand for their items, ``None`` for nothing. In the name of an
    attribute ``_`` stands for ``-`` and one at the end is dropped; an attribute of ``None`` is left out.
    """
    pairs = "".join([f' {_spell(name)}="{_escape(value)}"' for name, value in attributes.items() if value is not None])
    return Markup(f"<{tag}{pairs}>{join_markup(children)}</{tag}>")  # noqa: S704 - escaped


def join_markup(children: Iterable[object]) -> Markup:
    """Return the markup of ``children`` in order."""
    return Markup("".join(map(_markup, children)))  # noqa: S704 - escaped


def _markup(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, (list, tuple)):
        return join_markup(child)
    return _escape(child)


@cache
def _spell(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _escape(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").removesuffix(".")
    return escape(value)


def open_templates(package: str, filters: Mapping[str, Any], functions: Mapping[str, Any]) -> Environment:
    """Return the templates of ``package`` and of every page: all values are escaped, an unknown name is an error."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - for pages only

    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("bridge.page")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= filters
    made.globals |= functions
    return made


@cache
def style_sheet(package: str) -> Markup:
    """Return the style sheet of every page, followed by that of ``package``."""
    sheets = (files(each) / "templates" / "style.css" for each in ("bridge.page", package))
    return Markup("".join(sheet.read_text(encoding="utf-8") for sheet in sheets))  # noqa: S704 - our own files


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


GREEN: Final = "#2f8f5b"
BLUE: Final = "#3f7fc4"
SKY: Final = "#3b93a8"
SLATE: Final = "#7a8794"
GREY: Final = "#8b8f96"
AMBER: Final = "#b7791f"
ORANGE: Final = "#cf6a2b"
RED: Final = "#d14343"
VIOLET: Final = "#8b6bd0"

SIDE_COLOUR: Final = {"native": BLUE, "otlp": VIOLET}
"""The colour of each side."""


def drawing(children: Iterable[object], *, width: float, height: float, text: str, css: str | None = None) -> Markup:
    """Return a whole ``<svg>`` of ``width`` by ``height``; screen readers read ``text`` in its place."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height}
    look = {"font_family": "system-ui, sans-serif", "class_": css}
    return element("svg", *children, role="img", aria_label=text, **size, **look)


def rect(x: float, y: float, width: float, height: float, fill: str, **attributes: object) -> Markup:
    """Return a filled rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Return a faint line in the text colour of the page; ``attributes`` override it."""
    look = {"stroke": "currentColor", "stroke_opacity": 0.18, **attributes}
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **look)


def path(d: str, fill: str = "none", **attributes: object) -> Markup:
    """Return a path."""
    return element("path", d=d, fill=fill, **attributes)


def label(x: float, y: float, text: str, *, size: float = 11, **attributes: object) -> Markup:
    """Return a text in the text colour of the page."""
    return element("text", text, x=x, y=y, font_size=size, fill="currentColor", **attributes)


def titled(title: str, *children: object) -> Markup:
    """Return ``children`` as one group with a tooltip."""
    return element("g", element("title", title), *children)


def icon(*marks: Markup, width: int = 10, height: int = 10, **attributes: object) -> Markup:
    """Return a small drawing beside a word; hidden from screen readers."""
    return element("svg", *marks, aria_hidden="true", width=width, height=height, **attributes)
