"""What a policy changes in verdicts: severities, redaction, masking, declarations; one run with many cases."""

import hashlib
from dataclasses import replace

import pytest

from spark_jobs.judging import compare
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.policy import make_plan, read_policy
from tests.support.events import publish
from tests.support.kernel_runs import judge_events

POLICY = """
grace = 0
mask_keys = "hash"
mask_salt = "sea"
[fields.tags]
severity = "ignore"
[fields.body_length]
verdicts = { DIFFERENT = "ok" }
[writers.mqtrace]
never = ["recall"]
never_fields = ["region_id"]
[[silent]]
side = "otlp"
topic = "it's \\\\ \\"quiet\\""
[[silent]]
side = "native"
group = "nightly"
service = "cron"
"""
HASH = hashlib.sha256(b"seaorder-1").hexdigest()
QUIET = 'it\'s \\ "quiet"'


def both(msg_id: str, native: dict, otlp: dict) -> list[dict]:
    return [publish("native", msg_id, **native), publish("otlp", msg_id, **otlp)]


EVENTS = [
    *both("END", {"at_ms": 3_600_000}, {"at_ms": 3_600_000}),
    *both("TAGS", {"tags": "a"}, {"tags": "b"}),
    *both("LENGTH", {"body_length": 3}, {"body_length": 4}),
    *both("HOST", {"store_host": "h:1"}, {"store_host": "h:2"}),
    *both("STARS", {"keys": ["order-1", "order-4"]}, {"keys": ["***"]}),
    *both("HASH", {"keys": ["order-1"]}, {"keys": [HASH.upper()]}),
    *both("START", {"keys": [HASH[:20]]}, {"keys": ["order-1"]}),
    *both("SHORT", {"keys": ["order-1"]}, {"keys": [HASH[:15]]}),
    *both("OTHER", {"keys": ["order-1"]}, {"keys": ["order-2"]}),
    *both("REGION", {"region_id": None}, {"region_id": "R"}),
    *both("GROUPED", {"group_name": "nightly"}, {"group_name": "nightly", "service": "cron"}),
    publish("native", "QUIET", topic=QUIET, keys=["order-1"]),
    publish("native", "LOUD", topic="orders"),
    publish("otlp", "CRON", group_name="nightly", service="cron"),
    publish("otlp", "DAILY", group_name="nightly", service="shop"),
]


def _judged(path, policy, events):
    path.write_text(policy)
    return {row["msg_id"]: row for row in judge_events(events, policy=read_policy(path))}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return _judged(tmp_path_factory.mktemp("policy") / "policy.toml", POLICY, EVENTS)


@pytest.mark.parametrize(
    ("msg_id", "name", "verdict", "status"),
    [
        ("HOST", "store_host", "DIFFERENT", "MISMATCHED"),
        ("TAGS", "tags", "DIFFERENT", "MATCHED_NORMALISED"),  # of no severity
        ("LENGTH", "body_length", "DIFFERENT", "MATCHED_NORMALISED"),  # the policy calls it fine
        ("REGION", "region_id", "NOT_COMPARABLE", "MATCHED_EXACT"),  # the policy excludes it
        ("STARS", "keys", "REDACTED", "MATCHED_NORMALISED"),  # the mask
        ("HASH", "keys", "REDACTED", "MATCHED_NORMALISED"),  # the salted hash, in any case
        ("START", "keys", "REDACTED", "MATCHED_NORMALISED"),  # its beginning
        ("SHORT", "keys", "DIFFERENT", "MISMATCHED"),  # fifteen digits are too few
        ("OTHER", "keys", "DIFFERENT", "MISMATCHED"),
    ],
)
def test_field_has_the_verdict_and_severity_of_the_policy(rows, msg_id, name, verdict, status):
    assert (rows[msg_id]["field_verdicts"][name], rows[msg_id]["status"]) == (verdict, status)


