"""Commands that only tests run: one for each way a command may end."""

import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

from otel_mqtrace._errors import MqTraceError, UsageError


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


def without_output() -> None:
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
    "hostile": UsageError("\x1b[31mred\x07 \u202etxt"),
    "silent": MqTraceError(),
    "name": UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
    "memory": MemoryError("malloc of size 64 failed"),
    "thread": RuntimeError("can't start new thread"),
    "interrupt": KeyboardInterrupt(),
    "defect": ZeroDivisionError("nobody meant this"),
}
"""What :func:`fails` raises, by name."""


def fails(*, how: str = "usage", interrupted: bool = False) -> None:
    """Fail in the way that is asked for, after a Ctrl-C where that is asked for, too."""
    if interrupted:
        signal.raise_signal(signal.SIGINT)
    raise ERRORS[how]


def long_output() -> int:
    """Write more than any pipe holds."""
    sys.stdout.write("line\n" * 200_000)
    return 3


def short_output() -> int:
    """Write what stays in the buffer until it is flushed."""
    sys.stdout.write("line\n")
    return 3


def prints_a_table() -> int:
    """Print through rich, which ends a process whose reader has gone with 1."""
    Console().print("line")
    return 3


def streams() -> int:
    """Write bytes without an end."""
    while True:
        sys.stdout.buffer.write(b"line\n" * 200_000)


def cannot_be_parsed(part: int | str) -> None:
    """Take an option that is a number or a text, which typer refuses."""
