"""Texts are brought to one form on Arrow as by Spark."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from spark_jobs.normalise import texts
from spark_jobs.normalise.json_arrays import json_texts
from spark_jobs.normalise.text_rules import first_text, folded_id, integer, key_set, present

WORDS = ("", " ", "null", " null", "dKey", "abc", " aBc1 ", "\tab", "ﬀ", "ab ", "xyz", "\U0001d4b3", "\x00")
NUMBERS = (
    *("5", "+5", "-5", " 5 ", "\t5\n", "\x005\x1f", "\x7f5", "0005", "-0", "0" * 5000 + "7", "9" * 5000, "5 5", "+-5"),
    *("5.0", "5.", ".5", "1e3", "0x5", "5L", "٣", "\xa05", "\x855", "", "-", "+", "true"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
)
ARRAYS = (
    *('["a"]', '["a","b"]', ' [ "a" , null ]\n', "[]", "[[]]", '[1,true,null,{"a": 1},[1, "é"]]', '["a"] and more'),
    *("['a']", "['a', \"b'c\"]", "['it\\'s \"q\"']", '["it\\\'s"]', '["\\ud800"]', '["\\ud83d\\ude00"]', "[NaN]"),
    *('["a"', '["a",]', '["a" "b"]', "[a]", "['a'", '["a\tb"]', '["\\x"]', "[01]", "[+1]", "[.5]", "[tru]"),
    *("", "null", '"a"', "5", '{"a":"b"}', "\ufeff[1]", "\xa0[1]", "[" * 2000 + "]" * 2000),
)
KEYS = ('["b a","a"]', '[" ","null","dKey"]', '["\U0001d4b3","ﬀ","z"]', '["a\u2028b"]', '["A","a"]', "[null]", "[]")
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def asked_of_spark(spark, given_texts, **columns):
    frame = spark.createDataFrame(list(enumerate(given_texts)), "at int, text string").coalesce(1)
    rows = frame.select("at", *(column.alias(name) for name, column in columns.items())).collect()
    return [tuple(row[name] for name in columns) for row in sorted(rows, key=lambda row: row["at"])]


def told(some, *rules):
    return list(zip(*(rule(pa.array(some, pa.string())).to_pylist() for rule in rules), strict=True))


@pytest.mark.spark
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(ANY_TEXT, min_size=200, max_size=200))
def test_ids_and_words_for_nothing_are_told_as_spark_tells_them(spark, some):
    """Of the words that writers use, and of any others."""
    asked = [*WORDS, *some]
    seen = asked_of_spark(spark, asked, present=texts.present(F.col("text")), folded=texts.folded_id(F.col("text")))
    assert seen == told(asked, present, folded_id)


@pytest.mark.spark
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(st.text("0123456789+-. \t\x00\x7f٣", max_size=22), min_size=200, max_size=200))
def test_a_text_is_the_number_that_spark_casts_it_to(spark, some):
    """White space and control characters around it are nothing; what does not fit is no number."""
    asked = [*NUMBERS, *some]
    seen = asked_of_spark(spark, asked, int=F.col("text").try_cast("int"), long=F.col("text").try_cast("bigint"))
    assert seen == told(asked, partial(integer, kind=pa.int32()), partial(integer, kind=pa.int64()))


@pytest.mark.spark
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(st.text("[]\"'\\,ab \n{}u0", max_size=12).map("[{}".format), min_size=200, max_size=200))
def test_an_array_of_texts_is_read_as_spark_reads_it(spark, some):
    """Single quotes, rests of lines and unpaired surrogates included."""
    asked = [*ARRAYS, *KEYS, *some]
    array = F.from_json("text", "array<string>")
    seen = asked_of_spark(spark, asked, array=array, first=F.get(array, F.lit(0)), keys=texts.key_set(array))
    rows = zip(map(json_texts, asked), told(asked, first_text, key_set), strict=True)
    assert seen == [(read, first, keys or None) for read, (first, keys) in rows]


def test_what_is_no_text_at_all_is_nothing_by_every_rule():
    """Null goes in and comes out."""
    rules = (present, folded_id, first_text, key_set, partial(integer, kind=pa.int64()))
    assert told([None, None], *rules) == [(None,) * len(rules)] * 2


def test_a_number_in_an_array_is_its_own_json():
    """As Python writes it; Spark would write Java's 1.23456789E7."""
    assert json_texts("[12345678.9, 5]") == ["12345678.9", "5"]
