"""Runs like the two real ones: each loss by design, by sampling or by a kill has its reason, each silent one has none.

In every run some records are taken away without a trace as well: exactly those must be left unexplained.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.policy.policy import read_policy
from tests.spark_jobs.explain.dual_runs import (
    by_header,
    dual_events,
    killed,
    old_names,
    sampled_half,
    silently_lost,
    without_native_trace,
)
from tests.spark_jobs.explain.explained_runs import explain_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark_jobs.explain.dual_runs import Event, Lost


APP, SCENARIOS = ("app-4.9.8-dup", "rocketmq-4.9.8"), ("scenarios-5.3.3-old", "rocketmq-5.3.3")
KILLED_MS = 1_795_262_482_600


@dataclass(frozen=True)
class Run:
    """What is to be found in one run beside its seeded losses, and the losses that honestly read otherwise."""

    corpus: tuple[str, str]
    vary: Callable[[list[Event]], list[Event]]
    reasons: set[tuple[str, str]]
    excused: int = 0
    malformed: list[tuple[str, str]] = field(default_factory=list)


def _as_it_was(events: list[Event]) -> list[Event]:
    return events


BY_DESIGN = {
    ("BY_DESIGN", rule)
    for rule in (
        "java_agent_makes_no_span_for_transaction_end",
        "producer_made_no_trace_context",
        "rocketmq_records_no_failed_send",
        "rocketmq_records_no_one_way_send",
    )
}
# Two sends have no answer, and so no id; the sampler of half of everything happens to leave out both.
WITHOUT_ANSWER = {("BY_DESIGN", f"rocketmq_records_no_{how}_send") for how in ("failed", "one_way")}
SCENARIO_RULES = {
    ("BY_DESIGN", "java_agent_makes_no_span_for_recall"),
    ("BY_DESIGN", "java_agent_makes_no_span_for_lite_pull"),
    ("BY_DESIGN", "rocketmq_records_no_delivery_of_batch_sent_messages"),
    ("BY_DESIGN", "rocketmq_skips_topics_named_like_the_trace_topic"),
    ("COUNTERPART_MALFORMED", None),
    ("WRITER_SILENT", "topic"),
}
SAMPLED = {("NOT_SAMPLED", how) for how in ("link_flags", "whole_call", "whole_message")}

RUNS = {
    "app with headers captured": Run(APP, by_header, BY_DESIGN),
    "scenarios": Run(
        SCENARIOS,
        _as_it_was,
        BY_DESIGN | SCENARIO_RULES,
        excused=2,  # the only records of their topics: WRITER_SILENT, which warns
        malformed=[("native", "C000020276EE60E53B936997084C0058")],
    ),
    "app with old names, half of it sampled": Run(
        APP, lambda events: sampled_half(old_names(events)), (BY_DESIGN - WITHOUT_ANSWER) | SAMPLED
    ),
    "app with a consumer killed": Run(
        APP,
        lambda events: killed(events, "shipping-service", at_ms=KILLED_MS, spans_ms=170, native_ms=60),
        BY_DESIGN | {("SHUTDOWN_WINDOW", "process")},
        excused=1,  # a span taken away 20 ms before the exporter's last batch was full
    ),
    "app with a group that is not traced": Run(
        APP,
        lambda events: without_native_trace(events, "consume", lambda group: "billing" in group),
        BY_DESIGN | {("WRITER_SILENT", "group")},
    ),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return {
        corpus: dual_events(corpus[0], tmp_path_factory.mktemp("dual"), native_writer=corpus[1])
        for corpus in (APP, SCENARIOS)
    }


def _key(row: Any) -> Lost:
    return row["status"], row["kind"], row["msg_id"], row["group"] if row["kind"] == "consume" else None


@pytest.mark.parametrize("name", RUNS)
def test_exactly_the_silently_lost_records_are_unexplained(corpora, name):
    run = RUNS[name]
    events, lost = silently_lost(run.vary(corpora[run.corpus]), one_in=12)
    policy = replace(read_policy(None, profile="java-agent", native_writer=run.corpus[1]), grace_ms=0)
    rows = explain_events(events, policy=policy, malformed=run.malformed)
    unexplained = {_key(row) for row in rows if row["reason"] == "UNEXPLAINED"}
    other = Counter(
        (row["reason"], row["reason_detail"]) for row in rows if _key(row) in lost and row["reason"] != "UNEXPLAINED"
    )
    assert unexplained <= lost, sorted(unexplained - lost, key=str)
    assert len(lost) > 5
    assert len(lost - unexplained) == run.excused, other
    assert {(row["reason"], row["reason_detail"]) for row in rows if row["reason"]} - {
        ("UNEXPLAINED", None)
    } == run.reasons
