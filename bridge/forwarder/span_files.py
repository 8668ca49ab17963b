"""Drain a directory of OTLP files: every message once, also of files that still grow or are renamed.

A Collector appends to its file and renames it when it rotates. So a file is known by its first message, not by its
name, and what is remembered of it is how many of its messages are done. A file that was cut off inside a message is
read up to there, and further when it has grown.
"""

from __future__ import annotations

import re
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import expand_files, root_of
from bridge.forwarder.files import CANNOT_READ, CANNOT_WRITE, present_files
from bridge.forwarder.memory import read_memory, write_memory
from bridge.otlp.containers import Bad, Message, Tail, read_messages
from bridge.otlp.detect import Side, detect
from bridge.otlp.spans import parse_message
from otel_mqtrace._errors import UsageError
from otel_mqtrace.landing.layout import LandedMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Generator
    from types import TracebackType

    from typing_extensions import Self

    from bridge.forwarder.pairing import Place

__all__ = ["SpanFilesSource"]

_BATCH: Final = 100
_NS_PER_MS: Final = 1_000_000
_NO_NAME: Final = re.compile(r"[^\w.-]")


class SpanFilesSource:
    """A file, directory or glob of OTLP in any layout that ``bridge.otlp.detect`` knows, as a resumable stream.

    A message's ``body`` is one OTLP request in JSON or protobuf, its ``source`` the file, its ``offset`` the number of
    messages before it there, its ``arrival_ms`` when the file was last written. ``bad_bodies`` counts pieces of files
    that are no OTLP messages.

    How far each file is done is remembered in ``state``, one file per source and ``group``.

    Raises:
        UsageError: nothing is there, a file of native bodies, or the memory cannot be read or written.
        UnreadableInputError: a file that is neither.
    """

    def __init__(self, path: str | Path, *, group: str, state: Path) -> None:
        expand_files(str(path))  # something is there
        self.behind: Collection[int | None] = ()
        self.bad_bodies = 0
        self._path, self._directory = str(path), root_of(str(path)).resolve()
        whose = f"{Path(path).resolve()}\n{group}"
        self._memory = state / f"{_NO_NAME.sub('_', group)}-spans-{zlib.crc32(whose.encode()):08x}.json"
        self._done: dict[str, int] = read_memory(self._memory, _counts, hint=CANNOT_READ) or {}
        self._read = dict(self._done)
        self._seen: dict[Path, tuple[int, int]] = {}  # size and time of files as they were read to their end

    def drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield the messages that are new, in batches of one file each."""
        for path in present_files(self._path):
            status = path.stat()
            known = (status.st_size, status.st_mtime_ns)
            if self._seen.get(path) == known:
                continue
            batch: list[LandedMessage] = []
            for message in self._messages(path, status.st_mtime_ns // _NS_PER_MS):
                batch.append(message)
                if len(batch) >= _BATCH:
                    yield batch
                    batch = []
            self._seen[path] = known
            yield batch

    def commit(self, held: Collection[Place] = ()) -> None:  # noqa: ARG002 - a span never waits for another
        """Remember everything that was yielded as done."""
        if self._read != self._done:
            write_memory(self._memory, {"files": self._read}, hint=CANNOT_WRITE, indent=0)
            self._done = dict(self._read)

    def close(self) -> None:
        """Nothing is open between two files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _messages(self, path: Path, changed_ms: int) -> Generator[LandedMessage, None, None]:
        detected = detect(path)
        if detected.side is Side.EMPTY:
            return
        if detected.side is not Side.OTLP:
            raise UsageError(f"{path} holds native trace bodies, no spans: leave out --native to forward those")
        name = path.relative_to(self._directory).as_posix()
        key, number = None, 0
        for item in read_messages(path, detected.layout, parse=parse_message):
            if isinstance(item, Tail):
                continue
            if isinstance(item, Message) and key is None:
                key = blake2b(item.payload.strip(), digest_size=16).hexdigest()
            number += 1
            if key is not None and number <= self._read.get(key, 0):
                continue
            if key is not None:
                self._read[key] = number  # before it is yielded: whoever has it may commit at once
            if isinstance(item, Bad):
                self.bad_bodies += 1
            else:
                yield LandedMessage(source=name, offset=number - 1, arrival_ms=changed_ms, body=item.payload)


def _counts(content: Any) -> dict[str, int]:
    return {str(key): int(count) for key, count in content["files"].items()}
