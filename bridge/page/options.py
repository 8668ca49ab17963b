"""Declare an option of a command that stands in a panel of its help."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["option"]


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """Return the option that ``--help`` explains by ``text`` in ``panel``; ``names`` are those its parameter lacks."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)
