"""Events in, final verdict rows out: the kernel, the questions of the residue, its explainers; no Spark, no files."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.explain.evidence import collect_evidence, collect_traffic
from spark_jobs.explain.explainers import Reasons, explain, find_neighbours
from spark_jobs.explain.keys import is_residue, narrow
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.policy import Policy
from spark_jobs.schemas import EVENT
from tests.support.kernel_runs import facts_of, verdicts_on
from tests.support.reading import plain_rows

BUCKETS = 11


def explain_events(events: list[dict[str, Any]], *, policy: Policy) -> list[dict[str, Any]]:
    buckets = split_by_message(verdicts_on(events, policy=policy))
    traffic = pa.Table.from_pylist([row for row in events if row["scope"] == "TRACE_TRAFFIC"], schema=EVENT)
    facts = replace(facts_of(events, policy), trace_topics=("trace-of-orders", ""))
    return rows_with(pa.concat_tables(buckets), explain_buckets(buckets, traffic, policy, facts))


def split_by_message(verdicts: pa.Table) -> list[pa.Table]:
    """Return ``VERDICT`` in parts, each with all rows of its messages, as tasks hold them."""
    bucket_of = np.array([zlib.crc32(repr(msg_id).encode()) % BUCKETS for msg_id in verdicts["msg_id"].to_pylist()])
    return [verdicts.filter(pa.array(bucket_of == bucket)) for bucket in range(BUCKETS)]


def explain_buckets(buckets: Sequence[pa.Table], traffic: pa.Table, policy: Policy, facts: Facts) -> Reasons:
    """Return the reasons of the residue of all buckets, one bucket after the other."""
    return explain(
        pa.concat_tables([narrow(bucket) for bucket in buckets]),
        policy=policy,
        facts=facts,
        collect=lambda wanted: [
            *(collect_evidence(bucket, wanted) for bucket in buckets),
            collect_traffic(traffic, wanted),
        ],
        find_neighbours=lambda wanted: [find_neighbours(bucket, wanted) for bucket in buckets],
        rows_at_once=20,
    )


def rows_with(verdicts: pa.Table, given: Reasons) -> list[dict[str, Any]]:
    reasons = zip(given.reasons.to_pylist(), given.details.to_pylist(), strict=True)
    rows = plain_rows(verdicts)
    for row, is_open in zip(rows, is_residue(verdicts), strict=True):
        if is_open:
            row["reason"], row["reason_detail"] = next(reasons)
    return rows
