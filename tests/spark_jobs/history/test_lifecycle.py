"""The lifecycle of a key: one rule, and columns of it."""

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_jobs.history.lifecycle import CLOSED, OpenKey, assign_lifecycle, decide_lifecycle, hash_closed
from spark_jobs.policy.policy import read_policy
from tests.support.events import START_MS, before, both, consumed, publish
from tests.support.kernel_runs import facts_of, verdicts_on

POLICY = read_policy(None)
MINUTE_MS = 60_000
FLAGS = dict.fromkeys(("is_on_both", "is_known", "was_closed", "is_old", "is_young"), False)
KEY = OpenKey(status="NATIVE_ONLY", reason="UNEXPLAINED", reason_detail="why", **FLAGS)
SETTLED = KEY._replace(reason="BY_DESIGN")
MET = KEY._replace(status="MATCHED_EXACT", reason=None, is_on_both=True)
HALF = KEY._replace(status="MISMATCHED", reason="HALF_RECORD", is_on_both=True)
COVERED = KEY._replace(reason="DROP_ATTRIBUTED")


@pytest.mark.parametrize(
    ("key", "lifecycle", "is_left"),
    [
        (KEY, "new", True),
        (KEY._replace(reason="IN_FLIGHT"), "new", True),
        (KEY._replace(reason="ABANDONED"), "new", True),
        (KEY._replace(status="PENDING", reason=None), "new", True),
        (KEY._replace(is_known=True), "still_open", True),
        (KEY._replace(is_known=True, was_closed=True), "still_open", True),
        (KEY._replace(was_closed=True), "regressed", True),
        (KEY._replace(is_old=True), "expired", True),
        (KEY._replace(is_old=True, was_closed=True), "expired", True),
        (SETTLED, None, False),
        (SETTLED._replace(is_known=True), "explained", False),
        (SETTLED._replace(was_closed=True), None, False),
        (SETTLED._replace(is_known=True, is_old=True), "explained", False),
        (MET, None, False),
        (MET._replace(is_known=True), "resolved", False),
        (MET._replace(reason="UNEXPLAINED"), None, False),
        (HALF, None, False),
        (HALF._replace(is_young=True), "new", True),
        (HALF._replace(is_known=True), "resolved", False),
        (COVERED, None, True),
        (COVERED._replace(is_old=True), None, False),
        (COVERED._replace(is_known=True), "explained", True),
        (COVERED._replace(is_known=True, is_old=True), "expired", False),
    ],
)
def test_lifecycle_follows_from_the_key(key, lifecycle, is_left):
    decided = decide_lifecycle(key)
    assert (decided.reason, decided.lifecycle, decided.is_left) == (key.reason, lifecycle, is_left)


LATE = KEY._replace(reason="LATE_BEYOND_RETENTION")


def test_beginning_of_this_input_is_no_reason_for_a_key_closed_before():
    closed = decide_lifecycle(LATE._replace(was_closed=True))
    assert (closed.reason, closed.reason_detail, closed.lifecycle) == ("UNEXPLAINED", None, "regressed")
    for known in (LATE, LATE._replace(was_closed=True, has_earlier_input=True)):  # the input began there in every run
        assert decide_lifecycle(known).reason == "LATE_BEYOND_RETENTION"


STORY = [
    *both("Z", at_ms=10 * MINUTE_MS),
    publish("native", "L", at_ms=0),
    publish("otlp", "B", at_ms=0, first_seen_run=2, left_as="UNEXPLAINED"),
    publish("native", "B", at_ms=0, first_seen_run=3, left_as="PENDING"),
    publish("otlp", "O", at_ms=1, first_seen_run=1, left_as="UNEXPLAINED"),
]


def lifecycles_of(events, *, policy=POLICY, run=None, closed=None, **facts):
    verdicts = assign_lifecycle(
        verdicts_on(events), policy, replace(facts_of(events, POLICY), **facts), run=run, closed=closed
    )
    return {row["msg_id"]: (row["lifecycle"], row["first_seen_run"]) for row in verdicts.to_pylist()}


def test_without_a_history_open_keys_are_new_and_have_no_run():
    assert lifecycles_of(STORY) == {"Z": (None, None), "L": ("new", None), "B": ("resolved", 2), "O": ("still_open", 1)}


def test_open_key_without_a_believable_time_never_expires():
    never = publish("native", "N", start_ms=-1, end_ms=None)
    assert lifecycles_of([*STORY, never], policy=replace(POLICY, forget_after_ms=0))["N"] == ("new", None)


def test_half_record_is_open_until_the_horizon():
    halves = {"H": 10 * MINUTE_MS, "G": 0}
    events = [*STORY, *(make(name, at_ms=at_ms) for name, at_ms in halves.items() for make in (before, consumed))]
    assert [lifecycles_of(events)[name][0] for name in halves] == ["new", None]
    assert lifecycles_of(events, horizon_ms=None)["G"][0] == "new"


@pytest.mark.parametrize(("side", "other"), [("native", "otlp"), ("otlp", "native")])
def test_open_key_at_the_position_of_a_closed_one_of_its_side_has_regressed(side, other):
    place = {"path": "a.jsonl", "record_index": 0, "raw_hash": 7, "line": 3}
    events = [*both("Z", at_ms=0), *(publish(each, each, **place) for each in (side, other))]
    closed = pa.Table.from_pylist([{**place, "side": side, "first_seen_run": 2, "last_ms": START_MS}], schema=CLOSED)
    lifecycles = lifecycles_of(events, run=4, closed=hash_closed(closed))
    assert lifecycles == {"Z": (None, None), side: ("regressed", 2), other: ("new", 4)}
