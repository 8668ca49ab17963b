"""Keep what a forwarder must remember across restarts: one small JSON file, written beside and renamed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["read_memory", "write_memory"]


def read_memory(file: Path, parse: Callable[[Any], Any], *, hint: str) -> Any:
    """Return what ``parse`` makes of the JSON in ``file``; ``None`` when there is no such file.

    Raises:
        UsageError: it cannot be read, or is not what ``parse`` takes; ``hint`` ends the line.
    """
    try:
        return parse(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); {hint}") from error


def write_memory(file: Path, content: Any, *, hint: str = "", indent: int | None = None) -> None:
    """Write ``content`` as JSON so that a reader finds the old file or the new one, never half of it.

    Raises:
        UsageError: it cannot be written; ``hint`` ends the line.
    """
    beside = file.with_name(f".{file.name}.new")
    separators = (",", ":") if indent is None else None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as open_file:
            json.dump(content, open_file, indent=indent, separators=separators)
            open_file.flush()
            os.fsync(open_file.fileno())
        beside.replace(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror or error}){hint}") from error
