"""Checksums first, details where they differ: the same run as judging every key, over the faults of one writer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.faults.runs import reconciled
from tests.faults.test_invariance import placeless

pytestmark = pytest.mark.spark

TOTAL = 4096
SAME = (
    *("verdict", "exit_code", "window", "horizon_ms", "inputs", "status", "status_by_kind", "reason", "reason_detail"),
    *("fields", "gates", "conservation", "loss", "timeline", "malformed", "duplicates", "timing", "ledger", "topics"),
    *("ageing", "instances", "lifecycle", "open_break_age"),
)
BY_EVENT = ("queue_ms", "end_to_end_ms")


@pytest.fixture(scope="module")
def both(spark, corpora, judged_corpora, tmp_path_factory):
    """The corpus of our own writer, whose sides are equal but for the faults: judged key by key, and by segments."""
    corpus = corpora["mqtrace"]
    corpus = replace(corpus, options={**corpus.options, "segments": TOTAL})
    narrow = reconciled(spark, corpus, tmp_path_factory.mktemp("segments"))
    return judged_corpora["mqtrace"], narrow


def told(result, name):
    """A part of a result without where its files lie."""
    value = getattr(result, name)
    if name == "ledger":
        return replace(value, files=())
    if name == "inputs":
        return [replace(side, sources=()) for side in (value.native, value.otlp)]
    return sorted(repr(replace(piece, path="")) for piece in value) if name == "malformed" else value


def test_the_result_is_that_of_the_whole_run(both):
    """Statuses, reasons, fields, gates, books, losses, timeline, topics: everything but where files lie."""
    full, narrow = both
    for name in SAME:
        assert told(narrow.result, name) == told(full.result, name), name
    for name in ("publish", "process"):
        assert narrow.result.latency[name] == full.result.latency[name]


def test_who_consumed_what_is_complete_but_for_the_times_in_queues(both):
    """Groups and the graph count the keys that were skipped."""
    full, narrow = both
    tables = [[replace(group, queue=group.process) for group in run.result.groups] for run in (full, narrow)]
    assert tables[0] == tables[1]
    graphs = [
        [(edge.source, edge.target, edge.count, edge.failures, edge.again) for edge in run.result.graph.edges]
        for run in (full, narrow)
    ]
    assert graphs[0] == graphs[1]


def test_the_verdicts_left_out_are_exact_pairs_and_as_many_as_told(both):
    """Each row there is in the whole run too; what is missing is MATCHED_EXACT, and it is the most."""
    full, narrow = both
    rows = [Counter(map(placeless, run.rows)) for run in (full, narrow)]
    assert not rows[1] - rows[0]
    left_out = rows[0] - rows[1]
    assert {dict(row)["status"] for row in left_out} <= {"MATCHED_EXACT"}
    told = narrow.result.segments
    assert told.keys_skipped == left_out.total()
    assert told.total == TOTAL
    assert told.keys_skipped > told.differing
