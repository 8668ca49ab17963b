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


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy.toml"
    path.write_text(POLICY)
    return {row["msg_id"]: row for row in judge_events(EVENTS, policy=read_policy(path))}


def test_a_severity_decides_whether_a_difference_makes_a_mismatch(rows):
    assert rows["HOST"]["status"] == "MISMATCHED"
    for msg_id, name in (("TAGS", "tags"), ("LENGTH", "body_length")):
        assert rows[msg_id]["field_verdicts"][name] == "DIFFERENT"
        assert rows[msg_id]["status"] == "MATCHED_NORMALISED"


@pytest.mark.parametrize(
    ("msg_id", "verdict"),
    [
        ("STARS", "REDACTED"),
        ("HASH", "REDACTED"),
        ("START", "REDACTED"),
        ("SHORT", "DIFFERENT"),
        ("OTHER", "DIFFERENT"),
    ],
)
def test_a_side_that_shows_the_mask_or_the_hash_of_the_other_is_redacted(rows, msg_id, verdict):
    """The mask, the whole salted hash in any case, its beginning; fifteen digits are too few."""
    assert rows[msg_id]["field_verdicts"]["keys"] == verdict


def test_no_key_is_left_to_read_and_equal_ones_stay_equal(rows):
    assert rows["QUIET"]["native"]["keys"] == [HASH[:16]] == rows["HASH"]["native"]["keys"]
    both_keys = [hashlib.sha256(f"seaorder-{number}".encode()).hexdigest()[:16] for number in (1, 4)]
    assert rows["STARS"]["native"]["keys"] == sorted(both_keys)
    assert rows["LOUD"]["native"]["keys"] is None
    assert "order-" not in repr(
        [[side["keys"] for side in (row["native"], row["otlp"]) if side] for row in rows.values()]
    )


def test_field_that_the_policy_excludes_is_not_comparable(rows):
    assert rows["REGION"]["field_verdicts"]["region_id"] == "NOT_COMPARABLE"
    assert rows["REGION"]["status"] == "MATCHED_EXACT"


def test_what_is_declared_silent_is_by_design_and_nothing_else(rows):
    for msg_id in ("QUIET", "CRON"):
        assert (rows[msg_id]["reason"], rows[msg_id]["reason_detail"]) == ("BY_DESIGN", "policy_says_silent")
    for msg_id in ("LOUD", "DAILY"):
        assert rows[msg_id]["reason"] != "BY_DESIGN"


def test_masked_keys_show_the_mask_once_per_key(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('mask_keys = "mask"\nmask_text = "#"\n')
    events = [*both("TWO", {"keys": ["a", "b"]}, {"keys": ["a", "b"]}), *both("NONE", {"keys": []}, {})]
    found = {row["msg_id"]: row for row in judge_events(events, policy=read_policy(path))}
    assert found["TWO"]["native"]["keys"] == ["#", "#"]
    assert found["TWO"]["field_verdicts"]["keys"] == "EQUAL"
    assert found["NONE"]["native"]["keys"] == []
