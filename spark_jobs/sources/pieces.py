"""What each task reads: large files of lines in ranges, small files in groups.

A range owns the lines that begin in it. A line that a file ends in the middle of is in none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.otlp.detect import LONGEST_LINE_BYTES, Layout, LineTooLongError
from bridge.otlp.json_spans import parse_json
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources.files import last_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.sources.files import SourceFile

__all__ = ["WHOLE_BYTES", "Line", "Piece", "lines_of", "pieces_of", "tasks_of", "torn_bytes"]

_MOST_TASK_BYTES: Final = 32 << 20
_LEAST_TASK_BYTES: Final = 4 << 20
_TASKS_PER_CORE: Final = 2
WHOLE_BYTES: Final = 4 << 20
"""The largest file that is not cut: its lines have numbers, for evidence."""
_OF_LINES: Final = frozenset({Layout.JSON_LINES, Layout.LANDING_JSONL})
_BUFFER_BYTES: Final = 1 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of a file from ``begin`` to ``end``, packed as ``layout`` says.

    Only a file of lines is cut anywhere; a ``group`` is a row group of parquet.
    """

    path: str
    layout: Layout
    begin: int
    end: int
    is_whole: bool = True
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end, and where it stands: ``number`` from 1, ``None`` where lines were not counted."""

    path: str
    number: int | None
    text: bytes


def torn_bytes(files: Iterable[SourceFile]) -> dict[Path, int]:
    """Return how long the last line of each file of JSON lines is that was cut off inside it."""
    tails = {file.path: last_line(file.path) for file in files if file.layout is Layout.JSON_LINES}
    return {path: len(tail) for path, tail in tails.items() if tail.strip() and parse_json(tail) is None}


def pieces_of(file: SourceFile, *, torn: int = 0) -> list[Piece]:
    """Return what is to be read of ``file``, but for its last ``torn`` bytes."""
    path, size = str(file.path), file.path.stat().st_size
    if file.layout not in _OF_LINES or size <= WHOLE_BYTES:
        return [Piece(path, file.layout, 0, size - torn)]
    cuts = range(0, size - torn, _LEAST_TASK_BYTES)
    return [Piece(path, file.layout, at, min(at + _LEAST_TASK_BYTES, size - torn), is_whole=False) for at in cuts]


def tasks_of(pieces: Sequence[Piece], parallelism: int) -> list[list[Piece]]:
    """Return ``pieces`` in order, as many together as are worth a task: some tasks for every core, of bounded size."""
    size = sum(piece.end - piece.begin for piece in pieces)
    wanted = -(-size // max(1, _TASKS_PER_CORE * parallelism))
    most = min(max(wanted, _LEAST_TASK_BYTES), _MOST_TASK_BYTES)
    ends = accumulate(piece.end - piece.begin for piece in pieces)
    begins = ((end - piece.end + piece.begin, piece) for end, piece in zip(ends, pieces, strict=True))
    return [[piece for _, piece in some] for _, some in groupby(begins, key=lambda one: one[0] // most)]


def lines_of(piece: Piece) -> Iterator[Line]:
    """Yield the lines of ``piece`` that are not blank.

    Raises:
        UnreadableInputError: a line is longer than memory should hold.
    """
    with Path(piece.path).open("rb", buffering=_BUFFER_BYTES) as file:
        at = piece.begin
        if at:
            file.seek(at - 1)
            at += len(_bounded(file.readline(LONGEST_LINE_BYTES + 1), piece)) - 1
        number = 0
        while at < piece.end and (line := _bounded(file.readline(LONGEST_LINE_BYTES + 1), piece)):
            text = (line if at else line.removeprefix(_BYTE_ORDER_MARK)).removesuffix(b"\n")
            at, number = at + len(line), number + 1
            if text.strip():
                yield Line(piece.path, number if piece.is_whole else None, text)


def _bounded(line: bytes, piece: Piece) -> bytes:
    if len(line) > LONGEST_LINE_BYTES:
        raise UnreadableInputError(f"{piece.path} {LineTooLongError()}")
    return line
