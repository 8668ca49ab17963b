"""Columns of numbers that may be unknown, codes of values, rows taken and sorted: each against plain Python."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mqtrace._clock import LAST_MS
from spark_jobs.columns import apply_to_distinct, each, encode, find_groups, take_rows
from spark_jobs.judging.columns import NullableInts, coalesce_rows, is_near

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
longs = st.none() | st.sampled_from([LOWEST, -1, 0, 1, 7, HIGHEST]) | st.integers(LOWEST, HIGHEST)
texts = st.none() | st.text(max_size=3)


def _ints(values):
    return NullableInts.of(pa.array(values, pa.int64()))


def _fitting(value):
    return value if value is not None and LOWEST <= value <= HIGHEST else None


@given(pairs=st.lists(st.tuples(longs, longs), min_size=1))
def test_overflowing_sum_is_unknown(pairs):
    one, other = (_ints(column) for column in zip(*pairs, strict=True))
    expected = {"+": [], "-": [], "*": []}
    for a, b in pairs:
        known = None not in (a, b)
        expected["+"].append(_fitting(a + b if known else None))
        expected["-"].append(_fitting(a - b if known else None))
        expected["*"].append(_fitting(a * b if known else None))
    results = {"+": one + other, "-": one - other, "*": one * other}
    assert {sign: column.to_arrow().to_pylist() for sign, column in results.items()} == expected


@pytest.mark.parametrize(
    ("one", "other", "near"), [(5, 9, True), (5, 10, False), (LOWEST, HIGHEST, False), (5, None, False)]
)
def test_near_times_are_known_and_no_further_apart_than_allowed(one, other, near):
    assert is_near(_ints([one]), _ints([other]), 4).tolist() == [near]
    assert is_near(_ints([other]), _ints([one]), 4).tolist() == [near]


def test_believable_times_are_from_1970_to_the_year_9999():
    times = _ints([-1, 0, LAST_MS, LAST_MS + 1, None]).believable()
    assert times.to_arrow().to_pylist() == [None, 0, LAST_MS, None, None]


@given(values=st.lists(texts, min_size=1), is_coded=st.booleans())
def test_codes_are_equal_for_equal_values(values, is_coded):
    column = pa.array(values, pa.string())
    codes = encode(column.dictionary_encode() if is_coded else column)
    assert [[*codes.words, None][code] for code in codes.values] == values
    assert codes.values.max() < codes.room


@given(values=st.lists(texts, min_size=1, max_size=6), data=st.data())
def test_first_known_value_among_rows_is_taken(values, data):
    rows = st.lists(st.integers(-1, len(values) - 1), min_size=3, max_size=3)
    choices = [np.array(data.draw(rows), np.int64) for _ in range(3)]
    column = pa.chunked_array([values[:2], values[2:]], pa.string())
    at = [
        next((values[row] for row in some if row >= 0 and values[row] is not None), None)
        for some in zip(*choices, strict=True)
    ]
    assert coalesce_rows(column, choices).to_pylist() == at
    assert take_rows(column, choices[0]).to_pylist() == [None if row < 0 else values[row] for row in choices[0]]


@given(codes=st.lists(st.integers(-3, 3)))
def test_groups_are_in_the_order_of_their_codes(codes):
    examples, group_of = find_groups(np.array(codes, np.int64))
    distinct = sorted(set(codes))
    assert [codes[at] for at in examples] == distinct
    assert [distinct[group] for group in group_of] == codes
    assert all(codes.index(code) == at for code, at in zip(distinct, examples.tolist(), strict=True))


# -- A function is called once per distinct value
WORDS = st.lists(st.sampled_from([None, "", "a", "b", "c"]), min_size=1, max_size=30)


@given(words=WORDS)
def test_each_row_gets_the_result_of_its_value(words):
    lengths = each(pa.array(words, pa.string()), len, pa.int64())
    assert lengths.to_pylist() == [None if word is None else len(word) for word in words]


def test_equal_doubles_of_other_bits_are_separate_values():
    assert each(pa.array([0.0, -0.0, 0.0]), str, pa.string()).to_pylist() == ["0.0", "-0.0", "0.0"]


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
