"""Sums that overflow, and functions that are called once per distinct value."""

import operator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.columns import apply_to_distinct, map_values
from spark_jobs.judging.columns import NullableInts

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
longs = st.none() | st.sampled_from([LOWEST, -1, 0, 1, 7, HIGHEST]) | st.integers(LOWEST, HIGHEST)


@given(pairs=st.lists(st.tuples(longs, longs), min_size=1))
def test_overflowing_sum_is_unknown(pairs):
    one, other = (NullableInts.of(pa.array(column, pa.int64())) for column in zip(*pairs, strict=True))
    for calculate in (operator.add, operator.sub, operator.mul):
        exact = [None if None in pair else calculate(*pair) for pair in pairs]
        expected = [value if value is not None and LOWEST <= value <= HIGHEST else None for value in exact]
        assert calculate(one, other).to_arrow().to_pylist() == expected


def test_equal_doubles_of_other_bits_are_separate_values():
    assert map_values(pa.array([0.0, -0.0, 0.0]), str, pa.string()).to_pylist() == ["0.0", "-0.0", "0.0"]


@pytest.mark.parametrize("width", [1, 3, 40])
@settings(max_examples=30)
@given(data=st.data())
def test_equal_rows_are_one_row(width, data):
    count = data.draw(st.integers(1, 12))
    values = st.lists(st.sampled_from([None, *"abcdefgh"]), min_size=count, max_size=count)
    table = {f"c{at}": pa.array(data.draw(values), pa.string()) for at in range(width)}
    rows, like = apply_to_distinct(lambda *row: row, *table.values())
    whole = [tuple(row.values()) for row in pa.table(table).to_pylist()]
    assert [rows[at] for at in like.tolist()] == whole
    assert len(rows) == len(set(whole))
