"""Cut inputs into tasks: large files of lines in ranges, small files in groups."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.otlp.detect import LONGEST_LINE_BYTES, ZSTD_LAYOUTS, Layout, LineTooLongError
from bridge.storage.paths import as_path
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources.files import last_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.sources.files import SourceFile

_MOST_TASK_BYTES: Final = 32 << 20
_LEAST_TASK_BYTES: Final = 4 << 20
_TASKS_PER_CORE: Final = 4  # with two, a core waits half a task long for the last one
UNCUT_BYTES: Final = 4 << 20
"""The largest file that is not cut: its lines have numbers, for evidence."""
_ZSTD_RATIO: Final = 8  # how much more is in a compressed file; spans as JSON were 9 to 25 times as large
_OF_LINES: Final = frozenset({Layout.JSON_LINES, Layout.LANDING_JSONL})
_BUFFER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """The bytes of a file from ``begin`` to ``end``; only lines are cut anywhere, ``group`` is a parquet row group.

    What lies behind ``limit`` is not read: it is torn, or came since.
    """

    path: str
    layout: Layout
    begin: int
    end: int
    is_uncut: bool = True
    group: int | None = None
    limit: int | None = None


class FilePlan(NamedTuple):
    """What each task reads of some files; ``truncated_tails`` of them end inside a message, which is not read."""

    tasks: list[list[Split]]
    truncated_tails: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end, and where it stands: ``number`` from 1, ``None`` where lines were not counted."""

    path: str
    number: int | None
    text: bytes


def split_file(file: SourceFile, torn: int = 0) -> list[Split]:
    """Return what is to be read of ``file``, but for its last ``torn`` bytes."""
    path, size = str(file.path), file.path.stat().st_size
    end = size - torn
    limit = end if torn else None
    if file.layout not in _OF_LINES or size <= UNCUT_BYTES:
        return [Split(path, file.layout, 0, end, limit=limit)]
    return [
        Split(path, file.layout, at, min(at + _LEAST_TASK_BYTES, end), is_uncut=False, limit=limit)
        for at in range(0, end, _LEAST_TASK_BYTES)
    ]


def plan_files(
    files: Sequence[SourceFile],
    count_torn: Callable[[bytes], int],
    *,
    parallelism: int,
    split: Callable[[SourceFile, int], Iterable[Split]] = split_file,
) -> FilePlan:
    """Return what each task reads of ``files``; of these only the ends are read.

    ``count_torn``: how many bytes at the end of a file's last line, which has no newline, are not to be read. ``split``
    cuts one file, without so many bytes at its end. ``parallelism`` tasks run at once.
    """
    full = [file for file in files if file.layout is not Layout.EMPTY]
    tails = {file.path: last_line(file) for file in full if file.layout in _OF_LINES}
    torn = {path: count for path, tail in tails.items() if tail.strip() and (count := count_torn(tail))}
    splits = [one for file in full for one in split(file, torn.get(file.path, 0))]
    return FilePlan(group_splits(splits, parallelism), len(torn))


def group_splits(splits: Sequence[Split], parallelism: int) -> list[list[Split]]:
    """Return ``splits`` in order, as many together as are worth a task: some tasks for every core, of bounded size."""
    sizes = [(one.end - one.begin) * (_ZSTD_RATIO if one.layout in ZSTD_LAYOUTS else 1) for one in splits]
    size = sum(sizes)
    wanted = -(-size // max(1, _TASKS_PER_CORE * parallelism))
    most = min(max(wanted, _LEAST_TASK_BYTES), _MOST_TASK_BYTES)
    begins = zip(accumulate(sizes, initial=0), splits, strict=False)
    return [[split for _, split in some] for _, some in groupby(begins, key=lambda one: one[0] // most)]


def read_lines(split: Split) -> Iterator[Line]:
    """Yield the lines of ``split`` that are not blank.

    Raises:
        UnreadableInputError: a line is longer than memory should hold.
    """
    with as_path(split.path).open("rb", buffering=_BUFFER_BYTES) as file:
        at = split.begin
        if at:
            file.seek(at - 1)
            at += len(_check_length(file.readline(LONGEST_LINE_BYTES + 1), split, at - 1)) - 1
        number = 0
        while at < split.end and (line := _check_length(file.readline(LONGEST_LINE_BYTES + 1), split, at)):
            text = line if split.limit is None else line[: split.limit - at]
            text = (text if at else text.removeprefix(codecs.BOM_UTF8)).removesuffix(b"\n")
            at, number = at + len(line), number + 1
            if text.strip():
                yield Line(split.path, number if split.is_uncut else None, text)


def _check_length(line: bytes, split: Split, at: int) -> bytes:
    if len(line) > LONGEST_LINE_BYTES:
        raise UnreadableInputError(f"{split.path} {LineTooLongError(split.layout.side, f'at byte {at}')}")
    return line


def line_numbers(path: AnyPath, beginnings: Collection[str]) -> dict[str, list[int]]:
    """Return where in a local file lines begin with each of ``beginnings``: numbers from 1, in order.

    For the few lines of a large file that a report shows. One pass, a chunk in memory at a time; what is not a local
    file has no numbers.
    """
    found: dict[str, list[int]] = {beginning: [] for beginning in beginnings}
    lengths = {len(beginning) for beginning in found}
    if not isinstance(path, Path) or not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            for length in lengths:
                if length <= len(line) and (beginning := line[:length]) in found:
                    found[beginning].append(number)
    return found
