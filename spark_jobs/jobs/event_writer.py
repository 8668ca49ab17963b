"""Write the events of a task to one parquet file, and add up what they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage import committed
from otel_mqtrace._clock import LAST_MS
from spark_jobs.columns import greater, where
from spark_jobs.judging.facts import Survey, merge_surveys, survey
from spark_jobs.schemas import NORMALISED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from spark_jobs.columns import Column

_GROUP_ROWS: Final = 32_768
_GROUP_BYTES: Final = 32 << 20
"""As many rows, or bytes, are held before they are written together."""
_DICTIONARY_BYTES: Final = 64 << 10  # columns of ids soon give up what they gain nothing from


@dataclass(slots=True, kw_only=True)
class Written:
    """The output of a task and the counts of its input.

    Attributes:
        path: the file; ``None`` when there was no row to write.
        expected: records or spans in the input, counted apart from the events (``schemas.LEDGER``).
        tails: files that were cut off inside a frame.
        extra: rows beyond one per record or span.
        by_place: events whose only message id is its position.
        last_ms: the latest start or end, epoch milliseconds up to the year 9999: a damaged record may hold any.
        survey: the task's part of the facts of the run.
    """

    path: str | None = None
    expected: int = 0
    tails: int = 0
    extra: int = 0
    by_place: int = 0
    last_ms: int | None = None
    survey: Survey = field(default_factory=Survey)


def write_events(path: str, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of ``batches`` to ``path``, which is there when all of them are written, and return what they are.

    Args:
        path: where no other task writes; a task that is run again replaces its file.
        batches: ``READ_EVENT``; rows of the ledger are added up and not written.
    """
    written = Written()
    with committed(path) as unready, EventFile(unready) as file:
        for batch in batches:
            events = _without_ledger(batch, written)
            if events.num_rows:
                written.extra += pc.sum(events.column("extra")).as_py() or 0
                rows = events.select(NORMALISED.names)
                _add(written, rows)
                file.write(rows)
    written.path = path if file.has_rows else None
    written.survey = file.survey
    return written


class EventFile:
    """A parquet file of ``NORMALISED`` rows, written a row group at a time. Nothing is written where there are none.

    Attributes:
        survey: of the rows written.
        has_rows: whether any row was written.
    """

    def __init__(self, path: str) -> None:
        self.survey = Survey()
        self.has_rows = False
        self._path = path
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._writer: Any = None

    def __enter__(self) -> Self:
        """Return this file."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Write what is still held, unless the block failed, and close the file."""
        try:
            if kind is None:
                self._flush()
        finally:
            if self._writer is not None:
                self._writer.close()

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows of ``NORMALISED``, soon."""
        self._held.append(rows)
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            held = pa.Table.from_batches(self._held)
            self.survey = merge_surveys([self.survey, survey(held)])
            self._opened(held.schema).write_table(held, row_group_size=self._rows)
            self.has_rows = True
        self._held, self._rows, self._bytes = [], 0, 0

    def _opened(self, schema: pa.Schema) -> Any:
        from pyarrow import parquet  # noqa: PLC0415  (only where something is written)

        if self._writer is None:
            self._writer = parquet.ParquetWriter(
                self._path,
                schema,
                compression="zstd",
                dictionary_pagesize_limit=_DICTIONARY_BYTES,
                write_statistics=False,
            )
        return self._writer


def _without_ledger(batch: pa.RecordBatch, written: Written) -> pa.RecordBatch:
    """Return the rows of ``batch`` that are events or malformed; those of the ledger are added up."""
    expected = batch.column("expected")
    if expected.null_count == batch.num_rows:
        return batch
    written.expected += pc.sum(expected).as_py() or 0
    written.tails += pc.sum(batch.column("tails")).as_py() or 0
    return batch.filter(expected.is_null())


def _add(written: Written, rows: pa.RecordBatch) -> None:
    columns: dict[str, Column] = dict(zip(rows.schema.names, rows.columns, strict=True))
    identified_by_offset: Column = pc.equal(columns["msg_id"], columns["offset_msg_id"])
    written.by_place += pc.sum(identified_by_offset).as_py() or 0
    known = (where(pc.invert(greater(columns[name], LAST_MS)), columns[name]) for name in ("start_ms", "end_ms"))
    latest = (written.last_ms, *(pc.max(times).as_py() for times in known))
    written.last_ms = max((time for time in latest if time is not None), default=None)
