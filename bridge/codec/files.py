"""Decode and encode files of native bodies, large ones in parts of bounded size."""

from __future__ import annotations

import base64
import io
import os
import stat
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import typer

from bridge.addresses import Kind, expand_files, is_pipe, parse_address, refuse_device
from bridge.codec.framing import BadBody, Framing, find_framing, may_hold_bodies, read_landed, refuse_spans, unreadable
from bridge.codec.records_json import bad_json, body_json, dump, encode_lines, target_named
from bridge.page.wording import plural, visible
from bridge.storage.paths import as_path, refuse_compressed, refuse_unconverted
from otel_mqtrace._errors import UnreadableInputError, UsageError
from otel_mqtrace.landing import BODY_BASE64
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.wire.native import DecodedBody, WriterGuesses, decode_body, decode_stream
from otel_mqtrace.wire.native.decode import PART_BYTES, decode_values, is_cuttable, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bridge.storage.paths import AnyPath
    from otel_mqtrace.wire.native.encode import EncodedContext

    _Record = tuple[object, EncodedContext]  # the index of its body, and what is in it


@dataclass(frozen=True, slots=True)
class BodyDecoder:
    """Decodes native bodies of one charset and map of types: see :func:`~otel_mqtrace.wire.native.decode_body`.

    Raises:
        UsageError: unknown charset or map of message types.
    """

    msg_type_map: str = "a"
    charset: str = "utf-8"

    def __post_init__(self) -> None:
        self.decode(b"")

    def decode(self, body: bytes) -> DecodedBody:
        """Return the contexts of one body: see :func:`~otel_mqtrace.wire.native.decode_body`."""
        return decode_body(body, msg_type_map=self.msg_type_map, charset=self.charset)

    def fields_of(self, body: bytes) -> Iterator[list[str]]:
        """Yield the fields of each record of one body, good or bad."""
        values = decode_values(text_of(body, self.charset), msg_type_map=self.msg_type_map)
        return (fields for (fields, _), _ in values)

    def parts_of(self, read: Callable[[int], bytes]) -> Iterator[DecodedBody]:
        """Yield the contexts of one body in parts: see :func:`~otel_mqtrace.wire.native.decode_stream`."""
        return decode_stream(read, msg_type_map=self.msg_type_map, charset=self.charset)


def decode_bodies(
    stream: io.BufferedReader, framing: Framing, decoder: BodyDecoder, *, name: str
) -> Iterator[tuple[int, int | None, DecodedBody | BadBody]]:
    """Yield the index of each body of the file, from 0, its line or row, from 1, and its contexts.

    A large body comes in several parts. A raw file has no lines.

    Raises:
        UnreadableInputError: it holds spans, or as :func:`~bridge.codec.framing.read_landed`.
        MissingExtraError: as there.
        UsageError: unknown charset.
    """
    try:
        refuse_compressed(stream.peek(), name)
        chosen = find_framing(stream) if framing is Framing.AUTO else framing
        if chosen is Framing.RAW:
            if is_cuttable(decoder.charset):  # a body in UTF-16 may begin with its mark
                refuse_unconverted(stream.peek(), name)
            yield from ((0, None, part) for part in decoder.parts_of(stream.read))
            return
        refuse_spans(stream.peek(), name)
    except OSError as error:
        raise unreadable(name, error) from error
    for index, body in enumerate(read_landed(stream, chosen, name=name)):
        if isinstance(body, BadBody):
            yield index, body.row, body
        elif len(body.body) > PART_BYTES:
            yield from ((index, body.row, part) for part in decoder.parts_of(io.BytesIO(body.body).read))
        else:
            yield index, body.row, decoder.decode(body.body)


LARGE_BYTES: Final = 8 << 20
"""A smaller file is read within about two seconds, and needs no bar."""

_Item = TypeVar("_Item")


def _show_bar(items: Iterator[_Item], stream: io.BufferedReader, name: str) -> Iterator[_Item]:
    """Yield ``items``, which are read from ``stream``, under a bar that shows the bytes read so far.

    The bar is drawn on standard error for a large file, only if that is a terminal, and is gone at the end.
    """
    is_shown = sys.stderr.isatty() and not sys.stdout.isatty()  # records running over the terminal are progress enough
    size_bytes = _size_bytes(stream)
    if not is_shown or size_bytes < LARGE_BYTES:
        yield from items
        return
    from otel_mqtrace._terminal import progress_bar  # noqa: PLC0415  rich takes longer than a small decode

    with progress_bar(name) as show:
        for item in items:
            show(completed=stream.tell(), total=size_bytes)
            yield item


