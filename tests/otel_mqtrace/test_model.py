"""Names of topics and groups, with and without RocketMQ's prefixes."""

import pytest

from otel_mqtrace.model import is_same_name, parse_name, strip_namespace


@pytest.mark.parametrize(
    ("name", "parts", "stripped"),
    [
        ("orders", (None, None, "orders"), "orders"),
        ("ns%orders", (None, "ns", "orders"), "orders"),
        ("a%b%c", (None, "a", "b%c"), "b%c"),
        ("%RETRY%CG", ("RETRY", None, "CG"), "%RETRY%CG"),
        ("%DLQ%ns%CG", ("DLQ", "ns", "CG"), "%DLQ%CG"),
        ("%OTHER%CG", (None, None, "%OTHER%CG"), "%OTHER%CG"),
        ("ns%", (None, "ns", ""), ""),
        ("", (None, None, ""), ""),
    ],
)
def test_name_has_a_prefix_a_namespace_and_the_rest(name, parts, stripped):
    assert parse_name(name) == parts
    assert strip_namespace(name) == stripped


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("ns%T", "T", True), ("ns%T", "ns%T", True), ("ns%T", "other%T", False), ("%RETRY%T", "T", False)],
)
def test_name_is_the_same_where_one_lacks_the_namespace(one, other, same):
    assert is_same_name(one, other) is is_same_name(other, one) is same
