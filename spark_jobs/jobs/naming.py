"""Give spans the message id of other events: those with the same Kafka position, or those that they point at.

Semantic conventions let a consumer point at the send of its message by a link or by its parent, in the same trace or
in another. Positions and pointers are both followed by an exchange on places: no trace is ever put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bridge.storage.paths import list_files, make_directory, open_parquet, read_row_groups, remove_tree
from spark_jobs.columns import encode, find_groups, is_known, join_codes, mark, pc
from spark_jobs.exchange.packing import open_blobs, pack_by
from spark_jobs.jobs.reading import open_rows
from spark_jobs.judging.columns import identified_by_offset, is_equal
from spark_jobs.schemas import NORMALISED
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.exchange.engine import Engine

_BUCKET_ROWS: Final = 60_000
_MOST_BUCKETS: Final = 2_000  # not the 10,000 of events: every row group makes a blob for each
_TEXT: Final[Any] = pa.string()
_IDS: Final = ("side", "kind", "scope", "msg_id", "offset_msg_id")
_AT_ID: Final = NORMALISED.get_field_index("msg_id")

WAITING: Final = NORMALISED.append(pa.field("at", _TEXT))
"""An event that takes the name known of the place ``at``, the position of a message or a span."""
CLAIM: Final = pa.schema({"at": _TEXT, "msg_id": _TEXT, "is_send": pa.bool_()})
"""The id that the event at a place has, or (``is_send`` is false) that a delivery has for the send at a place."""

_Task = tuple[int, str]  # number and path
_Sort = Callable[[_Task], Iterator[pa.Table]]
"""Yields of a file the rows that stay as they are (``NORMALISED``), those that wait (``WAITING``), and ``CLAIM``."""
_Resolve = Callable[[pa.Table, pa.Table], "Column"]
"""Returns the ids of waiting rows by the claims of their places."""


def _pack(sort: _Sort, directory: str, buckets: int, task: _Task) -> Iterator[tuple[int, bytes]]:
    """Yield the claims of a file and its rows that wait; write all others."""
    with open_rows(f"{directory}/kept-{task[0]:05d}.parquet") as write:
        for rows in sort(task):
            if rows.column_names == NORMALISED.names:
                write(rows)
            else:
                yield from pack_by(rows, "at", buckets)


def _name(resolve: _Resolve, directory: str, bucket: int, blobs: Iterable[bytes]) -> None:
    """Write the waiting rows of a bucket with their names."""
    tables = [open_blobs([blob]) for blob in sorted(blobs)]
    waiting, claims = (
        pa.concat_tables([schema.empty_table(), *(one for one in tables if one.column_names == schema.names)])
        for schema in (WAITING, CLAIM)
    )
    claims = claims.filter(pc.is_in(claims["at"], waiting["at"].combine_chunks()))  # most places have no waiting row
    rows = waiting.select(NORMALISED.names).set_column(_AT_ID, NORMALISED.field(_AT_ID), resolve(waiting, claims))
    with open_rows(f"{directory}/named-{bucket:05d}.parquet") as write:
        write(rows)


def _columns_of(path: str, names: Sequence[str] = NORMALISED.names) -> Iterator[dict[str, Column]]:
    for rows in read_row_groups(path, names):
        yield {name: rows[name].combine_chunks() for name in rows.column_names}


def _is_in_scope(columns: Mapping[str, Column], kind: Kind) -> Mask:
    found: Mask = is_equal(columns["kind"], kind.value) & ~is_known(columns["scope"])
    return found


def _take(table: pa.Table, rows: Ints, at: Column) -> pa.Table:
    """Return these rows, waiting for the places ``at``."""
    return table.take(rows).append_column("at", at).cast(WAITING)


# -- by the position of a message: the native send there has its id --------------------------------------------------
def claims_in(columns: Mapping[str, Column]) -> pa.Table:
    """Return ``CLAIM`` of the native sends among events (``side``, ``kind``, ``msg_id``, ``offset_msg_id``)."""
    is_send = is_equal(columns["side"], "native") & is_equal(columns["kind"], Kind.PUBLISH.value)
    is_named = is_known(columns["msg_id"]) & is_known(columns["offset_msg_id"])
    rows = pa.array(np.flatnonzero(is_send & is_named & ~identified_by_offset(columns)))
    at, msg_ids = (columns[name].take(rows).cast(_TEXT) for name in ("offset_msg_id", "msg_id"))
    return pa.table([at, msg_ids, pa.array([True] * len(rows), pa.bool_())], schema=CLAIM)


def resolve_positions(waiting: pa.Table, claims: pa.Table) -> Column:
    """Return the positions of ``waiting``, each that ``claims`` give to exactly one id replaced by that id."""
    places = waiting["at"].combine_chunks()
    found = claims.group_by("at", use_threads=False).aggregate([("msg_id", "min"), ("msg_id", "max")])
    known = found.filter(pc.equal(found["msg_id_min"], found["msg_id_max"])).combine_chunks()
    at = pc.index_in(places, known["at"].combine_chunks())
    return pc.coalesce(known["msg_id_min"].combine_chunks().take(at), places)


def with_message_ids(
    engine: Engine, native_files: Sequence[str], otlp_files: Sequence[str], directory: str, *, by_place: int
) -> tuple[str, ...]:
    """Return files in ``directory`` with the rows of ``otlp_files``, their spans named by the native sends.

    Only spans with a position but no id, ``by_place`` of them, are exchanged; files without any stay as they are.
    """
    if not by_place:
        return tuple(otlp_files)
    counts = engine.map(_count_by_place, otlp_files)
    remove_tree(directory)
    make_directory(directory)
    waiting = [path for path, count in zip(otlp_files, counts, strict=True) if count]
    buckets = min(max(-(-sum(counts) // _BUCKET_ROWS), 1), _MOST_BUCKETS)
    tasks = [*((-1, path) for path in native_files), *enumerate(waiting)]
    pack, name = partial(_pack, _sort_by_position, directory, buckets), partial(_name, resolve_positions, directory)
    engine.exchange(pack, tasks, name, buckets)
    untouched = (path for path, count in zip(otlp_files, counts, strict=True) if not count)
    return (*untouched, *list_files(directory))


def _count_by_place(path: str) -> int:
    return sum(int(np.count_nonzero(_is_by_place(columns))) for columns in _columns_of(path, _IDS))


def _is_by_place(columns: Mapping[str, Column]) -> Mask:
    found: Mask = is_equal(columns["side"], "otlp") & identified_by_offset(columns)
    return found


def _sort_by_position(task: _Task) -> Iterator[pa.Table]:
    """Sort a file with spans; one with the number -1 is there for its sends only."""
    if task[0] < 0:
        yield from map(claims_in, _columns_of(task[1], _IDS))
        return
    for columns in _columns_of(task[1]):
        is_waiting = _is_by_place(columns)
        # an event of an earlier run has no ``bad``
        table = pa.concat_tables([NORMALISED.empty_table(), pa.table(columns)], promote_options="default")
        rows = np.flatnonzero(is_waiting)
        yield table.filter(pa.array(~is_waiting))
        yield _take(table, rows, columns["msg_id"].take(rows))


# -- by a span: a send and the deliveries that point at it -----------------------------------------------------------
def tie_spans(
    engine: Engine, files: Sequence[str], directory: str, *, bucket_rows: int = _BUCKET_ROWS
) -> tuple[str, ...]:
    """Return new files, in ``directory``, in which a send and the deliveries that point at it name the same message.

    An event without a message id takes its position on the broker. A send without either takes the position that its
    consumers name (one-way sends), else that of its span. A delivery without an id takes its send's; one that points
    at several sends becomes one delivery of each. Files without such spans are returned as they are.
    """
    counts = engine.map(_count_nameless, files)
    nameless, placed = (sum(found) for found in zip(*counts, strict=True)) if counts else (0, 0)
    if not nameless and not placed:
        return tuple(files)
    make_directory(directory)
    tasks = list(enumerate(files))
    if nameless:
        total = sum(open_parquet(path).metadata.num_rows for path in files)
        buckets = min(total // bucket_rows + 1, _MOST_BUCKETS)
        pack, name = partial(_pack, _sort_by_pointer, directory, buckets), partial(_name, _resolve_pointers, directory)
        engine.exchange(pack, tasks, name, buckets)
    else:
        engine.map(partial(_name_by_position, directory), tasks)
    return tuple(list_files(directory))


def _count_nameless(path: str) -> tuple[int, int]:
    """Return how many sends and deliveries have no id of any kind, and how many events have only their place's."""
    nameless = placed = 0
    for columns in _columns_of(path, _IDS):
        has_place, has_no_id = is_known(columns["offset_msg_id"]), ~is_known(columns["msg_id"])
        is_leg = _is_in_scope(columns, Kind.PUBLISH) | _is_in_scope(columns, Kind.CONSUME)
        nameless += int(np.count_nonzero(is_leg & has_no_id & ~has_place))
        placed += int(np.count_nonzero(has_no_id & has_place))
    return nameless, placed


