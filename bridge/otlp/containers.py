"""Read OTLP messages out of files, one by one, with their positions.

Damage is local: a line or frame that cannot be read is yielded as :class:`Bad`, and reading goes on behind it. Frames
have no marker, so after a bad frame the reader tries each offset at which a length and the first byte of a message fit
(``append: true`` after a kill leaves exactly that in the middle of a file).
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import mmap
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from bridge.otlp.detect import (
    FIELD_ONE,
    LENGTH_BYTES,
    LONGEST_LINE_BYTES,
    Layout,
    LineTooLongError,
    is_cut_zstd,
    open_zstd,
    read_zstd,
    unpack_whole_zstd,
    zstd_error,
)
from bridge.page.wording import plural
from bridge.storage.paths import ZSTD_MAGIC, StorePath
from otel_mqtrace._errors import UnreadableInputError

if TYPE_CHECKING:
    from bridge.storage.paths import AnyPath


MOST_CHARACTERS: Final = 64 << 20
"""The longest document; a parser needs some twenty times as much memory for it."""
_PIECE_BYTES: Final = 1 << 20
_DECODER: Final = json.JSONDecoder(parse_int=float)  # no number is too long for it
_CONTENT: Final = re.compile(r"[^\s,\ufeff]")  # commas and byte order marks may stand between documents
_TORN_TEXT: Final = "Unterminated string"  # the decoder's message for a cut text
_LONGEST_TOKEN: Final = 32  # of any token but a text or a huge number


@dataclass(frozen=True, slots=True)
class Document:
    """A whole document, or a line; ``is_cut`` means that the file ended inside it."""

    text: str
    is_document: bool
    is_cut: bool


def documents(file: BinaryIO, *, most_characters: int = MOST_CHARACTERS) -> Iterator[Document]:
    """Yield the documents in ``file``; anything else comes as the line it begins on, and reading continues after it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    held, at, is_whole = "", 0, False
    while not is_whole or at < len(held):
        content = _CONTENT.search(held, at)
        at = content.start() if content else len(held)
        left = len(held) - at
        can_grow = not is_whole and left < most_characters
        found = _first_piece(held, at, can_grow=can_grow) if left else None
        if found is not None:
            end, is_document = found
            is_cut = not is_document and is_whole and end == len(held) and not held.endswith("\n")
            yield Document(held[at:end], is_document, is_cut)
            at = end
        elif can_grow:  # by as much again as is left, so that parsing anew costs twice at most
            data = file.read(max(_PIECE_BYTES, min(left, most_characters - left)))
            is_whole = not data
            held, at = held[at:] + decoder.decode(data, final=is_whole), 0


def _first_piece(text: str, at: int, *, can_grow: bool) -> tuple[int, bool] | None:
    """Return where the document or line at ``at`` ends and whether it is a document; ``None`` if more text decides."""
    try:
        return _DECODER.raw_decode(text, at)[1], True
    except RecursionError:
        is_torn = False
    except json.JSONDecodeError as error:
        is_torn = error.msg.startswith(_TORN_TEXT) or error.pos >= len(text) - _LONGEST_TOKEN
    end = text.find("\n", at) + 1
    return None if can_grow and (is_torn or not end) else (end or len(text), False)


NOT_TRACES: Final = "not OTLP traces"
_CHUNK_BYTES: Final = 1 << 20
_SAMPLE: Final = 64 << 10  # enough for the message ids in it
_HEAD_BYTES: Final = 4 << 20
_OBJECT_START: Final = re.compile(rb'\{\s*"resource(?:S|_s)pans"\s*:')


