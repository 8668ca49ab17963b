"""Turn the bodies of native trace messages into canonical events, a column at a time: bodies → records → events.

Ordinary bodies are read column by column (``native_text``). The codec (``otel_mqtrace.wire.native.decode``) reads
every body that is odd in any way, record by record, so positions and reasons of bad records are always the codec's.
The records expected are counted in the text of a body by other means, so that a record lost by a reader is noticed.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.decode import MAX_RECORD_LENGTH, BadRecord, decode_values, text_of
from otel_mqtrace.wire.native.layout import (
    CLOUD_SUB_AFTER,
    FIELD_SEPARATOR,
    FIELDS,
    FORMS,
    KEPT_FIELDS,
    RECORD_TERMINATOR,
)
from spark_jobs.columns import (
    binary_bytes,
    coalesce,
    is_known,
    is_true,
    is_utf8,
    make_batch,
    map_values,
    pc,
    repeat_rows,
    runs_of,
    take_groups,
    take_rows,
    where,
)
from spark_jobs.normalise.native_text import ENUM_TEXTS, TERMINATOR, field_type, read_text
from spark_jobs.normalise.values import fold_ids, hash_rows, key_sets, null_where_absent
from spark_jobs.schemas import BAD, BODY, READ_EVENT, bad_piece
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from spark_jobs.columns import Column
    from spark_jobs.schemas import InputCounts

MOST_ROWS: Final = 4096
MOST_TEXT: Final = 8 << 20
"""Rows are laid into columns together until they are so many, or until their text is so many characters long."""
_BLOCK_BYTES: Final = 1 << 20
"""Bodies are read together, column by column, up to about this size."""
_NAMES: Final = "|".join(kind.value for kind in TraceType)
_PIECE: Final = re.compile(rf"[^{RECORD_TERMINATOR}]+")
_NEXT_PIECE: Final = re.compile(rf"{RECORD_TERMINATOR}(?=[^{RECORD_TERMINATOR}])")
# A SubAfter over CLOUD of 4.9.5-4.9.8 and 5.1.4-5.3.0 has no terminator: a type name stands where its eighth field
# would be (apache/rocketmq#8429).
_GLUED: Final = re.compile(
    rf"{TraceType.SUB_AFTER.value}(?:{FIELD_SEPARATOR}[^{FIELD_SEPARATOR}{RECORD_TERMINATOR}]*)"
    rf"{{{len(CLOUD_SUB_AFTER.fields)}}}{FIELD_SEPARATOR}(?=(?:{_NAMES})(?:[{FIELD_SEPARATOR}{RECORD_TERMINATOR}]|\Z))"
)
_NAMES_INSIDE: Final = tuple(FIELD_SEPARATOR + kind.value for kind in TraceType)
_REQUEST_AT: Final = {
    kind.value: FORMS[kind][0].fields.index("request_id") + 1 for kind in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
}
_MOST_HELD: Final = 1 << 18
"""The codec reads a longer text twice instead of holding all of its records; clients write half as much at most."""
_OF_BODY: Final = ("arrival_ms", "path", "line", "is_joined")
_SCHEMA: Final = pa.schema(
    {
        **{name: BODY.field(name).type for name in (*_OF_BODY, "bad")},
        **{name: field_type(FIELDS[name]) for name in KEPT_FIELDS},
        "type": pa.string(),
        "record_index": pa.int32(),
        "call_size": pa.int32(),
        "surplus": pa.int64(),
    }
)
_ENUM_TEXTS: Final = {name: ENUM_TEXTS[FIELDS[name]] for name in KEPT_FIELDS if FIELDS[name] in ENUM_TEXTS}
_Columns: TypeAlias = "dict[str, Column]"


def record_columns(
    bodies: Iterable[pa.RecordBatch], counts: InputCounts, *, msg_type_map: str, charset: str
) -> Iterator[dict[str, Column]]:
    """Yield the records of bodies in columns of some thousand rows, and add their number to ``counts``.

    A glued pair of records counts once, a row without a body as one. The columns are ``KEPT_FIELDS``; ``type``; ``bad``
    (``schemas.BAD``); ``record_index``, counted over all bodies of a line; ``call_size``: records of the same listener
    call; ``surplus``: what glued records add to the number; ``hash``: 64 bits of the record's text; ``arrival_ms``,
    ``path``, ``line`` of its body.
    """
    read, lines = _Reader(counts, msg_type_map, charset), _Lines()
    for batch in bodies:
        parts = (part for block in _blocks(batch) for part in read.block(block))
        yield from map(lines.number, map(_concatenate, take_groups(parts, _size_of, rows=MOST_ROWS, size=MOST_TEXT)))


def _blocks(bodies: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into blocks of ``_BLOCK_BYTES`` or one body more."""
    sizes = pc.binary_length(bodies.column("body"))
    behind = np.cumsum(sizes.fill_null(0).to_numpy(), dtype=np.int64)
    yield from (bodies.slice(start, end - start) for start, end in runs_of(behind // _BLOCK_BYTES))


def _size_of(part: _Columns) -> tuple[int, int]:
    return len(part["type"]), sum(column.nbytes for column in part.values())


def _concatenate(parts: list[_Columns]) -> _Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}


@dataclass(slots=True)
class _Lines:
    """Numbers the records of each line, which may hold several bodies: ``count`` are those of the last line so far."""

    count: int = 0

    def number(self, records: _Columns) -> _Columns:
        """Return the columns with a ``record_index`` that is unique on its line."""
        columns = dict(records)
        is_joined, indexes = is_true(columns.pop("is_joined")), np.asarray(columns["record_index"])
        if is_joined.any():
            rows = np.arange(len(indexes))
            is_first = (indexes == 0) & ~is_joined
            indexes = rows - np.maximum.accumulate(np.where(is_first, rows, -self.count))
            columns["record_index"] = pa.array(indexes, pa.int32())
        if len(indexes):
            self.count = int(indexes[-1]) + 1
        return columns


@dataclass(frozen=True, slots=True)
class _Reader:
    """How bodies are read, and where their records are counted."""

    counts: InputCounts
    msg_type_map: str
    charset: str

    def block(self, bodies: pa.RecordBatch) -> Iterator[_Columns]:
        """Yield the records of bodies in order: ordinary bodies as columns, each run of odd ones by the codec."""
        is_left_out = _is_left_out(bodies)
        data, bounds = self._block_text(bodies.column("body"), is_left_out)
        found = read_text(data, bounds, msg_type_map=self.msg_type_map)
        columns = {**found.columns, **_take_from_bodies(bodies, found.body)}
        is_odd = found.is_odd | is_left_out
        starts = np.searchsorted(found.body, np.arange(len(is_odd) + 1))
        for start, end in runs_of(is_odd):
            if is_odd[start]:
                yield from self._decode(bodies.slice(start, end - start))
            else:
                self.counts.expected += data.count(TERMINATOR, bounds[start], bounds[end])
                first, count = starts[start], starts[end] - starts[start]
                yield {name: column.slice(first, count) for name, column in columns.items()}

    def _block_text(self, bodies: Column, is_left_out: NDArray[np.bool_]) -> tuple[bytes, NDArray[np.int64]]:
        """Return the bodies in UTF-8, each ended by a terminator, and where each begins and the last one ends."""
        if codecs.lookup(self.charset).name == "utf-8" and not is_left_out.any() and pa.types.is_binary(bodies.type):
            data, bounds = binary_bytes(bodies)
            if _is_ended(data, bounds) and is_utf8(data):
                return data, bounds
        texts = [
            b"" if left_out else _terminate(self._text(body).encode())
            for body, left_out in zip(bodies.to_pylist(), is_left_out.tolist(), strict=True)
        ]
        return b"".join(texts), np.cumsum([0, *map(len, texts)])

    def _decode(self, bodies: pa.RecordBatch) -> Iterator[_Columns]:
        rows = (row for body in bodies.to_pylist() for row in self._rows(body))
        yield from map(_columns, take_groups(rows, lambda row: (1, len(row["hash"])), rows=MOST_ROWS, size=MOST_TEXT))

    def _rows(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a row for each record of a body, its ``hash`` being the text that is hashed."""
        place = {name: body[name] for name in _OF_BODY}
        if body["bad"] is not None:
            self.counts.expected += 1
            yield {**place, "bad": body["bad"], "record_index": 0, "call_size": 1, "surplus": 0, "hash": b""}
            return
        text = self._text(body["body"])
        self.counts.expected += _count_records(text)
        surplus = _count_glued(text)
        for index, (fields, quirk, values, call_size) in enumerate(_records(text, self.msg_type_map)):
            # a SubAfter that CLOUD changed had one more separator at its end
            written = FIELD_SEPARATOR.join(fields) + (FIELD_SEPARATOR if quirk else "")
            numbers = {"record_index": index, "call_size": call_size, "surplus": 0 if index else surplus}
            yield {**place, **numbers, **_name_values(fields, values), "hash": written.encode()}

    def _text(self, body: bytes | None) -> str:
        """Return the text of a body as Arrow takes it: some charsets, such as UTF-7, can encode half a character."""
        text = text_of(body or b"", self.charset)
        return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _is_left_out(bodies: pa.RecordBatch) -> NDArray[np.bool_]:
    return is_true(pc.greater(pc.binary_length(bodies.column("body")), _MOST_HELD)) | is_known(bodies.column("bad"))


def _is_ended(data: bytes, bounds: NDArray[np.int64]) -> bool:
    ends = np.frombuffer(data, np.uint8)[bounds[1:][np.diff(bounds) > 0] - 1]
    return bool((ends == TERMINATOR[0]).all())


def _terminate(text: bytes) -> bytes:
    """Return a text with a terminator: the codec reads a last record without one like any other."""
    return text + TERMINATOR if text and not text.endswith(TERMINATOR) else text


def _take_from_bodies(bodies: pa.RecordBatch, body: NDArray[np.int64]) -> _Columns:
    """Return the columns that records take from their bodies; none of these is bad or glued."""
    return {
        **{name: take_rows(bodies.column(name), body) for name in _OF_BODY},
        "bad": pa.nulls(len(body), BAD),
        "surplus": pa.array(np.zeros(len(body), np.int64)),
    }


def _records(text: str, msg_type_map: str) -> Iterator[tuple[list[str], object, Any, int]]:
    read: Callable[[], Iterator[Any]] = partial(decode_values, text, msg_type_map=msg_type_map)
    if len(text) <= _MOST_HELD:
        read = list(read()).__iter__
    sizes = Counter(_call(fields) for (fields, _), _ in read())
    sizes[None] = 1
    for (fields, quirk), values in read():
        yield fields, quirk, values, sizes[_call(fields)]


def _count_records(text: str) -> int:
    return len(_NEXT_PIECE.findall(text)) + (text[:1] not in {"", RECORD_TERMINATOR})


def _count_glued(text: str) -> int:
    """Return how many records of a body have no end of their own, found by their shape and not by the codec."""
    if not any(name in text for name in _NAMES_INSIDE):
        return 0
    count = 0
    for piece in _PIECE.finditer(text):
        start = piece.start()
        while piece.end() - start <= MAX_RECORD_LENGTH and (found := _GLUED.match(text, start)):
            count, start = count + 1, found.end()
    return count


def _call(fields: list[str]) -> tuple[str, str] | None:
    """Return what the records of one listener call have in common: the half and the request id; null for others."""
    at = _REQUEST_AT.get(fields[0])
    if at is None or len(fields) == 1:
        return None
    return fields[0], fields[at] if at < len(fields) else ""


def _name_values(fields: list[str], values: tuple[Any, ...] | BadRecord) -> dict[str, Any]:
    """Return what the codec made of a record by column: its values, or why it is bad."""
    if isinstance(values, BadRecord):
        within = FIELD_SEPARATOR.join(fields)
        return {"bad": bad_piece(values.field, values.reason, values.text, within=within)}
    named: dict[str, Any] = dict(zip(KEPT_FIELDS, values, strict=True))
    for name, texts in _ENUM_TEXTS.items():
        if named[name] is not None:
            named[name] = texts[named[name]]
    return {**named, "type": fields[0]}


def _columns(rows: list[dict[str, Any]]) -> _Columns:
    columns = {one.name: pa.array([row.get(one.name) for row in rows], one.type) for one in _SCHEMA}
    return {**columns, "hash": hash_rows(row["hash"] for row in rows)}


_JOINED: Final = ","
_ONE_EACH: Final = ("msg_id", "offset_msg_id")
_PRESENT: Final = ("topic", "group_name", "region_id", "tags", "store_host", "client_host")
_KIND: Final = {
    TraceType.PUB.value: Kind.PUBLISH.value,
    TraceType.SUB_BEFORE.value: Kind.CONSUME.value,
    TraceType.SUB_AFTER.value: Kind.CONSUME.value,
    TraceType.END_TRANSACTION.value: Kind.TRANSACTION_END.value,
    TraceType.RECALL.value: Kind.RECALL.value,
}
_HALF: Final = {
    **dict.fromkeys(_KIND, "whole"),
    TraceType.SUB_BEFORE.value: "before",
    TraceType.SUB_AFTER.value: "after",
}


def native_batches(  # noqa: PLR0913 - bodies, and how to read them
    bodies: Iterable[pa.RecordBatch],
    counts: InputCounts,
    *,
    writer: str,
    writers: Mapping[str, str] = MappingProxyType({}),
    msg_type_map: str = "a",
    charset: str = "utf-8",
) -> Iterator[pa.RecordBatch]:
    """Turn ``BODY`` into ``READ_EVENT``, some thousand records at a time; their number is added to ``counts``.

    ``writers`` are the ``writer`` of some files, by path, and of some topics, by name.
    """
    for records in record_columns(bodies, counts, msg_type_map=msg_type_map, charset=charset):
        for messages in _messages(records):
            events = _events(messages, partial(_name_writers, writer, writers))
            yield make_batch(events, len(messages["type"]), READ_EVENT)


def _messages(records: Mapping[str, Column]) -> Iterator[dict[str, Column]]:
    """Yield the records once for each message: a batch has an id, and an offset id, per message, joined with commas.

    Added are ``id_at``, which of the record's messages a row is, and ``id_count``. What is one per record is copied
    some thousand times at once, or some megabytes: a batch may be of any size.
    """
    split = {name: pc.split_pattern(records[name], _JOINED) for name in _ONE_EACH}
    others = {name: column for name, column in records.items() if name not in _ONE_EACH}
    counts = np.maximum(np.diff(split["msg_id"].offsets.to_numpy()), 1)
    rows, id_at = repeat_rows(counts)
    is_copied = len(rows) > len(counts)
    for some in _slices(rows, others) if is_copied else [slice(None)]:
        of, at = rows[some], id_at[some]
        yield {
            **{name: column.take(pa.array(of)) if is_copied else column for name, column in others.items()},
            **{name: _own(pieces, of, at, counts[of]) for name, pieces in split.items()},
            "id_at": pa.array(at),
            "id_count": pa.array(counts[of]),
        }


def _slices(rows: NDArray[np.int64], columns: Mapping[str, Column]) -> Iterator[slice]:
    """Yield places to cut ``rows`` of ``columns`` at, so that no piece is long or holds much."""
    texts = [column for column in columns.values() if pa.types.is_string(column.type)]
    sizes = np.stack([pc.binary_length(text).fill_null(0).to_numpy() for text in texts]).sum(axis=0)
    piece = np.cumsum(sizes[rows]) // MOST_TEXT + np.arange(len(rows)) // MOST_ROWS
    yield from (slice(*run) for run in runs_of(piece))


def _own(split: Column, rows: NDArray[np.int64], at: NDArray[np.int64], together: NDArray[np.int64]) -> Column:
    """Return the id of each message; null where its record has another number of them than of messages."""
    bounds = split.offsets.to_numpy().astype(np.int64)
    first, size = bounds[rows], bounds[rows + 1] - bounds[rows]
    is_own = (size == together) | (together == 1) & (size > 0)
    return take_rows(split.values, np.where(is_own, first + at, -1))


def _events(messages: Mapping[str, Column], name_writers: Callable[[Column], Column]) -> dict[str, Column]:
    rows, types, timestamp_ms = len(messages["type"]), messages["type"], messages["timestamp_ms"]
    is_publish, is_after = (pc.equal(types, kind.value) for kind in (TraceType.PUB, TraceType.SUB_AFTER))
    cost_ms = messages["cost_ms"].cast(pa.int64())
    plain = ("retry_times", "body_length", "msg_type", "success", "context_code", "transaction_state")
    return {
        **{name: messages[name] for name in (*plain, "from_transaction_check", "record_index", "bad")},
        **{name: messages[name] for name in ("arrival_ms", "path", "line")},
        **{name: null_where_absent(messages[name]) for name in _PRESENT},
        "side": pa.repeat("native", rows),
        "kind": map_values(types, _KIND.get, pa.string()),
        "half": map_values(types, _HALF.get, pa.string()),
        **{name: fold_ids(messages[name]) for name in ("msg_id", "offset_msg_id", "transaction_id")},
        "attempt_id": fold_ids(messages["request_id"]),
        "keys": key_sets(messages["keys"]),
        "start_ms": where(pc.invert(is_after), timestamp_ms),
        "end_ms": coalesce(where(is_publish, _sum(timestamp_ms, cost_ms)), where(is_after, timestamp_ms)),
        "cost_ms": cost_ms,
        "batch_size": pc.if_else(is_publish, messages["id_count"].cast(pa.int32()), messages["call_size"]),
        "writer": name_writers(messages["path"]),
        "raw_hash": pc.add(messages["hash"], messages["id_at"]),
        "extra": _extra(messages),
    }


def _name_writers(writer: str, writers: Mapping[str, str], paths: Column) -> Column:
    if not writers:
        return pa.repeat(writer, len(paths))

    def name(path: str) -> str:
        topic = path.rpartition("@")[0].rpartition("-")[0]  # a message's path is topic-partition@offset
        return writers.get(path) or writers.get(topic, writer)

    return map_values(paths, name, pa.string())


def _sum(time_ms: Column, took_ms: Column) -> Column:
    """Add, null where no clock would ever show it: beyond 64 bits."""
    total = pc.add(time_ms, took_ms)
    is_back = pc.less(took_ms, pa.scalar(0, took_ms.type))
    return where(pc.equal(is_back, pc.less(total, time_ms)), total)


def _extra(messages: Mapping[str, Column]) -> Column:
    """Return how many rows stand for no record of their own: a batch's further messages; what a body has glued."""
    is_first = pc.equal(messages["id_at"], 0)
    return pc.if_else(is_first, messages["surplus"], pa.scalar(1, pa.int64()))
