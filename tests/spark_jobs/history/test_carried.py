"""What a run carries over: which events are read again, and which are not."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from spark_jobs.history.carried import (
    POSITION,
    CarriedPositions,
    carry_over_events,
    drop_read_again,
)
from spark_jobs.history.history import read_rows, write_rows
from spark_jobs.schemas import EVENT, NORMALISED
from tests.support.events import consumed, publish
from tests.support.reading import PlainEngine

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["native", "otlp"]),
        st.sampled_from(["", "a", "ü"]),
        st.sampled_from([0, -(1 << 31), None]),
        st.sampled_from([0, -(1 << 63), None]),
        st.sampled_from([None, 1, 2, 3]),
    ),
    max_size=12,
)


def table_of(rows):
    names = (*POSITION, "line")
    return pa.table(
        {name: pa.array([row[at] for row in rows], EVENT.field(name).type) for at, name in enumerate(names)}
    )


def is_same(one, other):
    return one[:4] == other[:4] and (one[4] == other[4] or one[4] is None or other[4] is None)


@given(ROWS, ROWS)
def test_event_is_read_again_where_position_and_line_agree_or_a_line_is_unknown(fresh, carried):
    again = [row for row in fresh if any(is_same(row, other) for other in carried)]
    positions = CarriedPositions.of(table_of(carried))
    _, rows = positions.match(table_of(fresh))
    assert rows.tolist() == [
        number for number, row in enumerate(carried) if any(is_same(other, row) for other in again)
    ]
    kept = drop_read_again(table_of(fresh), positions).to_pylist()
    assert [tuple(row.values()) for row in kept] == [row for row in fresh if row not in again]


def events(*rows):
    return pa.Table.from_pylist(list(rows), schema=EVENT)


def write_fresh(path, rows, bad=None):
    table = pa.Table.from_pylist([{**row, "bad": bad} for row in rows], schema=NORMALISED)
    parquet.write_table(table, path, row_group_size=2)
    return str(path)


def test_carried_events_that_are_read_again_are_dropped(tmp_path):
    rows = [
        publish("native", f"N{n}", path=f"{n % 2}.jsonl", line=n, left_as="PENDING", first_seen_run=1) for n in range(4)
    ]
    rows.append(publish("otlp", "S", path="spans.jsonl", left_as="UNEXPLAINED", first_seen_run=1))
    paths = [str(tmp_path / name) for name in ("one.parquet", "two.parquet")]
    write_rows(events(*rows[:2]), paths[0])
    write_rows(events(*rows[2:]), paths[1])
    fresh = [
        write_fresh(tmp_path / "a.parquet", [{**rows[3], "left_as": None, "line": None}, publish("native", "X")]),
        write_fresh(tmp_path / "b.parquet", [publish("otlp", "Y"), {**rows[4], "left_as": None}]),
        write_fresh(tmp_path / "c.parquet", [rows[0]], bad={"reason": "cut off"}),
    ]
    carried = carry_over_events(PlainEngine(), paths, fresh, str(tmp_path / "work"))
    left = [row for path in carried.files for row in read_rows(path, EVENT).to_pylist()]
    assert [row["left_as"] for row in left] == ["PENDING", "PENDING", "PENDING", None, None]
    assert {row["first_seen_run"] for row in left} == {1}
    assert (carried.counts, carried.read_again) == ({"native": 4, "otlp": 1}, {"native": 1, "otlp": 1})
    assert carried.again == tuple(paths)


def test_spans_identified_by_their_position_are_counted(tmp_path):
    spans = [
        consumed("orders-0@7", offset_msg_id="orders-0@7"),
        publish("otlp", "A"),
        consumed("B", offset_msg_id=None),
    ]
    path = str(tmp_path / "open.parquet")
    write_rows(events(*spans, publish("native", "orders-0@8")), path)
    carried = carry_over_events(PlainEngine(), [path], [], str(tmp_path / "w"))
    assert (carried.by_position, carried.again) == (1, ())  # and no file to search: nothing is read again