@dataclass(frozen=True, slots=True)
class Message:
    """One ``TracesData`` or array of ``ResourceSpans``: its ordinal in the file, what the parser made of it, and it."""

    ordinal: int
    content: Any
    payload: bytes


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes that hold no message, and why."""

    ordinal: int
    reason: str
    sample: bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """The file ends inside a message: ``missing`` bytes of it are not there, or an unknown number (``None``)."""

    ordinal: int
    missing: int | None


Item = Message | Bad | Tail
Parse = Callable[[bytes], Any]
"""Bytes of one message, JSON or protobuf → its content, or ``None`` if they are not OTLP traces."""


def read_messages(path: AnyPath, layout: Layout, *, parse: Parse, parse_whole: Parse | None = None) -> Iterator[Item]:
    """Yield the items of ``path``, packed in ``layout``, in file order; a frame is valid only if ``parse`` succeeds.

    ``parse_whole``, by default ``parse``, is for a frame that zstd shows to be whole. It may leave JSON for later.

    Raises:
        UnreadableInputError: a line is longer than memory should hold.
    """
    with path.open("rb") as file:
        try:
            yield from (
                _framed(file, parse, parse_whole or parse) if layout in _OF_FRAMES else _READERS[layout](file, parse)
            )
        except LineTooLongError as error:
            raise UnreadableInputError(f"{path} {error}") from error


def first_messages(path: AnyPath, layout: Layout, *, parse: Parse) -> Iterator[Message]:
    """Yield the good messages of ``path`` in order, for a caller that stops after the first of them.

    Unlike :func:`read_messages` it unpacks no more than the beginning of a file that has to be unpacked whole.

    Raises:
        UnreadableInputError: a line is longer than memory should hold.
    """
    items = (
        _frames_at_start(path, layout, parse)
        if layout is Layout.PROTO_FRAMED_ZSTD or (layout in _OF_FRAMES and isinstance(path, StorePath))
        else read_messages(path, layout, parse=parse)
    )
    return (item for item in items if isinstance(item, Message))


def _frames_at_start(path: AnyPath, layout: Layout, parse: Parse) -> Iterator[Item]:
    with path.open("rb") as file:
        content = _Unpacked(file).buffered() if layout is Layout.PROTO_FRAMED_ZSTD else file
        head = content.read(_HEAD_BYTES)
    yield from _frames(head, parse, parse)


def _plain_lines(file: BinaryIO, parse: Parse) -> Iterator[Item]:
    yield from _lines(_lines_of(file), parse)


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE_BYTES + 1):
        if len(line) > LONGEST_LINE_BYTES:
            raise LineTooLongError
        yield line


def _lines(lines: Iterable[bytes], parse: Parse) -> Iterator[Item]:
    for ordinal, line in enumerate(lines, start=1):
        if not (line if ordinal > 1 else line.removeprefix(codecs.BOM_UTF8)).strip():
            continue
        content = parse(line)
        if content is not None:
            yield Message(ordinal, content, line)
            continue
        torn = 0 if line.endswith(b"\n") else count_torn_bytes(line, parse)
        if torn < len(line):
            yield from split_line(ordinal, line[: len(line) - torn], parse)
        if torn:
            yield Tail(ordinal, None)
            return  # its rest, if it comes meanwhile, is no line of its own


def split_line(ordinal: int, line: bytes, parse: Parse) -> Iterator[Item]:
    """Yield the items of line ``ordinal``, which is not a message: a torn one, and whole ones without a newline."""
    line = line.removeprefix(codecs.BOM_UTF8)
    for begin, end in _object_bounds(line):
        yield _read_item(ordinal, line[begin:end], parse)


def count_torn_bytes(line: bytes, parse: Parse) -> int:
    """Return how many bytes of a file's last line, which has no newline, are behind the last whole message in it."""
    if parse(line) is not None:
        return 0
    whole = (end for begin, end in _object_bounds(line) if parse(line[begin:end]) is not None)
    return len(line) - max(whole, default=0)


def _object_bounds(line: bytes) -> Iterator[tuple[int, int]]:
    starts = [found.start() for found in _OBJECT_START.finditer(line) if found.start() > 0]
    return pairwise([0, *starts, len(line)])


def _zstd_lines(file: BinaryIO, parse: Parse) -> Iterator[Item]:
    content = _Unpacked(file)
    yield from content.with_end(_lines(_lines_of(content.buffered()), parse))


class _Unpacked(io.RawIOBase):
    """What is inside a zstd file, up to its end or to the first damage, behind which nothing can be unpacked."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._reader, self._is_damaged = file, open_zstd(file), False

    def buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self, _CHUNK_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._is_damaged:  # reported by `with_end`
            return 0
        try:
            data = self._reader.read1(len(buffer))  # what comes before damage
        except zstd_error():
            self._is_damaged = True
            return 0
        buffer[: len(data)] = data
        return len(data)

    def with_end(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield ``items``, which are read from this, and then that the rest is damaged or was cut off."""
        item = None
        for item in items:
            yield item
        if self._is_damaged:
            yield Bad(1, "zstd data damaged: the rest of the file cannot be unpacked", b"")
        elif not isinstance(item, Tail) and is_cut_zstd(self._file):
            yield Tail(1, None)


def _whole(file: BinaryIO, parse: Parse) -> Iterator[Item]:
    for ordinal, piece in enumerate(documents(file), start=1):
        payload = piece.text.encode()
        if piece.is_document:
            yield _read_item(ordinal, payload, parse)
        elif piece.is_cut:
            yield Tail(ordinal, None)
        else:
            yield from split_line(ordinal, payload, parse)


