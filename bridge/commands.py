"""This module knows the codec's commands: ``mqtrace decode``, ``encode`` and ``dialects``.

Every function is an entry point of the group ``mqtrace.commands`` and returns its exit code: 0, or 1 when a record was
bad or refused. Usage errors are raised and become exit code 2. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import base64
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from bridge.codec.framing import BODY_FIELD, BadBody, Framing, unreadable
from bridge.codec.native import DecodedBody, WriterGuesses, decode_body
from bridge.codec.native.decode import MAX_OFFENDING_TEXT
from bridge.codec.reading import Reading, decoded_bodies
from bridge.codec.records import body_json, dump
from bridge.codec.reencode import EncodedLine, Refusal, Target, encode_lines
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import KEY_SEPARATOR

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator

    from bridge.codec.native import Guess

__all__ = ["Format", "MessageTypeMap", "OutputFraming", "decode", "dialects", "encode"]

_STDIN = "-"
_Item = TypeVar("_Item")


class Format(str, Enum):
    """How ``decode`` prints records."""

    JSONL = "jsonl"
    TABLE = "table"


class MessageTypeMap(str, Enum):
    """What the ordinals of message types mean: ``b`` for bodies of RocketMQ 5.0.0 and 5.1.0."""

    A = "a"
    B = "b"


class OutputFraming(str, Enum):
    """How ``encode`` writes bodies."""

    RAW = "raw"
    JSONL_BASE64 = "jsonl-base64"


def decode(  # noqa: PLR0913 - one parameter for each option
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE|-", help="Bodies to read; - or nothing is standard input.")
    ] = None,
    *,
    output: Annotated[Format, typer.Option("--format", help="JSON lines, or a table for people.")] = Format.JSONL,
    framing: Annotated[Framing, typer.Option(help="How the bodies lie in the files.")] = Framing.AUTO,
    msg_type_map: Annotated[
        MessageTypeMap, typer.Option(help="Message type ordinals; b for bodies of RocketMQ 5.0.0 and 5.1.0.")
    ] = MessageTypeMap.A,
    charset: Annotated[str, typer.Option(help="The writer's charset, such as gbk.", metavar="NAME")] = "utf-8",
    explode_batches: Annotated[
        bool, typer.Option("--explode-batches", help="One object for each message of a batch's Pub, not one for all.")
    ] = False,
) -> int:
    """Read native trace bodies: one JSON object per record, bad records reported in place.

    A file holds one raw body, JSON lines with body_base64, or Parquet with a column body; auto looks at its content.

    Example:
        mqtrace decode landing/native/date=2026-11-21/part-0.jsonl
        mqtrace decode --format table - < body.bin

    Args:
        files: paths, ``-`` for standard input.
        output: how records are printed.
        framing: how bodies lie in the files.
        msg_type_map: meaning of the message type ordinals.
        charset: charset of the bodies.
        explode_batches: take the records of batches apart.

    Returns:
        0, or 1 when any record was bad.
    """
    how = _reading(msg_type_map, charset)
    tally = _Tally()
    items = tally.counting(_decoded(files or [_STDIN], framing, how, explode_batches=explode_batches), _why_bad)
    if output is Format.TABLE:
        from bridge.codec.record_table import print_records  # noqa: PLC0415  rich takes longer than a small decode

        print_records(items)
    else:
        _write(dump(item) for item in items)
    return tally.report("are bad")


def encode(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="JSON lines as decode prints them; - is standard input.")
    ] = _STDIN,
    *,
    dialect: Annotated[
        str | None,
        typer.Option(help="Dialect to write, /CLOUD appended for that channel; default: the record's own, else 5.5.0."),
    ] = None,
    framing: Annotated[
        OutputFraming, typer.Option(help="The bodies as they are, or a JSON line with body_base64 and keys for each.")
    ] = OutputFraming.RAW,
    charset: Annotated[str, typer.Option(help="The charset to write, such as gbk.", metavar="NAME")] = "utf-8",
) -> int:
    """Write native trace bodies from the JSON that decode prints.

    Records with the same body_index make one body. A record that the dialect cannot say is refused and counted.

    Example:
        mqtrace decode body.bin | mqtrace encode --dialect 4.8.0 > old.bin

    Args:
        file: path, ``-`` for standard input.
        dialect: name of the dialect, by default each record's own.
        framing: how bodies are written.
        charset: charset of the bodies.

    Returns:
        0, or 1 when any record was refused.
    """
    target = Target.named(dialect) if dialect else None
    decode_body(b"", charset=charset)  # a wrong charset fails before any output
    tally = _Tally()
    with _opened(file) as stream:
        results = tally.counting(encode_lines(_lines(stream, file), target, charset=charset), _why_refused)
        bodies = groupby((one for one in results if isinstance(one, EncodedLine)), lambda one: repr(one.body_index))
        if framing is OutputFraming.RAW:
            _write(record.encoded.body for _, records in bodies for record in records)
        else:
            _write(dump(_body_line(list(records))) for _, records in bodies)
    return tally.report("were refused")


def dialects(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|-]...", help="Bodies whose writers to tell; without any, all writers are listed."
        ),
    ] = None,
    *,
    framing: Annotated[Framing, typer.Option(help="How the bodies lie in the files.")] = Framing.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per writer instead of a table.")] = False,
) -> int:
    """Show every known writer of the native format, or who can have written given bodies, with the evidence.

    Nothing on the wire names its writer. Each group's records are held against every known one: what is left fits.

    Example:
        mqtrace dialects
        mqtrace dialects landing/native/date=2026-11-21/part-0.jsonl

    Args:
        files: paths, ``-`` for standard input.
        framing: how bodies lie in the files.
        as_json: print JSON lines.

    Returns:
        0.
    """
    from bridge.codec import tables  # noqa: PLC0415  rich takes its time

    if files:
        rows = [asdict(guess) for guess in _guesses(files, framing)]
        show = tables.print_guesses
    else:
        rows = tables.known_writers()
        show = tables.print_writers
    if as_json:
        _write(dump(row) for row in rows)
    else:
        show(rows)
    return 0


def _guesses(files: list[str], framing: Framing) -> tuple[Guess, ...]:
    guesses = WriterGuesses()
    for _, body in _bodies(files, framing, Reading()):
        if isinstance(body, DecodedBody):
            guesses.take(body)
    return guesses.guesses()


@dataclass(slots=True)
class _Tally:
    """Counts what passes through, and remembers the first complaint."""

    passed: int = 0
    complaints: int = 0
    first: str = ""

    def counting(self, items: Iterable[_Item], complaint: Callable[[_Item], str | None]) -> Iterator[_Item]:
        for item in items:
            self.passed += 1
            said = complaint(item)
            if said is not None:
                self.first = self.first or said
                self.complaints += 1
            yield item

    def report(self, fate: str) -> int:
        """Say on standard error how many records met ``fate`` and return the exit code."""
        if self.complaints:
            typer.echo(f"mqtrace: {self.complaints} of {self.passed} records {fate}; first: {self.first}", err=True)
        return 1 if self.complaints else 0


def _why_bad(item: dict[str, Any]) -> str | None:
    error = item.get("error")
    if error is None:
        return None
    where = f"body {item['body_index']}" + ("" if item["record_index"] is None else f", record {item['record_index']}")
    return f"{where}: {error['field'] + ': ' if error['field'] else ''}{error['reason']}"


def _why_refused(item: EncodedLine | Refusal) -> str | None:
    return f"line {item.line}: {item.reason}" if isinstance(item, Refusal) else None


def _reading(msg_type_map: MessageTypeMap, charset: str) -> Reading:
    decode_body(b"", msg_type_map=msg_type_map.value, charset=charset)  # a wrong charset fails before any output
    return Reading(msg_type_map.value, charset)


def _decoded(names: list[str], framing: Framing, how: Reading, *, explode_batches: bool) -> Iterator[dict[str, Any]]:
    for body_index, body in _bodies(names, framing, how):
        if isinstance(body, BadBody):
            yield _bad_body(body_index, body)
        else:
            yield from body_json(body_index, body, explode_batches=explode_batches)


def _bodies(names: list[str], framing: Framing, how: Reading) -> Iterator[tuple[int, DecodedBody | BadBody]]:
    """Yield what all files hold, the bodies numbered through."""
    before = 0
    for name in _readable(names):
        index = -1
        with _opened(name) as stream:
            for index, body in _bar_over(decoded_bodies(stream, framing, how, name=name), stream, name):
                yield before + index, body
        before += index + 1


def _bar_over(bodies: Iterator[_Item], stream: io.BufferedReader, name: str) -> Iterable[_Item]:
    if not sys.stderr.isatty() or sys.stdout.isatty():  # records running over the terminal are progress enough
        return bodies
    from bridge.codec.progress import watched  # noqa: PLC0415  only a terminal is worth loading rich for

    return watched(bodies, stream, name=name)


def _bad_body(body_index: int, body: BadBody) -> dict[str, Any]:
    error = {"field": body.field, "reason": body.reason, "text": body.text[:MAX_OFFENDING_TEXT]}
    return {"body_index": body_index, "record_index": None, "error": error}


def _body_line(records: list[EncodedLine]) -> dict[str, Any]:
    body = b"".join(record.encoded.body for record in records)
    keys = sorted(frozenset[str]().union(*(record.encoded.keys for record in records)))
    return {
        "body_index": records[0].body_index,
        "keys": KEY_SEPARATOR.join(keys),
        BODY_FIELD: base64.b64encode(body).decode(),
    }


def _readable(names: list[str]) -> list[str]:
    """Return ``names``, or refuse the first that is no file: before anything is printed, not in the middle of it."""
    for name in names:
        if name != _STDIN:
            path = Path(name)
            if not path.exists():
                raise UsageError(f"{name}: no such file; give paths of files, or - for standard input")
            if path.is_dir():
                raise UsageError(f"{name}: is a directory; name the files in it, such as {path / '*'}")
    return names


@contextmanager
def _opened(name: str) -> Iterator[io.BufferedReader]:
    if name == _STDIN:
        yield cast("io.BufferedReader", sys.stdin.buffer)
        return
    _readable([name])
    try:
        stream = Path(name).open("rb")  # noqa: SIM115  closed below; only opening may fail as a usage error
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from error
    with stream:
        yield stream


def _lines(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    try:
        yield from stream
    except OSError as error:
        raise unreadable(name, error) from error


def _write(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
