"""Positions of records: found exactly, null by null."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.history.positions import POSITION, Positions
from spark_jobs.schemas import EVENT

_EDGES = (None, 0, 1, -1, (1 << 31) - 1, -(1 << 31))
_HASHES = st.one_of(st.sampled_from([None, 0, 1, (1 << 63) - 1, -(1 << 63)]), st.integers(-3, 3))
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["native", "otlp"]),
        st.sampled_from([None, "", "a.jsonl", "b.jsonl", "ü.jsonl"]),
        st.sampled_from(_EDGES),
        _HASHES,
    ),
    max_size=30,
)


def columns_of(rows):
    types = {name: EVENT.field(name).type for name in POSITION}
    return {name: pa.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(types.items())}


@settings(deadline=None)
@given(ROWS, ROWS)
def test_position_is_found_where_all_four_columns_are_equal(known, sought):
    positions, numbers = Positions.of([columns_of(known)])
    by_position = dict(zip(known, numbers.tolist(), strict=True))
    assert positions.find(columns_of(sought)).tolist() == [by_position.get(row, -1) for row in sought]
    assert len(positions) == len(set(known))


@settings(deadline=None)
@given(ROWS)
def test_equal_positions_have_one_number(rows):
    _, numbers = Positions.of([columns_of(rows)])
    assert len(set(zip(rows, numbers.tolist(), strict=True))) == len(set(rows))


def test_file_that_holds_no_position_is_recognised_by_its_path():
    positions, _ = Positions.of([columns_of([("native", "a", 0, 1)])])
    assert positions.has_path(pa.array(["a", "b"])).tolist() == [True, False]


def test_position_of_a_dictionary_column_is_found():
    rows = [("native", "a", 0, 1), ("otlp", "b", 1, 2)]
    coded = {name: column.dictionary_encode() for name, column in columns_of(rows).items() if name in {"side", "path"}}
    positions, _ = Positions.of([columns_of(rows)])
    assert sorted(positions.find({**columns_of(rows), **coded}).tolist()) == [0, 1]


def test_no_positions_hold_nothing():
    positions, _ = Positions.of([])
    assert positions.find(columns_of([("native", "a", 0, 1)])).tolist() == [-1]
