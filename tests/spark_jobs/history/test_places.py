"""Places of records: found exactly, null by null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.history.places import PLACE, Places
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
    types = {name: EVENT.field(name).type for name in PLACE}
    return {name: pa.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(types.items())}


@settings(deadline=None)
@given(ROWS, ROWS)
def test_place_is_found_where_all_four_columns_are_equal(known, sought):
    places, numbers = Places.of([columns_of(known)])
    by_place = dict(zip(known, numbers.tolist(), strict=True))
    assert places.find(columns_of(sought)).tolist() == [by_place.get(row, -1) for row in sought]
    assert len(places) == len(set(known))


@settings(deadline=None)
@given(ROWS)
def test_equal_places_have_one_number(rows):
    _, numbers = Places.of([columns_of(rows)])
    assert len(set(zip(rows, numbers.tolist(), strict=True))) == len(set(rows))


def test_places_whose_mixed_numbers_are_equal_are_told_apart():
    """The 64 bits that places are sorted by are no proof: these rows are made so that they are equal."""
    wrapped = np.array([-4 * index * 0x9E37_79B9_7F4A_7C15 % 2**64 for index in range(5)], np.uint64).view(np.int64)
    rows = [("native", "a", index, hashed) for index, hashed in enumerate(wrapped.tolist())]
    places, numbers = Places.of([columns_of(rows[:4])])
    assert len(set(places.mixed.tolist())) == 1
    assert places.find(columns_of(rows)).tolist() == [*numbers.tolist(), -1]


def test_file_that_holds_no_place_is_told_by_its_path():
    places, _ = Places.of([columns_of([("native", "a", 0, 1)])])
    assert places.has_path(pa.array(["a", "b"])).tolist() == [True, False]


def test_place_of_a_dictionary_column_is_found():
    rows = [("native", "a", 0, 1), ("otlp", "b", 1, 2)]
    coded = {name: column.dictionary_encode() for name, column in columns_of(rows).items() if name in {"side", "path"}}
    places, _ = Places.of([columns_of(rows)])
    assert sorted(places.find({**columns_of(rows), **coded}).tolist()) == [0, 1]


def test_no_places_hold_nothing():
    places, _ = Places.of([])
    assert places.find(columns_of([("native", "a", 0, 1)])).tolist() == [-1]
