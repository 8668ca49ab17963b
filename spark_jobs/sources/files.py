"""Find the files and topics behind the sources of one side."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.addresses import Kind, expand_files, parse_address, root_of
from bridge.otlp.detect import LONGEST_LINE_BYTES, OTLP_FORMATS, Layout, LineTooLongError, Side, detect_layout
from bridge.storage.paths import DamagedInputError, InaccessibleInputError, StorePath
from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.sources.kafka import LAYOUT, split_topics, topic_ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from bridge.addresses import Address
    from bridge.storage.paths import AnyPath
    from spark_jobs.sources.kafka import PartitionRange

_CHUNK_BYTES: Final = 1 << 16
_REQUESTS: Final = 16  # to a store, at a time


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read and how: ``path`` is absolute."""

    path: AnyPath
    layout: Layout

    @property
    def side(self) -> Side:
        """The side that it belongs to."""
        return self.layout.side


class PassedOver(NamedTuple):
    """A file of a directory or glob that holds something else: the other ``side``, neither (``None``), or damage."""

    path: AnyPath
    reason: str
    side: Side | None = None
    is_damaged: bool = False


def source_files(
    srcs: Iterable[str],
    side: Side | None,
    *,
    layout: Layout | None = None,
    only: Collection[AnyPath] | None = None,
    passed_over: list[PassedOver] | None = None,
) -> tuple[SourceFile, ...]:
    """Return the files of ``side`` (``None``: either) behind ``srcs``, without repetition, sorted within each source.

    ``layout`` replaces detection. ``only`` are the files to read; they need not hold ``side``. ``passed_over`` gets
    the files of directories and globs that hold something else.

    Raises:
        UsageError: a source names nothing, or is an address that has to be landed first.
        UnreadableInputError: a named file, or everything in a directory, is something else; a file cannot be read.
    """
    found: dict[AnyPath, SourceFile] = {}
    for src in srcs:
        kept, others = _source_files(src, side, layout, only)
        for file in kept:
            found.setdefault(file.path, file)
        if passed_over is not None:
            passed_over += others
    return tuple(found.values())


def _source_files(
    src: str, side: Side | None, layout: Layout | None, only: Collection[AnyPath] | None
) -> tuple[list[SourceFile], list[PassedOver]]:
    paths, named = _expand(src)
    if only is not None:
        paths = [path for path in paths if path in only]
    if layout is not None:
        return [SourceFile(path, layout) for path in paths], []
    kept: list[SourceFile] = []
    passed_over: list[PassedOver] = []
    for path, detected in zip(paths, _detect_all(paths), strict=True):
        if isinstance(detected, UnreadableInputError):
            is_damaged = isinstance(detected, DamagedInputError)
            # A native file left out would show as lost records; for inspect a damaged one is a bad piece.
            if isinstance(detected, InaccessibleInputError) or (is_damaged and side is Side.NATIVE):
                is_below = path.is_relative_to(root_of(parse_address(src).path).resolve())
                where = "" if is_below else f"a link of {src} leads elsewhere: "
                raise type(detected)(f"{where}{detected}") from detected
            passed_over.append(PassedOver(path, str(detected), is_damaged=is_damaged))
            continue
        if side is None or detected.side in {side, Side.EMPTY}:
            kept.append(SourceFile(path, detected))
        else:
            found = f"{detected.side.value} ({detected.value})"
            passed_over.append(PassedOver(path, f"{path} is {found}, not {side.value}", detected.side))
    if passed_over and (named or (not kept and only is None)):
        swapped = "; are --native and --otlp swapped?" if passed_over[0].side else ""
        raise UnreadableInputError(passed_over[0].reason + swapped)
    return kept, passed_over


def _detect_all(paths: Sequence[AnyPath]) -> Iterator[Layout | UnreadableInputError]:
    """Yield the content of each file, or why it cannot be detected; stores are read in parallel."""
    if not paths or not isinstance(paths[0], StorePath):
        yield from map(_detect, paths)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(_detect, paths)


def _detect(path: AnyPath) -> Layout | UnreadableInputError:
    try:
        with suppress(OSError):  # reported by the call below
            status = path.stat()
            return _detect_version(path, status.st_size, status.st_mtime_ns)
        return detect_layout(path)
    except UnreadableInputError as error:
        return error


@lru_cache(maxsize=1 << 16)
def _detect_version(path: AnyPath, _size: int, _mtime_ns: int) -> Layout:
    """Detect a file once: a stream needs it for each side, and to detect one takes 2 ms."""
    return detect_layout(path)


def _expand(src: str) -> tuple[list[AnyPath], bool]:
    address = parse_address(src)
    if address.kind in {Kind.KAFKA, Kind.ROCKETMQ}:
        raise UsageError(
            f"cannot read {src} directly: give files of it; native trace messages are landed by "
            f"mqtrace forward --once --source {src} --landing DIR"
        )
    return expand_files(parse_address(src, readable=(Kind.FILES, Kind.KAFKA)).path)  # a topic never comes here


def last_line(file: SourceFile) -> bytes:
    """Return what is behind the last newline of a file of lines.

    Raises:
        UnreadableInputError: that is longer than a line may be.
    """
    size = _CHUNK_BYTES
    with file.path.open("rb") as stream:
        end = stream.seek(0, io.SEEK_END)
        while True:
            stream.seek(max(0, end - size))
            _, newline, behind = stream.read(min(size, end)).rpartition(b"\n")
            if len(behind) > LONGEST_LINE_BYTES:
                raise UnreadableInputError(f"{file.path} {LineTooLongError(file.side, 'the last one')}")
            if newline or size >= end:
                return behind
            size *= 2


@dataclass(frozen=True, slots=True)
class SourceSet:
    """What is read of one side: files, and the offsets of each topic; ``unknown`` files hold neither side."""

    files: tuple[SourceFile, ...] = ()
    topics: Mapping[Address, tuple[PartitionRange, ...]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.files or self.topics)

    @property
    def sources(self) -> tuple[str, ...]:
        """The paths of the files and the addresses of the topics, in order."""
        return (*(str(file.path) for file in self.files), *(address.text for address in self.topics))

    @property
    def layouts(self) -> tuple[str, ...]:
        """The distinct layouts, sorted; an empty file has none."""
        found = {file.layout.value for file in self.files if file.layout is not Layout.EMPTY}
        return tuple(sorted(found | ({LAYOUT} if self.topics else set())))


def find_inputs(
    side: Side, srcs: Sequence[str], client_config: Mapping[str, str], *, layout: str | None = None
) -> SourceSet:
    """Return the inputs behind the sources of a side; of files only the heads are read.

    Raises:
        UsageError: a source names nothing, or the layout is unknown.
        UnreadableInputError: a file holds the other side, or neither.
        PeerError: the broker of a topic does not answer, or lacks the topic.
    """
    if layout is not None and layout not in OTLP_FORMATS:
        raise UsageError(f"unknown OTLP format {layout!r}; choose one of {', '.join(OTLP_FORMATS)}")
    paths, addresses = split_topics(srcs)
    passed_over: list[PassedOver] = []
    files = source_files(paths, side, layout=None if layout is None else Layout(layout), passed_over=passed_over)
    topics = {address: topic_ranges(address, client_config) for address in addresses}
    return SourceSet(files, topics, find_unknown(passed_over))


def find_unknown(passed_over: Iterable[PassedOver]) -> frozenset[str]:
    """Return the files that hold neither side."""
    return frozenset(str(file.path) for file in passed_over if file.side is None)
