"""Follow spans to other spans: to the send that a delivery points at, and to the caller in another service.

Semantic conventions let a consumer point at the send of its message by a link or by its parent, in the same trace or
in another. Both are followed by an exchange on span ids: no trace is ever put together.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bridge.storage import committed, list_files, make_directory, open_parquet, read_row_groups
from spark_jobs.columns import as_rows, encode, find_groups, is_known, join_codes, pc
from spark_jobs.exchange.packing import open_blobs, pack_by
from spark_jobs.judging.columns import equals
from spark_jobs.schemas import NORMALISED
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.exchange.engine import Engine

_MOST_BUCKETS: Final = 2_000  # not the 10,000 of events: every row group makes a blob for each
_NAMES: Final = ("kind", "scope", "msg_id", "offset_msg_id")

_WAITING: Final = NORMALISED.append(pa.field("at", pa.string()))
"""A send or delivery without an id; ``at`` is the place (trace id, slash, span id) of the send: its own, or where it
points."""
_TEXT: Final[Any] = pa.string()
_CLAIM: Final = pa.schema({"at": _TEXT, "msg_id": _TEXT, "is_send": pa.bool_()})
"""The id that a send has, or that a delivery has for the send at a place."""


def tie_spans(engine: Engine, files: Sequence[str], directory: str, *, bucket_rows: int = 60_000) -> tuple[str, ...]:
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
        buckets = _count_buckets(files, bucket_rows)
        engine.exchange(partial(_pack, directory, buckets), tasks, partial(_tie_bucket, directory), buckets)
    else:
        engine.map(partial(_name_by_position, directory), tasks)
    return tuple(list_files(directory))


def _count_buckets(files: Sequence[str], rows: int) -> int:
    total: int = sum(open_parquet(path).metadata.num_rows for path in files)
    return min(total // rows + 1, _MOST_BUCKETS)


def _count_nameless(path: str) -> tuple[int, int]:
    """Return how many sends and deliveries have no id of any kind, and how many events have only their place's."""
    nameless = placed = 0
    for table in read_row_groups(path, _NAMES):
        columns = {name: table[name] for name in _NAMES}
        has_place = is_known(columns["offset_msg_id"])
        has_id = is_known(columns["msg_id"])
        nameless += int(
            np.count_nonzero((_is(columns, Kind.PUBLISH) | _is(columns, Kind.CONSUME)) & ~has_id & ~has_place)
        )
        placed += int(np.count_nonzero(~has_id & has_place))
    return nameless, placed


def _is(columns: Mapping[str, Column], kind: Kind) -> Mask:
    found: Mask = equals(columns["kind"], kind.value) & ~is_known(columns["scope"])
    return found


def _name_by_position(directory: str, task: tuple[int, str]) -> None:
    number, path = task
    with (
        committed(f"{directory}/kept-{number:05d}.parquet") as unready,
        parquet.ParquetWriter(unready, NORMALISED) as file,
    ):
        for table in _row_groups(path):
            file.write_table(table)


def _row_groups(path: str) -> Iterator[pa.Table]:
    at = NORMALISED.get_field_index("msg_id")
    for read in read_row_groups(path):
        table = read.combine_chunks().select(NORMALISED.names).cast(NORMALISED)
        yield table.set_column(at, NORMALISED.field(at), pc.coalesce(table["msg_id"], table["offset_msg_id"]))


def _pack(directory: str, buckets: int, task: tuple[int, str]) -> Iterator[tuple[int, bytes]]:
    """Yield the claims of a file and its rows that wait for a name; write all others."""
    number, path = task
    with (
        committed(f"{directory}/kept-{number:05d}.parquet") as unready,
        parquet.ParquetWriter(unready, NORMALISED) as file,
    ):
        for table in _row_groups(path):
            columns = {name: table[name].combine_chunks() for name in table.column_names}
            kept, waiting, claims = _sort_out(columns)
            file.write_table(table.take(as_rows(kept)))
            rows, places = waiting
            some = table.take(as_rows(rows)).append_column("at", places).cast(_WAITING)
            for part in (some, claims):
                yield from pack_by(part, "at", buckets)


def _sort_out(columns: Mapping[str, Column]) -> tuple[Ints, tuple[Ints, Column], pa.Table]:
    """Return the rows that stay as they are, those that wait with the places they wait for, and ``_CLAIM``."""
    has_id = is_known(columns["msg_id"])
    is_send, is_delivery = _is(columns, Kind.PUBLISH), _is(columns, Kind.CONSUME)
    rows, at = _find_pointers(columns, np.flatnonzero(is_delivery))
    sends = np.flatnonzero(is_send)
    rows = np.concatenate([sends, rows])
    at = pa.concat_arrays([_join(columns["trace_id"], columns["span_id"]).take(as_rows(sends)), at])
    is_placed, is_named = is_known(at), has_id[rows]
    claiming = is_placed & is_named
    claims = pa.table(
        [
            at.filter(as_rows(claiming)),
            columns["msg_id"].take(as_rows(rows[claiming])),
            pa.array(is_send[rows[claiming]]),
        ],
        schema=_CLAIM,
    )
    waits = is_placed & ~is_named
    kept = np.ones(len(has_id), bool)
    kept[rows[~is_named]] = False
    # A delivery that points at several spans becomes several rows, those without a whole place among them.
    stays = np.concatenate([np.flatnonzero(kept), rows[~is_placed & ~is_named]])
    return stays, (rows[waits], at.filter(as_rows(waits))), claims


