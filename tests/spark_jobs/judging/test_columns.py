"""Sums that overflow."""

import operator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

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
