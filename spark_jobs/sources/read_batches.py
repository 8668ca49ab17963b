"""The Arrow batches that a reader of spans hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_jobs.schemas import LEDGER, READ_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "LINK", "SPANS", "Books", "batch_of", "grouped", "row_batches"]

BATCH_ROWS: Final = 2000
"""How many rows make a batch worth handing on."""
BATCH_BYTES: Final = 8 << 20
"""How many bytes make one: a span may be a megabyte."""
SPANS: Final = pa.schema([*READ_SPAN, *LEDGER])
"""What a reader yields: spans, and rows that count what was due."""
LINK: Final[Any] = SPANS.field("links").type.value_type
"""A link as ``schemas.SPAN`` holds it."""


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
