"""The kernel against a plain Python reconciliation, and on one message given to thousands of deliveries."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.judging.kernel import judge_slices
from spark_jobs.judging.match import BLOCK
from spark_jobs.policy.policy import read_policy
from tests.spark_jobs.judging import oracle
from tests.spark_jobs.judging.drawn_runs import runs
from tests.support.events import START_MS, consumed, delivery
from tests.support.kernel_runs import judge, judge_events, plan_of, table_of, verdicts_on

GRACE_MS = 200_000
BEGIN_MS = START_MS + 5
POLICY = replace(read_policy(None), grace_ms=GRACE_MS, begin_ms=BEGIN_MS)
COPIES, LOST, HOUR_MS = 2 * BLOCK, 100, 3_600_000


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_verdicts_agree_with_the_plain_python_oracle(seed):
    events, malformed = runs(seed)
    damaged = {side: {msg_id for where, msg_id in malformed if where == side} for side in ("native", "otlp")}
    expected = oracle.verdicts(events, grace_ms=GRACE_MS, damaged=damaged, begin_ms=BEGIN_MS) if events else []
    rows = verdicts_on(events, policy=POLICY, malformed=malformed).select(oracle.COMPARED).to_pylist()
    assert sorted((tuple(row.values()) for row in rows), key=repr) == sorted(expected, key=repr)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_verdicts_do_not_depend_on_row_order_or_slices(seed):
    events, malformed = runs(seed)
    plan, shuffled = plan_of(events, POLICY), [*events]
    random.Random(7).shuffle(shuffled)
    whole = judge(table_of(events, malformed), plan).verdicts.to_pylist()
    slices = judge_slices(table_of(shuffled, malformed), plan, keys_per_slice=12)
    parts = [row for judged in slices for row in judged.verdicts.to_pylist()]
    assert sorted(map(repr, whole)) == sorted(map(repr, parts))


def test_spans_of_one_trace_without_an_attempt_id_are_two_keys():
    spans = [consumed("M", attempt=None, trace_id="t", span_id=span_id) for span_id in "ab"]
    verdicts = judge_events([*spans, *delivery("END", at_ms=1_000_000)])
    assert [row["otlp_count"] for row in verdicts if row["msg_id"] == "M"] == [1, 1]


def test_delivery_of_a_huge_message_is_matched_with_its_own_span():
    """Spans are lost at the beginning, in a later block and from one block on; one message's clocks are an hour apart."""
    gone = {*range(LOST), COPIES // 2, *range(1_200, 1_200 + LOST)}
    events = []
    for number in range(COPIES):
        events += delivery("DENSE", attempt=f"A{number}", at_ms=number)
        if number not in gone:
            events.append(consumed("DENSE", attempt=None, at_ms=number, span_id=f"{number:016x}"))
        events += delivery("SPARSE", attempt=f"A{number}", at_ms=2_000 * number)
        events.append(consumed("SPARSE", attempt=None, at_ms=2_000 * number + 300, span_id=f"{number:016x}"))
    for number in range(BLOCK + 200):
        events += delivery("TAIL", attempt=f"A{number}", at_ms=number)
        events += [consumed("TAIL", attempt=None, at_ms=number, span_id=f"{number:016x}")] if number < LOST else []
    for number in range(LOST):
        events += delivery("APART", attempt=f"A{number}", at_ms=number)
        events.append(consumed("APART", attempt=None, at_ms=number + HOUR_MS, span_id=f"{number:016x}"))
    expected = {
        ("APART", "MISMATCHED", HOUR_MS): LOST,
        ("DENSE", "MATCHED_EXACT", 0): COPIES - len(gone),
        ("DENSE", "NATIVE_ONLY", None): len(gone),
        ("SPARSE", "MISMATCHED", 300): COPIES,
        ("TAIL", "MATCHED_EXACT", 0): LOST,
        ("TAIL", "NATIVE_ONLY", None): BLOCK + 200 - LOST,
    }
    assert _count_apart(judge_events(events)) == _count_apart(judge_events(events[::-1])) == expected


def _count_apart(rows):
    counts = Counter()
    for row in rows:
        native, otlp = row["native"], row["otlp"]
        counts[row["msg_id"], row["status"], native and otlp and abs(native["start_ms"] - otlp["start_ms"])] += 1
    return counts
