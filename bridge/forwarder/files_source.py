"""Drain a directory: finished files of trace messages, and OTLP files that may still grow."""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import expand_files, root_of
from bridge.codec.framing import BadBody, Framing, read_landed, unreadable
from bridge.forwarder.resume_file import memory_name, read_memory, write_memory
from bridge.forwarder.trace_source import TraceSource
from bridge.otlp.containers import Bad, Message, Tail, read_messages
from bridge.otlp.detect import Layout, Side, detect
from bridge.otlp.spans import parse_message
from bridge.storage import DamagedInputError, InaccessibleInputError, as_path
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._errors import UnreadableInputError, UsageError
from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.wire.native.layout import RECORD_START

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    from bridge.forwarder.pairing import Place
    from bridge.storage import AnyPath


CANNOT_READ: Final = "name another --state DIR, or remove it to begin again"
CANNOT_WRITE: Final = "; give --state a DIR that can be written"
_BATCH: Final = 500
_SPAN_BATCH: Final = 100
_Status = tuple[int, int]
"""Size, and time of modification in nanoseconds."""


def _status(path: AnyPath) -> _Status:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def present_files(path: str) -> list[AnyPath]:
    """Return the files behind a path of :attr:`Kind.FILES` that are there now; later there may be more."""
    try:
        return expand_files(path)[0]
    except UsageError:  # a glob whose files were moved away since the start
        return []


class _FilesSource(TraceSource):
    """A file, directory or glob as a resumable stream; ``state`` keeps the progress, in a file for each ``group``.

    Files overlap in time: nothing is old before all are read, so ``behind`` stays empty.

    Raises:
        UsageError: nothing is there, or the progress cannot be read or written.
    """

    _kind: str

    def __init__(self, path: str | AnyPath, *, group: str, state: AnyPath) -> None:
        super().__init__()
        _, self._is_single = expand_files(str(path))
        self._path, self._directory = str(path), root_of(str(path)).resolve()
        self._memory = state / f"{memory_name(group, str(as_path(path).resolve()), f'{self._kind}-')}.json"

    def _name(self, path: AnyPath) -> str:
        try:
            return path.relative_to(self._directory).as_posix()
        except ValueError:  # a link in the directory to a file elsewhere
            return str(path)

    def _count_bad(self, place: str, reason: str) -> None:
        self.bad_bodies += 1
        self.first_bad = self.first_bad or f"{place}: {reason}"


