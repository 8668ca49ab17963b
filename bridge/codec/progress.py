"""This module knows how to show on a terminal how far into a large file the reading is."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator

__all__ = ["LARGE_BYTES", "watched"]

LARGE_BYTES: Final = 8 << 20
"""A smaller file is read within about two seconds, and needs no bar."""

_Item = TypeVar("_Item")


def watched(
    items: Iterable[_Item],
    stream: io.BufferedReader,
    *,
    name: str,
    console: Console | None = None,
    large_bytes: int = LARGE_BYTES,
) -> Iterator[_Item]:
    """Yield ``items``, which are read from ``stream``, under a bar that shows the bytes read so far.

    The bar is drawn on standard error, only if that is a terminal, and is gone at the end.
    """
    size_bytes = _size_bytes(stream)
    screen = console or Console(file=sys.stderr)
    if size_bytes < large_bytes or not screen.is_terminal:
        yield from items
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(name, total=size_bytes)
        for item in items:
            progress.update(task, completed=stream.tell())
            yield item


def _size_bytes(stream: io.BufferedReader) -> int:
    """Return the size of a regular file; a pipe has none."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # a stream in memory
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
