"""This module knows the counts of a run: one grouped frame over the verdicts, folded once into plain numbers.

Grouping by the whole map of field verdicts keeps the pass narrow: real runs show dozens of patterns, not millions.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.fold import COUNTS
from spark_jobs.reconcile.instants import believable, minus
from spark_jobs.reconcile.lifecycle import age_of_open
from spark_jobs.report.measured import AGES
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.facts import Facts

__all__ = ["Tally", "bucket_width_ms", "patterns", "read_tally"]

_BUCKET_MS: Final = 600_000
_LEAST_BUCKETS: Final = 12
_MOST_BUCKETS: Final = 288  # two days of ten minutes; what is collected and drawn does not grow beyond
_WIDE_MS: Final = tuple(minutes * 60_000 for minutes in (10, 20, 30, 60, 120, 180, 360, 720, 1440))
_NICE_MS: Final = (1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, _BUCKET_MS)
_OPEN: Final = (Reason.IN_FLIGHT.value, Reason.ABANDONED.value)
_PATTERN: Final = ("kind", "status", "reason", "reason_detail", "timing", "duplicates", "key_level", "lifecycle")


def bucket_width_ms(facts: Facts) -> int:
    """Return ten minutes; for a short run the largest round width that still gives a dozen buckets.

    For a long one the smallest round width that gives no more than ``_MOST_BUCKETS``, beyond 288 days whole days.
    """
    if facts.first_ms is None or facts.data_end_ms is None:
        return _BUCKET_MS
    span_ms = facts.data_end_ms - facts.first_ms
    if span_ms > _MOST_BUCKETS * _BUCKET_MS:
        days = -(-span_ms // (_MOST_BUCKETS * _WIDE_MS[-1]))
        return next((width for width in _WIDE_MS if span_ms <= _MOST_BUCKETS * width), days * _WIDE_MS[-1])
    wanted = span_ms / _LEAST_BUCKETS
    return max((width for width in _NICE_MS if width <= wanted), default=_NICE_MS[0])


def patterns(verdicts: DataFrame, width_ms: int, data_end_ms: int | None = None, grace_ms: int = 0) -> DataFrame:
    """Return one row per distinct judgement, time bucket and age of what is open, with the sums of the books."""
    event_ms = believable(F.col("event_ms"))
    bucket = (event_ms - F.pmod(event_ms, F.lit(width_ms))).alias("bucket_ms")
    judged = verdicts.select(
        *_PATTERN,
        *COUNTS,
        bucket,
        _age(data_end_ms).alias("age"),
        age_of_open(data_end_ms, grace_ms).alias("open_age"),
        F.col("native").isNotNull().alias("on_native"),
        F.col("otlp").isNotNull().alias("on_otlp"),
        F.to_json("field_verdicts").alias("fields"),
    )
    return judged.groupBy(*_PATTERN, "bucket_ms", "age", "open_age", "on_native", "on_otlp", "fields").agg(
        F.count(F.lit(1)).alias("keys"), *(F.sum(name).alias(name) for name in COUNTS)
    )


def _age(data_end_ms: int | None) -> Column:
    """Return the band of an open event's age, null for every other: nearly all rows."""
    still_open = (F.col("status") == Status.PENDING.value) | F.col("reason").isin(*_OPEN)
    age_ms = minus(F.lit(data_end_ms), believable(F.col("event_ms")))
    bands = F.when(still_open & age_ms.isNull(), None)
    for name, below_ms in AGES:
        bands = bands.when(still_open if below_ms is None else still_open & (age_ms < below_ms), name)
    return bands


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of canonical keys, and per side the sums of ``fold.COUNTS`` over the keys in scope."""

    status: Counter[str] = field(default_factory=Counter)
    status_by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    reason: Counter[str] = field(default_factory=Counter)
    reason_detail: Counter[str] = field(default_factory=Counter)
    one_sided: Counter[tuple[str, str]] = field(default_factory=Counter)  # (status, reason)
    strata: Counter[tuple[str, str | None, str]] = field(default_factory=Counter)  # (status, reason, kind)
    timing: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    ageing: dict[str, Counter[str]] = field(default_factory=dict)  # {PENDING | reason: {age: keys}}
    lifecycle: Counter[str] = field(default_factory=Counter)
    open_age: Counter[str] = field(default_factory=Counter)  # lifecycle.AGES, of keys carried into the next run
    fields: dict[str, Counter[str]] = field(default_factory=dict)
    buckets: dict[int, Counter[str]] = field(default_factory=dict)
    keys: Counter[str] = field(default_factory=Counter)  # native, otlp, both
    pending: Counter[str] = field(default_factory=Counter)  # native, otlp: pending keys that only that side has
    sums: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)  # records of keys outside the window, per side


def read_tally(rows: Iterable[Any], facts: Facts) -> Tally:
    """Fold the collected rows of ``patterns``; malformed pieces and records out of scope are counted as they are."""
    tally = Tally(fields={name: Counter() for name in COMPARED_FIELDS})
    for row in rows:
        _add(tally, row)
    malformed = sum(facts.malformed.values())
    if malformed:
        tally.status[Status.MALFORMED.value] += malformed
    for scopes in facts.scopes.values():
        for scope, count in scopes.items():
            tally.status[Status.OUT_OF_SCOPE.value] += count
            tally.reason_detail[scope] += count
            if scope == Reason.TRACE_TRAFFIC.value:
                tally.reason[scope] += count
    return tally


def _add(tally: Tally, row: Any) -> None:
    keys, status = row["keys"], row["status"]
    tally.status[status] += keys
    tally.status_by_kind.setdefault(row["kind"], Counter())[status] += keys
    if row["reason_detail"] and row["reason"] != Reason.HALF_RECORD.value:
        tally.reason_detail[row["reason_detail"]] += keys
    if row["bucket_ms"] is not None:
        tally.buckets.setdefault(row["bucket_ms"], Counter())[status] += keys
    if status == Status.OUT_OF_SCOPE.value:
        for side in ("native", "otlp"):
            tally.outside[side] += row[f"{side}_records"]
        return
    _add_judgement(tally, row, keys)
    for name in COUNTS:
        tally.sums[name] += row[name]


def _add_judgement(tally: Tally, row: Any, keys: int) -> None:
    tally.timing[row["timing"]] += keys
    tally.strata[row["status"], row["reason"], row["kind"]] += keys
    if row["reason"]:
        tally.reason[row["reason"]] += keys
        tally.one_sided[row["status"], row["reason"]] += keys
    if row["age"]:
        still_open = row["reason"] if row["reason"] in _OPEN else Status.PENDING.value
        tally.ageing.setdefault(still_open, Counter())[row["age"]] += keys
    if row["lifecycle"]:
        tally.lifecycle[row["lifecycle"]] += keys
    if row["open_age"]:
        tally.open_age[row["open_age"]] += keys
    if row["duplicates"]:
        tally.duplicates[row["duplicates"]] += keys
    for side in ("native", "otlp"):
        if row[f"on_{side}"]:
            tally.keys[side] += keys
            tally.pending[side] += keys * (row["status"] == Status.PENDING.value)
    tally.keys["both"] += keys * (row["on_native"] and row["on_otlp"])
    for name, verdict in json.loads(row["fields"] or "{}").items():
        tally.fields[name][verdict] += keys
