"""Commands that only tests run: one for each way a command may end."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mqtrace._errors import MqTraceError, UsageError

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


ERRORS: dict[str, BaseException] = {
    "usage": UsageError("no such thing;\n  try another"),
    "system": PermissionError(13, "Permission denied", "landing"),
    "silent": MqTraceError(),
    "interrupt": KeyboardInterrupt(),
    "defect": ZeroDivisionError("nobody meant this"),
}
"""What :func:`fails` raises, by name."""


def fails(*, how: str = "usage", interrupted: bool = False) -> None:
    """Fail in the way that is asked for, after a Ctrl-C where that is asked for, too."""
    if interrupted:
        signal.raise_signal(signal.SIGINT)
    raise ERRORS[how]


def says_much() -> None:
    """Write more than any pipe holds."""
    sys.stdout.write("line\n" * 200_000)


def says_little() -> None:
    """Write what stays in the buffer until somebody flushes it."""
    sys.stdout.write("line\n")


def cannot_be_parsed(part: Fraction) -> None:
    """Take an option of a type that is not there when the command is put together."""