def _size_bytes(stream: io.BufferedReader) -> int:
    """Return the size of a regular file; a pipe has none."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # a stream in memory
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


_STDIN: Final = "-"
_UNREADABLE: Final = 2


def decode_files(  # noqa: PLR0913 - the command's options
    files: list[str] | None, framing: Framing, *, msg_type_map: str, charset: str, explode_batches: bool, as_table: bool
) -> int:
    """Print the records of ``files`` (without any: of standard input), bad ones in place, as lines of JSON or a table.

    Raises:
        UsageError, UnreadableInputError: a file, the charset or the map of message types is wrong.
    """
    decoder = BodyDecoder(msg_type_map, charset)  # a wrong charset fails before any output
    tally, unread = _Tally(), list[str]()
    items = _decode(_bodies(files or [_STDIN], framing, decoder, unread), tally, explode_batches=explode_batches)
    if as_table:
        from bridge.codec.tables import print_records  # noqa: PLC0415  rich takes longer than a small decode

        print_records(items)
    else:
        _write(dump(item) for item in items)
    source = "" if unread else " ".join(map(_format_name, files or [_STDIN]))
    code = tally.report("record or line", "records or lines", "bad", source=source)
    if tally.replaced:
        fix = f"give the writer's --charset if that is not {charset}"
        typer.echo(f"mqtrace: {plural(tally.replaced, 'character')} replaced by U+FFFD: {fix}", err=True)
    return _UNREADABLE if unread else code


def encode_file(file: str, *, dialect: str | None, charset: str, as_lines: bool) -> int:
    """Write the bodies of the records in ``file`` as they are, or ``as_lines`` of JSON with their keys.

    Characters that the format or the charset cannot carry are replaced and counted on standard error.

    Raises:
        UsageError, UnreadableInputError, EncodeError: the file, the charset or the dialect is wrong.
    """
    target = None if dialect is None else target_named(dialect)
    BodyDecoder(charset=charset)  # as above
    if "".encode(charset):
        raise UsageError(f"--charset {charset} begins each record with a byte order mark: give utf-8, utf-16-le or -be")
    tally, shown = _Tally(), _format_name(file)
    with _open(file) as stream:
        encoded = _filter(encode_lines(_lines(stream, shown), target, charset=charset), tally, shown)
        if as_lines:
            bodies = groupby(encoded, lambda record: repr(record[0]))
            _write(dump(_body_line(list(records))) for _, records in bodies)
        else:
            _write(record.body for _, record in encoded)
    if tally.replaced:
        replacements = f"U+0001 and U+0002 by _, what {charset} cannot encode by ?"
        typer.echo(f"mqtrace: {plural(tally.replaced, 'character')} replaced: {replacements}", err=True)
    return tally.report("record", "records", "refused", source=shown)


def show_writers(files: list[str] | None, framing: Framing, *, charset: str, as_json: bool) -> int:
    """Print who can have written ``files``; without any, every known writer. Return the exit code.

    Raises:
        UsageError, UnreadableInputError: a file is wrong, or no file holds a record.
    """
    from bridge.codec import tables  # noqa: PLC0415  rich takes its time

    unread: list[str] = []
    if files:
        guesses = WriterGuesses()
        for _, _, body in _bodies(files, framing, BodyDecoder(charset=charset), unread):
            if isinstance(body, DecodedBody):
                guesses.take(body)
        rows = list(map(asdict, guesses.guesses()))
        columns: tuple[str, ...] = tables.GUESS_COLUMNS
    else:
        rows = tables.known_writers()
        columns = tables.WRITER_COLUMNS
    if not rows:
        names = " ".join(map(_format_name, files or ()))
        raise UnreadableInputError(f"no record can be read in {names}; mqtrace decode shows what is there")
    if as_json:
        _write(dump(row) for row in rows)
    else:
        tables.print_rows(columns, rows)
    return _UNREADABLE if unread else 0


@dataclass(slots=True)
class _Tally:
    """Counts records and the defective ones, keeps the first defect; ``replaced`` are characters."""

    passed: int = 0
    defects: int = 0
    first: str = ""
    replaced: int = 0

    def count_defect(self, reason: str) -> None:
        self.defects += 1
        self.first = self.first or reason

    def report(self, noun: str, several: str, fate: str, *, source: str) -> int:
        """Print to standard error how many of what passed are bad or refused, and return the exit code.

        ``source`` is named where nothing passed, unless it is empty: then a file could not be read.
        """
        if source and not self.passed:
            typer.echo(f"mqtrace: nothing in {source}", err=True)
        if self.defects:
            verb = "is" if self.defects == 1 else "are"
            counted = f"{self.defects:,} of {plural(self.passed, noun, several)} {verb} {fate}"
            typer.echo(f"mqtrace: {counted}; first: {self.first}", err=True)
        return 1 if self.defects else 0


_PlacedBody = tuple[int, str, DecodedBody | BadBody]
"""The index of a body in all files, its place, ``FILE`` or ``FILE:LINE``, and its contexts or a part of them."""


def _decode(bodies: Iterable[_PlacedBody], tally: _Tally, *, explode_batches: bool) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each record; what is not a record has an ``error``."""
    for body_index, place, body in bodies:
        if isinstance(body, BadBody):
            items = iter([bad_json(body_index, None, body)])
        else:
            items = body_json(body_index, body, explode_batches=explode_batches)
            tally.replaced += body.replaced
        for item in items:
            tally.passed += 1
            if error := item.get("error"):
                record = "" if item["record_index"] is None else f" record {item['record_index']}"
                tally.count_defect(
                    f"{place}{record}{' ' + error['field'] if error['field'] else ''}: {error['reason']}"
                )
            yield item


