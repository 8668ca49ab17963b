"""What a run takes over: which events are read again, and which are not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from spark_jobs.history.carrying import (
    PLACE_AND_LINE,
    CarriedPlaces,
    count_waiting_by_place,
    drop_read_again,
    find_read_again,
    forget_reasons,
    merge_read_again,
)
from spark_jobs.history.past import read_carried, write_rows
from spark_jobs.history.taking_over import TakenOver, take_over
from spark_jobs.schemas import EVENT, NORMALISED
from tests.support.events import consumed, publish
from tests.support.history_days import Here

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["native", "otlp"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([0, 1, None]),
        st.sampled_from([7, 8]),
        st.sampled_from([None, 1, 2, 3]),
    ),
    max_size=12,
)


def table_of(rows):
    return pa.table(
        {name: pa.array([row[at] for row in rows], EVENT.field(name).type) for at, name in enumerate(PLACE_AND_LINE)}
    )


def is_same(one, other):
    return one[:4] == other[:4] and (one[4] == other[4] or one[4] is None or other[4] is None)


@settings(deadline=None)
@given(ROWS, ROWS)
def test_event_is_read_again_where_place_and_line_agree_or_a_line_is_unknown(fresh, carried):
    """A file that grew beyond the size up to which lines are numbered has none any more."""
    again = [row for row in fresh if any(is_same(row, other) for other in carried)]
    places = CarriedPlaces.of(table_of(carried))
    found = find_read_again(table_of(fresh), places)
    assert found.fresh == Counter(row[0] for row in again)
    assert bool(found) == bool(again)
    assert found.carried.tolist() == [
        number for number, row in enumerate(carried) if any(is_same(other, row) for other in again)
    ]
    kept = drop_read_again(table_of(fresh), places).to_pylist()
    assert [tuple(row.values()) for row in kept] == [row for row in fresh if row not in again]


def test_parts_of_what_is_read_again_add_up():
    carried = CarriedPlaces.of(table_of([("native", "a", 0, 7, 1), ("otlp", "b", 0, 7, 1)]))
    parts = [find_read_again(table_of([row]), carried) for row in (("otlp", "b", 0, 7, 1), ("native", "a", 0, 7, None))]
    found = merge_read_again(parts)
    assert (found.fresh, found.carried.tolist()) == ({"native": 1, "otlp": 1}, [0, 1])
    assert not merge_read_again([])


def events(*rows):
    return pa.Table.from_pylist(list(rows), schema=EVENT)


def test_event_read_again_is_judged_as_any_other():
    """What an earlier run made of it is no longer said of it; the run that first saw it is."""
    carried = events(*(publish("native", name, first_seen_run=1, left_as="PENDING") for name in "AB"))
    found = forget_reasons(carried, np.array([1]))
    assert found["left_as"].to_pylist() == ["PENDING", None]
    assert found["first_seen_run"].to_pylist() == [1, 1]
    assert found.schema == EVENT


def test_spans_that_wait_by_their_place_are_counted():
    assert count_waiting_by_place(
        events(
            consumed("orders-0@7", offset_msg_id="orders-0@7"),
            publish("native", "orders-0@8"),
            publish("otlp", "A"),
            consumed("B", offset_msg_id=None),
        )
    ) == 1  # fmt: skip


@pytest.fixture
def yesterday(tmp_path):
    rows = [publish("native", f"N{n}", path=f"{n % 2}.jsonl", line=n, left_as="PENDING") for n in range(4)]
    rows.append(publish("otlp", "S", path="spans.jsonl", left_as="UNEXPLAINED"))
    paths = [str(tmp_path / name) for name in ("one.parquet", "two.parquet")]
    write_rows(events(*rows[:2]), paths[0])
    write_rows(events(*rows[2:]), paths[1])
    return rows, paths


def write_fresh(path, rows, bad=None):
    table = pa.Table.from_pylist([{**row, "bad": bad} for row in rows], schema=NORMALISED)
    parquet.write_table(table, path, row_group_size=2)
    return str(path)


def test_carried_files_are_told_apart_from_what_is_read_again(tmp_path, yesterday):
    """Row by row over all files; a row without its line is the same, a malformed one never is."""
    rows, paths = yesterday
    fresh = [
        write_fresh(tmp_path / "a.parquet", [{**rows[3], "left_as": None, "line": None}, publish("native", "X")]),
        write_fresh(tmp_path / "b.parquet", [publish("otlp", "Y"), {**rows[4], "left_as": None}]),
        write_fresh(tmp_path / "c.parquet", [rows[0]], bad={"reason": "cut off"}),
    ]
    taken = take_over(Here(), paths, fresh, str(tmp_path / "work"))
    left_as = [row["left_as"] for path in taken.files for row in read_carried(path).to_pylist()]
    assert left_as == ["PENDING", "PENDING", "PENDING", None, None]
    assert (taken.carried, taken.read_again) == ({"native": 4, "otlp": 1}, {"native": 1, "otlp": 1})
    assert taken.again == tuple(paths)
    assert taken


def test_nothing_read_again_leaves_nothing_to_look_for(tmp_path, yesterday):
    taken = take_over(
        Here(), yesterday[1], [write_fresh(tmp_path / "a.parquet", [publish("native", "X")])], str(tmp_path / "w")
    )
    assert (taken.again, taken.read_again) == ((), {})
    assert taken.carried == {"native": 4, "otlp": 1}


def test_first_run_takes_nothing_over(tmp_path):
    assert take_over(Here(), [], [str(tmp_path / "missing.parquet")], str(tmp_path / "work")) == TakenOver()
    assert not TakenOver()
