"""A function is called once per distinct value, and every row gets its result."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.columns import apply_to_distinct, each

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