def _find_pointers(columns: Mapping[str, Column], rows: Ints) -> tuple[Ints, Column]:
    """Return the spans that rows point at, as pairs of row and place: what they link to, else their parent."""
    links = columns["links"].take(as_rows(rows))
    linking, linked = np.asarray(pc.list_parent_indices(links)), links.flatten()
    at = _join(linked.field("trace_id"), linked.field("span_id"))
    codes = encode(at)
    first, _ = find_groups(join_codes((linking, max(len(rows), 1)), (codes.values, codes.room)))
    has_links = np.zeros(len(rows), bool)
    has_links[linking] = True
    children = rows[~has_links]
    children = children[is_known(columns["parent_span_id"])[children]]
    parents = _join(columns["trace_id"], columns["parent_span_id"]).take(as_rows(children))
    return np.concatenate([rows[linking[first]], children]), pa.concat_arrays([at.take(as_rows(first)), parents])


def _join(trace_ids: Column, span_ids: Column) -> Column:
    return pc.binary_join_element_wise(trace_ids, span_ids, "/")


def _tie_bucket(directory: str, bucket: int, blobs: Iterable[bytes]) -> None:
    """Write the waiting rows of a bucket with the names that its claims give them."""
    tables = [open_blobs([blob]) for blob in sorted(blobs)]
    waiting = pa.concat_tables([_WAITING.empty_table(), *(one for one in tables if one.column_names != _CLAIM.names)])
    claims = pa.concat_tables([_CLAIM.empty_table(), *(one for one in tables if one.column_names == _CLAIM.names)])
    if not len(waiting):
        return
    places: list[Any] = waiting["at"].to_pylist()
    is_send = _is({name: waiting[name] for name in _NAMES}, Kind.PUBLISH).tolist()
    names = _name_rows(list(zip(places, is_send, strict=True)), claims.to_pylist())
    at = NORMALISED.get_field_index("msg_id")
    rows = waiting.select(NORMALISED.names).set_column(at, NORMALISED.field(at), pa.array(names, pa.string()))
    with committed(f"{directory}/tied-{bucket:05d}.parquet") as unready:
        parquet.write_table(rows, unready)


def _name_rows(waiting: Sequence[tuple[str, bool]], claims: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """Return the id of each waiting row, given its place and whether it is a send; the least where several claim it."""
    by_consumers: dict[str, str] = {}
    by_sends: dict[str, str] = {}
    for claim in claims:
        names, place, msg_id = by_sends if claim["is_send"] else by_consumers, claim["at"], claim["msg_id"]
        names[place] = min(names.get(place, msg_id), msg_id)
    pointed_at = {*by_consumers, *(place for place, is_send in waiting if not is_send)}
    for place, is_send in waiting:
        if is_send and place in pointed_at:
            msg_id = by_consumers.setdefault(place, f"span:{place}")
            by_sends[place] = min(by_sends.get(place, msg_id), msg_id)
    return [(by_consumers if is_send else by_sends).get(place) for place, is_send in waiting]


# -- calls from one service into another without a message: spans whose parent is a span of another service ------------
_CALL_COLUMNS: Final = ("trace_id", "span_id", "parent_span_id", "service", "start_ms", "kind")

Calls = Counter[tuple[str, str]]
"""How often each service, the first of a pair, calls the second."""


def count_direct_calls(
    engine: Engine, files: Sequence[str], *, begin_ms: int | None, end_ms: int | None, bucket_rows: int = 200_000
) -> Calls:
    """Return the calls from one service into another that started from ``begin_ms`` to ``end_ms``, both included.

    ``files`` are ``NORMALISED``, of the OTLP side; spans in scope or not, copies of one count once.
    """
    buckets = _count_buckets(files, bucket_rows)
    found = engine.exchange(partial(_pack_calls, buckets), files, partial(_count_bucket, begin_ms, end_ms), buckets)
    total: Calls = Counter()
    for one in found:
        total.update(one)
    return total


def _pack_calls(buckets: int, path: str) -> Iterator[tuple[int, bytes]]:
    for table in read_row_groups(path, (*_CALL_COLUMNS, "bad.reason")):
        whole = pc.is_null(table["bad"])
        for name in ("trace_id", "span_id", "service"):
            whole = pc.and_(whole, pc.is_valid(table[name]))
        yield from pack_by(table.filter(whole).select(_CALL_COLUMNS), "trace_id", buckets)


def _count_bucket(begin_ms: int | None, end_ms: int | None, _bucket: int, blobs: Sequence[bytes]) -> Calls:
    spans = open_blobs(blobs)
    is_delivery = pc.fill_null(pc.equal(spans["kind"], Kind.CONSUME.value), fill_value=False)
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
