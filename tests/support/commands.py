"""This module knows commands that only tests run: one for each way a command may end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fractions import Fraction


def answers(*, number: Annotated[int, typer.Option(help="What to answer.")] = 3) -> int:
    """Answer with a number.

    Example:
        mqtrace answers [7]

    Args:
        number: the answer.

    Returns:
        The number.
    """
    return number


def says_nothing() -> None:
    """Return nothing."""


def leaves() -> None:
    """Leave by an exception."""
    raise typer.Exit(7)


def gives_up() -> None:
    """Stop in the middle."""
    raise typer.Abort


def cannot_be_parsed(part: Fraction) -> None:
    """Take an option of a type that is not there when the command is put together."""