def _read_item(ordinal: int, payload: bytes, parse: Parse) -> Item:
    content = parse(payload)
    return Bad(ordinal, NOT_TRACES, payload[:_SAMPLE]) if content is None else Message(ordinal, content, payload)


def _bare(file: BinaryIO, parse: Parse) -> Iterator[Item]:
    yield _read_item(1, file.read(), parse)


def _kafka_dump(file: BinaryIO, parse: Parse) -> Iterator[Item]:
    for ordinal, line in enumerate(_lines_of(file), start=1):
        if not line.strip():
            continue
        try:
            payload = base64.b64decode(json.loads(line)["value_b64"])
        except (ValueError, KeyError, TypeError, RecursionError):
            if not line.endswith(b"\n"):
                yield Tail(ordinal, None)
                return  # as above
            yield Bad(ordinal, "no value_b64", line[:_SAMPLE])
            continue
        yield _read_item(ordinal, payload, parse)


def _framed(file: Any, parse: Parse, parse_whole: Parse) -> Iterator[Item]:
    if not isinstance(file.raw, io.FileIO):
        with tempfile.TemporaryFile() as copy:  # of a file in a store
            shutil.copyfileobj(file, copy, _CHUNK_BYTES)
            yield from _framed(copy, parse, parse_whole)
        return
    file.flush()
    if file.seek(0, io.SEEK_END):
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _frames(data, parse, parse_whole)


def _framed_in_zstd(file: BinaryIO, parse: Parse) -> Iterator[Item]:
    """Unpacked onto disk, not into memory: frames have to be looked for in both directions."""
    content = _Unpacked(file)
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(content.buffered(), unpacked, _CHUNK_BYTES)
        yield from content.with_end(_framed(unpacked, parse, parse))


def _frames(data: bytes | mmap.mmap, parse: Parse, parse_whole: Parse) -> Iterator[Item]:
    at, ordinal, end = 0, 0, len(data)
    while at < end:
        ordinal += 1
        stop = at + LENGTH_BYTES + _length(data, at)
        packed = bytes(data[at + LENGTH_BYTES : stop]) if stop <= end else None
        whole = None if packed is None else unpack_whole_zstd(packed)
        if whole is not None:  # a frame, whatever is in it
            yield _read_item(ordinal, whole, parse_whole)
            at = stop
            continue
        payload = None if packed is None else _unpack(packed)
        content = None if payload is None else parse(payload)
        if payload is not None and content is not None:
            yield Message(ordinal, content, payload)
            at = stop
            continue
        resume = _next_frame(data, at + 1, parse)
        if resume is None:
            yield Tail(ordinal, stop - end) if stop > end else Bad(ordinal, NOT_TRACES, data[at : at + _SAMPLE])
            return
        yield Bad(ordinal, f"no whole frame: {plural(resume - at, 'byte')} skipped", data[at : at + _SAMPLE])
        at = resume


def _next_frame(data: bytes | mmap.mmap, start: int, parse: Parse) -> int | None:
    end = len(data)
    for at in range(start, end - LENGTH_BYTES - 1):
        first = at + LENGTH_BYTES
        likely = data[first] == FIELD_ONE or data[first : first + len(ZSTD_MAGIC)] == ZSTD_MAGIC
        length = _length(data, at)
        if likely and 0 < length <= end - first and parse(_unpack(bytes(data[first : first + length])) or b""):
            return at
    return None


def _length(data: bytes | mmap.mmap, at: int) -> int:
    return int.from_bytes(data[at : at + LENGTH_BYTES], "big")


def _unpack(packed: bytes) -> bytes | None:
    """Return the message in a frame, ``None`` when it is damaged zstd."""
    return read_zstd(packed) if packed.startswith(ZSTD_MAGIC) else packed


_OF_FRAMES: Final = frozenset({Layout.PROTO_FRAMED, Layout.JSON_ZSTD_FRAMED, Layout.PROTO_ZSTD_FRAMED})
_READERS: Final[dict[Layout, Callable[[BinaryIO, Parse], Iterator[Item]]]] = {
    Layout.JSON_LINES: _plain_lines,
    Layout.JSON: _whole,
    Layout.JSON_LINES_ZSTD: _zstd_lines,
    Layout.PROTO_FRAMED_ZSTD: _framed_in_zstd,
    Layout.PROTO: _bare,
    Layout.KAFKA_DUMP: _kafka_dump,
}
