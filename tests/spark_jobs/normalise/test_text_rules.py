"""Texts of both sides are brought to one form; numbers and arrays are read as Spark reads them."""

import json
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from otel_mqtrace.wire.native.layout import ABSENT_TEXTS
from spark_jobs.normalise.values import first_text, folded_id, integer, json_texts, key_set, key_sets, present

WORDS = ("", " ", "null", " null", "dKey", "abc", " aBc1 ", "\tab", "ﬀ", "ab ", "xyz", "\U0001d4b3", "\x00")
NUMBERS = (
    *("5", "+5", "-5", " 5 ", "\t5\n", "\x005\x1f", "\x7f5", "0005", "-0", "0" * 5000 + "7", "9" * 5000, "5 5", "+-5"),
    *("5.0", "5.", ".5", "1e3", "0x5", "5L", "٣", "\xa05", "\x855", "", "-", "+", "true"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
)
ARRAYS = (
    *('["a"]', '["a","b"]', ' [ "a" , null ]\n', "[]", "[[]]", '[1,true,null,{"a": 1},[1, "é"]]', '["a"] and more'),
    *('["\\ud800"]', '["\\ud83d\\ude00"]', "[NaN]"),
    *('["a"', '["a",]', '["a" "b"]', "[a]", "['a'", '["a\tb"]', '["\\x"]', "[01]", "[+1]", "[.5]", "[tru]"),
    *("", "null", '"a"', "5", '{"a":"b"}', "\ufeff[1]", "\xa0[1]", "[" * 2000 + "]" * 2000),
)
KEYS = ('["b a","a"]', '[" ","null","dKey"]', '["\U0001d4b3","ﬀ","z"]', '["a\u2028b"]', '["A","a"]', "[null]", "[]")
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def asked_of_spark(spark, given_texts, **columns):
    frame = spark.createDataFrame(list(enumerate(given_texts)), "at int, text string").coalesce(1)
    rows = frame.select("at", *(column.alias(name) for name, column in columns.items())).collect()
    return [tuple(row[name] for name in columns) for row in sorted(rows, key=lambda row: row["at"])]


def read_bodies(some, *rules):
    return list(zip(*(rule(pa.array(some, pa.string())).to_pylist() for rule in rules), strict=True))


def keys_in(array):
    """The keys in texts that may each hold several: blanks and words for nothing out, distinct, sorted."""
    return sorted({key for text in array if text for key in text.split(" ")} - ABSENT_TEXTS)


@given(some=st.lists(ANY_TEXT, max_size=20))
def test_ids_are_folded_and_placeholders_are_null(some):
    asked = [*WORDS, *some]
    known = [None if text in ABSENT_TEXTS else text for text in asked]
    trimmed = [None if text.strip(" ") in ABSENT_TEXTS else text.strip(" ") for text in asked]
    folded = [text.upper() if text and set(text) <= set("0123456789abcdefABCDEF") else text for text in trimmed]
    assert read_bodies(asked, present, folded_id) == list(zip(known, folded, strict=True))


@given(some=st.lists(st.none() | st.text("ab \tnul", max_size=6) | st.sampled_from(sorted(ABSENT_TEXTS)), max_size=8))
def test_keys_of_a_text_are_a_set(some):
    assert read_bodies(some, key_sets) == [(keys_in([text]) or None,) for text in some]


ONE_KEY = st.text("ab\U0001d4b3\\\t\x7f", min_size=1, max_size=4) | st.sampled_from(sorted(ABSENT_TEXTS))


@given(some=st.lists(st.none() | ONE_KEY.map(lambda key: json.dumps([key], ensure_ascii=False)), max_size=8))
def test_arrays_of_one_key_each_are_read_as_any_other(some):
    expected = [(None if text is None else keys_in(json.loads(text)),) for text in some]
    assert read_bodies(some, key_set) == expected
    assert read_bodies([*some, '["x","y"]'], key_set) == [*expected, (["x", "y"],)]


@pytest.mark.spark
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(st.text("0123456789+-. \t\x00\x7f٣", max_size=22), min_size=200, max_size=200))
def test_number_is_read_as_spark_casts_it(spark, some):
    asked = [*NUMBERS, *some]
    seen = asked_of_spark(spark, asked, int=F.col("text").try_cast("int"), long=F.col("text").try_cast("bigint"))
    assert seen == read_bodies(asked, partial(integer, kind=pa.int32()), partial(integer, kind=pa.int64()))


@pytest.mark.spark
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(st.text('[]"\\,ab \n{}u0', max_size=12).map("[{}".format), min_size=200, max_size=200))
def test_array_of_texts_is_read_as_spark_reads_it(spark, some):
    asked = [*ARRAYS, *KEYS, *some]
    array = F.from_json("text", "array<string>")
    seen = asked_of_spark(spark, asked, array=array, first=F.get(array, F.lit(0)))
    assert seen == list(
        zip(map(json_texts, asked), (first for (first,) in read_bodies(asked, first_text)), strict=True)
    )
    assert read_bodies(asked, key_set) == [(None if read is None else keys_in(read),) for read, _ in seen]


def test_null_stays_null_by_every_rule():
    rules = (present, folded_id, first_text, key_set, partial(integer, kind=pa.int64()))
    assert read_bodies([None, None], *rules) == [(None,) * len(rules)] * 2


def test_array_of_texts_in_single_quotes_is_none():
    """Spark would read it: JSON has no such texts."""
    assert json_texts("['a']") is None


def test_number_in_an_array_is_its_own_json():
    """As Python writes it; Spark would write Java's 1.23456789E7."""
    assert json_texts("[12345678.9, 5]") == ["12345678.9", "5"]
