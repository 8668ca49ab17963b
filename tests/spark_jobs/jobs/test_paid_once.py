"""A counted loss over runs that follow each other: it pays for as many keys as were counted, in however many runs."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_jobs.drops import CountedDrop
from spark_jobs.history.history import open_history
from spark_jobs.sources.ledger import LedgerRead
from tests.support.events import START_MS, publish
from tests.support.history_runs import DAY_MS, MINUTE_MS, both, run

LOST = [publish("native", f"L{number}", at_ms=number, path="monday.jsonl") for number in range(8)]
COUNTED = CountedDrop(
    side="otlp", component="queue", cause="queue_full", count=5, bucket_start_ms=START_MS, bucket_ms=10_000
)
LEDGER = LedgerRead(files=("ledger.json",), drops=(COUNTED,))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("paid")


@pytest.fixture(scope="module")
def runs(root):
    """Eight spans lost of which five were counted; one of them comes late; a week later no ledger is given."""
    late = publish("otlp", "L0", at_ms=0, path="tuesday.jsonl")
    stories = [
        ([*both("A", 0), *LOST, *both("Z", 30 * MINUTE_MS)], LEDGER),
        ([late, *both("Y", 60 * MINUTE_MS, path="tuesday.jsonl")], LEDGER),
        (both("X", 9 * DAY_MS, path="last.jsonl"), None),
    ]
    return [run(root, events, ledger=ledger) for events, ledger in stories]


def reasons(told):
    return Counter(row["reason"] for row in told.rows if row["reason"])


def test_five_counted_losses_pay_for_five_keys_and_for_no_others_in_the_next_runs(runs):
    """Neither when the ledger is given again, nor when it is not; each run tells those that nobody counted."""
    assert reasons(runs[0]) == {"DROP_ATTRIBUTED": 5, "UNEXPLAINED": 3}
    assert reasons(runs[1]) == reasons(runs[2]) == {"DROP_ATTRIBUTED": 5, "UNEXPLAINED": 2}
    assert [one.result.ledger.attributed["otlp"] for one in runs] == [5, 5, 5]
    assert [one.result.exit_code for one in runs] == [1, 1, 1]


def test_a_key_that_a_counter_seemed_to_explain_is_resolved_when_its_span_comes(runs):
    """A counter says how many were lost, not which: what it paid for is waited for, and what it paid goes to another."""
    assert (runs[0].verdicts["L0"]["reason"], runs[0].verdicts["L0"]["lifecycle"]) == ("DROP_ATTRIBUTED", None)
    found = runs[1].verdicts["L0"]
    assert (found["status"], found["lifecycle"], found["first_seen_run"]) == ("MATCHED_EXACT", "resolved", 1)
    assert runs[1].verdicts["L5"]["reason"] == "DROP_ATTRIBUTED"
    assert runs[1].verdicts["L1"]["lifecycle"] == "explained"
    assert all(one.result.conservation.holds for one in runs)


def test_what_was_paid_for_is_forgotten_with_the_rest(root, runs):
    """After seven days it is told once more, as expired, and carried no further."""
    assert Counter(row["lifecycle"] for row in runs[2].rows if row["lifecycle"]) == {"expired": 7}
    with open_history(root / "history") as past:
        assert past.carried_files() == []
