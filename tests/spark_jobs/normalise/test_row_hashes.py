"""Two spans have the same hash exactly when they are equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.normalise.values import row_hashes
from tests.spark_jobs.normalise.made_spans import batch, span

TEXT = st.sampled_from([None, "", "a", "ab", "b"])
PAIRS = st.dictionaries(st.sampled_from(["", "a", "ab", "b"]), TEXT, max_size=3)
SPANS = st.builds(
    span,
    PAIRS,
    links=st.lists(PAIRS, max_size=2),
    **dict.fromkeys(("trace_id", "parent_span_id", "name", "service", "scope"), TEXT),
    start_ns=st.sampled_from([None, 0, 1]),
)


def hashes(made):
    return row_hashes(dict(zip(made.schema.names, made.columns, strict=True))).to_pylist()


def without_place(row):
    return repr({name: value for name, value in row.items() if name not in {"path", "line"}})


@given(rows=st.lists(SPANS | st.just({}), min_size=2, max_size=30))
def test_equal_spans_have_equal_hashes(rows):
    """Null is not the empty text, and nothing slips from one text, name or link into the next."""
    numbers = hashes(batch(*rows))
    assert (
        len(set(numbers))
        == len(set(map(without_place, rows)))
        == len(set(zip(numbers, map(without_place, rows), strict=True)))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (span({"a": "1", "b": "2"}), span({"b": "2", "a": "1"})),
        (span({"a": "1"}), span({"a": "1", "b": None})),
        (span({"a": None}), span({"a": ""})),
        (span({"ab": "c"}), span({"a": "bc"})),
        (span({"a": "1"}, links=[{}]), span({}, links=[{"a": "1"}])),
        (span(links=[{"a": "1"}, {}]), span(links=[{}, {"a": "1"}])),
        (span(name="xy", service="z"), span(name="x", service="yz")),
        (span(flags=None), span(flags=0)),
        (span(start_ns=1, end_ns=2), span(start_ns=2, end_ns=1)),
    ],
)
def test_different_spans_have_different_hashes(one, other):
    first, second = hashes(batch(one, other))
    assert first != second


def test_position_and_neighbours_do_not_change_the_hash():
    one, other = span({"a": "1"}, links=[{"b": "2"}]), span({"longer": "text"}, links=[{}, {"c": None}])
    alone, moved = hashes(batch(one)), hashes(batch({**one, "path": "elsewhere", "line": 9}))
    beside = hashes(batch(other, one, other))
    assert alone == moved == beside[1:2] == hashes(batch(other, one, other).slice(1, 1))
    assert beside == [number for at in range(3) for number in hashes(batch(other, one, other).slice(at, 1))]
