"""This module knows how trace messages wait on disk: appended and synced, taken oldest first, each marked when taken.

A spool is a directory of segments, ``spool-<host>-<pid>-<n>.mqspool``, each written by one process that holds its lock.
What a process leaves behind, the next one adopts as soon as the lock is free. A segment is a row of frames::

    state (1 byte: 0 waits, 1 was taken) · contexts · bytes of keys · bytes of value · CRC-32 of both · keys · value

A torn tail ends a segment: it was being written when the process died, and nobody had been told that it is safe.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.exporters.batching import TraceMessage
from otel_mqtrace._errors import UsageError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Spool", "Waiting"]

_SUFFIX: Final = ".mqspool"
_FRAME: Final = struct.Struct(">BIIII")
_TAKEN: Final = b"\x01"
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
_numbers: Final = itertools.count()


@dataclass(slots=True)
class _Segment:
    path: Path
    fd: int
    end: int = 0
    frames: list[tuple[int, int]] = field(default_factory=list)  # offset and size of each frame that still waits


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message as it lies in the spool."""

    message: TraceMessage
    segment: _Segment
    offset: int
    size: int


class Spool:
    """At most ``max_bytes`` of waiting messages below ``directory``; what does not fit is refused, the newest first.

    Used by one thread at a time.

    Raises:
        UsageError: the directory cannot be written, or this platform has no file locks.
    """

    def __init__(self, directory: str | os.PathLike[str], *, max_bytes: int) -> None:
        if fcntl is None:
            raise UsageError("a spool needs POSIX file locks, which this platform lacks: unset MQTRACE_SPOOL_DIR")
        self._directory = Path(directory)
        self._max_bytes = max_bytes
        self._segments: list[_Segment] = []
        self._own: _Segment | None = None
        self.torn = 0
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._adopt()
        except OSError as error:
            raise UsageError(f"the spool directory {self._directory} cannot be used: {error}") from error

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(len(segment.frames) for segment in self._segments)

    @property
    def waiting_bytes(self) -> int:
        """What they take on disk."""
        return sum(size for segment in self._segments for _, size in segment.frames)

    def put(self, messages: Sequence[TraceMessage]) -> int:
        """Append ``messages`` in order and sync; return how many were taken: a full spool or disk refuses the rest."""
        taken = 0
        room = self._max_bytes - self.waiting_bytes
        written: set[int] = set()
        try:
            for message in messages:
                frame = _framed(message)
                if len(frame) > room:
                    break
                segment = self._writable()
                _append(segment, frame)
                written.add(segment.fd)
                room -= len(frame)
                taken += 1
            for fd in written:
                os.fsync(fd)
        except OSError:
            return taken
        return taken

    def oldest(self, count: int) -> list[Waiting]:
        """Return up to ``count`` of the messages that have waited longest; they stay until :meth:`took`."""
        return list(itertools.islice(self._all(), count))

    def took(self, delivered: Sequence[Waiting]) -> None:
        """Mark ``delivered`` as taken; a segment of which nothing waits any more is removed."""
        for each in delivered:
            os.pwrite(each.segment.fd, _TAKEN, each.offset)
            each.segment.frames.remove((each.offset, each.size))
        for segment in {id(each.segment): each.segment for each in delivered}.values():
            if segment.frames:
                os.fsync(segment.fd)
            else:
                self._remove(segment)

    def close(self) -> None:
        """Let go of the segments: what waits is for the next process."""
        for segment in list(self._segments):
            if segment.frames:
                os.close(segment.fd)
                self._segments.remove(segment)
            else:
                self._remove(segment)
        self._own = None

    def after_fork(self) -> None:
        """In a child: the segments are the parent's, and so are their locks."""
        for segment in self._segments:
            os.close(segment.fd)
        self._segments, self._own = [], None

    def _all(self) -> Iterator[Waiting]:
        for segment in self._segments:
            for offset, size in segment.frames:
                yield Waiting(_message(os.pread(segment.fd, size, offset)), segment, offset, size)

    def _writable(self) -> _Segment:
        if self._own is None or self._own.end >= _SEGMENT_BYTES:
            name = f"spool-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}{_SUFFIX}"
            segment = _opened(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if segment is None:
                raise BlockingIOError(f"{name} is somebody else's")
            self._own = segment
            self._segments.append(segment)
        return self._own

    def _adopt(self) -> None:
        """Take over the segments nobody holds, oldest first."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
            segment = _opened(path, os.O_RDWR)
            if segment is None:
                continue
            self.torn += _read_frames(segment)
            self._segments.append(segment)
            if not segment.frames:
                self._remove(segment)

    def _remove(self, segment: _Segment) -> None:
        segment.path.unlink(missing_ok=True)  # before the lock goes with the descriptor
        os.close(segment.fd)
        self._segments.remove(segment)
        if segment is self._own:
            self._own = None


def _opened(path: Path, flags: int) -> _Segment | None:
    """Return the segment, locked, or ``None`` when another process holds it or has just removed it."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if os.fstat(fd).st_nlink == 0:
        os.close(fd)
        return None
    return _Segment(path, fd)


def _framed(message: TraceMessage) -> bytes:
    keys = message.keys.encode("utf-8", "replace")
    crc = zlib.crc32(message.value, zlib.crc32(keys))
    return _FRAME.pack(0, message.contexts, len(keys), len(message.value), crc) + keys + message.value


def _append(segment: _Segment, frame: bytes) -> None:
    written = 0
    try:
        written = os.pwrite(segment.fd, frame, segment.end)
    finally:
        if written != len(frame):
            os.ftruncate(segment.fd, segment.end)
    if written != len(frame):
        raise OSError("the disk took only a part of a frame")
    segment.frames.append((segment.end, len(frame)))
    segment.end += len(frame)


def _read_frames(segment: _Segment) -> int:
    """Find the frames that wait; return the bytes of the torn tail."""
    size = os.fstat(segment.fd).st_size
    while segment.end < size:
        head = os.pread(segment.fd, _FRAME.size, segment.end)
        if len(head) < _FRAME.size:
            break
        state, _, keys_bytes, value_bytes, crc = _FRAME.unpack(head)
        length = _FRAME.size + keys_bytes + value_bytes
        if segment.end + length > size:
            break
        if zlib.crc32(os.pread(segment.fd, length - _FRAME.size, segment.end + _FRAME.size)) != crc:
            break
        if state == 0:
            segment.frames.append((segment.end, length))
        segment.end += length
    return size - segment.end


def _message(frame: bytes) -> TraceMessage:
    _, contexts, keys_bytes, _, _ = _FRAME.unpack_from(frame)
    split = _FRAME.size + keys_bytes
    return TraceMessage(
        topic=None,
        region_id=None,
        value=frame[split:],
        keys=frame[_FRAME.size : split].decode("utf-8", "replace"),
        origins=frozenset(),
        contexts=contexts,
    )
