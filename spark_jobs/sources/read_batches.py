"""This module knows the Arrow batches that a reader of spans hands on, and who may take them in the same task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_jobs.spark_schemas import LEDGER, READ_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "LINK", "READ", "SPANS", "Books", "Into", "batch_of", "grouped", "row_batches"]

BATCH_ROWS: Final = 2000
"""How many rows make a batch worth handing on."""
BATCH_BYTES: Final = 8 << 20
"""How many bytes make one: a span may be a megabyte."""
_IDS: Final[dict[str, Any]] = {"trace_id": pa.string(), "span_id": pa.string()}
_ATTRIBUTES: Final[Any] = pa.map_(pa.string(), pa.string())
LINK: Final[Any] = pa.struct({**_IDS, "flags": pa.int64(), "attributes": _ATTRIBUTES})
"""A link as ``schemas.SPAN`` holds it."""
_EVIDENCE: Final[dict[str, Any]] = {
    "field": pa.string(),
    "reason": pa.string(),
    "text": pa.string(),
    "mentions": pa.list_(pa.string()),
}
SPANS: Final = pa.schema(
    {
        **_IDS,
        **dict.fromkeys(("parent_span_id", "name", "kind"), pa.string()),
        **dict.fromkeys(("start_ns", "end_ns"), pa.int64()),
        **dict.fromkeys(("status", "service", "scope"), pa.string()),
        "flags": pa.int64(),
        "attributes": _ATTRIBUTES,
        "links": pa.list_(LINK),
        **dict.fromkeys(("dropped_attributes", "dropped_links"), pa.int64()),
        "path": pa.string(),
        **dict.fromkeys(("line", "raw_hash"), pa.int64()),
        "bad": pa.struct(_EVIDENCE),
        **dict.fromkeys(LEDGER.names, pa.int64()),
    },
)
"""What a reader yields, as Arrow knows it: ``READ_SPAN`` and ``LEDGER``."""
READ: Final = StructType([*READ_SPAN.fields, *LEDGER.fields])
"""The same as Spark knows it."""


def _same(kind: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    del kind
    return batches


@dataclass(frozen=True, slots=True)
class Into:
    """What the executors make of the spans in the task that reads them.

    ``batches`` takes the kind of source (``files``, ``topics``) and batches of ``SPANS``, and yields batches of
    ``schema``; it is sent to the executors, where Spark may give a task of each kind to one and the same task. The
    columns of ``LEDGER`` must be among those of ``schema``, and the ledger's rows among its rows.
    """

    schema: StructType = READ
    batches: Callable[[str, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = _same


@dataclass(slots=True)
class Books:
    """What is ``due`` of the input read so far, and how many ``tails`` were cut off: ``LEDGER``."""

    due: int = 0
    tails: int = 0

    def batch(self) -> pa.RecordBatch:
        """Return the ledger as one row of ``SPANS``."""
        return pa.RecordBatch.from_pylist([{"due": self.due, "tails": self.tails}], schema=SPANS)


def batch_of(columns: dict[str, Any], rows: int) -> pa.RecordBatch:
    """Return ``columns`` as a batch of ``SPANS``; those not given are null."""
    arrays = [columns[one.name] if one.name in columns else pa.nulls(rows, one.type) for one in SPANS]
    return pa.RecordBatch.from_arrays(arrays, schema=SPANS)


def row_batches(rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` as batches of ``SPANS``."""
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append(row)
        if len(some) >= BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(some, schema=SPANS)
            some = []
    if some:
        yield pa.RecordBatch.from_pylist(some, schema=SPANS)


def grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches that are not small, but for the last, and not empty."""
    some: list[pa.RecordBatch] = []
    rows = held = 0
    for batch in batches:
        some.append(batch)
        rows, held = rows + batch.num_rows, held + batch.nbytes
        if rows >= BATCH_ROWS or held >= BATCH_BYTES:
            yield from _joined(some)
            some, rows, held = [], 0, 0
    if rows:
        yield from _joined(some)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
