"""Read native bodies from files: raw, base64 in JSON lines, or a Parquet column.

``read_landed`` yields them one by one, so a JSON-lines file of any size needs the memory of its longest line. A line
without a body is yielded as ``BadBody``; only a file of another format raises.
"""

from __future__ import annotations

import base64
import codecs
import io
import itertools
import json
import math
import re
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.storage.paths import PARQUET_MAGIC, naming_damage, open_parquet, refuse_compressed, refuse_unconverted
from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import MissingExtraError, UnreadableInputError
from otel_mqtrace.landing import BODY_BASE64, FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bridge.storage.paths import AnyPath


_BODY: Final = "body"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_JSON_START: Final = re.compile(rb"(?:%b)?\s*\{" % codecs.BOM_UTF8)
_NAMES_OF_SPANS: Final = re.compile(rb'"(?:resource|scope|instrumentation_?[lL]ibrary)_?[sS]pans"')
_SPANS_START: Final = re.compile(_JSON_START.pattern + rb'\s*"resource(?:Spans|_spans)"\s*:')
_ROWS_AT_A_TIME: Final = 256
_START_BYTES: Final = 1 << 18  # a torn line ends within these, and the next one names its body


class Framing(str, Enum):
    """How bodies are kept in a file; the value is the word for it on the command line."""

    AUTO = "auto"
    RAW = "raw"
    JSONL_BASE64 = "jsonl-base64"
    PARQUET = "parquet"


class MessageTypeMap(str, Enum):
    """What the ordinals of message types mean: ``b`` for bodies of RocketMQ 5.0.0 and 5.1.0."""

    A = "a"
    B = "b"


@dataclass(frozen=True, slots=True)
class BadBody:
    """A line or row without a readable body: ``field``, ``reason``, and its beginning as ``text``."""

    field: str | None
    reason: str
    text: str
    row: int = 1


class Body(NamedTuple):
    """A body, the line or row it stands in, from 1, and what a landing keeps beside it; of a raw file nothing."""

    body: bytes
    row: int = 1
    beside: Mapping[str, Any] = _NOTHING

    @property
    def arrival_ms(self) -> int | None:
        """When the trace message arrived, in epoch milliseconds; a dump of a RocketMQ topic calls it ``store_ms``."""
        recorded = (self.beside.get(name) for name in ("arrival_ms", "store_ms"))
        return next((each for each in recorded if type(each) is int and 0 < each <= LAST_MS), None)

    @property
    def keys(self) -> str | None:
        """The keys of the trace message, joined by a space."""
        keys = self.beside.get("keys")
        return text_of_json(keys) if isinstance(keys, str) else None


def read_landed(stream: io.BufferedReader, framing: Framing, *, name: str) -> Iterator[Body | BadBody]:
    """Yield the bodies of one open file in order; ``name`` is what an error calls it.

    Raises:
        UnreadableInputError: the system cannot read the file; it is compressed, a zip archive, UTF-16, or Parquet
            without a column ``body``.
        DamagedInputError: damaged Parquet.
        MissingExtraError: Parquet without the ``reconcile`` extra.
    """
    try:
        refuse_compressed(stream.peek(), name)
        refuse_unconverted(stream.peek(), name)
        chosen = find_framing(stream) if framing is Framing.AUTO else framing
        yield from _READERS[chosen](stream, name)
    except OSError as error:
        raise unreadable(name, error) from error


def unreadable(name: str, error: OSError) -> UnreadableInputError:
    """Return what to raise when the system opened ``name`` and then could not read it."""
    hint = "make it readable" if isinstance(error, PermissionError) else "give a regular file, or a pipe to -"
    return UnreadableInputError(f"{name}: cannot be read ({error.strerror or error}); {hint}")


def find_framing(stream: io.BufferedReader) -> Framing:
    """Detect the framing by the first bytes, without consuming them.

    Parquet has its magic, JSON lines an opening brace or, behind a first line that is torn, the name of the body. Blank
    lines alone are JSON lines.
    """
    from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR  # noqa: PLC0415  (mqtrace --help loads no codec)

    start = stream.peek(len(PARQUET_MAGIC))
    if start.startswith(PARQUET_MAGIC):
        return Framing.PARQUET
    if stream.seekable() and not _JSON_START.match(start):
        at = stream.tell()
        start = stream.read(_START_BYTES)
        stream.seek(at)
    is_torn = f'"{BODY_BASE64}"'.encode() in start and FIELD_SEPARATOR.encode() not in start
    return Framing.JSONL_BASE64 if is_torn or start.isspace() or _JSON_START.match(start) else Framing.RAW


