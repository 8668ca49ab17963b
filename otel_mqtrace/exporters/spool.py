"""A spool of trace messages on disk: appended and synced, read oldest first, each marked when delivered.

A spool is a directory of segments, ``spool-<host>-<pid>-<ns>.mqspool``, each written by one process that holds its
lock. Another process adopts it once the lock is free, in the order of the times in the names: marks change a file's
modification time.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import socket
import struct
import threading
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.packing import TraceMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mqtrace._clock import Clock


_logger = logging.getLogger(__name__)
_SUFFIX: Final = ".mqspool"
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
# state (0 waits, 1 is delivered) · contexts · bytes of keys · bytes of value · CRC-32 of both; then keys and value
_FRAME: Final = struct.Struct(">BIIII")
_DELIVERED: Final = b"\x01"
_CLOSED: Final = -1


@dataclass(slots=True, eq=False)
class Segment:
    """An open segment; ``frames`` maps the offset of each frame that still waits to its size, oldest first."""

    path: Path
    fd: int
    end: int = 0
    frames: dict[int, int] = field(default_factory=dict)
    waiting_bytes: int = 0

    @property
    def unlinked(self) -> bool:
        """Return whether the file was removed: no process could adopt what is written to it now."""
        return os.fstat(self.fd).st_nlink == 0

    def load(self) -> int:
        """Find the frames that wait; return the bytes of the torn tail: its writer died before it confirmed them."""
        size = os.fstat(self.fd).st_size
        while self.end < size:
            head = os.pread(self.fd, _FRAME.size, self.end)
            if len(head) < _FRAME.size:
                break
            state, _, keys_bytes, value_bytes, crc = _FRAME.unpack(head)
            length = _FRAME.size + keys_bytes + value_bytes
            if self.end + length > size:
                break
            if zlib.crc32(os.pread(self.fd, length - _FRAME.size, self.end + _FRAME.size)) != crc:
                break
            if state == 0:
                self._keep(self.end, length)
            self.end += length
        return size - self.end

    def append(self, frame: bytes) -> None:
        """Write ``frame`` whole or not at all; raises ``OSError`` then."""
        written = 0
        try:
            written = os.pwrite(self.fd, frame, self.end)
        finally:
            if written != len(frame):
                os.ftruncate(self.fd, self.end)
        if written != len(frame):
            raise OSError("no room for a whole message: free space there, or set another MQTRACE_SPOOL_DIR")
        self._keep(self.end, len(frame))
        self.end += len(frame)

    def rewind(self, end: int) -> None:
        """Take back what was appended since the segment ended at ``end``."""
        for offset in [offset for offset in self.frames if offset >= end]:
            self.forget(offset)
        self.end = end
        os.ftruncate(self.fd, end)

    def read(self, offset: int) -> TraceMessage | None:
        """Return the message that waits at ``offset``, or ``None`` when the file no longer holds it."""
        size = self.frames[offset]
        try:
            frame = os.pread(self.fd, size, offset)
        except OSError:  # counted by the caller
            return None
        return _decode_frame(frame) if len(frame) == size else None

    def mark(self, offset: int) -> None:
        """Mark the frame at ``offset`` as delivered: for this process at once, then on disk; raises ``OSError``."""
        if self.forget(offset) and self.fd != _CLOSED:
            os.pwrite(self.fd, _DELIVERED, offset)

    def forget(self, offset: int) -> int:
        """Stop waiting for the frame at ``offset``; return its size, 0 when it did not wait."""
        size = self.frames.pop(offset, 0)
        self.waiting_bytes -= size
        return size

    def sync(self) -> None:
        """Return when the disk has it; raises ``OSError``."""
        if self.fd != _CLOSED:
            os.fsync(self.fd)

    def close(self) -> None:
        """Close the file and release its lock; the number of a closed descriptor may soon be the application's."""
        if self.fd != _CLOSED:
            fd, self.fd = self.fd, _CLOSED
            os.close(fd)

    def _keep(self, offset: int, size: int) -> None:
        self.frames[offset] = size
        self.waiting_bytes += size


def open_segment(path: Path, flags: int) -> Segment | None:
    """Return the segment, locked, or ``None`` when another process holds it or has just removed it."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    segment = Segment(path, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not segment.unlinked:
            return segment
    except BlockingIOError:  # another process holds it
        pass
    except OSError:
        segment.close()
        raise
    segment.close()
    return None


def encode_frame(message: TraceMessage) -> bytes:
    """Return ``message`` as it lies in a segment."""
    keys = message.keys.encode("utf-8", "replace")
    crc = zlib.crc32(message.value, zlib.crc32(keys))
    return _FRAME.pack(0, message.contexts, len(keys), len(message.value), crc) + keys + message.value


def _decode_frame(frame: bytes) -> TraceMessage:
    _, contexts, keys_bytes, _, _ = _FRAME.unpack_from(frame)
    split = _FRAME.size + keys_bytes
    return TraceMessage(
        value=frame[split:],
        keys=frame[_FRAME.size : split].decode("utf-8", "replace"),
        origins=frozenset(),
        contexts=contexts,
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message as it lies in the spool."""

    message: TraceMessage
    segment: Segment
    offset: int