class FilesTraceSource(_FilesSource):
    """Files of native bodies. A message's ``source`` is its file, ``offset`` its number in it.

    Its ``arrival_ms`` is that in the file, else when the file was last written. A file with a record that still waits
    is read again as a whole after a restart. A raw file without any record is one of ``bad_bodies``, as is a damaged
    one of Parquet until it is whole. One that was forwarded and has changed since is one of ``changed_files``.

    Raises:
        UnreadableInputError: a file of another format, or the only file is damaged.
    """

    _kind = "files"

    def __init__(self, path: str | AnyPath, *, group: str, state: AnyPath) -> None:
        super().__init__(path, group=group, state=state)
        self._done: dict[str, _Status] = read_memory(self._memory, _forwarded, hint=CANNOT_READ) or {}
        self.has_been_read = bool(self._done)
        self._read = dict(self._done)
        self._of_spans: dict[str, AnyPath] = {}
        self._damaged: dict[str, _Status] = {}  # which are read once they are whole

    def _drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield the messages of every file that is neither done nor waiting, in batches.

        Raises:
            UsageError: every file there holds spans.
        """
        for path in present_files(self._path):
            name = self._name(path)
            try:
                status = _status(path)
                if self._is_passed_over(path, name, status):
                    continue
                messages = self._messages(path, name, status)
                while len(batch := list(islice(messages, _BATCH))) == _BATCH:
                    yield batch
            except FileNotFoundError:  # removed or renamed since it was listed
                continue
            except DamagedInputError:
                if self._is_single:
                    raise
                self._damaged[name] = status
                self._count_bad(name, "not a readable Parquet file")
                continue
            self._read[name] = status
            yield batch
        if self._of_spans and not self._read:
            first = next(iter(self._of_spans.values()))
            raise UsageError(f"{first} holds spans, no native trace bodies: give --native URL to forward spans")

    def _is_passed_over(self, path: AnyPath, name: str, status: _Status) -> bool:
        if name in self._read:
            if self._read[name] != status:
                self.changed_files.add(name)
            return True
        if name in self._of_spans or self._damaged.get(name) == status:
            return True
        side = _side(path)
        if side is Side.OTLP:
            self._of_spans[name] = path
            self._count_bad(name, "holds spans")
        return side is not Side.NATIVE

    def commit(self, held: Collection[Place] = ()) -> None:
        """Remember every file that was yielded to its end as done, but for those with something ``held``."""
        waiting = {place.source for place in held}
        done = {name: status for name, status in self._read.items() if name not in waiting}
        if done != self._done:
            write_memory(self._memory, {"done": done}, hint=CANNOT_WRITE, indent=0)
            self._done = done

    def _messages(self, path: AnyPath, name: str, status: _Status) -> Iterator[LandedMessage]:
        _, changed_ns = status
        try:
            with path.open("rb") as stream:
                for number, body in enumerate(read_landed(stream, Framing.AUTO, name=str(path))):
                    if isinstance(body, BadBody):
                        self._count_bad(f"{name}:{body.row}", f"{body.field or ''} {body.reason}".lstrip())
                        continue
                    if not (body.beside or RECORD_START.search(body.body)):
                        self._count_bad(name, "no record")
                        continue
                    arrival_ms = changed_ns // NS_PER_MS if body.arrival_ms is None else body.arrival_ms
                    yield LandedMessage(
                        source=name, offset=number, arrival_ms=arrival_ms, keys=body.keys, body=body.body
                    )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(str(path), error) from error


def _forwarded(content: Any) -> dict[str, _Status]:
    return {str(name): (int(size), int(changed_ns)) for name, (size, changed_ns) in content["done"].items()}


def _side(path: AnyPath) -> Side:
    try:
        return detect(path).side
    except UnreadableInputError:  # a raw body, or what its reader has a better sentence for
        return Side.NATIVE


_Progress = tuple[int, str, str]
"""The number of messages that were read of a file, and the digests up to the last of them and to the first."""


class SpanFilesSource(_FilesSource):
    """Files of OTLP in any layout that ``bridge.otlp.detect`` detects.

    A message's ``body`` is one OTLP request in JSON or protobuf, its ``source`` the file, its ``offset`` the number of
    messages before it there, its ``arrival_ms`` when the file was last written. A file without spans is one of
    ``bad_bodies``.
    """

    _kind = "spans"

    def __init__(self, path: str | AnyPath, *, group: str, state: AnyPath) -> None:
        super().__init__(path, group=group, state=state)
        self._done: dict[str, _Progress] = read_memory(self._memory, _progress, hint=CANNOT_READ) or {}
        self.has_been_read = bool(self._done)
        self._read = dict(self._done)
        self._before: list[_Progress] = []  # of the last drain: a file of the same name may have replaced one
        self._seen: dict[AnyPath, _Status] = {}  # of files as they were read to their end

    def _drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield the messages that are new, in batches of one file each.

        Raises:
            UsageError: all files hold native bodies, but for those that hold neither.
            UnreadableInputError: the source is one file, and without spans.
        """
        refusal: Exception | None = None
        self._before = [*self._read.values()]
        for path in present_files(self._path):
            try:
                status = _, changed_ns = _status(path)
                if self._seen.get(path) == status:
                    continue
                layout = _layout_of_spans(path)
            except FileNotFoundError:  # removed or renamed since it was listed
                continue
            except InaccessibleInputError:
                raise
            except (UnreadableInputError, UsageError) as error:
                if self._is_single or isinstance(error, UsageError):
                    refusal = refusal or error
                self._count_bad(self._name(path), str(error))
                self._seen[path] = status
                continue
            messages = self._messages(path, layout, changed_ns // NS_PER_MS)
            while len(batch := list(islice(messages, _SPAN_BATCH))) == _SPAN_BATCH:
                yield batch
            self._seen[path] = status
            yield batch
        if refusal and not self._read:
            raise refusal

    def commit(self, held: Collection[Place] = ()) -> None:  # noqa: ARG002 - a span never waits for another
        """Remember everything that was yielded as done."""
        if self._read != self._done:
            write_memory(self._memory, {"files": self._read}, hint=CANNOT_WRITE, indent=0)
            self._done = dict(self._read)

    def _messages(self, path: AnyPath, layout: Layout, changed_ms: int) -> Generator[LandedMessage, None, None]:
        if layout is Layout.EMPTY:
            return
        name, first, forwarded = self._name(path), "", 0
        for number, (digest, item) in enumerate(_digested_items(path, layout), start=1):
            if not first and isinstance(item, Message):
                if not item.content:  # without spans: many files may begin with the same
                    continue
                first, forwarded = digest, self._count_forwarded(path, layout, digest)
            if first and number >= forwarded:
                self._read[name] = number, digest, first  # before it is yielded: the caller may commit at once
            if number <= forwarded:
                continue
            if isinstance(item, Bad):
                self._count_bad(f"{name}:{item.ordinal}", item.reason)
            else:
                yield LandedMessage(source=name, offset=number - 1, arrival_ms=changed_ms, body=item.payload)

    def _count_forwarded(self, path: AnyPath, layout: Layout, first: str) -> int:
        """Return how many messages of a file are those that were read of it, or of a file that it is a copy of."""
        known = {digest: count for count, digest, begin in (*self._before, *self._read.values()) if begin == first}
        digests = (digest for digest, _ in islice(_digested_items(path, layout), max(known.values(), default=0)))
        return max((known[digest] for digest in digests if digest in known), default=0)


def _digested_items(path: AnyPath, layout: Layout) -> Iterator[tuple[str, Message | Bad]]:
    """Yield the messages of a file, bad ones too, each with a digest of the file up to its end."""
    read = blake2b(digest_size=16)
    for item in read_messages(path, layout, parse=parse_message):
        if not isinstance(item, Tail):
            read.update((item.payload if isinstance(item, Message) else item.sample).strip() + b"\n")
            yield read.hexdigest(), item


def _layout_of_spans(path: AnyPath) -> Layout:
    """Return how spans lie in a file.

    Raises:
        UsageError: it holds native bodies.
        UnreadableInputError: it holds neither, or cannot be read.
    """
    detected = detect(path)
    if detected.side is Side.NATIVE:
        raise UsageError(f"{path} holds native trace bodies, no spans: leave out --native to forward those")
    return detected.layout


def _progress(content: Any) -> dict[str, _Progress]:
    files = content["files"].items()
    return {str(name): (int(count), str(digest), str(first)) for name, (count, digest, first) in files}
