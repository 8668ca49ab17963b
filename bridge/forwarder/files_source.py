"""Drain a directory: finished files of trace messages, and OTLP files that may still grow."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.addresses import NothingThereError, expand_files, root_of
from bridge.codec.framing import BadBody, Framing, read_landed, unreadable
from bridge.forwarder.resume_file import read_state, state_name, write_state
from bridge.forwarder.trace_source import TraceSource
from bridge.otlp.containers import Bad, Message, Tail, read_messages
from bridge.otlp.detect import Side, detect_layout
from bridge.otlp.spans import parse_message
from bridge.storage.paths import DamagedInputError, as_path
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._errors import PeerError, UnreadableInputError, UsageError
from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.wire.native.layout import RECORD_START

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator

    from bridge.forwarder.pairing import Position
    from bridge.otlp.detect import Layout
    from bridge.storage.paths import AnyPath


CANNOT_READ: Final = "name another --state DIR, or remove it to begin again"
_Status = tuple[int, int]
"""Size, and time of modification in nanoseconds."""


class _FilesSource(TraceSource):
    """A file, directory or glob as a resumable stream; ``state`` keeps the progress, in a file for each ``group``.

    Files overlap in time: nothing is old before all are read, so ``behind`` stays empty. Among several files one that
    cannot be read, such as a compressed or damaged one, is one of ``bad_bodies`` until it changes.

    Raises:
        UsageError: nothing is there, all files are of the other side, or the progress cannot be read or written.
        UnreadableInputError: the only file cannot be read.
    """

    _kind: str
    _batch: int

    def __init__(self, path: str | AnyPath, *, group: str, state: AnyPath) -> None:
        super().__init__()
        _, self._is_single = expand_files(str(path))
        self._path, self._directory = str(path), root_of(str(path)).resolve()
        self._state_file = state / f"{state_name(group, str(as_path(path).resolve()), f'{self._kind}-')}.json"
        self._read: dict[str, Any] = read_state(self._state_file, self._parse, hint=CANNOT_READ) or {}  # by file name
        self._done = dict(self._read)  # as it was written at the last commit
        self.has_been_read = bool(self._read)
        self._passed_over: dict[AnyPath, _Status | None] = {}  # files that could not be read, as they were then

    @staticmethod
    @abstractmethod
    def _parse(content: Any) -> dict[str, Any]:
        """Return the progress by the files' names."""

    @abstractmethod
    def _is_read(self, path: AnyPath, status: _Status) -> bool:
        """Return whether nothing is new in a file."""

    @abstractmethod
    def _new_messages(self, path: AnyPath, status: _Status) -> Iterator[LandedMessage]:
        """Yield what is new in a file, and remember that it was read.

        Raises:
            UnreadableInputError: it cannot be read.
            UsageError: it is of the other side.
        """

    def _drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield the messages that are new, in batches of one file each."""
        refusal: UsageError | None = None
        for path in self._present_files():
            try:
                found = path.stat()
                status = found.st_size, found.st_mtime_ns
                if self._passed_over.get(path) == status or self._is_read(path, status):
                    continue
                messages = self._new_messages(path, status)
                while len(batch := list(islice(messages, self._batch))) == self._batch:
                    yield batch
                yield batch  # also an empty one: the caller may stop between files
            except FileNotFoundError:  # removed or renamed since it was listed
                continue
            except (UnreadableInputError, UsageError) as error:
                if self._is_single and not self._read:
                    raise
                refusal = error if refusal is None and isinstance(error, UsageError) else refusal
                if path not in self._passed_over:
                    self._count_error(path, error)
                # What the system refuses may be allowed without a change.
                self._passed_over[path] = None if isinstance(error.__cause__, OSError) else status
        if refusal and not self._read:
            raise refusal

    def _present_files(self) -> list[AnyPath]:
        try:
            return expand_files(self._path)[0]
        except NothingThereError:  # a glob whose files were moved away since the start
            return []

    def _name(self, path: AnyPath) -> str:
        try:
            return path.relative_to(self._directory).as_posix()
        except ValueError:  # a link in the directory to a file elsewhere
            return str(path)

    def _count_error(self, path: AnyPath, error: Exception) -> None:
        self._count_bad(self._name(path), str(error).removeprefix(str(path)).lstrip(": "))

    def _count_bad(self, place: str, reason: str) -> None:
        self.bad_bodies += 1
        self.new_bad = f"{place}: {reason}"
        self.first_bad = self.first_bad or self.new_bad


class FilesTraceSource(_FilesSource):
    """Files of native bodies. A message's ``source`` is its file, ``offset`` its number in it.

    Its ``arrival_ms`` is that in the file, else when the file was last written. A file with a record that still waits
    is read again as a whole after a restart. A raw file without any record is one of ``bad_bodies``. One that was
    forwarded and has changed since is one of ``changed_files`` at every run.
    """

    _kind = "files"
    _batch = 500

    @staticmethod
    def _parse(content: Any) -> dict[str, _Status]:
        return {str(name): (int(size), int(changed_ns)) for name, (size, changed_ns) in content["done"].items()}

    def _is_read(self, path: AnyPath, status: _Status) -> bool:
        name = self._name(path)
        if self._read.get(name, status) != status and name not in self.changed_files:
            self.changed_files.add(name)
            self.new_bad = f"{name}: changed since it was forwarded: give new content a new file name"
        return name in self._read

    def _new_messages(self, path: AnyPath, status: _Status) -> Iterator[LandedMessage]:
        name = self._name(path)
        try:
            side = detect_layout(path).side
        except UnreadableInputError:  # a raw body, or what its reader has a better sentence for
            side = Side.NATIVE
        if side is Side.OTLP:
            raise UsageError(f"{path} holds spans, no native trace bodies: give --native URL to forward spans")
        if side is Side.NATIVE:
            yield from self._messages(path, name, status)
            self._read[name] = status

    def _commit(self, held: Collection[Position]) -> None:
        """Remember every file that was yielded to its end as done, but for those with something ``held``."""
        waiting = {position.source for position in held}
        done = {name: status for name, status in self._read.items() if name not in waiting}
        if done != self._done:
            write_state(self._state_file, {"done": done})
            self._done = done

    def _messages(self, path: AnyPath, name: str, status: _Status) -> Iterator[LandedMessage]:
        """Yield the messages of a file; what lies behind damage in its middle is one of ``bad_bodies``.

        Raises:
            PeerError: the system failed in the middle of the file.
        """
        _, changed_ns = status
        has_begun = False
        try:
            with path.open("rb") as stream:
                for number, body in enumerate(read_landed(stream, Framing.AUTO, name=str(path))):
                    if isinstance(body, BadBody):
                        self._count_bad(f"{name}:{body.row}", f"{body.field or ''} {body.reason}".lstrip())
                        continue
                    if not (body.beside or RECORD_START.search(body.body)):
                        self._count_bad(name, "no record")
                        continue
                    has_begun = True
                    arrival_ms = changed_ns // NS_PER_MS if body.arrival_ms is None else body.arrival_ms
                    yield LandedMessage(
                        source=name, offset=number, arrival_ms=arrival_ms, keys=body.keys, body=body.body
                    )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(str(path), error) from error
        except UnreadableInputError as error:
            if not has_begun:
                raise
            if not isinstance(error, DamagedInputError):
                raise PeerError(str(error)) from error
            self._count_error(path, error)  # and the file is done: read again, it would repeat what was yielded


class _Progress(NamedTuple):
    """How many messages of a file were read; digests up to the last of them, and up to the first that is not empty."""

    messages: int = 0
    digest: str = ""
    first: str = ""


_Reached = tuple[_Progress, Message | Bad]
"""A message of a file, good or bad, and the progress up to its end."""


class SpanFilesSource(_FilesSource):
    """Files of OTLP in any layout that ``bridge.otlp.detect`` detects.

    A message's ``body`` is one OTLP request in JSON or protobuf, its ``source`` the file, its ``offset`` the number of
    messages before it there, its ``arrival_ms`` when the file was last written. A file without spans is one of
    ``bad_bodies``.
    """

    _kind = "spans"
    _batch = 100

    def __init__(self, path: str | AnyPath, *, group: str, state: AnyPath) -> None:
        super().__init__(path, group=group, state=state)
        self._seen: dict[AnyPath, _Status] = {}  # of files as they were read to their end

    @staticmethod
    def _parse(content: Any) -> dict[str, _Progress]:
        files = content["files"].items()
        return {str(name): _Progress(int(count), str(digest), str(first)) for name, (count, digest, first) in files}

    def _is_read(self, path: AnyPath, status: _Status) -> bool:
        return self._seen.get(path) == status

    def _new_messages(self, path: AnyPath, status: _Status) -> Iterator[LandedMessage]:
        layout = detect_layout(path)
        if layout.side is Side.NATIVE:
            raise UsageError(f"{path} holds native trace bodies, no spans: leave out --native to forward those")
        name, (_, changed_ns) = self._name(path), status
        for progress, item in self._unread(path, name, layout) if layout.side is Side.OTLP else ():
            self._read[name] = progress  # before it is yielded: the caller may commit at once
            if isinstance(item, Bad):
                self._count_bad(f"{name}:{item.ordinal}", item.reason)
            else:
                arrival_ms, offset = changed_ns // NS_PER_MS, progress.messages - 1
                yield LandedMessage(source=name, offset=offset, arrival_ms=arrival_ms, body=item.payload)
        self._seen[path] = status

    def _commit(self, held: Collection[Position]) -> None:  # noqa: ARG002 - a span never waits for another
        """Remember everything that was yielded as done."""
        if self._read != self._done:
            write_state(self._state_file, {"files": self._read})
            self._done = dict(self._read)

    def _unread(self, path: AnyPath, name: str, layout: Layout) -> Iterator[_Reached]:
        """Yield the messages of a file that were not read yet, under this name or another one.

        The file is compared with all that begin with the same message, as far as the longest of them was read. If it is
        that one, it goes on there. If it is another one, what it shares with any of them is passed over.
        """
        self.cut_files.pop(name, None)
        read = partial(_messages_of, path, layout, partial(self.cut_files.__setitem__, name))
        items = read()
        begin = next(items, None)
        if begin is None:
            return
        items = chain([begin], items)
        known = {each for each in self._read.values() if each.first == begin[0].first}
        longest = max((each.messages for each in known), default=0)
        shared = last = _Progress()
        for last, _ in items if known else ():
            shared = last if last in known else shared
            if last.messages >= longest:
                break
        is_part = last.messages < longest and self._begins_another(last)
        self._keep_replaced(name, shared.digest)
        if is_part or shared.messages:
            self._read[name] = last if is_part else shared
        if shared.messages == longest:  # it is that one, or begins as none
            yield from items
        elif not is_part:
            yield from (each for each in read() if each[0].messages > shared.messages)

    def _begins_another(self, progress: _Progress) -> bool:
        """Return whether a file that ends there is the beginning of another one that was read and is still there.

        A rotation that copies leaves such a file for a moment.
        """
        most, _, first = progress
        longer = [(name, each) for name, each in self._read.items() if each.first == first and each.messages > most]
        for path, was_read in ((self._directory / name, each) for name, each in longer if not name.startswith("//")):
            with suppress(UnreadableInputError):  # by now something else may have its name, or nothing
                layout = detect_layout(path)
                reached = (each for each, _ in (_messages_of(path, layout) if layout.side is Side.OTLP else ()))
                if progress in reached and was_read in reached:  # else it was replaced by one that begins as it did
                    return True
        return False

    def _keep_replaced(self, name: str, shared: str) -> None:
        """Keep the progress of another file that had this name: it may have got a new one since the files were listed.

        ``shared`` is the digest of what was read before of the file that has the name now.
        """
        replaced = self._read.pop(name, None)
        if replaced is not None and replaced.digest != shared and replaced not in self._read.values():
            self._read[f"//{replaced.digest}"] = replaced
        self._read.pop(f"//{shared}", None)


def _messages_of(
    path: AnyPath, layout: Layout, on_tail: Callable[[int], object] = lambda _: None
) -> Iterator[_Reached]:
    """Yield the messages of a file, bad ones too; without the empty ones, with which many files may begin.

    ``on_tail`` gets the number of a message that the file ends inside.
    """
    messages, digest, first = 0, blake2b(digest_size=16), ""
    for item in read_messages(path, layout, parse=parse_message):
        if isinstance(item, Tail):
            on_tail(item.ordinal)
            continue
        messages += 1
        digest.update((item.payload if isinstance(item, Message) else item.sample).strip() + b"\n")
        if first or isinstance(item, Bad) or item.content:
            first = first or digest.hexdigest()
            yield _Progress(messages, digest.hexdigest(), first), item
