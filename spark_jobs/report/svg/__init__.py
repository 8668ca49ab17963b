"""Drawings: SVG with presentation attributes only, so that they keep their colours without CSS."""
