"""Gaps in a consumer group's line of messages: the message just before or after one is not recorded either.

That is how an outage looks, whatever trace was switched off for. The line is the group's messages of one hour, in the
order of their first deliveries. A task has all deliveries of its messages: each returns the nearest neighbours that it
has, and the nearest of all are chosen from these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import is_known, is_true
from spark_jobs.explain.keys import bare_names
from spark_jobs.judging.columns import NullableInts, flatten_sides, is_equal
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.columns import Mask

GAP_COLUMNS: Final = ["kind", "msg_id", "group", "event_ms", "native.start_ms"]
"""The columns of ``VERDICT`` that ``find_neighbours`` reads; any field of ``native`` shows where it is absent."""

_TEXT: Final[Any] = pa.string()
DELIVERIES: Final = pa.schema({"group": _TEXT, "msg_id": _TEXT, "at_ms": pa.int64()})
"""Messages of groups (``bare_names``) whose neighbours are wanted, each once; ``at_ms`` is the first plausible time."""

Neighbours: TypeAlias = "list[tuple[_Message | None, _Message | None]]"
"""Of each wanted delivery the nearest message before and after it; ``None`` where its line has none."""

_Message: TypeAlias = tuple[int, str, bool]
"""Time, id, and whether any of its deliveries in this group has a native record."""

_LINE_MS: Final = 3_600_000


def find_neighbours(verdicts: pa.Table, wanted: pa.Table) -> Neighbours:
    """Return the nearest messages before and after each wanted one, among those of ``verdicts``.

    Args:
        verdicts: ``VERDICT`` with at least ``GAP_COLUMNS``: all rows of each message that has any.
        wanted: ``DELIVERIES``.
    """
    lines: defaultdict[Any, list[_Message]] = defaultdict(list)
    for row in _messages_of(verdicts, wanted).to_pylist():
        lines[_line(row)].append((row["at_ms"] or 0, row["msg_id"], row["recorded"]))
    for line in lines.values():
        line.sort()
    found = []
    for row in wanted.to_pylist():
        line, place = lines.get(_line(row), []), (row["at_ms"] or 0, row["msg_id"])
        before, after = bisect_left(line, (*place, False)), bisect_right(line, (*place, True))
        found.append((line[before - 1] if before else None, line[after] if after < len(line) else None))
    return found


def _line(row: dict[str, Any]) -> tuple[str, int | None]:
    return row["group"], None if row["at_ms"] is None else row["at_ms"] // _LINE_MS


def _messages_of(verdicts: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return ``DELIVERIES`` and ``recorded`` of the groups that are wanted."""
    columns = flatten_sides(verdicts.select(["kind", "msg_id", "group", "event_ms", "native"]))
    groups = bare_names(columns["group"])
    is_wanted = is_true(pc.is_in(groups, value_set=pc.unique(wanted["group"])))
    rows = np.flatnonzero(is_wanted & is_equal(columns["kind"], Kind.CONSUME.value) & is_known(columns["msg_id"]))
    deliveries = pa.table(
        {
            "group": groups.take(pa.array(rows)),
            "msg_id": columns["msg_id"].take(pa.array(rows)),
            "at_ms": NullableInts.of(columns["event_ms"]).take(rows).believable().to_arrow(),
            "recorded": columns["on_native"].take(pa.array(rows)),
        }
    )
    messages = deliveries.group_by(["group", "msg_id"], use_threads=False)
    found: pa.Table = messages.aggregate([("at_ms", "min"), ("recorded", "any")])
    return found.select(["group", "msg_id", "at_ms_min", "recorded_any"]).rename_columns(deliveries.column_names)


def merge_neighbours(parts: Sequence[Neighbours]) -> Neighbours:
    """Return the nearest neighbours in all parts of the run, each searched for the same messages."""
    found = []
    for neighbours in zip(*parts, strict=True):
        before = max((before for before, _ in neighbours if before), default=None)
        after = min((after for _, after in neighbours if after), default=None)
        found.append((before, after))
    return found


def is_in_gap(neighbours: Neighbours) -> Mask:
    """Return which unrecorded messages have a neighbour that is not recorded either."""
    return np.fromiter((any(each is not None and not each[2] for each in pair) for pair in neighbours), bool)
