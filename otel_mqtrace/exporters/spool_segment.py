"""One file of a spool: locked, frames appended at its end, each marked when delivered.

A frame, in bytes::

    state (1 byte: 0 waits, 1 was taken) · contexts · bytes of keys · bytes of value · CRC-32 of both · keys · value

A torn tail ends a segment: it was being written when the process died, and its writer had not confirmed it.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_mqtrace.exporters.packing import TraceMessage

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HAS_LOCKS", "Segment", "framed", "opened"]

HAS_LOCKS: Final = fcntl is not None
_FRAME: Final = struct.Struct(">BIIII")
_TAKEN: Final = b"\x01"
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
        """Whether the file was removed: no process could adopt what is written to it now."""
        return os.fstat(self.fd).st_nlink == 0

    def load(self) -> int:
        """Find the frames that wait; return the bytes of the torn tail."""
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
            raise OSError("the disk took only a part of a frame")
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
        except OSError:
            return None
        return _message(frame) if len(frame) == size else None

    def mark(self, offset: int) -> None:
        """The frame at ``offset`` was taken: by this process at once, on disk if the disk will; raises ``OSError``."""
        if self.forget(offset) and self.fd != _CLOSED:
            os.pwrite(self.fd, _TAKEN, offset)

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
        """Let go of the file and of its lock; the number of a closed descriptor may soon be the application's."""
        if self.fd != _CLOSED:
            fd, self.fd = self.fd, _CLOSED
            os.close(fd)

    def _keep(self, offset: int, size: int) -> None:
        self.frames[offset] = size
        self.waiting_bytes += size


def opened(path: Path, flags: int) -> Segment | None:
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
    except BlockingIOError:
        pass
    except OSError:
        segment.close()
        raise
    segment.close()
    return None


def framed(message: TraceMessage) -> bytes:
    """Return ``message`` as it lies in a segment."""
    keys = message.keys.encode("utf-8", "replace")
    crc = zlib.crc32(message.value, zlib.crc32(keys))
    return _FRAME.pack(0, message.contexts, len(keys), len(message.value), crc) + keys + message.value


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
