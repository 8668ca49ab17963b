"""Neighbours in a group's line of messages, found by tasks that each have some of the messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.explain.gaps import DELIVERIES, find_neighbours, is_in_gap
from spark_jobs.schemas import VERDICT

HOUR_MS = 3_600_000

_TIMES = st.sampled_from([None, -1, 0, 1, 2, 3, HOUR_MS - 1, HOUR_MS, HOUR_MS + 1])
_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["consume", "consume", "consume", "publish"]),
        st.sampled_from(["g", "h"]),
        st.sampled_from([None, *"abcdefgz\u00fc\u4e2d"]),
        _TIMES,
        st.booleans(),
    ),
    max_size=20,
)


def table(rows: list[tuple[str, str, str | None, int | None, bool]]) -> pa.Table:
    """Return verdict rows: kind, group, message, time, whether there is a native record."""
    made = [
        {
            "kind": kind,
            "group": group,
            "msg_id": msg_id,
            "event_ms": at_ms,
            "native": {"writer": "w"} if native else None,
        }
        for kind, group, msg_id, at_ms, native in rows
    ]
    return pa.Table.from_pylist(made, schema=VERDICT)


def plain_lines(rows) -> dict[tuple[str, int | None], list[tuple[int, str, bool]]]:
    """Return by group and hour its messages in order, each with whether it is recorded."""
    first: dict[tuple[str, str], Any] = {}
    for kind, group, msg_id, at_ms, native in rows:
        if kind == "consume" and msg_id is not None:
            known = at_ms if at_ms is not None and at_ms >= 0 else None
            at, recorded = first.get((group, msg_id), (None, False))
            earliest = min((each for each in (at, known) if each is not None), default=None)
            first[group, msg_id] = (earliest, recorded or native)
    lines: dict[tuple[str, int | None], list[tuple[int, str, bool]]] = {}
    for (group, msg_id), (at, recorded) in first.items():
        lines.setdefault((group, None if at is None else at // HOUR_MS), []).append((at or 0, msg_id, recorded))
    return {name: sorted(line) for name, line in lines.items()}


@settings(deadline=None, max_examples=300)
@given(rows=_ROWS, buckets=st.integers(1, 4))
def test_message_is_in_a_gap_exactly_when_a_neighbour_is_unrecorded(rows, buckets):
    expected, wanted = [], []
    for (group, hour), line in plain_lines(rows).items():
        for place, (at, msg_id, recorded) in enumerate(line):
            if not recorded:
                around = [line[near][2] for near in (place - 1, place + 1) if 0 <= near < len(line)]
                wanted.append({"group": group, "msg_id": msg_id, "at_ms": None if hour is None else at})
                expected.append(not all(around))
    asked = pa.Table.from_pylist(wanted, schema=DELIVERIES)
    parts = [[row for row in rows if hash(row[2]) % buckets == bucket] for bucket in range(buckets)]
    found = is_in_gap([find_neighbours(table(part), asked) for part in parts], len(asked))
    assert found.tolist() == expected