def _name_by_position(directory: str, task: _Task) -> None:
    with open_rows(f"{directory}/kept-{task[0]:05d}.parquet") as write:
        for table in _fill_positions(task[1]):
            write(table)


def _fill_positions(path: str) -> Iterator[pa.Table]:
    for columns in _columns_of(path):
        msg_ids = pc.coalesce(columns["msg_id"], columns["offset_msg_id"])
        yield pa.table({**columns, "msg_id": msg_ids}).cast(NORMALISED)


def _sort_by_pointer(task: _Task) -> Iterator[pa.Table]:
    for table in _fill_positions(task[1]):
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        rows, at = _find_pointers(columns, np.flatnonzero(_is_in_scope(columns, Kind.CONSUME)))
        is_send = _is_in_scope(columns, Kind.PUBLISH)
        sends = np.flatnonzero(is_send)
        rows = np.concatenate([sends, rows])
        at = pa.concat_arrays([_join(columns["trace_id"], columns["span_id"]).take(sends), at])
        is_placed, is_named = is_known(at), is_known(columns["msg_id"])[rows]
        claiming, waits = np.flatnonzero(is_placed & is_named), np.flatnonzero(is_placed & ~is_named)
        msg_ids = columns["msg_id"].take(rows[claiming])
        kept = ~mark(len(table), rows[~is_named])
        # A delivery that points at several spans becomes several rows, those without a whole place among them.
        stays = np.concatenate([np.flatnonzero(kept), rows[~is_placed & ~is_named]])
        yield table.take(stays)
        yield _take(table, rows[waits], at.take(waits))
        yield pa.table([at.take(claiming), msg_ids, pa.array(is_send[rows[claiming]])], schema=CLAIM)


