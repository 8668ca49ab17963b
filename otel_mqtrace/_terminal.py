"""Tables and progress of the command line: boxed and folded on a terminal, plain and whole in a pipe.

In a pipe a table has no lines around it and no name is broken, so that ``grep``, ``cut`` and logs of CI find it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

_WIDTH_OF_A_PIPE: Final = 10_000
"""Wider than any text: rich folds what does not fit."""
_WIDEST: Final = 40
"""The widest column in a pipe; ids of 32 digits and times fit."""


@contextmanager
def progress_bar(title: str, *, console: Console | None = None, is_kept: bool = False) -> Iterator[Callable[..., None]]:
    """Draw a bar until the block ends, on a terminal only; one that ``is_kept`` stays on the screen.

    Yields what changes it: ``show(completed=…, total=…, description=…, amount=…)``, all optional. ``amount`` is a text
    beside the bar. ``console`` is standard error by default.
    """
    screen = console or Console(stderr=True)
    if not screen.is_terminal:
        yield lambda **_changes: None
        return
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=not is_kept) as progress:
        yield partial(progress.update, progress.add_task(title, total=None, amount=""))


def open_console() -> Console:
    """Return standard output as a console: as wide as the terminal, or without a bound where there is none."""
    plain: dict[str, Any] = {"markup": False, "emoji": False}  # a name like [red] or :key: is a name
    console = Console(**plain)
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_PIPE, **plain)


def print_table(table: Table, console: Console | None = None, *, narrowest: int = 0) -> None:
    """Print ``table`` to ``console`` (standard output); plain on a terminal of fewer than ``narrowest`` columns."""
    console = console or open_console()
    if console.is_terminal and console.width >= narrowest:
        console.print(table)
    else:
        console.file.write("".join(f"{line}\n" for line in _format_plain(table)))


def _format_plain(table: Table) -> Iterator[str]:
    """Yield the lines of ``table``; a cell of more than ``_WIDEST`` makes its own line longer and no other."""
    if table.title is not None:
        yield from _split_lines(table.title)
    columns = [[_split_lines(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    widths = [min(max(cell_len(line) for cell in column for line in cell), _WIDEST) for column in columns]
    for row in list(zip(*columns, strict=True))[not table.show_header :]:
        for cells in zip_longest(*row, fillvalue=""):
            padded = []
            for text, width, column in zip(cells, widths, table.columns, strict=True):
                blanks = " " * (width - cell_len(text))
                padded.append(blanks + text if column.justify == "right" else text + blanks)
            yield "  ".join(padded).rstrip()


def _split_lines(cell: object) -> list[str]:
    return str(cell).split("\n")
