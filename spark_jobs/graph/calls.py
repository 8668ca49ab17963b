"""Count which service calls which without a message: spans whose parent is a span of another service.

Two spans are joined, never a trace put together. Deliveries are left out: their journey shows a message's way.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute
from pyarrow import parquet

from spark_jobs.exchange.packing import open_blobs, pack_rows
from spark_jobs.hashing import hash_texts
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_jobs.exchange.engine import Engine

__all__ = ["Calls", "count_direct_calls"]

pc: Final[Any] = pyarrow.compute  # its stubs know fewer forms than there are
_BUCKET_ROWS: Final = 200_000
_MOST_BUCKETS: Final = 2_000
_COLUMNS: Final = ("trace_id", "span_id", "parent_span_id", "service", "start_ms", "kind")

Calls = Counter[tuple[str, str]]
"""How often each service, the first of a pair, calls the second."""


def count_direct_calls(engine: Engine, files: Sequence[str], *, begin_ms: int | None, end_ms: int | None) -> Calls:
    """Return the calls from one service into another that started in the window.

    Args:
        engine: runs the tasks.
        files: parquet files of ``NORMALISED``, of the OTLP side; spans in scope or not, copies of one count once.
        begin_ms: earliest start, epoch milliseconds, included; ``None`` for no bound.
        end_ms: latest start.
    """
    rows = sum(parquet.ParquetFile(path).metadata.num_rows for path in files)
    buckets = min(rows // _BUCKET_ROWS + 1, _MOST_BUCKETS)
    found = engine.exchange(partial(_pack, buckets), files, partial(_count_bucket, begin_ms, end_ms), buckets)
    total: Calls = Counter()
    for one in found:
        total.update(one)
    return total


def _pack(buckets: int, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the spans of a file that have a service, those of a trace in one bucket."""
    file = parquet.ParquetFile(path)
    for group in range(file.metadata.num_row_groups):
        table = file.read_row_group(group, columns=[*_COLUMNS, "bad.reason"], use_threads=False)
        whole = pc.is_null(table["bad"])
        for name in ("trace_id", "span_id", "service"):
            whole = pc.and_(whole, pc.is_valid(table[name]))
        spans = table.filter(whole).select(_COLUMNS).combine_chunks()
        for batch in spans.to_batches():
            bucket_of = (hash_texts(batch.column("trace_id")) % np.uint64(buckets)).astype(np.int64)
            yield from pack_rows(batch, bucket_of, buckets)


def _count_bucket(begin_ms: int | None, end_ms: int | None, _bucket: int, blobs: Sequence[bytes]) -> Calls:
    spans = open_blobs(blobs)
    is_delivery = pc.fill_null(pc.equal(spans["kind"], Kind.CONSUME.value), False)  # noqa: FBT003
    wanted: list[Any] = [(name, "min") for name in ("service", "parent_span_id", "start_ms")]
    once = (
        spans.append_column("is_delivery", is_delivery)
        .group_by(["trace_id", "span_id"], use_threads=False)
        .aggregate([*wanted, ("is_delivery", "max")])
    )
    called = once.filter(pc.and_(pc.is_valid(once["parent_span_id_min"]), pc.invert(once["is_delivery_max"])))
    if begin_ms is not None:
        called = called.filter(pc.greater_equal(called["start_ms_min"], begin_ms))
    if end_ms is not None:
        called = called.filter(pc.less_equal(called["start_ms_min"], end_ms))
    callers = once.select(["trace_id", "span_id", "service_min"]).rename_columns(["trace_id", "span_id", "parent"])
    pairs = called.select(["trace_id", "parent_span_id_min", "service_min"]).join(
        callers, ["trace_id", "parent_span_id_min"], ["trace_id", "span_id"], "inner", use_threads=False
    )
    pairs = pairs.filter(pc.not_equal(pairs["parent"], pairs["service_min"]))
    counted = pairs.group_by(["parent", "service_min"], use_threads=False).aggregate([([], "count_all")])
    return Counter({(row["parent"], row["service_min"]): row["count_all"] for row in counted.to_pylist()})
