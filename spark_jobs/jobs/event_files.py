"""This module knows how the events of a task are written by it: one parquet file, and a row that tells of them.

A file is named by its task and by the kind of source (Spark makes one task of two sources if each has but one), and
comes to its name when it is whole. A task that is run again, or twice at once, writes the same file over again, so that
what stands in the directory at the end is each task's work once.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from otel_mqtrace._clock import LAST_MS
from spark_jobs.normalise.columns import greater, where
from spark_jobs.spark_schemas import LEDGER, NORMALISED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from spark_jobs.normalise.columns import Column

__all__ = ["WRITTEN", "written_events"]

_Made: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"

_FACTS: Final = ("extra", "by_place", "last_ms")
WRITTEN: Final = StructType([*(StructField(name, LongType()) for name in _FACTS), *LEDGER.fields])
"""What a task tells of its events: rows that stand for no record or span of their own, events that know their message
by its place only, the latest start or end in epoch milliseconds that a calendar knows (a damaged record may have any);
and, in a row of its own, ``LEDGER``."""
_GROUP_ROWS: Final = 32_768
_GROUP_BYTES: Final = 32 << 20
"""As many rows, or bytes, are held before they are written together."""
_DICTIONARY_BYTES: Final = 64 << 10  # columns of ids soon give up what they gain nothing from


def written_events(directory: Path, made: _Made) -> Callable[[str, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what writes the events that ``made`` makes of batches, in the task that has them; it yields ``WRITTEN``.

    It takes the kind of source and the batches. ``made`` yields ``READ_EVENT`` and is sent to the executors; the
    directory must exist, empty, wherever a task runs.
    """
    return partial(_written, str(directory), made)


def _written(directory: str, made: _Made, kind: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    told, ledger = _Told(), dict.fromkeys(LEDGER.names, 0)
    with _File(Path(directory), kind) as file:
        for batch in made(batches):
            for name in LEDGER.names:
                ledger[name] += pc.sum(batch.column(name)).as_py() or 0
            events = batch.filter(batch.column("due").is_null())
            told.add(events)
            file.write(events.select(NORMALISED.names))
    rows = [dict.fromkeys(_FACTS) | ledger, told.row() | dict.fromkeys(LEDGER.names)]
    yield pa.RecordBatch.from_pylist(rows, schema=pa.schema(dict.fromkeys(WRITTEN.names, pa.int64())))


@dataclass(slots=True)
class _Told:
    extra: int = 0
    by_place: int = 0
    last_ms: int | None = None

    def add(self, events: pa.RecordBatch) -> None:
        self.extra += pc.sum(events.column("extra")).as_py() or 0
        columns: dict[str, Column] = dict(zip(events.schema.names, events.columns, strict=True))
        goes_by_place: Column = pc.equal(columns["msg_id"], columns["offset_msg_id"])
        self.by_place += pc.sum(goes_by_place).as_py() or 0
        known = (where(pc.invert(greater(columns[name], LAST_MS)), columns[name]) for name in ("start_ms", "end_ms"))
        latest = (self.last_ms, *(pc.max(times).as_py() for times in known))
        self.last_ms = max((time for time in latest if time is not None), default=None)

    def row(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in _FACTS}


class _File:
    """The file of this task; there is none when there is nothing to write."""

    def __init__(self, directory: Path, kind: str) -> None:
        task = TaskContext.get()
        self._path = directory / f"{kind}-{0 if task is None else task.partitionId():05d}.parquet"
        self._unready = directory / f".{self._path.name}.{uuid.uuid4().hex}"
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
            if self._writer is not None:
                self._writer.close()
                if kind is None:
                    self._unready.replace(self._path)
        finally:
            self._unready.unlink(missing_ok=True)  # unless it has come to its name

    def write(self, events: pa.RecordBatch) -> None:
        """Add some rows."""
        self._held.append(events)
        self._rows += events.num_rows
        self._bytes += events.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            held = pa.Table.from_batches(self._held)
            self._opened(held.schema).write_table(held, row_group_size=self._rows)
        self._held, self._rows, self._bytes = [], 0, 0

    def _opened(self, schema: pa.Schema) -> Any:
        from pyarrow import parquet  # noqa: PLC0415  (only where something is written)

        if self._writer is None:
            self._writer = parquet.ParquetWriter(
                self._unready, schema, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_BYTES
            )
        return self._writer
