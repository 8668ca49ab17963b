"""Tables of the command line: boxed and folded on a terminal, plain and whole in a pipe.

In a pipe a table has no lines around it and no name is broken, so that ``grep``, ``cut`` and logs of CI find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["open_console", "print_table"]

_WIDTH_OF_A_PIPE: Final = 10_000
"""Wider than any table: rich folds what does not fit."""


def open_console() -> Console:
    """Return standard output as a console: as wide as the terminal, or without a bound where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_PIPE)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print ``table`` to ``console``, by default standard output."""
    console = console or open_console()
    if not console.is_terminal:
        table.box, table.show_lines, table.show_edge, table.pad_edge = None, False, False, False
        table.padding = (0, 2, 0, 0)
        for column in table.columns:
            column.no_wrap, column.width = True, None
        with console.capture() as printed:
            console.print(table)
        console.file.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))
        return
    console.print(table)
