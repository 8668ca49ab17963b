"""Keys that may be one half of a pair without a common id, against a plain count of what is near."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.explain.residue import RESIDUE
from spark_jobs.explain.rules import confirm_weak_keys
from spark_jobs.judging.columns import flatten_sides

_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "consume", "recall"]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, "M1", "M2"]),
        st.booleans(),
        st.sampled_from([None, -1, 0, 3, 5, 8, 59_999, 60_000, 60_002, 120_001]),
    ),
    max_size=12,
)


@given(rows=_ROWS, tolerance_ms=st.sampled_from([0, 2, 5, 70_000]))
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