def _filter(lines: Iterable[tuple[int, object, EncodedContext | str]], tally: _Tally, name: str) -> Iterator[_Record]:
    """Yield the records that were encoded."""
    for number, body_index, record in lines:
        tally.passed += 1
        if isinstance(record, str):
            tally.count_defect(f"{name}:{number}: {record}")
        else:
            tally.replaced += record.replaced
            yield body_index, record


def _bodies(names: list[str], framing: Framing, decoder: BodyDecoder, unread: list[str]) -> Iterator[_PlacedBody]:
    """Yield the bodies of the files behind ``names``.

    Among several files one that cannot be read is named on standard error and in ``unread``.
    """
    before, files = 0, _find_files(names)
    for name in files:
        index, shown = -1, _format_name(name)
        try:
            with _open(name) as stream:
                for index, row, body in _show_bar(decode_bodies(stream, framing, decoder, name=shown), stream, name):
                    yield before + index, shown if row is None else f"{shown}:{row}", body
        except UnreadableInputError as error:
            if len(files) == 1:
                raise
            unread.append(name)
            typer.echo(f"mqtrace: error: {visible(str(error), limit=None)}", err=True)
        before += index + 1


def _format_name(name: str) -> str:
    return "standard input" if name == _STDIN else visible(name, limit=None)


def _body_line(records: list[_Record]) -> dict[str, Any]:
    body = b"".join(record.body for _, record in records)
    keys = sorted(frozenset[str]().union(*(record.keys for _, record in records)))
    return {"body_index": records[0][0], "keys": KEY_SEPARATOR.join(keys), BODY_BASE64: base64.b64encode(body).decode()}


def _find_files(names: list[str]) -> list[str]:
    """Return the files behind ``names``, each once; refuse the first that cannot be read before anything is printed.

    A warning names what is passed over in a directory or glob because it holds nothing known.
    """
    found: dict[str, str] = {}  # where it is → as it was written
    unknown: list[AnyPath] = []
    for name in names:
        if name == _STDIN:
            found[name] = name
            continue
        path = parse_address(name, readable=(Kind.FILES,)).path
        if is_pipe(path):
            found[path] = path
            continue
        files, is_file = expand_files(path)
        if not is_file:
            files = [file for file in files if may_hold_bodies(file, unknown)]
        if not files:
            raise UsageError(f"{name} contains no file of native bodies")
        for file in map(str, files):
            found.setdefault(file, path if is_file and "://" not in path else file)
    if unknown:
        more = f" and {len(unknown) - 1} more; mqtrace inspect names all" if len(unknown) > 1 else ""
        first = visible(str(unknown[0]), limit=None)
        typer.echo(f"mqtrace: warning: passed over, neither native bodies nor spans: {first}{more}", err=True)
    return list(found.values())


@contextmanager
def _open(name: str) -> Iterator[io.BufferedReader]:
    if name == _STDIN:
        if sys.stdin is None:  # as `<&-` leaves it
            raise UsageError("standard input is closed: name a file, or pipe into it")
        yield cast("io.BufferedReader", sys.stdin.buffer)
        return
    if not name.strip():
        raise UsageError("the file's name is empty: name a file, or give - for standard input")
    parse_address(name, readable=(Kind.FILES,))
    refuse_device(name)
    try:
        stream = as_path(name).open("rb")
    except IsADirectoryError as error:
        raise UsageError(f"{name} is a directory: name a file in it") from error
    except OSError as error:
        raise UnreadableInputError(f"cannot read {name}: {error.strerror or error}") from error
    with stream:
        yield stream


def _lines(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    try:
        refuse_compressed(stream.peek(), name)
        refuse_unconverted(stream.peek(), name)
        yield from stream
    except OSError as error:
        raise unreadable(name, error) from error


def _write(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
