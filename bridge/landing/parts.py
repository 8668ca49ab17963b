"""This module knows how one part file is filled: JSON lines with the standard library, parquet with pyarrow."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from bridge.landing.layout import BODY_BASE64, FIELDS
from bridge.landing.orphans import claim
from otel_mqtrace._errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bridge.landing.layout import LandedMessage

__all__ = ["PART_FORMATS", "JsonLinesPart", "ParquetPart", "Part"]


class Part(Protocol):
    """A file being filled."""

    def append(self, messages: Sequence[LandedMessage]) -> None:
        """Add ``messages`` at the end."""
        ...

    def close(self) -> None:
        """Make everything durable and let the file go."""
        ...

    def forget(self) -> None:
        """Let the file go in a forked child, without writing a byte: the parent still owns it."""
        ...


class JsonLinesPart:
    """One JSON object per line. Unbuffered on purpose: a fork finds nothing to write twice, a crash loses no line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        claim(self._file)  # nobody else can hold it: it is new, and an empty file is left alone

    def append(self, messages: Sequence[LandedMessage]) -> None:
        """Add ``messages`` in one write, so that a crash tears at most the last line."""
        rest = memoryview(b"".join(map(_line, messages)))
        while rest:
            rest = rest[self._file.write(rest) or 0 :]

    def close(self) -> None:
        """Flush to the disk and close."""
        os.fsync(self._file.fileno())
        self._file.close()

    def forget(self) -> None:
        """Close the child's copy of the descriptor."""
        self._file.close()


def _line(message: LandedMessage) -> bytes:
    fields: dict[str, Any] = {name: getattr(message, name) for name in FIELDS if name != "body"}
    fields[BODY_BASE64] = base64.b64encode(message.body).decode("ascii")
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


class ParquetPart:
    """One row group per append; the schema of the landing."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - optional extra
            from pyarrow import parquet  # noqa: PLC0415 - optional extra
        except ImportError as error:
            raise MissingExtraError("landing in parquet", "spark") from error
        columns: Any = (
            *(("source", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
            *(("arrival_ms", pa.int64()), ("keys", pa.string()), ("body", pa.binary())),
        )
        self._pa: Any = pa
        self._schema: Any = pa.schema(columns)
        self._writer: Any = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def append(self, messages: Sequence[LandedMessage]) -> None:
        """Add ``messages`` as one row group."""
        columns = {name: [getattr(message, name) for message in messages] for name in FIELDS}
        self._writer.write_table(self._pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Write the footer and close."""
        self._writer.close()

    def forget(self) -> None:
        """Refuse: only the forwarder writes parquet, and it does not fork."""
        raise NotImplementedError("a parquet part cannot be left behind by a fork")


PART_FORMATS: Final[Mapping[str, Callable[[Path], Part]]] = {"jsonl": JsonLinesPart, "parquet": ParquetPart}
"""Suffix → how to fill a part of that format."""
