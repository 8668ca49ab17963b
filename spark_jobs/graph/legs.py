"""Legs of messages: one row for each send to a topic, delivery to a consumer group, end of a transaction and recall.

A verdict is one leg: copies of a record are one row, and so are the record and the span of one event.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage import open_parquet
from otel_mqtrace._clock import LAST_MS
from spark_jobs.columns import encode
from spark_jobs.judging.columns import CodedVerdicts, flatten_sides
from spark_jobs.schemas import PREFIXES
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_jobs.columns import Column

_LONGEST_NAME: Final = 1_000
_MOST_OWNERS: Final = 1_000
"""So many groups are given their service, those with the most legs that name it first."""

_TEXT: Final[Any] = pa.string()
_WORD: Final[Any] = pa.dictionary(pa.int32(), pa.string())
_LONG: Final[Any] = pa.int64()
_BOOL: Final[Any] = pa.bool_()

LEG: Final = pa.schema(
    {
        "message": _TEXT,  # the id, or a position of the row's own; never null
        "identified": _BOOL,  # whether the id is one that others could name
        "kind": _WORD,
        "group": _WORD,  # without its namespace
        "service": _WORD,
        "via": _WORD,  # RETRY, DLQ, or null
        "namespace": _WORD,
        "bare_topic": _WORD,  # for a retry or dead-letter topic: the group it belongs to
        "event_ms": _LONG,
        "busy_ms": _LONG,  # start to end
        "queue_ms": _LONG,
        "finished": _BOOL,  # deliveries only
        "success": _BOOL,
        "retry_times": pa.int32(),
        "msg_type": _WORD,
        "transaction_state": _WORD,
        "inside": _BOOL,  # of the window
        "on_native": _BOOL,
        "on_otlp": _BOOL,
    }
)
"""One send, delivery, end of a transaction or recall. Times are epoch milliseconds."""

_REPEATED: Final = ("kind", "topic", "group", "status", "otlp.service")
_OF_SIDE: Final = ("start_ms", "end_ms", "success", "msg_type", "transaction_state")
_COLUMNS: Final = (
    *("kind", "msg_id", "topic", "group", "retry_times", "status", "event_ms", "queue_ms"),
    *(f"{side}.{name}" for side in ("native", "otlp") for name in _OF_SIDE),
    "otlp.service",
)
_POSITIONS: Final = (
    *("msg_id", "otlp.trace_id", "otlp.span_id"),
    *(f"{side}.{name}" for side in ("native", "otlp") for name in ("path", "line", "record_index")),
)
"""Columns that are read only where a message has no id."""

# As Spark's regular expressions read it, in which more than a line feed ends a line.
_BREAK: Final = "\n\r\u0085\u2028\u2029"
_RESOURCE: Final = re.compile(f"{PREFIXES}([^{_BREAK}]*)(?=(?:\r\n|[{_BREAK}])?\\Z)")
"""A whole topic or group: retry or dead-letter prefix, namespace, name."""


def read_verdict_legs(paths: Sequence[str]) -> pa.Table:
    """Return ``LEG`` of the verdicts in parquet files of ``VERDICT``; all verdicts of a message are among them."""
    verdicts = _read(paths, _COLUMNS)
    positions = _read(paths, _POSITIONS) if verdicts["msg_id"].null_count else None
    return make_legs(verdicts, positions)


def _read(paths: Iterable[str], columns: Sequence[str]) -> pa.Table:
    tables = []
    for path in paths:
        file = open_parquet(path, read_dictionary=list(_REPEATED))
        # Arrow cannot read a dictionary inside a struct from several row groups at once.
        groups = range(file.metadata.num_row_groups)
        tables += [file.read_row_group(group, columns=list(columns), use_threads=False) for group in groups]
    return pa.concat_tables(tables, promote_options="permissive")  # Spark writes some columns as never null


def make_legs(verdicts: pa.Table, positions: pa.Table | None = None) -> pa.Table:
    """Return ``LEG`` of ``VERDICT``: nothing is added up, nothing is left out.

    Args:
        verdicts: ``VERDICT``, or of it what a leg is made of.
        positions: columns of the same rows with the position of a row without a message id, if not among ``verdicts``.
    """
    coded = CodedVerdicts(verdicts)
    columns = coded.columns
    is_consume = coded.matches("kind", Kind.CONSUME.value)
    start, end = (coded.ints(f"native.{name}").coalesce(coded.ints(f"otlp.{name}")) for name in ("start_ms", "end_ms"))
    event = coded.ints("event_ms")
    made = {
        "message": _messages(columns if positions is None else CodedVerdicts(positions).columns),
        "identified": columns["msg_id"].is_valid(),
        "kind": _rename(columns["kind"], str),
        **_groups_and_services(columns),
        "via": _rename(columns["topic"], lambda name: _part(name, 1)),
        "namespace": _rename(columns["topic"], lambda name: _part(name, 2)),
        "bare_topic": _rename(columns["topic"], lambda name: _bare(name[:_LONGEST_NAME])),
        "event_ms": event.where((event.values >= 0) & (event.values <= LAST_MS)).to_arrow(),
        "busy_ms": (end - start).to_arrow(),
        "queue_ms": columns["queue_ms"],
        "finished": pa.array(end.known, mask=~is_consume),
        "success": _either(columns, "success"),
        "retry_times": columns["retry_times"],
        **{name: _rename(_either(columns, name), str) for name in ("msg_type", "transaction_state")},
        "inside": pa.array(~coded.matches("status", Status.OUT_OF_SCOPE.value)),
        "on_native": columns["on_native"],
        "on_otlp": columns["on_otlp"],
    }
    arrays = [made[field.name] for field in LEG]
    return pa.table(arrays, schema=LEG)


def _groups_and_services(columns: Mapping[str, Column]) -> dict[str, Column]:
    return {
        "group": _rename(columns["group"], lambda name: _bare(name[:_LONGEST_NAME])),
        "service": _rename(columns["otlp.service"], lambda name: name[:_LONGEST_NAME] or None),
    }


def _either(columns: Mapping[str, Column], name: str) -> Column:
    native, otlp = columns[f"native.{name}"], columns[f"otlp.{name}"]
    return pc.coalesce(native, otlp) if native.null_count and otlp.null_count < len(otlp) else native


def _messages(columns: Mapping[str, Column]) -> Column:
    ids = columns["msg_id"]
    if not ids.null_count:
        return ids
    found = [ids, pc.binary_join_element_wise("span:", columns["otlp.trace_id"], "/", columns["otlp.span_id"], "")]
    for side in ("native", "otlp"):
        position = [columns[f"{side}.{name}"].cast(pa.string()) for name in ("path", "line", "record_index")]
        found.append(pc.binary_join_element_wise("row", *position, ":"))
    return pc.coalesce(*found, pa.scalar("row:"))


def _rename(column: Column, rule: Callable[[str], str | None]) -> Column:
    codes = encode(column)
    answers = [rule(word) for word in codes.words]
    words = sorted({word for word in answers if word is not None})
    place = {word: at for at, word in enumerate(words)}
    lookup = np.array([-1 if word is None else place[word] for word in answers] + [-1], np.int32)
    indices: Any = lookup[codes.values]
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=indices < 0), pa.array(words, _TEXT))


def _part(resource: str, number: int) -> str | None:
    found = _RESOURCE.match(resource[:_LONGEST_NAME])
    return found[number] or None if found else None


def _bare(resource: str) -> str | None:
    """Return a topic's or group's name without prefix and namespace; as it is where nothing would be left."""
    return _part(resource, 3) or resource or None


_OWNERS: Final = pa.schema(
    {"kind": _TEXT, "group": _TEXT, "least": _TEXT, "greatest": _TEXT, "naming": _LONG, "legs": _LONG}
)
"""How the legs of each kind and group name services: the least and the greatest name, how many legs name one, and how
many legs there are."""


def find_verdict_owners(verdicts: pa.Table) -> pa.Table:
    """Return what ``find_owners`` does of the legs of ``VERDICT``, or of its kind, group and OTLP service."""
    columns = flatten_sides(verdicts)
    return find_owners(pa.table({"kind": columns["kind"], **_groups_and_services(columns)}))


def find_owners(legs: pa.Table) -> pa.Table:
    """Return how each kind and group of ``LEG`` names its services."""
    named = (
        legs.select(["kind", "group", "service"])
        .combine_chunks()
        .group_by(["kind", "group", "service"], use_threads=False)
    )
    counted: Any = named.aggregate([([], "count_all")])
    kinds, groups, services = (counted[name].cast(_TEXT) for name in ("kind", "group", "service"))
    legs_of = counted["count_all"]
    naming = pc.if_else(services.is_valid(), legs_of, 0)
    rows = pa.table([kinds, groups, services, services, naming, legs_of], schema=_OWNERS)
    return merge_owners([rows.filter(groups.is_valid())])


def merge_owners(parts: Iterable[pa.Table]) -> pa.Table:
    """Return the sum of parts that ``find_owners`` returned."""
    rows = pa.concat_tables([_OWNERS.empty_table(), *parts])
    sums: Any = [("least", "min"), ("greatest", "max"), ("naming", "sum"), ("legs", "sum")]
    found = rows.group_by(["kind", "group"], use_threads=False).aggregate(sums)
    return found.select(["kind", "group", *("_".join(one) for one in sums)]).rename_columns(_OWNERS.names)


def choose_owners(found: pa.Table) -> dict[tuple[str, str], str]:
    """Return the service of each ``(kind, group)`` of one service only, some of whose legs name none.

    Only the native side saw those legs: the one service that else uses their group is theirs.
    """
    sole = [
        (-row["naming"], (row["kind"], row["group"]), row["least"])
        for row in found.to_pylist()
        if row["least"] is not None and row["least"] == row["greatest"] and row["naming"] < row["legs"]
    ]
    return {key: owner for _, key, owner in sorted(sole)[:_MOST_OWNERS]}
