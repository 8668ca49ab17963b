"""Texts of both sides are brought to one form."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace.wire.native.layout import ABSENT_TEXTS
from spark_jobs.normalise.values import fold_ids, json_texts, key_sets_of_json, null_where_absent

WORDS = ("", " ", "null", " null", "dKey", "abc", " aBc1 ", "\tab", "ﬀ", "ab ", "xyz", "\U0001d4b3", "\x00")


def read_bodies(some, *rules):
    return list(zip(*(rule(pa.array(some, pa.string())).to_pylist() for rule in rules), strict=True))


def keys_in(array):
    """The keys in texts that may each hold several: blanks and words for nothing out, distinct, sorted."""
    return sorted({key for text in array if text for key in text.split(" ")} - ABSENT_TEXTS)


@given(some=st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=12), max_size=20))
def test_ids_are_folded_and_placeholders_are_null(some):
    asked = [*WORDS, *some]
    known = [None if text in ABSENT_TEXTS else text for text in asked]
    trimmed = [None if text.strip(" ") in ABSENT_TEXTS else text.strip(" ") for text in asked]
    folded = [text.upper() if text and set(text) <= set("0123456789abcdefABCDEF") else text for text in trimmed]
    assert read_bodies(asked, null_where_absent, fold_ids) == list(zip(known, folded, strict=True))


ONE_KEY = st.text("ab\U0001d4b3\\\t\x7f", min_size=1, max_size=4) | st.sampled_from(sorted(ABSENT_TEXTS))


@given(some=st.lists(st.none() | ONE_KEY.map(lambda key: json.dumps([key], ensure_ascii=False)), max_size=8))
def test_arrays_of_one_key_each_are_read_as_any_other(some):
    expected = [(None if text is None else keys_in(json.loads(text)),) for text in some]
    assert read_bodies(some, key_sets_of_json) == expected
    assert read_bodies([*some, '["x","y"]'], key_sets_of_json) == [*expected, (["x", "y"],)]


@pytest.mark.parametrize(("text", "read"), [("['a']", None), ("[12345678.9, 5]", ["12345678.9", "5"])])
def test_array_is_read_as_json_and_its_numbers_as_python_writes_them(text, read):
    """Spark would read single quotes, and write Java's 1.23456789E7."""
    assert json_texts(text) == read
