"""Checksums of segments first: whatever is not an exact pair opens its segment, and what is told of the rest is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings

from spark_jobs.reconcile import segments
from spark_jobs.reconcile.facts import overview, read_facts
from spark_jobs.reconcile.policy import read_policy
from spark_jobs.reconcile.residue import explained, is_residue
from spark_jobs.reconcile.verdicts import verdicts
from spark_jobs.schemas import EVENT, MALFORMED
from tests.support.drawn_runs import runs
from tests.support.events import START_MS, after, before, consumed, delivery, publish, rows_of

pytestmark = pytest.mark.spark

MOST = segments.MOST_SEGMENTS
UNTOLD = ("queue_ms", "end_to_end_ms")
SAID_BY_NOBODY = {"writer", "path", "line", "record_index", "raw_hash", "batch_size", "arrival_ms"}
GRACE_MS = 200_000


def frames(spark, events):
    return [spark.createDataFrame(rows_of(events, side), EVENT).coalesce(2) for side in ("native", "otlp")]


def found_segments(spark, events, policy, total):
    rows = segments.checksums(*frames(spark, events), policy, total).collect()
    return segments.read_checksums(rows, total)


def told(row):
    """A verdict without what segments do not tell: where the native record lay, and what takes the whole message."""
    plain = row.asDict(recursive=True)
    for name in UNTOLD:
        del plain[name]
    if plain["native"]:
        plain["native"] = {name: value for name, value in plain["native"].items() if name not in SAID_BY_NOBODY}
    return repr(sorted(plain.items()))


def compared(spark, events, malformed, policy, total):
    """Return the verdicts of a run that judges every key, those of one by segments, and how many keys it skipped."""
    native, otlp = frames(spark, events)
    damaged = [(side, "input.jsonl", 9, 0, None, "damaged", msg_id, [msg_id]) for side, msg_id in malformed]
    bad = spark.createDataFrame(damaged, MALFORMED)
    facts = read_facts(overview(native, otlp, bad).collect(), policy)
    found = segments.read_checksums(segments.checksums(native, otlp, policy, total).collect(), total)
    aside = segments.matched(otlp, found, policy)

    def answers(native, otlp, beside):
        judged = verdicts(native, otlp, bad, policy=policy, facts=facts).persist()
        everything = judged if beside is None else judged.unionByName(beside)
        traffic = otlp.where("scope = 'TRACE_TRAFFIC'")
        residue = explained(judged.where(is_residue()), everything, traffic, policy=policy, facts=facts, asking=0)
        rows = everything.where(~is_residue()).unionByName(residue).collect()
        judged.unpersist()
        return Counter(map(told, rows))

    narrow = answers(segments.opened(native, found), segments.opened(otlp, found), aside)
    return answers(native, otlp, None), narrow, found.skipped


def sent(msg_id, *, native=(), otlp=(), **both):
    return [publish("native", msg_id, **{**both, **dict(native)}), publish("otlp", msg_id, **{**both, **dict(otlp)})]


def delivered(msg_id, **fields):
    return [*delivery(msg_id, **fields), consumed(msg_id, **fields)]


def ended(msg_id, kind, **fields):
    bare = dict.fromkeys(("offset_msg_id", "end_ms", "cost_ms", "body_length"))
    said = {**bare, "kind": kind, "group_name": "producers", **fields}
    span = publish("otlp", msg_id)["end_ms"]
    return [{**publish("native", msg_id), **said}, {**publish("otlp", msg_id), **said, "end_ms": span, "cost_ms": 10}]


ARRIVED = "a send whose record tells its arrival"
COMMIT = {"transaction_id": "T", "transaction_state": "COMMIT_MESSAGE", "from_transaction_check": False}
LISTED = {"keys": ["a", "b"], "tags": "x", "store_host": "10.0.0.1:10911", "client_host": None}
EQUAL = {
    "a send": sent("A", **LISTED),
    "a delivery, its halves apart": delivered("B"),
    "a failed delivery": delivered("C", success=False, context_code="FAILED"),
    "deliveries to two groups, one of them again": [
        *sent("D"),
        *delivered("D"),
        *delivered("D", group="shipping"),
        *delivered("D", group="shipping", attempt="A2", retry_times=1, at_ms=900),
    ],
    "the end of a transaction": ended("E", "transaction_end", **COMMIT, success=None),
    "a recall": ended("F", "recall", tags=None, keys=None, store_host=None, msg_type=None),
    "a send without an offset": sent("G", offset_msg_id=None),
    ARRIVED: sent("H", native={"arrival_ms": START_MS + 500}),
}
UNEQUAL = {
    "lost and doubled": [publish("native", "a"), *sent("a2"), publish("otlp", "a2")],
    "a tag less": sent("b", native={"tags": "x"}),
    "one value in the place of another": sent(
        "c", native={"tags": "x", "store_host": None}, otlp={"tags": None, "store_host": "x"}
    ),
    "a key in the place of a tag": sent("d", native={"tags": "x", "keys": None}, otlp={"tags": None, "keys": ["x"]}),
    "doubled alike on both sides": 2 * sent("e"),
    "delivered and doubled alike on both sides": 2 * delivered("f"),
    "doubled on both sides, in contradiction": [*sent("g"), *sent("g", success=False)],
    "a delivery without its end": [before("h"), consumed("h")],
    "a delivery without its beginning": [after("i"), consumed("i")],
    "two beginnings and no end": [before("j"), before("j"), consumed("j")],
    "halves and no span": delivery("k"),
    "a span and no halves": [consumed("l")],
    "an end within the tolerance": sent("m", native={"end_ms": START_MS + 13}),
    "an end that says the group no more": [before("n"), after("n", group=None), consumed("n")],
    "a record that says more than its wire holds": sent("o", native={"client_host": "10.0.0.9"}, client_host=None),
    "the end of a delivery that says more than the beginning": [
        before("p", keys=None),
        after("p", keys=["x"]),
        consumed("p", keys=None),
    ],
    "an attempt more": [*delivered("q"), consumed("q", attempt="A2")],
    "an attempt that both sides call otherwise": [*delivery("r"), consumed("r", attempt="A9")],
    "another writer's span": sent("s", offset_msg_id=None, otlp={"writer": "other"}),
    "a late record": sent("t", native={"arrival_ms": START_MS + 10_000_000}),
    "a record from the future": sent("u", otlp={"arrival_ms": START_MS - 10_000_000}),
    "a key that is carried over": sent("v", first_seen_run=1, left_as="UNEXPLAINED"),
    "a span that ends before it begins": sent("w", end_ms=START_MS - 1),
    "a timeless end": [*delivery("x", cost_ms=10), {**consumed("x"), "end_ms": None}],
    "equal deliveries of which nobody says the group": [
        *delivered("y", group=None),
        *delivered("y", at_ms=300),
    ],
    "a send before the window": sent("z", at_ms=-50),
}


def clean(number):
    return [*sent(f"CLEAN{number:04}", at_ms=number), *delivered(f"CLEAN{number:04}", at_ms=number + 100)]


@pytest.fixture(scope="module")
def policy():
    return replace(read_policy(None), begin_ms=START_MS - 20)


def test_exact_pairs_close_their_segment_and_anything_else_opens_it(spark, policy):
    """A message is a segment here: those of the second table are open, those of the first closed."""
    events = [event for case in (*EQUAL.values(), *UNEQUAL.values()) for event in case]
    found = found_segments(spark, events, policy, MOST)
    shut = {row["msg_id"] for frame in frames(spark, events) for row in frame.collect()} - {
        row["msg_id"] for frame in frames(spark, events) for row in segments.opened(frame, found).collect()
    }
    assert shut == {row["msg_id"] for case in EQUAL.values() for row in case}
    assert found.differing == len({row["msg_id"] for case in UNEQUAL.values() for row in case})
    assert found.skipped == sum(row["side"] == "otlp" for case in EQUAL.values() for row in case)


def test_what_cancels_in_counts_cancels_in_no_checksum(spark, policy):
    """Lost here and doubled there, values exchanged, halves exchanged: all in one segment, which differs."""
    exchanged = [
        *sent("A", native={"tags": "x"}, otlp={"tags": "y"}),
        *sent("B", native={"tags": "y"}, otlp={"tags": "x"}),
    ]
    for events in (
        [*sent("A"), publish("native", "A"), publish("otlp", "B")],
        exchanged,
        [before("A"), before("B"), after("A"), after("A"), consumed("A"), consumed("B")],
    ):
        assert found_segments(spark, events, policy, 1).skipped == 0
    assert found_segments(spark, [*sent("A"), *delivered("B")], policy, 1).skipped == 2


def test_a_segment_of_many_messages_is_closed_only_where_all_are_equal(spark, policy):
    """Sixteen segments and three faults: each opens its own with all that is in it, the others stay closed."""
    wrong = [*chain(*(UNEQUAL[name] for name in ("a tag less", "a span and no halves", "another writer's span")))]
    alike = (case for name, case in EQUAL.items() if name != ARRIVED)  # it would open a segment whose others tell none
    right = [*(event for number in range(60) for event in clean(number)), *chain(*alike)]
    made = frames(spark, [*right, *wrong])
    found = found_segments(spark, [*right, *wrong], policy, 16)
    opened = {row["msg_id"] for frame in made for row in segments.opened(frame, found).select("msg_id").collect()}
    assert opened >= {row["msg_id"] for row in wrong}
    closed = [row for row in right if row["side"] == "otlp" and row["msg_id"] not in opened]
    assert 0 < len(closed) == found.skipped < sum(row["side"] == "otlp" for row in right)
    assert found.differing <= 3


@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=runs())
def test_every_verdict_is_that_of_a_run_without_segments(spark, policy, made):
    """One draw is hundreds of messages with everything wrong at once, among clean ones and every case of the tables."""
    events, malformed = made
    events = [*events, *(event for number in range(60) for event in clean(number))]
    events += chain(*EQUAL.values(), *UNEQUAL.values())
    full, narrow, skipped = compared(spark, events, malformed, replace(policy, grace_ms=GRACE_MS), MOST)
    assert narrow == full
    assert skipped > 0
