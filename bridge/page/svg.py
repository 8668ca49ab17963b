"""The hues and marks of every drawing: SVG with presentation attributes only, which keep their colours without CSS.

Every hue has a contrast of at least 3:1 on the light and on the dark page (WCAG 2.2, graphical objects) and always
stands beside its word. Text inside marks is escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.page.markup import element

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.page.markup import Markup


LIGHT_PAGE: Final = "#fcfcfb"
DARK_PAGE: Final = "#14181d"

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


def drawing(
    children: Iterable[object], *, width: float, height: float, text: str, css: str | None = None, **more: str
) -> Markup:
    """Return a whole ``<svg>`` of ``width`` by ``height``; screen readers read ``text`` in its place."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height}
    look = {"font_family": "system-ui, sans-serif", "class_": css}
    return element("svg", *children, **more, role="img", aria_label=text, **size, **look)


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