def _find_pointers(columns: Mapping[str, Column], rows: Ints) -> tuple[Ints, Column]:
    """Return the spans that rows point at, as pairs of row and place: what they link to, else their parent."""
    links = columns["links"].take(rows)
    linking, linked = np.asarray(pc.list_parent_indices(links)), links.flatten()
    at = _join(linked.field("trace_id"), linked.field("span_id"))
    codes = encode(at)
    first, _ = find_groups(join_codes((linking, max(len(rows), 1)), (codes.values, codes.room)))
    children = rows[~mark(len(rows), linking)]
    children = children[is_known(columns["parent_span_id"])[children]]
    parents = _join(columns["trace_id"], columns["parent_span_id"]).take(children)
    return np.concatenate([rows[linking[first]], children]), pa.concat_arrays([at.take(first), parents])


def _join(trace_ids: Column, span_ids: Column) -> Column:
    return pc.binary_join_element_wise(trace_ids, span_ids, "/")


def _resolve_pointers(waiting: pa.Table, claims: pa.Table) -> Column:
    """Return the id of each waiting row by its place and whether it is a send; the least where several claim it."""
    by_consumers: dict[str, str] = {}
    by_sends: dict[str, str] = {}
    for claim in claims.to_pylist():
        names, place, msg_id = by_sends if claim["is_send"] else by_consumers, claim["at"], claim["msg_id"]
        names[place] = min(names.get(place, msg_id), msg_id)
    places: list[Any] = waiting["at"].to_pylist()
    rows = list(zip(places, is_equal(waiting["kind"], Kind.PUBLISH.value).tolist(), strict=True))
    pointed_at = {*by_consumers, *(place for place, is_send in rows if not is_send)}
    for place, is_send in rows:
        if is_send and place in pointed_at:
            msg_id = by_consumers.setdefault(place, f"span:{place}")
            by_sends[place] = min(by_sends.get(place, msg_id), msg_id)
    return pa.array([(by_consumers if is_send else by_sends).get(place) for place, is_send in rows], _TEXT)
