"""Detect from its first bytes what a file holds; names and suffixes prove nothing.

The Collector's file exporter writes "zstd" in two ways (``exporter/fileexporter/README.md``): by default a length
before each zstd frame, so that the magic stands at byte 4; behind a feature gate a real ``.zst`` file, magic at byte 0.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bridge.storage.paths import (
    PARQUET_MAGIC,
    ZSTD_MAGIC,
    InaccessibleInputError,
    naming_damage,
    open_parquet,
    refuse_compressed,
    refuse_unconverted,
)
from otel_mqtrace._errors import MissingExtraError, UnreadableInputError
from otel_mqtrace.wire.native.layout import RECORD_START

if TYPE_CHECKING:
    from bridge.storage.paths import AnyPath


LONGEST_LINE_BYTES: Final = 64 << 20
"""A line is one message, parsed as a whole; a Collector's are a few megabytes."""
_BODY_COLUMN: Final = "body"
_HEAD_BYTES: Final = 256 * 1024
_LINES_LOOKED_AT: Final = 50
LENGTH_BYTES: Final = 4  # of the length before a frame
_JSON_STARTS: Final = frozenset({b"{", b"["})
_DECODED: Final = re.compile(rb'\{"body_index": ?\d+, ?"record_index":')
_ZSTD_HEADER_BYTES: Final = 18  # the longest
_ZSTD_SKIPPABLE: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
FIELD_ONE: Final = 0x0A  # protobuf: field 1, length-delimited: how every non-empty TracesData starts


class Side(str, Enum):
    """Which of the two worlds a file belongs to; ``EMPTY`` belongs to both."""

    NATIVE = "native"
    OTLP = "otlp"
    EMPTY = "empty"


class Layout(str, Enum):
    """How messages are packed into a file."""

    LANDING_PARQUET = "landing-parquet"
    LANDING_JSONL = "landing-jsonl"
    JSON_LINES = "json-lines"
    JSON = "json"  # anything else that is OTLP in JSON: pretty-printed, arrays, downloads, old or snake_case names
    PROTO_FRAMED = "proto-framed"
    JSON_ZSTD_FRAMED = "json-zstd-framed"
    PROTO_ZSTD_FRAMED = "proto-zstd-framed"
    JSON_LINES_ZSTD = "json-lines-zstd"
    PROTO_FRAMED_ZSTD = "proto-framed-zstd"
    PROTO = "proto"  # one bare TracesData
    KAFKA_DUMP = "kafka-dump"  # JSON lines with value_b64
    EMPTY = "empty"

    @property
    def side(self) -> Side:
        """The side of a file that is so packed."""
        if self is Layout.EMPTY:
            return Side.EMPTY
        return Side.NATIVE if self in {Layout.LANDING_PARQUET, Layout.LANDING_JSONL} else Side.OTLP


ZSTD_LAYOUTS: Final = frozenset(layout for layout in Layout if "zstd" in layout.value)
OTLP_FORMATS: Final = tuple(layout.value for layout in Layout if layout.side is Side.OTLP)
"""What ``--otlp-format`` accepts."""


_SHORTER_LINES: Final = {
    Side.NATIVE: "write each JSON object with body_base64 on a line of its own",
    Side.OTLP: "write one message of a batch on each line, or give the protobuf layout",
}


class LineTooLongError(Exception):
    """A line is longer than ``LONGEST_LINE_BYTES``; the text follows the file's name in the message.

    ``place`` names the line where the caller knows it.
    """

    def __init__(self, side: Side = Side.OTLP, place: str = "") -> None:
        line = f"a line of more than {LONGEST_LINE_BYTES >> 20} MiB{place and f' ({place})'}"
        super().__init__(f"has {line}: {_SHORTER_LINES[side]}")


