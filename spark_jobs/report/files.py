"""Write files so that none is ever seen half written."""

from __future__ import annotations

import os
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_texts"]


def write_texts(texts: Mapping[str, str], out: Path) -> dict[str, Path]:
    """Write ``{file name: text}`` into ``out``, created if absent, in this order, and return where each one is.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        return {name: _replace(out / name, text) for name, text in texts.items()}
    except OSError as refused:
        raise UsageError(f"cannot write the report into {out}: {refused.strerror}; choose another --out") from refused


def _replace(path: Path, text: str) -> Path:
    """Write ``text`` as UTF-8; half a surrogate pair, which no encoding can say, is spelled out as its escape."""
    with NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as beside:
        try:
            beside.write(text.encode("utf-8", "backslashreplace"))
            beside.flush()
            os.fchmod(beside.fileno(), 0o644)
            os.replace(beside.name, path)  # noqa: PTH105 - a name, not a Path
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside.name)  # noqa: PTH108 - a name, not a Path
            raise
    return path
