"""The rules of fields: which unequal values are called equal, and by which word."""

from dataclasses import replace

import pytest

from spark_jobs.judging.compare import (
    compare_hosts,
    compare_keys,
    compare_resources,
    compare_texts,
    is_same_but_replaced,
)
from spark_jobs.policy.policy import make_plan, read_policy

PLAN = replace(make_plan(read_policy(None), data_end_ms=None, horizon_ms=None), mask_salt="s", value_length_limit=5)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("order", "order", True),
        ("a_b_c", "a\x01b\x02c", True),
        ("caf\ufffd", "café", True),
        ("caf\ufffd\ufffd", "caf订单", True),
        ("\ufffd\ufffd-7", "订单-7", True),
        ("a\ufffdb\ufffd\ufffdc", "aéb单c", True),
        ("\ufffd", "订", True),
        ("caf\ufffd", "caf", False),
        ("caf\ufffd", "cab", False),
        ("a\ufffdb\ufffdc", "aéc", False),
        ("a\ufffdb\ufffdc", "aéxc", False),
        ("a\ufffdb\ufffdb", "aéb", False),
        ("a.*", "abc", False),
        ("a_b", "a.b", False),
        ("order", "Order", False),
    ],
)
def test_replaced_text_equals_only_what_it_may_stand_for(one, other, same):
    assert is_same_but_replaced(one, other) is same
    assert is_same_but_replaced(other, one) is same


@pytest.mark.parametrize(
    ("rule", "native", "otlp", "verdict"),
    [
        (compare_texts, " a ", "a", "EQUAL_NORMALISED"),
        (compare_texts, "\ta", "a", "DIFFERENT"),
        (compare_texts, "0123456789abcdef", "0123456789ABCDEF", "EQUAL_NORMALISED"),
        (compare_texts, "0123456789abcde", "0123456789ABCDE", "DIFFERENT"),
        (compare_texts, "abcdefg", "abcde", "TRUNCATED"),
        (compare_texts, "abcdefg", "abcd", "DIFFERENT"),
        (compare_texts, "secret", "***", "REDACTED"),
        (compare_resources, "%RETRY%ns%billing", "billing", "EQUAL_NORMALISED"),
        (compare_resources, "ns%billing", "other", "DIFFERENT"),
        (compare_hosts, "Broker/10.0.0.1:1", "10.0.0.1:1", "EQUAL_NORMALISED"),
        (compare_keys, ["a", "b"], ["***"], "REDACTED"),
        (compare_keys, ["abcdefg", "abcdefh"], ["abcde"], "TRUNCATED"),
        (compare_keys, ["a", "b"], ["a"], "DIFFERENT"),
        (compare_keys, ["a_b"], ["a\x01b"], "SANITISED"),
    ],
)
def test_unequal_values_get_the_verdict_of_their_rule(rule, native, otlp, verdict):
    assert rule(native, otlp, PLAN).value == verdict
