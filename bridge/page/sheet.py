"""This module knows what a page brings along in its head: the style sheet, and a policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

__all__ = ["content_policy", "style_sheet"]


@cache
def style_sheet(package: str, name: str = "style.css") -> str:
    """Return the look of every page, and behind it the style sheet ``name`` of ``package`` for what only it has."""
    shared, own = (files(of) / sheet for of, sheet in (("bridge.page", "style.css"), (package, name)))
    return shared.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def content_policy(style: str, script: str | None = None) -> str:
    """Return the policy a page lays on itself: no request at all, and no script or style but the ones we wrote."""
    allowed = [
        f"{part}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for part, text in (("style", style), ("script", script))
        if text is not None
    ]
    return "; ".join(("default-src 'none'", *allowed, "img-src data:", "base-uri 'none'", "form-action 'none'"))
