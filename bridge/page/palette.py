"""This module knows the hues of every page and drawing; a colour never stands without its word.

Every hue has at least 3:1 contrast on the light and on the dark page (WCAG 2.2, graphical objects), so that a drawing
needs no second set and keeps its meaning where a viewer blocks style sheets.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AMBER",
    "BLUE",
    "DARK_PAGE",
    "GREEN",
    "GREY",
    "LIGHT_PAGE",
    "ORANGE",
    "RED",
    "SIDE_COLOUR",
    "SKY",
    "SLATE",
    "VIOLET",
]

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
"""The native trace and OTLP, wherever both are drawn."""
