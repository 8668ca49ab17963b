"""Rows of event files packed into buckets by message, as Arrow IPC: what is shuffled are few large blobs."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage.paths import open_parquet
from spark_jobs.columns import hash_texts, take_groups
from spark_jobs.judging.columns import single_array, single_arrays
from spark_jobs.judging.facts import is_trace_traffic
from spark_jobs.judging.identity import KEY_COLUMNS, message_key
from spark_jobs.schemas import EVENT, MENTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from spark_jobs.columns import Column

BUCKET_ROWS: Final = 32_000
"""Rows judged at a time. A worker of 1 M events on Spark held 306 MiB with 40,000 rows, 296 with these."""
_TASK_ROWS: Final = 200_000
_PACK_ROWS: Final = 100_000
"""Rows sorted by bucket at a time: about 50 MiB, held twice."""
_BLOB_ROWS, _MOST_BLOB_ROWS = 2_000, 20_000
"""A blob holds so many rows where it can: with 130 rows each, packing and opening cost three times as much."""
_LEAST_BLOB_ROWS: Final = 1_000
"""Buckets whose blobs would be smaller travel together."""
_SPLIT_BYTES: Final = 8 << 20
"""Rows of so many bytes are split into their buckets at a time."""
_MOST_BUCKETS: Final = 10_000
_CODEC: Final = "zstd"
_SIZE: Final = Struct("<q")
"""A blob begins with the size of its Arrow IPC stream."""
REPEATED: Final = (
    *("side", "kind", "half", "topic", "group_name", "region_id", "tags", "store_host", "client_host", "msg_type"),
    *("context_code", "transaction_state", "service", "path", "writer", "id_source", "left_as"),
)
"""Columns whose values repeat stay dictionaries from the file through the shuffle."""
_COLUMNS: Final = tuple(name for name in EVENT.names if name not in {"scope", "links"})
_WORD: Final[Any] = pa.dictionary(pa.int32(), pa.string())
_PACKED: Final = pa.schema({name: _WORD if name in REPEATED else EVENT.field(name).type for name in _COLUMNS})
"""Packed rows, as they are judged."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of a file of ``NORMALISED`` rows: its events, and the mentions in its malformed rows.

    Spans of ``trace_topics`` are out of scope even if the file does not mark them: a later input may show the topics.
    """

    path: str
    group: int
    rows: int
    trace_topics: tuple[str, ...] = ()


def pieces_of(paths: Iterable[str], *, trace_topics: Sequence[str] = ()) -> list[Piece]:
    """Return the row groups of some files."""
    found = []
    for path in paths:
        metadata = open_parquet(path).metadata
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            found.append(Piece(path, group, rows, tuple(trace_topics)))
    return found


def group_pieces(pieces: Iterable[Piece], cores: int) -> list[list[Piece]]:
    """Return ``pieces`` in order, as many together as are worth a task; no fewer tasks than cores where it can be."""
    some = list(pieces)
    most = min(_TASK_ROWS, -(-sum(piece.rows for piece in some) // max(cores, 1)))
    return [*take_groups(some, lambda piece: (piece.rows, 0), rows=most)]


def count_buckets(pieces: Iterable[Piece], cores: int, bucket_rows: int = BUCKET_ROWS) -> int:
    """Return into how many buckets the rows go: what a worker can hold, and work for every core."""
    rows = sum(piece.rows for piece in pieces)
    return max(1, min(_MOST_BUCKETS, max(-(-rows // bucket_rows), min(cores, -(-rows // _BLOB_ROWS)))))


def count_together(buckets: int, cores: int) -> int:
    """Return how many buckets travel as one: enough to avoid small blobs, few enough to keep every core busy."""
    return max(1, min(-(-buckets * _LEAST_BLOB_ROWS // _PACK_ROWS), buckets // max(cores, 1)))


def pack_pieces(
    buckets: int, pieces: Sequence[Piece], *, together: int = 1, keep: Callable[[pa.Table], pa.Table] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(bucket, blob)``: the rows of the pieces, those of one message all in one of ``buckets``.

    ``together`` buckets in a row are packed as one, and numbered so. ``keep`` returns the rows to pack, by default all.
    """
    held: list[pa.Table] = []
    for piece in pieces:
        held.append(_read(piece) if keep is None else keep(_read(piece)))
        if sum(map(len, held)) >= _PACK_ROWS:
            yield from _split(held, buckets, together)
    if any(map(len, held)):
        yield from _split(held, buckets, together)