class Spool:
    """At most ``max_bytes`` of waiting messages below ``directory``; what does not fit is refused, the newest first.

    Any thread may use it, one at a time. Disk errors are logged once; ``corrupt_bytes`` counts lost bytes.

    Raises:
        UsageError: the directory cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str], *, max_bytes: int, clock: Clock | None = None) -> None:
        self._directory = Path(directory).absolute()  # the application may change its working directory
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._number = 0
        self._logged: set[str] = set()
        self.corrupt_bytes = 0
        self._begin()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the spool directory {self._directory} cannot be used: {error}") from error
        if not os.access(self._directory, os.W_OK | os.X_OK):
            raise UsageError(f"the spool directory {self._directory} cannot be used: it cannot be written")
        self.adopt()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._own: Segment | None = None

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(len(segment.frames) for segment in self._segments)

    @property
    def waiting_bytes(self) -> int:
        """What they take on disk."""
        return sum(segment.waiting_bytes for segment in self._segments)

    def adopt(self) -> None:
        """Take over the segments that no process holds, oldest first; report and skip one that cannot be read."""
        with self._in_use():
            held = {segment.path for segment in self._segments}
            with self._logging():
                for path in sorted(set(self._directory.glob(f"*{_SUFFIX}")) - held, key=_age):
                    self._adopt(path)

    def put(self, messages: Sequence[TraceMessage]) -> int:
        """Append ``messages`` in order and sync; return how many are safe: a full spool or disk refuses the rest."""
        with self._in_use():
            frames = self._encode_fitting(messages)
            with self._logging():
                return self._append(self._find_writable(sum(map(len, frames))), frames) if frames else 0
            return 0

    def oldest(self, count: int) -> list[Waiting]:
        """Return up to ``count`` of the messages that have waited longest; they stay until :meth:`ack`."""
        with self._in_use():
            return list(itertools.islice(self._read_waiting(), count))

    def ack(self, delivered: Sequence[Waiting]) -> None:
        """Mark ``delivered`` on disk; a segment of which nothing waits any more is removed.

        What cannot be marked on disk now is forgotten here anyway: another process may send it once more.
        """
        with self._in_use():
            touched = dict.fromkeys(each.segment for each in delivered)
            with self._logging():
                for each in delivered:
                    each.segment.mark(each.offset)
                for segment in touched:
                    if segment.frames:
                        segment.sync()
            for each in delivered:
                each.segment.forget(each.offset)
            for segment in touched:
                if not segment.frames and segment in self._segments:
                    self._remove(segment)

    def close(self) -> None:
        """Close the segments: what waits is for another process."""
        with self._in_use():
            for segment in list(self._segments):
                if not segment.frames:
                    self._remove(segment)
                    continue
                with self._logging():  # a network file system may not tell
                    if segment.unlinked:
                        self.corrupt_bytes += segment.waiting_bytes
                        self._report(
                            f"another program removed a file; messages lost with it: {len(segment.frames)}: "
                            f"exclude *{_SUFFIX} from its clean-up"
                        )
                segment.close()
            self._segments, self._own = [], None

    def after_fork(self) -> None:
        """In a child: the segments are the parent's, and so are their locks."""
        inherited = self._segments
        self._begin()
        for segment in inherited:
            segment.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if self._pid != os.getpid():  # a fork that was not announced: two processes would write into one file
            self.after_fork()
        with self._lock:
            yield

    @contextmanager
    def _logging(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._report(str(error))

    def _report(self, text: str) -> None:
        level = logging.DEBUG if text in self._logged else logging.WARNING
        self._logged.add(text)
        _logger.log(level, "mqtrace: the spool %s: %s (logged once)", self._directory, text)

    def _append(self, segment: Segment, frames: Sequence[bytes]) -> int:
        """Append ``frames`` and sync; return how many are safe: none that the disk does not confirm."""
        end, safe = segment.end, 0
        with self._logging():
            for frame in frames:
                segment.append(frame)
                safe += 1
        try:
            segment.sync()
        except OSError:
            with self._logging():
                segment.rewind(end)
            raise
        return safe

    def _encode_fitting(self, messages: Sequence[TraceMessage]) -> list[bytes]:
        room = self._max_bytes - self.waiting_bytes
        frames = []
        for message in messages:
            frame = encode_frame(message)
            room -= len(frame)
            if room < 0:
                self._report(f"it is full ({self._max_bytes} bytes), and more is lost: raise MQTRACE_SPOOL_BYTES")
                break
            frames.append(frame)
        return frames

    def _read_waiting(self) -> Iterator[Waiting]:
        for segment in self._segments:
            for offset in list(segment.frames):
                message = segment.read(offset)
                if message is None:  # the file was cut or damaged by another program
                    self.corrupt_bytes += segment.forget(offset)
                else:
                    yield Waiting(message, segment, offset)

    def _find_writable(self, size: int) -> Segment:
        own = self._own
        if own is None or own.unlinked or (own.end and own.end + size > _SEGMENT_BYTES):
            own = self._own = self._create_segment()
            self._segments.append(own)
        return own

    def _create_segment(self) -> Segment:
        self._directory.mkdir(parents=True, exist_ok=True)  # another process may have removed it
        while True:
            # A container's process often has the name and number of the one before it, and its files are still here.
            self._number = max(self._number + 1, self._clock.wall_ns())
            name = f"spool-{socket.gethostname()}-{os.getpid()}-{self._number}{_SUFFIX}"
            try:
                segment = open_segment(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            if segment is not None:
                with self._logging():  # some file systems cannot; the messages themselves are still synced
                    _sync_directory(self._directory)
                return segment

    def _adopt(self, path: Path) -> None:
        with self._logging():
            segment = open_segment(path, os.O_RDWR)
            if segment is None:
                return
            try:
                self.corrupt_bytes += segment.load()
            except OSError:
                segment.close()
                raise
            self._segments.append(segment)
            if not segment.frames:
                self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        with self._logging():
            segment.path.unlink(missing_ok=True)  # before the lock goes with the descriptor
        segment.close()
        self._segments.remove(segment)
        if segment is self._own:
            self._own = None


def _age(path: Path) -> tuple[int, str]:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0, path.name


def _sync_directory(directory: Path) -> None:
    """A file is only safe when its name is."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
