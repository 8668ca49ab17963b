"""Find the spans behind sources: files of OTLP in any layout, cut into tasks.

A large file of JSON lines is read in ranges, any other by one task: its layout has no line to split at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.otlp.detect import OTLP_FORMATS, Layout, Side
from otel_mqtrace._errors import UsageError
from spark_jobs.sources.files import source_files
from spark_jobs.sources.pieces import pieces_of, tasks_of, torn_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.pieces import Piece

__all__ = ["OtlpFiles", "find_spans", "span_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpFiles:
    """Files of spans to read.

    Attributes:
        tasks: what each task reads.
        files: the files, in order.
        layouts: the distinct layouts among them, sorted.
        truncated_tails: files of JSON lines cut off inside a line; that line is not read.
    """

    tasks: tuple[tuple[Piece, ...], ...]
    files: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int


def find_spans(srcs: Sequence[str], *, layout: str | None = None, parallelism: int) -> OtlpFiles:
    """Return what there is to read behind ``srcs``; only the heads and ends of files are read.

    Raises:
        UsageError: a source names nothing, or there is no such layout.
        UnreadableInputError: a source holds no OTLP traces.
    """
    files = span_files(srcs, layout=layout)
    full = [file for file in files if file.layout is not Layout.EMPTY]
    torn = torn_bytes(full)
    pieces = [piece for file in full for piece in pieces_of(file, torn=torn.get(file.path, 0))]
    return OtlpFiles(
        tasks=tuple(map(tuple, tasks_of(pieces, parallelism))),
        files=tuple(str(file.path) for file in files),
        layouts=tuple(sorted({file.layout.value for file in full})),
        truncated_tails=len(torn),
    )


def span_files(srcs: Sequence[str], *, layout: str | None = None) -> tuple[SourceFile, ...]:
    """Return the files behind ``srcs``, or raise what :func:`find_spans` would."""
    if layout is not None and layout not in OTLP_FORMATS:
        raise UsageError(f"unknown OTLP format {layout!r}; choose one of {', '.join(OTLP_FORMATS)}")
    return source_files(srcs, Side.OTLP, layout=None if layout is None else Layout(layout))
