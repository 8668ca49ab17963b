"""What a policy changes in verdicts: severities, redaction, masking, declarations; one run with many cases."""

from __future__ import annotations

import hashlib
import sys

import pytest

from spark_jobs.policy.policy import read_policy
from spark_jobs.reconcile.sampled_share import missing_spans, read_allowed, shared_out
from spark_jobs.reconcile.slots import counted, marked, read_losses
from spark_jobs.spark_schemas import VERDICT
from spark_jobs.taxonomy import Reason
from tests.support.events import consumed, delivery, publish
from tests.support.judging import judged

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="the standard library reads TOML since 3.11"),
]

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
    *both("STARS", {"keys": ["order-1", "order-2"]}, {"keys": ["***"]}),
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
    *(row for number in range(400) for row in delivery(f"M{number}", at_ms=number, attempt=f"A{number}")),
    *(consumed(f"M{number}", at_ms=number, attempt=f"A{number}") for number in range(1, 400, 2)),  # half is sampled
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy.toml"
    path.write_text(POLICY)
    return read_policy(path)


@pytest.fixture(scope="module")
def found(spark, policy):
    """Return the verdicts, read back as a run does."""
    return spark.createDataFrame(judged(spark, EVENTS, policy=policy).collect(), VERDICT)


@pytest.fixture(scope="module")
def rows(found):
    return {row["msg_id"]: row for row in found.collect()}


def test_a_severity_decides_whether_a_difference_makes_a_mismatch(rows):
    """Ignored, or said to be fine: the verdict of the field stays, the key matches."""
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
    """On both sides, in one-sided keys, and where there are none."""
    assert rows["QUIET"]["native"]["keys"] == [HASH[:16]] == rows["HASH"]["native"]["keys"]
    assert len(rows["STARS"]["native"]["keys"]) == 2
    assert rows["LOUD"]["native"]["keys"] is None
    assert "order-" not in repr(
        [[side["keys"] for side in (row["native"], row["otlp"]) if side] for row in rows.values()]
    )


def test_texts_of_damaged_records_are_hidden_with_the_keys(policy):
    """They may hold some."""
    assert policy.hide("Pub order-1") == "***"
    assert read_policy(None).hide("Pub order-1") == "Pub order-1"


def test_a_field_that_a_writer_is_said_never_to_record_is_not_comparable(rows):
    """The native side without its region."""
    assert rows["REGION"]["field_verdicts"]["region_id"] == "NOT_COMPARABLE"
    assert rows["REGION"]["status"] == "MATCHED_EXACT"


def test_what_is_declared_silent_is_by_design_and_nothing_else(rows):
    """A topic with quotes in its name; a group of one service, not of another."""
    for msg_id in ("QUIET", "CRON"):
        assert (rows[msg_id]["reason"], rows[msg_id]["reason_detail"]) == ("BY_DESIGN", "policy_says_silent")
    for msg_id in ("LOUD", "DAILY"):
        assert rows[msg_id]["reason"] != "BY_DESIGN"


@pytest.fixture(scope="module")
def sampled(found):
    """Two hundred deliveries without a span of four hundred, where half of the messages are sampled."""
    deliveries = found.where("kind = 'consume'")
    return deliveries.where("reason = 'UNEXPLAINED'"), deliveries.where("reason is null")


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 200), (0.9, None)])
def test_a_ratio_covers_what_chance_allows_and_not_a_key_more(sampled, ratio, expected):
    """Half sampled: all of the missing ones. Nine of ten sampled: far more are missing than that can explain."""
    residue, settled = sampled
    most = read_allowed(missing_spans(residue, settled).collect(), ratio)
    covered = shared_out(read_losses(counted(residue).collect(), {}), most)
    reasons = [row["reason"] for row in marked(residue, covered, (), Reason.NOT_SAMPLED).collect()]
    assert reasons.count("NOT_SAMPLED") == most == (expected or most)
    assert reasons.count("NOT_SAMPLED") + reasons.count("UNEXPLAINED") == 200
    if expected is None:
        assert 40 < most < 60
