"""What a policy changes in verdicts: severities, redaction, masking, declarations; one run with many cases."""

import hashlib

import pytest

from spark_jobs.policy.policy import read_policy
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
    assert "order-" not in repr(
        [[side["keys"] for side in (row["native"], row["otlp"]) if side] for row in rows.values()]
    )


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
