"""Rules on made-up inputs, against plain Python: weak keys, and gaps in a group's line of messages."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.explain.explainers import DELIVERIES, find_neighbours, is_in_gap, merge_neighbours
from spark_jobs.explain.keys import RESIDUE
from spark_jobs.explain.rules import confirm_weak_keys
from spark_jobs.judging.columns import flatten_sides
from spark_jobs.schemas import VERDICT

_KEYS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "consume", "recall"]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, "M1", "M2"]),
        st.booleans(),
        st.sampled_from([None, -1, 0, 3, 5, 8, 59_999, 60_000, 60_002, 120_001]),
    ),
    max_size=12,
)


@given(rows=_KEYS, tolerance_ms=st.sampled_from([0, 2, 5, 70_000]))
def test_weak_key_is_confirmed_where_spans_are_at_least_as_many_as_records(rows, tolerance_ms):
    def near(one, other) -> bool:
        return (
            one[:2] == other[:2] and other[4] is not None and other[4] >= 0 and abs(one[4] - other[4]) <= tolerance_ms
        )

    expected = []
    for row in rows:
        around = [other for other in rows if near(row, other)] if row[4] is not None and row[4] >= 0 else []
        nameless, lonely = sum(other[2] is None for other in around), sum(other[3] for other in around)
        expected.append(row[0] != "recall" and row[1] is not None and nameless >= lonely > 0)
    made = [
        {"kind": kind, "topic": name, "group": name, "msg_id": msg_id, "on_native": native, "event_ms": at_ms}
        for kind, name, msg_id, native, at_ms in rows
    ]
    columns = flatten_sides(pa.Table.from_pylist(made, schema=RESIDUE))
    assert confirm_weak_keys(columns, tolerance_ms).tolist() == expected


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
    names = ("kind", "group", "msg_id", "event_ms")
    made = [{**dict(zip(names, row, strict=False)), "native": {"writer": "w"} if row[-1] else None} for row in rows]
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
    in_gap = is_in_gap(merge_neighbours([find_neighbours(table(part), asked) for part in parts]))
    assert in_gap.tolist() == expected
