"""This package knows how to draw: SVG with presentation attributes only, so that it keeps its colours without CSS."""