def detect_layout(path: AnyPath) -> Layout:
    """Return what ``path`` holds.

    Raises:
        UnreadableInputError: the file is nothing this project reads, or was removed meanwhile.
        InaccessibleInputError: the file cannot be read, or is compressed.
        DamagedInputError: the file is a damaged parquet file.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            size = file.seek(0, io.SEEK_END)
        if head.startswith(PARQUET_MAGIC):
            _check_parquet(path)
    except FileNotFoundError as error:
        raise UnreadableInputError(f"cannot read {path}: {error.strerror or error}") from error
    except OSError as error:
        raise InaccessibleInputError(f"cannot read {path}: {error.strerror or error}") from error
    refuse_compressed(head, path, also_zstd=_is_native_in_zstd(head))
    refuse_unconverted(head, path)
    refuse_unlanded(head, path)
    found = detect_head(head, size)
    if found is None:
        raise UnreadableInputError(
            f"cannot detect the format of {path}: expected a native landing, JSON lines with body_base64, or OTLP "
            "traces in JSON or protobuf"
        )
    return found


def refuse_unlanded(head: bytes, name: object) -> None:
    """Raise UnreadableInputError for a file that begins as a native body, or as the JSON that decode makes of one."""
    if _DECODED.match(head):
        raise UnreadableInputError(
            f"{name} is what mqtrace decode prints: first run mqtrace encode --framing jsonl-base64 {name} > FILE.jsonl"
        )
    if RECORD_START.match(head):
        raise UnreadableInputError(
            f"{name} is one raw native body, which mqtrace decode reads: to search or reconcile it, make a landing of "
            f"it with mqtrace forward --once --source {name} --landing DIR"
        )


_NO_SPANS: Final = re.compile(rb"[ \t\r\n]*(?:\[[ \t\r\n]*\]|\{[ \t\r\n]*\})?[ \t\r\n]*")
"""Blanks, a bare array of no ResourceSpans, or the JSON of a request that has none."""


def detect_head(head: bytes, size: int) -> Layout | None:
    """Return what a file of ``size`` bytes that starts with ``head`` holds, or ``None`` when it is nothing known."""
    if _NO_SPANS.fullmatch(head):
        return Layout.EMPTY
    if head.startswith(PARQUET_MAGIC):
        return Layout.LANDING_PARQUET
    if head.startswith(ZSTD_MAGIC):
        return _in_zstd(head, Layout.JSON_LINES_ZSTD, Layout.PROTO_FRAMED_ZSTD)
    if head.startswith(ZSTD_MAGIC, LENGTH_BYTES) and any(head[:LENGTH_BYTES]):  # compressed text may hold names
        return _in_zstd(head[LENGTH_BYTES:], Layout.JSON_ZSTD_FRAMED, Layout.PROTO_ZSTD_FRAMED)
    # Protobuf's first byte is a newline to a text reader and its second may be a brace: names in the text decide first.
    return _json(head) or _binary(head, size)


def _check_parquet(path: AnyPath) -> None:
    try:
        with naming_damage(path):
            names = open_parquet(path).schema_arrow.names
    except ImportError as error:
        raise MissingExtraError("reading parquet", "reconcile") from error
    if _BODY_COLUMN not in names:
        raise UnreadableInputError(f"{path} is a parquet file without a column {_BODY_COLUMN!r}: no native landing")


def _in_zstd(data: bytes, of_json: Layout, of_protobuf: Layout) -> Layout:
    first = read_zstd(data, 16) or b""  # a damaged first frame is still a zstd frame
    return of_json if first.removeprefix(codecs.BOM_UTF8)[:1] in _JSON_STARTS else of_protobuf


def _is_native_in_zstd(head: bytes) -> bool:
    text = (read_zstd(head, _HEAD_BYTES) or b"").lstrip() if head.startswith(ZSTD_MAGIC) else b""
    sides = {found.side for key, found in _JSON_SIGNS if f'"{key}"'.encode() in text}  # an attribute may be so named
    return text[:1] in _JSON_STARTS and sides == {Side.NATIVE}


def _binary(head: bytes, size: int) -> Layout | None:
    fits = int.from_bytes(head[:LENGTH_BYTES], "big") <= size - LENGTH_BYTES
    is_length = head[0] == 0 or (fits and head[0] < FIELD_ONE)  # of less than 16 MiB, perhaps cut off, or more
    if is_length and head[LENGTH_BYTES : LENGTH_BYTES + 1] == bytes([FIELD_ONE]):
        return Layout.PROTO_FRAMED
    return Layout.PROTO if head[0] == FIELD_ONE and size > 1 else None


_PARTS: Final = ("scopeSpans", "instrumentationLibrarySpans")  # of a ResourceSpans, now and before 2022
_JSON_SIGNS: Final[tuple[tuple[str, Layout], ...]] = (
    ("body_base64", Layout.LANDING_JSONL),
    ("value_b64", Layout.KAFKA_DUMP),
    ("resourceSpans", Layout.JSON_LINES),
    ("resourceMetrics", Layout.JSON_LINES),
    ("resourceLogs", Layout.JSON_LINES),
    ("resource_spans", Layout.JSON),
    *((name, Layout.JSON) for name in _PARTS),
)
_LINE_START: Final = re.compile(rb'[ \t]*\{[ \t]*"resource(?:Spans|Metrics|Logs)"[ \t]*:')
_SNAKE_CASE: Final = re.compile(rb'"(?:resource|scope|instrumentation_library)_spans"')


def _json(head: bytes) -> Layout | None:
    if _SNAKE_CASE.search(head) and head.lstrip()[:1] in _JSON_STARTS:
        return Layout.JSON
    for line in head.split(b"\n")[:_LINES_LOOKED_AT]:
        if line.strip() and (found := _json_line(line)):
            return found
    return _json_anywhere(head)


def _json_line(line: bytes) -> Layout | None:
    try:
        value: Any = json.loads(line, parse_int=float)  # no number is too long for it
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and value and isinstance(value[0], dict) and any(part in value[0] for part in _PARTS):
        return Layout.JSON_LINES
    if not isinstance(value, dict):
        return None
    return next((found for key, found in _JSON_SIGNS if key in value), None)


def _json_anywhere(head: bytes) -> Layout | None:
    found = next((found for key, found in _JSON_SIGNS if f'"{key}"'.encode() in head), None)
    if found is None:
        return None
    if found is Layout.JSON_LINES and not _has_cut_line(head):
        return Layout.JSON
    return found


def _has_cut_line(head: bytes) -> bool:
    *lines, last = head.split(b"\n")
    return bool(_LINE_START.match(last)) or any(
        _LINE_START.match(line) and len(_LINE_START.findall(line)) > 1 for line in lines
    )


def open_zstd(raw: Any) -> Any:
    """Return a reader of everything the zstd frames in the binary file ``raw`` hold, one after the other."""
    try:
        import zstandard  # noqa: PLC0415  (optional extra: the sentence below is the point)
    except ImportError as error:
        raise MissingExtraError("reading zstd", "reconcile") from error
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def read_zstd(data: bytes, size: int = -1) -> bytes | None:
    """Return the first ``size`` bytes that zstd frames hold, by default all; ``None`` where they are damaged."""
    reader = open_zstd(io.BytesIO(data))
    try:
        content: bytes = reader.read(size)
    except zstd_error():
        return None
    return content


def zstd_error() -> type[Exception]:
    """Return what a reader of :func:`open_zstd` raises for damaged data."""
    import zstandard  # noqa: PLC0415  (optional extra, present where something was unpacked)

    return zstandard.ZstdError


def is_cut_zstd(file: Any) -> bool:
    """Return whether a local file of zstd frames ends inside one; nothing is unpacked (RFC 8878, 3.1.1)."""
    import zstandard  # noqa: PLC0415  (as above)

    if not isinstance(file.raw, io.FileIO):  # a store has whole uploads, and each of these reads would be a request
        return False
    end: int = file.seek(0, io.SEEK_END)
    at = 0
    while at < end:
        file.seek(at)
        head = file.read(_ZSTD_HEADER_BYTES)
        if _ZSTD_SKIPPABLE.match(head):
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        try:
            frame = zstandard.get_frame_parameters(head)
        except zstandard.ZstdError:  # cut inside the header
            return True
        at, is_last = at + zstandard.frame_header_size(head), 0
        while not is_last and at < end:
            file.seek(at)
            block = int.from_bytes(file.read(3), "little")
            is_last, is_run = block & 1, block >> 1 & 3 == 1
            at += 3 + (1 if is_run else block >> 3)
        if not is_last:
            return True
        at += 4 if frame.has_checksum else 0
    return at > end


def unpack_whole_zstd(data: bytes) -> bytes | None:
    """Return what is in ``data`` if that is exactly one zstd frame."""
    if not data.startswith(ZSTD_MAGIC):
        return None
    import zstandard  # noqa: PLC0415  (as above)

    reader = zstandard.ZstdDecompressor().decompressobj()
    try:
        unpacked: bytes = reader.decompress(data)
    except zstd_error():
        return None
    return unpacked if reader.eof and not reader.unused_data else None
