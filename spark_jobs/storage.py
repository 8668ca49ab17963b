"""Where tasks read and write files: list, open, commit. The one place to change for another file system."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["committed", "list_files", "make_directory", "remove_tree"]


def list_files(directory: str, suffix: str = ".parquet") -> list[str]:
    """Return the whole files right below ``directory``, sorted; nothing where there is no such directory."""
    found = Path(directory).glob(f"*{suffix}")
    return sorted(str(path) for path in found if not path.name.startswith((".", "_")))


def make_directory(directory: str) -> None:
    """Make ``directory`` and what is above it; one that exists stays as it is."""
    Path(directory).mkdir(parents=True, exist_ok=True)


def remove_tree(directory: str) -> None:
    """Remove ``directory`` and everything below it, if it exists."""
    import shutil  # noqa: PLC0415  (tasks never need it)

    if Path(directory).exists():
        shutil.rmtree(directory)


@contextmanager
def committed(target: str) -> Iterator[str]:
    """Give a path to write to; what is there becomes ``target`` when the block ends, and goes when it fails.

    A task that is run again, or twice at once, replaces its own file: what stands there is its work once.
    """
    final = Path(target)
    unready = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
    try:
        yield str(unready)
        if unready.exists():
            unready.replace(final)
    finally:
        unready.unlink(missing_ok=True)