def split_blobs(blobs: list[bytes], buckets: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the rows of buckets that were packed together, as blobs of one bucket each; empty the list.

    A temporary file holds those of the other buckets.
    """
    places: dict[int, list[tuple[int, int]]] = {}
    with tempfile.TemporaryFile(prefix="mqtrace-buckets-") as file:
        for group in take_blobs(blobs, _SPLIT_BYTES):
            for bucket, blob in _split([open_blobs(group)], buckets):
                places.setdefault(bucket, []).append((file.tell(), len(blob)))
                file.write(blob)
        file.flush()
        for bucket, found in sorted(places.items()):
            yield bucket, [os.pread(file.fileno(), size, begin) for begin, size in found]


def _read(piece: Piece) -> pa.Table:
    file = open_parquet(piece.path, read_dictionary=list(REPEATED))
    held = frozenset(file.schema_arrow.names)
    names = [name for name in (*_COLUMNS, "scope", "bad") if name in held]
    table = file.read_row_group(piece.group, columns=names, use_threads=False)
    has_bad = "bad" in names and table["bad"].null_count < len(table)
    inside = pc.is_null(table["scope"])
    if has_bad:
        inside = pc.and_(inside, pc.is_null(table["bad"]))
    if piece.trace_topics:
        topics, sides = (table[name].cast(pa.string()) for name in ("topic", "side"))
        inside = pc.and_(inside, pc.invert(is_trace_traffic(topics, sides, piece.trace_topics)))
    events = table.select(_COLUMNS)
    parts = [events if pc.all(inside).as_py() else events.filter(inside)]
    if has_bad:
        parts.append(_mentions(table.filter(pc.is_valid(table["bad"]))))
    return pa.concat_tables(parts, promote_options="permissive")


def _mentions(bad: pa.Table) -> pa.Table:
    """Return a row for each message that a malformed row names: it may be the one whose counterpart is missing."""
    rows = [
        {"side": row["side"], "kind": MENTION, "path": row["path"], "line": row["line"], "msg_id": msg_id}
        for row in bad.select(["side", "path", "line", "bad"]).to_pylist()
        for msg_id in row["bad"]["mentions"] or ()
    ]
    return pa.Table.from_pylist(rows, schema=_PACKED)


def _split(held: list[pa.Table], buckets: int, together: int = 1) -> Iterator[tuple[int, bytes]]:
    whole = pa.concat_tables(held, promote_options="permissive").unify_dictionaries()
    held.clear()
    bucket_of = _bucket_of(message_key(single_arrays(whole.select(KEY_COLUMNS))), buckets) // together
    # The caller's name would keep every column alive while its sorted copy is made: 100 MiB for 200,000 rows.
    owned = [whole]
    del whole
    yield from _pack_sorted(*_sort_columns(owned, bucket_of), -(-buckets // together))


def _bucket_of(texts: Column, buckets: int) -> npt.NDArray[np.int64]:
    return (hash_texts(texts) % np.uint64(buckets)).astype(np.int64)


def pack_rows(
    rows: pa.RecordBatch | pa.Table, bucket_of: npt.NDArray[np.int64], buckets: int
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(bucket, blob)``: the rows of each bucket, in their order."""
    yield from _pack_sorted(*_sort_columns([rows], bucket_of), buckets)


def pack_by(rows: pa.Table, name: str, buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yield ``(bucket, blob)``: rows in their order, those of one value of a column of texts all in one bucket."""
    yield from pack_rows(rows, _bucket_of(single_array(rows[name]), buckets), buckets)


def _sort_columns(owned: list[Any], bucket_of: npt.NDArray[np.int64]) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """Return the rows of the table taken from ``owned`` sorted by bucket, and the bucket of each.

    Every column is freed as soon as it is sorted, so that the rows are in memory once.
    """
    table = owned.pop()
    names, columns = table.schema.names, list(table.columns)
    del table
    order = np.argsort(bucket_of, kind="stable")
    taken = pa.array(order)
    for at in range(len(columns)):
        if isinstance(columns[at], pa.ChunkedArray):
            columns[at] = single_array(columns[at])
        columns[at] = columns[at].take(taken)
    return pa.RecordBatch.from_arrays(columns, names=names), bucket_of[order]


def _pack_sorted(rows: pa.RecordBatch, bucket_of: npt.NDArray[np.int64], buckets: int) -> Iterator[tuple[int, bytes]]:
    bounds = np.searchsorted(bucket_of, np.arange(buckets + 1)).tolist()
    for bucket, (first, end) in enumerate(pairwise(bounds)):
        for begin in range(first, end, _MOST_BLOB_ROWS):
            yield bucket, make_blob(rows.slice(begin, min(_MOST_BLOB_ROWS, end - begin)))


def make_blob(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Return rows as one blob."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    # Compressed as a whole: Arrow's own compression takes each of 130 buffers alone, five times the work at 500 rows.
    return compress(sink.getvalue())


def compress(plain: pa.Buffer | bytes) -> bytes:
    """Return ``plain`` compressed, behind its size."""
    return _SIZE.pack(len(memoryview(plain))) + pa.Codec(_CODEC).compress(plain, asbytes=True)


def decompress(blob: bytes) -> pa.Buffer:
    """Return what :func:`compress` was given."""
    return pa.Codec(_CODEC).decompress(memoryview(blob)[_SIZE.size :], plain_size(blob))


def open_blobs(blobs: Iterable[bytes]) -> pa.Table:
    """Return the rows of a bucket's blobs, in an order that does not depend on how they arrived."""
    tables = [pa.ipc.open_stream(decompress(blob)).read_all() for blob in sorted(blobs)]
    return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()


def take_blobs(blobs: list[bytes], most_bytes: int) -> Iterator[list[bytes]]:
    """Yield a list's blobs, in an order that does not depend on theirs, some of so many bytes at a time; empty it."""
    blobs.sort(reverse=True)
    emptied = (blobs.pop() for _ in range(len(blobs)))
    return take_groups(emptied, lambda blob: (0, plain_size(blob)), size=most_bytes)


def plain_size(blob: bytes) -> int:
    """Return how many bytes the rows of a blob take in memory."""
    size: int = _SIZE.unpack_from(blob)[0]
    return size


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
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, _PACKED) as stream:
        for group in take_blobs(blobs, memory_bytes // 2):
            stream.write_table(open_blobs(group).select(_PACKED.names).cast(_PACKED))


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
