"""Files that runs and their tasks read and write, wherever they lie."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Final

from bridge.storage import (
    StorePath,
    as_path,
    committed,
    copy_files,
    current_settings,
    move_tree,
    open_parquet,
    remove_tree,
    use_settings,
)

if TYPE_CHECKING:
    from bridge.storage import AnyPath

__all__ = [
    "FILES",
    "StorePath",
    "as_path",
    "committed",
    "current_settings",
    "list_files",
    "make_directory",
    "move_tree",
    "open_parquet",
    "remove_tree",
    "replace_tree",
    "use_settings",
]


FILES: Final = "_files.json"
"""In an object store: the names of the files of a directory that count."""


def list_files(directory: str | AnyPath, suffix: str = ".parquet") -> list[str]:
    """Return the whole files right below ``directory``, sorted; nothing where there is no such directory."""
    found = as_path(directory).glob(f"*{suffix}")
    return sorted(str(path) for path in found if not path.name.startswith((".", "_")))


def make_directory(directory: str | AnyPath) -> None:
    """Make ``directory`` and what is above it; one that exists stays as it is."""
    as_path(directory).mkdir(parents=True, exist_ok=True)


def replace_tree(source: AnyPath, final: AnyPath, *, spare: AnyPath) -> None:
    """Let the files of ``source`` be those of ``final``, whose own go to ``spare``.

    An object store renames nothing: there the files get new names, and ``_files.json`` says from one moment to the next
    which count. The others are removed then, or by the next run after a kill.
    """
    if not isinstance(final, StorePath) or final.store.renames:
        remove_tree(spare)
        if final.exists():
            move_tree(final, spare)
        move_tree(source, final)
        return
    token = secrets.token_hex(4)
    names = {path: f"{as_path(path).stem}-{token}.parquet" for path in list_files(source)}
    copy_files({StorePath(path): final / name for path, name in names.items()})
    (final / FILES).write_text(json.dumps({"files": sorted(names.values())}))
    for path in list_files(final):
        if as_path(path).name not in names.values():
            as_path(path).unlink(missing_ok=True)
