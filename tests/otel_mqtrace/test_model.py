"""Names of topics and groups, with and without RocketMQ's prefixes."""

from otel_mqtrace.model import is_same_name, parse_name, strip_namespace

PARTS = {
    "orders": (None, None, "orders"),
    "ns%orders": (None, "ns", "orders"),
    "a%b%c": (None, "a", "b%c"),
    "%RETRY%CG": ("RETRY", None, "CG"),
    "%DLQ%ns%CG": ("DLQ", "ns", "CG"),
    "%OTHER%CG": (None, None, "%OTHER%CG"),
    "ns%": (None, "ns", ""),
    "": (None, None, ""),
}


def test_name_has_a_prefix_a_namespace_and_the_rest():
    assert {name: parse_name(name) for name in PARTS} == PARTS
    assert [*map(strip_namespace, PARTS)] == ["orders", "orders", "b%c", "%RETRY%CG", "%DLQ%CG", "%OTHER%CG", "", ""]


def test_name_is_the_same_where_one_lacks_the_namespace():
    names = ("T", "ns%T", "other%T", "%RETRY%T")
    same = {(one, other) for one in names for other in names if one < other and is_same_name(one, other)}
    assert same == {("T", "ns%T"), ("T", "other%T")}
