"""Read the bodies of native landings and trace topics: parquet, JSON lines and Kafka messages, in any mixture.

A JSON line is anything with ``body_base64``; the fields of a landing (``source, arrival_ms``) and those of a dump of a
RocketMQ topic (``topic, store_ms``) are read alike.
"""

from __future__ import annotations

import codecs
from contextlib import suppress
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.codec.framing import decode_base64, read_objects, text_of_json
from bridge.otlp.detect import Layout
from bridge.storage.paths import naming_damage, open_parquet
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.columns import make_batch, take_groups, whole_number
from spark_jobs.schemas import BODY, bad_piece
from spark_jobs.sources.kafka import message_places
from spark_jobs.sources.span_batches import join_small
from spark_jobs.sources.splits import Split, plan_files, read_lines, split_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.splits import FilePlan, Line

BATCH_ROWS: Final = 2_000
_BATCH_BYTES: Final = 4 << 20
_LEAST_BATCH_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 1 << 20
_HEAD_ROWS: Final = 64  # a body may have 128 kB


def plan_bodies(files: Sequence[SourceFile], *, parallelism: int) -> FilePlan:
    """Return what each task reads of native landings; only the ends of files are read.

    Raises:
        UnreadableInputError: a column means something else.
    """
    return plan_files(files, count_torn_bytes, parallelism=parallelism, split=_split)


def count_torn_bytes(line: bytes) -> int:
    """Return how many bytes at the end of a last line, without its newline, are no JSON object."""
    by_byte = line.removeprefix(codecs.BOM_UTF8).decode("latin-1")  # a character each, also of a torn one
    *_, (value, text) = read_objects(by_byte.encode())
    return 0 if isinstance(value, dict) else len(text)


def _split(file: SourceFile, torn: int) -> Iterable[Split]:
    return _row_groups(file.path) if file.layout is Layout.LANDING_PARQUET else split_file(file, torn)


def _row_groups(path: AnyPath) -> Iterator[Split]:
    file = _open(path)
    metadata = file.metadata
    _check_columns(path, file.schema_arrow)
    end = 0
    for group in range(metadata.num_row_groups):
        begin, end = end, end + metadata.row_group(group).total_byte_size
        yield Split(str(path), Layout.LANDING_PARQUET, begin, end, group=group)


def _check_columns(path: AnyPath, schema: pa.Schema) -> None:
    """Refuse columns that mean something else.

    Raises:
        UnreadableInputError: a column cannot be what it is named.
    """
    wanted = {"body": ("bytes", "binary", _is_text_or_bytes), "source": ("a text", "string", _is_text_or_bytes)}
    wanted["arrival_ms"] = ("a whole number", "int64, milliseconds since 1970", _is_integer)
    for name, (meaning, fix, fits) in wanted.items():
        if name in schema.names and not fits(kind := schema.field(name).type):
            found = f"column {name!r} holds {kind}, expected {meaning}"
            raise UnreadableInputError(f"{path}: {found}: write it as {fix}")