def may_hold_bodies(path: AnyPath, unknown: list[AnyPath] | None = None) -> bool:
    """Return whether a file of a directory or glob holds bodies; JSON and Parquet of other content do not.

    ``unknown`` gets a file that holds neither bodies nor spans.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(_START_BYTES)
        if start.startswith(PARQUET_MAGIC):
            may_hold = _BODY in open_parquet(path).schema_arrow.names
        else:
            may_hold = not start.lstrip().startswith((b"{", b"[")) or BODY_BASE64.encode() in start
    except (OSError, ValueError, ImportError):  # its reader reports it
        return True
    if unknown is not None and not may_hold and not _NAMES_OF_SPANS.search(start):
        unknown.append(path)
    return may_hold


def refuse_spans(start: bytes, name: object) -> None:
    """Raise UnreadableInputError for a file that begins as OTLP spans in JSON."""
    if _SPANS_START.match(start):
        raise UnreadableInputError(f"{name} holds spans, no native trace bodies: give it to mqtrace reconcile --otlp")


def _raw(stream: io.BufferedReader, _name: str) -> Iterator[Body | BadBody]:
    body = stream.read()
    if body:
        yield Body(body)


def _jsonl(stream: io.BufferedReader, _name: str) -> Iterator[Body | BadBody]:
    for row, line in enumerate(stream, start=1):
        text = line if row > 1 else line.removeprefix(codecs.BOM_UTF8)
        if text.strip():
            yield from (_body_of_object(value, piece, row) for value, piece in read_objects(text))


def _body_of_object(value: Any, text: str, row: int) -> Body | BadBody:
    text = text.strip()
    if not isinstance(value, dict):
        return BadBody(None, "not JSON" if value is None and text != "null" else "not a JSON object", text, row)
    encoded = text_of_json(value.get(BODY_BASE64))
    if encoded is None:
        return BadBody(BODY_BASE64, "missing", text, row)
    body = decode_base64(encoded)
    return BadBody(BODY_BASE64, "not base64", encoded, row) if body is None else Body(body, row, value)


def _parquet(stream: io.BufferedReader, name: str) -> Iterator[Body | BadBody]:
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415  comes with the 'reconcile' extra
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "reconcile") from error
    source: Any = stream if stream.seekable() else io.BytesIO(stream.read())
    with naming_damage(name):
        file = pq.ParquetFile(source)
        columns = [column for column in FIELDS if column in file.schema_arrow.names]
        if _BODY not in columns:
            raise UnreadableInputError(f"{name}: has no column '{_BODY}', so it is not a native landing")
        batches = file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=columns)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from map(_body_of_row, rows, itertools.count(1))


def _body_of_row(beside: dict[str, Any], row: int) -> Body | BadBody:
    value = beside[_BODY]
    body = value.encode() if isinstance(value, str) else value
    if isinstance(body, bytes):
        return Body(body, row, beside)
    return BadBody(_BODY, "missing" if value is None else "not binary", "" if value is None else str(value), row)


_READERS: Final[dict[Framing, Callable[[io.BufferedReader, str], Iterator[Body | BadBody]]]] = {
    Framing.RAW: _raw,
    Framing.JSONL_BASE64: _jsonl,
    Framing.PARQUET: _parquet,
}


# -- the JSON and base64 of a line ---------------------------------------------------------------------------------
_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def read_objects(line: bytes) -> Iterator[tuple[Any, str]]:
    """Yield each JSON object of a line with its text, then what follows that is no object: its value or ``None``.

    Landings that are joined without a newline between them have several on a line.
    """
    text, at = line.decode("utf-8", "replace"), 0
    while True:
        value, end = read_json(text, at)
        if not isinstance(value, dict):
            yield value, text[at:]
            return
        yield value, text[at:end]
        if end == len(text):
            return
        at = end


def read_json(text: str, at: int = 0) -> tuple[Any, int]:
    """Return the value that begins at ``at``, ``None`` where none does, and where the next one begins."""
    try:
        value, end = _DECODER.raw_decode(text, _past_space(text, at))
    except (ValueError, RecursionError):
        return None, at
    return value, _past_space(text, end)


def text_of_json(value: Any) -> str | None:
    """Return a value as text: a text as it is, ``None`` for null, anything else as its own JSON."""
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f'"{json.dumps(value)}"'
    text = value if isinstance(value, str) else _ENCODER.encode(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text, wrapped in lines or not, padded or not; ``None`` for any other text."""
    packed = "".join(text.split())
    digits = packed.rstrip("=")
    missing = -len(digits) % 4
    if len(packed) - len(digits) not in {0, missing}:
        return None
    try:
        return base64.b64decode(digits + "=" * missing, validate=True)
    except ValueError:
        return None
