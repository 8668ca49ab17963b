"""Replace a span's Kafka position by the message id that the native send at that position has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bridge.storage import committed, list_files, make_directory, read_row_groups, remove_tree
from spark_jobs.columns import equal, pc
from spark_jobs.exchange.packing import open_blobs, pack_by
from spark_jobs.jobs.reading import EventFile
from spark_jobs.schemas import NORMALISED
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from spark_jobs.columns import Column
    from spark_jobs.exchange.engine import Engine

CLAIM: Final = pa.schema({"place": pa.string(), "claimed": pa.string()})
"""A native send's word that the message at ``place`` has the id ``claimed``."""


def identified_by_offset(columns: Mapping[str, Column]) -> Column:
    """Return which events (``msg_id``, ``offset_msg_id``) have the position of their message as its only id."""
    return pc.fill_null(pc.equal(columns["msg_id"], columns["offset_msg_id"]), False)  # noqa: FBT003


def claims_in(columns: Mapping[str, Column]) -> pa.Table:
    """Return ``CLAIM`` of the native sends among events (``side``, ``kind``, ``msg_id``, ``offset_msg_id``)."""
    is_send = pc.and_(pc.equal(columns["side"], "native"), pc.equal(columns["kind"], Kind.PUBLISH.value))
    is_named = pc.and_(pc.is_valid(columns["msg_id"]), pc.is_valid(columns["offset_msg_id"]))
    chosen = pc.and_(pc.and_(pc.fill_null(is_send, False), is_named), pc.invert(identified_by_offset(columns)))  # noqa: FBT003
    found = [columns[name].filter(chosen).cast(pa.string()) for name in ("offset_msg_id", "msg_id")]
    return pa.table(found, schema=CLAIM)


def resolve_message_ids(msg_ids: Column, claims: pa.Table) -> Column:
    """Return ``msg_ids``, each position that ``claims`` give to exactly one id replaced by that id."""
    found = claims.group_by("place", use_threads=False).aggregate([("claimed", "min"), ("claimed", "max")])
    known = found.filter(pc.equal(found["claimed_min"], found["claimed_max"])).combine_chunks()
    at = pc.index_in(msg_ids, known["place"].combine_chunks())
    return pc.coalesce(known["claimed_min"].combine_chunks().take(at), msg_ids)


_BUCKET_ROWS: Final = 60_000
_MOST_BUCKETS: Final = 2_000  # not the 10,000 of events: every batch of a file makes a blob for each
_KEY: Final = ("side", "kind", "msg_id", "offset_msg_id")


@dataclass(frozen=True, slots=True)
class _Task:
    """A file to take sends from, or, with a ``number``, one whose spans are named."""

    path: str
    number: int | None = None


def with_message_ids(
    engine: Engine,
    native_files: Sequence[str],
    otlp_files: Sequence[str],
    directory: str,
    *,
    by_place: int | None = None,
) -> tuple[str, ...]:
    """Return files in ``directory`` with the rows of ``otlp_files``, their spans named by the native sends.

    Only spans with a position but no id (``by_place`` of them, if counted) are exchanged; files without any stay as
    they are.
    """
    counts = engine.map(_count_by_place, otlp_files) if by_place != 0 else [0] * len(otlp_files)
    if not any(counts):
        return tuple(otlp_files)
    remove_tree(directory)
    make_directory(directory)
    waiting = [path for path, count in zip(otlp_files, counts, strict=True) if count]
    buckets = min(max(-(-sum(counts) // _BUCKET_ROWS), 1), _MOST_BUCKETS)
    tasks = [*(_Task(path) for path in native_files), *(_Task(path, at) for at, path in enumerate(waiting))]
    engine.exchange(partial(_pack, directory, buckets), tasks, partial(_name, directory), buckets)
    untouched = (path for path, count in zip(otlp_files, counts, strict=True) if not count)
    return (*untouched, *list_files(directory))


def _count_by_place(path: str) -> int:
    return sum(int(np.count_nonzero(_is_waiting(columns))) for _, columns in _row_groups(path, _KEY))


def _is_waiting(columns: dict[str, Column]) -> npt.NDArray[np.bool_]:
    is_span = pc.fill_null(equal(columns["side"], "otlp"), False)  # noqa: FBT003
    return np.asarray(pc.and_(is_span, identified_by_offset(columns)))


def _row_groups(path: str, names: Sequence[str]) -> Iterator[tuple[pa.Table, dict[str, Column]]]:
    for rows in read_row_groups(path, names):
        table = rows.combine_chunks()
        yield table, {name: table[name].combine_chunks() for name in table.column_names}


def _pack(directory: str, buckets: int, task: _Task) -> Iterator[tuple[int, bytes]]:
    """Yield sends as rows of ``CLAIM``, or the spans that wait for a name; write the other rows of their file."""
    if task.number is None:
        for _, columns in _row_groups(task.path, _KEY):
            yield from pack_by(claims_in(columns), "place", buckets)
        return
    with committed(f"{directory}/kept-{task.number:05d}.parquet") as unready, EventFile(unready) as file:
        for table, columns in _row_groups(task.path, NORMALISED.names):
            is_waiting = pa.array(_is_waiting(columns))
            # an event of an earlier run has no ``bad``
            rows = pa.concat_tables([NORMALISED.empty_table(), table], promote_options="default")
            for batch in rows.filter(pc.invert(is_waiting)).combine_chunks().to_batches():
                file.write(batch)
            yield from pack_by(rows.filter(is_waiting), "msg_id", buckets)


def _name(directory: str, bucket: int, blobs: Iterable[bytes]) -> None:
    tables = [open_blobs([blob]) for blob in sorted(blobs)]
    claims = pa.concat_tables([CLAIM.empty_table(), *(one for one in tables if one.column_names == CLAIM.names)])
    at = NORMALISED.get_field_index("msg_id")
    with committed(f"{directory}/named-{bucket:05d}.parquet") as unready, EventFile(unready) as file:
        for table in tables:
            if table.column_names != CLAIM.names:
                named = resolve_message_ids(table["msg_id"].combine_chunks(), claims)
                for batch in table.set_column(at, NORMALISED.field(at), named).combine_chunks().to_batches():
                    file.write(batch)