def _is_integer(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _is_text_or_bytes(kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    fits = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
        *(pa.types.is_fixed_size_binary, pa.types.is_null),
    )
    return any(is_kind(value) for is_kind in fits)


def body_batches(splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
    """Yield the bodies in ``splits`` as batches of ``BODY``.

    Raises:
        UnreadableInputError: a line is longer than memory should hold, or a Parquet file is damaged.
    """
    for layout, some in groupby(splits, key=lambda split: split.layout):
        if layout is Layout.LANDING_PARQUET:
            # A batch costs 5 ms however few rows it has: those of small files go together.
            yield from join_small(chain.from_iterable(map(_rows_of, some)), most_bytes=_LEAST_BATCH_BYTES)
        else:
            yield from _line_batches(line for split in some for line in read_lines(split))


def first_bodies(file: SourceFile) -> Iterator[bytes]:
    """Yield the good bodies at the beginning of a landing, for a caller that stops after some of them.

    Raises:
        UnreadableInputError: a line is longer than memory should hold, or a column means something else.
    """
    path, end = str(file.path), min(file.path.stat().st_size, _HEAD_BYTES)
    is_parquet = file.layout is Layout.LANDING_PARQUET
    lines = _line_batches(read_lines(Split(path, file.layout, 0, end)))
    for column in _first_rows(file.path) if is_parquet else (batch.column("body") for batch in lines):
        bodies: list[Any] = column.drop_null().to_pylist()
        yield from bodies


def _first_rows(path: AnyPath) -> Iterator[Any]:
    file = _open(path)
    _check_columns(path, file.schema_arrow)
    if not file.metadata.num_row_groups:
        return
    with suppress(pa.ArrowException, OSError):  # a damaged page is reported by the task that reads it
        for batch in file.iter_batches(_HEAD_ROWS, row_groups=[0], columns=["body"], use_threads=False):
            yield _cast(batch.column(0), BODY.field("body").type)


def _rows_of(split: Split) -> Iterator[pa.RecordBatch]:
    file = _open(split.path)
    line = 1 + sum(file.metadata.row_group(group).num_rows for group in range(split.group or 0))
    columns = [name for name in ("source", "arrival_ms", "body") if name in file.schema_arrow.names]
    group = file.metadata.row_group(split.group)
    # 2,000 bodies of 6 kB took 70 MiB: Arrow doubles its buffers as they fill.
    most = max(1, min(BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)))
    batches = file.iter_batches(most, row_groups=[split.group], columns=columns, use_threads=False)
    while (batch := _next_batch(batches, split.path)) is not None:
        rows = batch.num_rows
        given: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        found = {name: _cast(given[name], BODY.field(name).type) for name in columns}
        found["path"] = pa.repeat(split.path, rows)
        found["line"] = pa.array(range(line, line + rows), pa.int64())
        found["bad"] = _bad_where(pc.is_null(found["body"]), "no body")
        yield make_batch(found, rows, BODY)
        line += rows


def _open(path: str | AnyPath) -> Any:
    with naming_damage(path):  # it may have been replaced since it was found
        return open_parquet(path)


def _next_batch(batches: Iterator[Any], path: str) -> Any:
    with naming_damage(path):
        return next(batches, None)


def _cast(column: Any, kind: Any) -> Any:
    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return decoded.cast(kind)


def _bad_where(is_bad: Any, reason: str) -> Any:
    evidence = bad_piece("body", reason, "")
    kind = BODY.field("bad").type
    if not pc.any(is_bad).as_py():
        return pa.nulls(len(is_bad), kind)
    return pa.array([evidence if one else None for one in is_bad.to_pylist()], kind)


def _line_batches(lines: Iterable[Line]) -> Iterator[pa.RecordBatch]:
    for some in take_groups(lines, lambda line: (1, len(line.text)), rows=BATCH_ROWS, size=_BATCH_BYTES):
        rows = [{"path": line.path, "line": line.number, **read} for line in some for read in _read_line(line.text)]
        yield pa.RecordBatch.from_pylist(rows, schema=BODY)


def _read_line(line: bytes) -> Iterator[dict[str, Any]]:
    """Yield the fields of ``BODY`` for each object of a line, and for the text behind them that is not one."""
    for at, (value, text) in enumerate(read_objects(line)):
        fields = value if isinstance(value, dict) else {}
        yield {**_read_body(fields, text), **_read_origin(fields), "is_joined": at > 0}


def _read_body(fields: dict[str, Any], text: str) -> dict[str, Any]:
    encoded = text_of_json(fields.get("body_base64"))
    if encoded is None:
        return {"bad": bad_piece("body_base64", "no JSON object with body_base64", text)}
    body = decode_base64(encoded)
    return {"bad": bad_piece("body_base64", "not base64", encoded)} if body is None else {"body": body}


def _read_origin(fields: dict[str, Any]) -> dict[str, Any]:
    source = text_of_json(fields.get("source"))
    instants = (_number(fields.get(name)) for name in ("arrival_ms", "store_ms"))
    return {
        "source": text_of_json(fields.get("topic")) if source is None else source,
        "arrival_ms": next((instant for instant in instants if instant is not None), None),
    }


def _number(value: Any) -> int | None:
    if type(value) is int and abs(value) < 1 << 62:
        return value
    text = text_of_json(value)
    return None if text is None else whole_number(text, bits=64)


def message_bodies(messages: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of trace topics (``kafka.MESSAGE``) as ``BODY``; one without a value is bad."""
    for batch in messages:
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        found = {
            "source": columns["topic"],
            "arrival_ms": columns["arrival_ms"],
            "path": message_places(batch),
            "body": columns["value"],
            "bad": _bad_where(pc.is_null(columns["value"]), "no body (a tombstone)"),
        }
        yield make_batch(found, batch.num_rows, BODY)
