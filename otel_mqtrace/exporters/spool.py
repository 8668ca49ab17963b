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
import zlib
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.packing import TraceMessage
from otel_mqtrace.landing import sync_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mqtrace._clock import Clock


_logger = logging.getLogger(__name__)
_SUFFIX: Final = ".mqspool"
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
# state · bytes of keys · bytes of value · CRC-32 of both; then keys and value
_FRAME: Final = struct.Struct(">BIII")
_WAITS, _DELIVERED = 1, 2  # what a power failure left unwritten may be zeros
_open_private: Final = partial(os.open, mode=0o600)


def encode_frame(message: TraceMessage) -> bytes:
    """Return ``message`` as it lies in a segment."""
    keys = message.keys.encode("utf-8", "replace")
    crc = zlib.crc32(message.value, zlib.crc32(keys))
    return _FRAME.pack(_WAITS, len(keys), len(message.value), crc) + keys + message.value


def _decode_frame(frame: bytes) -> TraceMessage:
    _, keys_bytes, _, _ = _FRAME.unpack_from(frame)
    split = _FRAME.size + keys_bytes
    return TraceMessage(value=frame[split:], keys=frame[_FRAME.size : split].decode("utf-8", "replace"), origins=())


@dataclass(slots=True, eq=False)
class Segment:
    """A file of frames, locked until it is closed; ``sizes`` are those of the frames that wait, by offset."""

    path: Path
    file: FileIO
    end: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    waiting_bytes: int = 0
    torn_bytes: int = 0

    @property
    def is_unlinked(self) -> bool:
        """Return whether the file was removed: no process could adopt what is written to it now."""
        return os.fstat(self.file.fileno()).st_nlink == 0

    def keep(self, size: int) -> None:
        """Have a frame of ``size`` bytes wait; it is the last one."""
        self.sizes[self.end] = size
        self.waiting_bytes += size
        self.end += size

    def forget(self, offset: int) -> int:
        """Stop waiting for the frame at ``offset``; return its size, 0 when it did not wait."""
        size = self.sizes.pop(offset, 0)
        self.waiting_bytes -= size
        return size

    def load(self) -> None:
        """Find the frames that wait, up to one that is damaged or torn: its writer died before it confirmed it."""
        data = self.file.readall()
        while len(data) - self.end >= _FRAME.size:
            state, keys_bytes, value_bytes, crc = _FRAME.unpack_from(data, self.end)
            text = memoryview(data)[self.end + _FRAME.size :][: keys_bytes + value_bytes]
            if state == 0 or len(text) < keys_bytes + value_bytes or zlib.crc32(text) != crc:
                break
            start = self.end
            self.keep(_FRAME.size + len(text))
            if state == _DELIVERED:
                self.forget(start)
        self.torn_bytes = len(data) - self.end


