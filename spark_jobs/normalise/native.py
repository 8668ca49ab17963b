"""Turn the bodies of native trace messages into canonical events: bodies → records → events.

It works on Arrow batches, a column at a time: ``native_records`` reads the records, this module maps them to the names
and values that both sides share.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace.model import TraceType
from spark_jobs.columns import binary_bytes, coalesced, each, equal, repeated, take_rows, where
from spark_jobs.normalise.native_records import MOST_ROWS, MOST_TEXT, RecordCount, record_columns
from spark_jobs.normalise.values import event_batch, folded_id, key_sets, present
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from spark_jobs.columns import Column

BODY_COLUMNS: Final = ("arrival_ms", "path", "line", "body", "bad")
"""Those of ``READ_BODY`` that events are made of; what else a landing holds may be of any type."""

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


def native_batches(
    bodies: Iterable[pa.RecordBatch],
    *,
    writer: str,
    writers: Mapping[str, str] = MappingProxyType({}),
    msg_type_map: str = "a",
    charset: str = "utf-8",
) -> Iterator[pa.RecordBatch]:
    """Turn ``BODY_COLUMNS`` into ``READ_EVENT``, some thousand records at a time, and a last row with their number.

    ``writers`` are the ``writer`` of some files, by path, and of some topics, by name.

    Raises:
        UsageError: an unknown map or charset, raised with the first batch.
    """
    expected = RecordCount()
    for records in record_columns(bodies, expected, msg_type_map=msg_type_map, charset=charset):
        for messages in _messages(records):
            yield event_batch(_events(messages, partial(_name_writers, writer, writers)), len(messages["type"]))
    yield event_batch({"expected": pa.array([expected.records], pa.int64()), "tails": pa.array([0], pa.int64())}, 1)


def _messages(records: Mapping[str, Column]) -> Iterator[dict[str, Column]]:
    """Yield the records once for each message: a batch has an id, and an offset id, per message, joined with commas.

    Added are ``id_at``, which of the record's messages a row is, and ``id_count``. Some writers give one offset id for
    all. What is one per record is copied some thousand times at once, or some megabytes: a batch may be of any size.
    """
    if not any(_JOINED.encode() in binary_bytes(records[name])[0] for name in _ONE_EACH):
        yield {**records, "id_at": _repeat(0, len(records["type"])), "id_count": _repeat(1, len(records["type"]))}
        return
    split = {name: pc.split_pattern(records[name], _JOINED) for name in _ONE_EACH}
    others = {name: column for name, column in records.items() if name not in _ONE_EACH}
    counts = np.maximum(np.diff(split["msg_id"].offsets.to_numpy()), 1)
    rows, id_at = repeated(counts)
    is_copied = len(rows) > len(counts)
    for some in _slices(rows, others) if is_copied else [slice(None)]:
        of, at = rows[some], id_at[some]
        yield {
            **{name: column.take(pa.array(of)) if is_copied else column for name, column in others.items()},
            **{name: _own(pieces, of, at) for name, pieces in split.items()},
            "id_at": pa.array(at),
            "id_count": pa.array(counts[of]),
        }


def _repeat(number: int, count: int) -> Column:
    return pa.repeat(pa.scalar(number, pa.int64()), count)


def _slices(rows: NDArray[np.int64], columns: Mapping[str, Column]) -> Iterator[slice]:
    """Yield places to cut ``rows`` of ``columns`` at, so that no piece is long or holds much."""
    texts = [column for column in columns.values() if pa.types.is_string(column.type)]
    sizes = np.stack([pc.binary_length(text).fill_null(0).to_numpy() for text in texts]).sum(axis=0)
    piece = np.cumsum(sizes[rows]) // MOST_TEXT + np.arange(len(rows)) // MOST_ROWS
    bounds = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(rows)]
    yield from map(slice, bounds, bounds[1:])


def _own(split: Column, rows: NDArray[np.int64], at: NDArray[np.int64]) -> Column:
    bounds = split.offsets.to_numpy().astype(np.int64)
    first, size = bounds[rows], bounds[rows + 1] - bounds[rows]
    return take_rows(split.values, np.where(size == 0, -1, first + np.where(at < size, at, 0)))


def _events(messages: Mapping[str, Column], name_writers: Callable[[Column], Column]) -> dict[str, Column]:
    rows, types, timestamp_ms = len(messages["type"]), messages["type"], messages["timestamp_ms"]
    is_publish, is_after = (equal(types, kind.value) for kind in (TraceType.PUB, TraceType.SUB_AFTER))
    cost_ms = messages["cost_ms"].cast(pa.int64())
    plain = ("retry_times", "body_length", "msg_type", "success", "context_code", "transaction_state")
    return {
        **{name: messages[name] for name in (*plain, "from_transaction_check", "record_index", "bad")},
        **{name: messages[name] for name in ("arrival_ms", "path", "line")},
        **{name: present(messages[name]) for name in _PRESENT},
        "side": pa.repeat("native", rows),
        "kind": each(types, _KIND.get, pa.string()),
        "half": each(types, _HALF.get, pa.string()),
        **{name: folded_id(messages[name]) for name in ("msg_id", "offset_msg_id", "transaction_id")},
        "attempt_id": folded_id(messages["request_id"]),
        "keys": key_sets(messages["keys"]),
        "start_ms": where(pc.invert(is_after), timestamp_ms),
        "end_ms": coalesced(where(is_publish, _sum(timestamp_ms, cost_ms)), where(is_after, timestamp_ms)),
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

    return each(paths, name, pa.string())


def _sum(time_ms: Column, took_ms: Column) -> Column:
    """Add, null where no clock would ever show it: beyond 64 bits."""
    total = pc.add(time_ms, took_ms)
    is_back = pc.less(took_ms, pa.scalar(0, took_ms.type))
    return where(pc.equal(is_back, pc.less(total, time_ms)), total)


def _extra(messages: Mapping[str, Column]) -> Column:
    """Return how many rows stand for no record of their own: a batch's further messages; what a body has glued."""
    is_first = equal(messages["id_at"], 0)
    return pc.if_else(is_first, messages["surplus"], pa.scalar(1, pa.int64()))