def test_keys_are_masked_and_equal_ones_stay_equal(rows):
    assert rows["QUIET"]["native"]["keys"] == [HASH[:16]] == rows["HASH"]["native"]["keys"]
    both_keys = [hashlib.sha256(f"seaorder-{number}".encode()).hexdigest()[:16] for number in (1, 4)]
    assert rows["STARS"]["native"]["keys"] == sorted(both_keys)
    assert rows["LOUD"]["native"]["keys"] is None
    sides = [side for row in rows.values() for side in (row["native"], row["otlp"]) if side]
    assert "order-" not in repr([side["keys"] for side in sides])


@pytest.mark.parametrize(("msg_id", "is_silent"), [("QUIET", True), ("CRON", True), ("LOUD", False), ("DAILY", False)])
def test_key_that_the_policy_declares_silent_is_by_design(rows, msg_id, is_silent):
    assert (rows[msg_id]["reason"] == "BY_DESIGN") is is_silent
    assert (rows[msg_id]["reason_detail"] == "policy_says_silent") is is_silent


def test_masked_keys_show_the_mask_once_per_key(tmp_path):
    events = [*both("TWO", {"keys": ["a", "b"]}, {"keys": ["a", "b"]}), *both("NONE", {"keys": []}, {})]
    rows = _judged(tmp_path / "policy.toml", 'mask_keys = "mask"\nmask_text = "#"\n', events)
    assert rows["TWO"]["native"]["keys"] == ["#", "#"]
    assert rows["TWO"]["field_verdicts"]["keys"] == "EQUAL"
    assert rows["NONE"]["native"]["keys"] == []
    path = tmp_path / "policy.toml"
    assert _judged(path, path.read_text(), both("BARE", {}, {}))["BARE"]["status"] == "MATCHED_EXACT"


PLAN = replace(make_plan(read_policy(None), Facts()), mask_salt="s", value_length_limit=5)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("order", "order", True),
        ("a_b_c", "a\x01b\x02c", True),
        ("caf\ufffd", "café", True),
        ("caf\ufffd\ufffd", "caf订单", True),
        ("a\ufffdb\ufffd\ufffdc", "aéb单c", True),
        ("caf\ufffd", "caf", False),
        ("caf\ufffd", "cab", False),
        ("a\ufffdb\ufffdc", "aéc", False),
        ("a\ufffdb\ufffdc", "aéxc", False),
        ("a.*", "abc", False),
        ("a_b", "a.b", False),
        ("order", "Order", False),
    ],
)
def test_replaced_text_equals_only_what_it_may_stand_for(one, other, same):
    assert compare.is_same_but_replaced(one, other) is same
    assert compare.is_same_but_replaced(other, one) is same


@pytest.mark.parametrize(
    ("rule", "native", "otlp", "verdict"),
    [
        (compare.compare_texts, " a ", "a", "EQUAL_NORMALISED"),
        (compare.compare_texts, "\ta", "a", "DIFFERENT"),
        (compare.compare_texts, "0123456789abcdef", "0123456789ABCDEF", "EQUAL_NORMALISED"),
        (compare.compare_texts, "0123456789abcde", "0123456789ABCDE", "DIFFERENT"),
        (compare.compare_texts, "abcdefg", "abcde", "TRUNCATED"),
        (compare.compare_texts, "abcdefg", "abcd", "DIFFERENT"),
        (compare.compare_texts, "secret", "***", "REDACTED"),
        (compare.compare_resources, "%RETRY%ns%billing", "billing", "EQUAL_NORMALISED"),
        (compare.compare_resources, "ns%billing", "other", "DIFFERENT"),
        (compare.compare_hosts, "Broker/10.0.0.1:1", "10.0.0.1:1", "EQUAL_NORMALISED"),
        (compare.compare_keys, ["a", "b"], ["***"], "REDACTED"),
        (compare.compare_keys, ["abcdefg", "abcdefh"], ["abcde"], "TRUNCATED"),
        (compare.compare_keys, ["a", "b"], ["a"], "DIFFERENT"),
        (compare.compare_keys, ["a_b"], ["a\x01b"], "SANITISED"),
    ],
)
def test_unequal_values_get_the_verdict_of_their_rule(rule, native, otlp, verdict):
    assert rule(native, otlp, PLAN).value == verdict