def _open_segment(path: Path, mode: str) -> Segment | None:
    """Return the segment, locked, or ``None`` when another process holds it or has just removed it."""
    with suppress(FileNotFoundError, BlockingIOError), ExitStack() as opened:
        segment = Segment(path, opened.enter_context(FileIO(path, mode, opener=_open_private)))
        fcntl.flock(segment.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not segment.is_unlinked:
            segment.load()
            opened.pop_all()
            return segment
    return None


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """One message as it lies in the spool."""

    message: TraceMessage
    segment: Segment
    offset: int


class Spool:
    """At most ``max_bytes`` of waiting messages below ``directory``; what does not fit is refused, the newest first.

    One thread uses it at a time. Disk errors are logged once; ``corrupt_bytes`` counts lost bytes.

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
        self._segments: list[Segment] = []
        self.after_fork()
        try:
            self._is_new = not self._directory.exists()
            self._directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                raise PermissionError("it cannot be written")
        except OSError as error:
            raise UsageError(f"the spool directory {self._directory} cannot be used: {error}") from error
        self.adopt()

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(len(segment.sizes) for segment in self._segments)

    @property
    def waiting_bytes(self) -> int:
        """What they take on disk."""
        return sum(segment.waiting_bytes for segment in self._segments)

    def adopt(self) -> None:
        """Take over the segments that no process holds, oldest first; report and skip one that cannot be read."""
        self._notice_fork()
        held = {segment.path for segment in self._segments}
        with self._logging():
            for path in sorted(set(self._directory.glob(f"*{_SUFFIX}")) - held, key=_age):
                with self._logging():
                    segment = _open_segment(path, "r+b")
                    if segment is not None:
                        self.corrupt_bytes += segment.torn_bytes
                        self._segments.append(segment)
                        self._remove_if_empty(segment)

    def put(self, messages: Sequence[TraceMessage]) -> int:
        """Append ``messages`` in order and sync; return how many are safe: a full spool or disk refuses the rest."""
        self._notice_fork()
        frames = self._encode_fitting(messages)
        with self._logging():
            return self._append(self._find_writable(sum(map(len, frames))), frames) if frames else 0
        return 0

    def oldest(self, count: int) -> list[WaitingMessage]:
        """Return up to ``count`` of the messages that have waited longest; they stay until :meth:`ack`."""
        self._notice_fork()
        return list(itertools.islice(self._read_waiting(), count))

    def ack(self, delivered: Sequence[WaitingMessage]) -> None:
        """Mark ``delivered`` on disk; a segment of which nothing waits any more is removed.

        What cannot be marked on disk now is forgotten here anyway: another process may send it once more.
        """
        self._notice_fork()
        marked = [each for each in delivered if each.segment.forget(each.offset) and each.segment in self._segments]
        touched = dict.fromkeys(each.segment for each in marked)
        with self._logging():
            for each in marked:
                os.pwrite(each.segment.file.fileno(), bytes([_DELIVERED]), each.offset)
            for segment in touched:  # one that goes too: after a power failure its name may be back
                os.fsync(segment.file.fileno())
        for segment in touched:
            self._remove_if_empty(segment)

    def close(self) -> None:
        """Close the segments: what waits is for another process."""
        self._notice_fork()
        for segment in list(self._segments):
            self._remove_if_empty(segment)
            with self._logging():  # a network file system may not tell
                if segment.sizes and segment.is_unlinked:
                    self.corrupt_bytes += segment.waiting_bytes
                    self._report(
                        f"another program removed a file; messages lost with it: {len(segment.sizes)}: "
                        f"exclude *{_SUFFIX} from its clean-up"
                    )
        self.after_fork()

    def after_fork(self) -> None:
        """Hold no segment any more: in a child they are the parent's, and so are their locks."""
        for segment in self._segments:
            segment.file.close()
        self._pid = os.getpid()
        self._segments = []
        self._own: Segment | None = None

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():  # a fork that was not announced: two processes would write into one file
            self.after_fork()

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
        fd, end, written = segment.file.fileno(), segment.end, 0
        with self._logging():
            for frame in frames:
                if os.pwrite(fd, frame, end) != len(frame):
                    raise OSError("no room for a whole message: free space there, or set another MQTRACE_SPOOL_DIR")
                end += len(frame)
                written += 1
        try:
            if written < len(frames):
                os.ftruncate(fd, end)  # half a frame must not lie before the next
            os.fsync(fd)
        except OSError:
            with self._logging():
                os.ftruncate(fd, segment.end)
            raise
        for frame in frames[:written]:
            segment.keep(len(frame))
        return written

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

    def _read_waiting(self) -> Iterator[WaitingMessage]:
        for segment in self._segments:
            for offset, size in list(segment.sizes.items()):
                frame = b""
                with suppress(OSError):
                    frame = os.pread(segment.file.fileno(), size, offset)
                if len(frame) == size:
                    yield WaitingMessage(_decode_frame(frame), segment, offset)
                else:  # the file was cut or damaged by another program
                    self.corrupt_bytes += segment.forget(offset)

    def _find_writable(self, size: int) -> Segment:
        """Return the segment of this process that has room for ``size`` bytes; one larger than any has its own."""
        own = self._own
        if own is not None and not own.is_unlinked and (not own.end or own.end + size <= _SEGMENT_BYTES):
            return own
        created = None
        while created is None:
            self._directory.mkdir(parents=True, exist_ok=True)  # another process may have removed it
            # A container's process often has the name and number of the one before it, and its files are still here.
            self._number = max(self._number + 1, self._clock.wall_ns())
            name = f"spool-{socket.gethostname()}-{os.getpid()}-{self._number}{_SUFFIX}"
            with suppress(FileExistsError):
                created = _open_segment(self._directory / name, "x+b")
        with self._logging():  # some file systems cannot; the messages themselves are still synced
            sync_path(self._directory)
            if self._is_new:
                self._is_new = False
                sync_path(self._directory.parent)
        self._own = created
        self._segments.append(created)
        return created

    def _remove_if_empty(self, segment: Segment) -> None:
        if segment.sizes:
            return
        with self._logging():
            segment.path.unlink(missing_ok=True)  # before the lock goes with the descriptor
        segment.file.close()
        self._segments.remove(segment)
        if segment is self._own:
            self._own = None


def _age(path: Path) -> tuple[int, str]:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0, path.name
