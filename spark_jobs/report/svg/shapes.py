"""The few marks that every drawing is made of; text inside them is always escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from bridge.page import markup

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["dash", "drawing", "element", "label", "line", "rect", "sign", "swatch", "titled"]

_SANS = "system-ui, sans-serif"


def element(name: str, children: Iterable[object] = (), /, **attributes: object) -> Markup:
    """Return ``<name …>children</name>``; ``_`` in an attribute's name stands for ``-``, children are escaped."""
    return Markup(markup.element(name, *children, **attributes))  # noqa: S704 - escaped there


def drawing(children: Iterable[object], *, width: float, height: float, says: str, css: str = "") -> Markup:
    """Return a whole ``<svg>`` of ``width`` by ``height``; ``says`` is what a screen reader reads in its place."""
    named = {"class_": css} if css else {}
    box = f"0 0 {width:g} {height:g}"
    return element(
        "svg",
        children,
        **named,
        role="img",
        aria_label=says,
        viewBox=box,
        width=width,
        height=height,
        font_family=_SANS,
    )


def rect(x: float, y: float, width: float, height: float, fill: str, **attributes: object) -> Markup:
    """Return a filled rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Return a faint line in the page's own text colour, unless ``attributes`` say otherwise."""
    look = {"stroke": "currentColor", "stroke_opacity": 0.18, **attributes}
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **look)


def label(x: float, y: float, text: str, *, size: float = 11, **attributes: object) -> Markup:
    """Return a text in the page's own text colour, which follows light and dark."""
    return element("text", [text], x=x, y=y, font_size=size, fill="currentColor", **attributes)


def titled(title: str, children: Iterable[object]) -> Markup:
    """Return ``children`` as one group that shows ``title`` to a resting pointer."""
    return element("g", [element("title", [title]), *children])


def swatch(colour: str) -> Markup:
    """Return the small square that stands beside a word; decoration, hence hidden from screen readers."""
    square = rect(0, 0, 10, 10, colour, rx=2)
    return element("svg", [square], aria_hidden="true", width=10, height=10)


def dash(colour: str, dashes: str | None) -> Markup:
    """Return the short stroke that stands beside the name of a curve; decoration, like a swatch."""
    look = {
        "stroke": colour,
        "stroke_opacity": 1,
        "stroke_width": 3,
        **({"stroke_dasharray": dashes} if dashes else {}),
    }
    return element("svg", [line(0, 5, 30, 5, **look)], aria_hidden="true", width=30, height=10)


_SIGNS = {
    "PASS": "M12 24 l8 9 16 -19",
    "WARN": "M24 11 v16 M24 34 v3",
    "FAIL": "M15 15 l18 18 M33 15 l-18 18",
    "INCONCLUSIVE": "M17 18 a7 7 0 1 1 9 7 q-2 1 -2 4 M24 35 v2",
}


def sign(verdict: str, colour: str) -> Markup:
    """Return the large sign of a verdict: its shape says what its colour says."""
    marks = [
        element("circle", cx=24, cy=24, r=23, fill=colour),
        element("path", d=_SIGNS.get(verdict, ""), fill="none", stroke="#fff", stroke_width=5, stroke_linecap="round"),
    ]
    return element("svg", marks, aria_hidden="true", viewBox="0 0 48 48", width=44, height=44)
