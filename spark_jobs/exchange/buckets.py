"""Open the rows of a bucket: in memory, or in a mapped file where they are more than a worker should hold."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_jobs.exchange.packing import COLUMN_TYPES, open_blobs, plain_size, take_blobs
from spark_jobs.judging.columns import single_arrays

if TYPE_CHECKING:
    from spark_jobs.columns import Column

MEMORY_BYTES: Final = 32 << 20
"""Rows of more bytes go to a mapped file. 40,000 rows take 12 MiB; their verdicts, counts and copies ten times that."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The events of a bucket: ``EVENT`` rows, and each of their columns as one array."""

    events: pa.Table
    columns: Mapping[str, Column]


def open_bucket(blobs: list[bytes], memory_bytes: int = MEMORY_BYTES) -> Bucket:
    """Return the rows of a bucket's blobs, in an order that does not depend on how they arrived.

    Args:
        blobs: what ``pack_pieces`` yielded for the bucket; a list that is spooled is emptied.
        memory_bytes: larger buckets are spooled to a temporary file, so many bytes at a time.
    """
    if sum(map(plain_size, blobs)) <= memory_bytes:
        events = open_blobs(blobs)
        return Bucket(events, single_arrays(events))
    with tempfile.TemporaryDirectory(prefix="mqtrace-bucket-") as directory:  # what is mapped outlives its name
        rows, columns = Path(directory) / "rows", Path(directory) / "columns"
        _write_rows(rows, blobs, memory_bytes)
        return _write_columns(rows, columns)


def _write_rows(path: Path, blobs: list[bytes], memory_bytes: int) -> None:
    """Write the rows of all blobs as one Arrow IPC stream of few batches; empty the list."""
    schema = pa.schema(list(COLUMN_TYPES.items()))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for group in take_blobs(blobs, memory_bytes // 2):
            stream.write_table(open_blobs(group).select(schema.names).cast(schema))


def _write_columns(rows: Path, path: Path) -> Bucket:
    """Write each column of ``rows`` as one array, and map them all."""
    source = _Mapping(rows)
    table = pa.ipc.open_stream(source.buffer).read_all()
    ends = [0]
    with pa.OSFile(str(path), "wb") as file:
        for name in table.column_names:
            column: Any = table[name].unify_dictionaries().combine_chunks()
            with pa.ipc.new_stream(file, pa.schema([(name, column.type)])) as stream:
                stream.write_batch(pa.RecordBatch.from_arrays([column], names=[name]))
            ends.append(file.tell())
            del column
            source.release()
    target = _Mapping(path)
    arrays = {}
    for name, begin, end in zip(table.column_names, ends, ends[1:], strict=False):
        arrays[name] = pa.ipc.open_stream(target.buffer.slice(begin, end - begin)).read_all()[name].chunk(0)
    return Bucket(pa.table(list(arrays.values()), names=list(arrays)), _MappedColumns(arrays, target))


class _Mapping:
    """A file mapped into memory; what was read stays in memory until it is released."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.buffer: Any = pa.py_buffer(self._map)

    def release(self) -> None:
        """Give back the memory of all pages; one that is read again comes from the file."""
        self._map.madvise(mmap.MADV_DONTNEED)


class _MappedColumns(Mapping[str, Any]):
    """Columns of a mapped file: taking one gives back the memory of those that were read before."""

    def __init__(self, arrays: Mapping[str, Column], mapping: _Mapping) -> None:
        self._arrays, self._mapping = arrays, mapping

    def __getitem__(self, name: str) -> Column:
        self._mapping.release()
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
