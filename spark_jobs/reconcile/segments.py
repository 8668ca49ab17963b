"""This module knows which segments of a run's messages are equal on both sides, without bringing their rows together.

A *segment* holds the messages whose id has one remainder of a hash, so all records of a message, on both sides, fall
into one. The time in an id plays no part: not every writer's id has one, and it is of the producer's own calendar. The
records of a side are hashed and added up per segment, which is done where they are; sums know neither order nor
partition, and copies do not cancel in them.

A span is hashed as the native record, or the two halves of one, that would make its key MATCHED_EXACT, so the sums
differ wherever ``compare`` would need a rule, a tolerance or an omission. Equal sums say nothing of keys that are
doubled on both sides; these are found by one small row per span. What only *may* matter (a key that is carried over,
late, outside of the window) opens its segment as well: a segment is closed when nothing of it can be of interest.

Two different sides have equal sums by accident with a chance of about 2**-64 a segment: the hash has 64 bits, and its
two halves are added up apart, so that no sum wraps round.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import minus
from spark_jobs.reconcile.keys import identified, message_key
from spark_jobs.reconcile.profiles import NATIVE_CARRIES
from spark_jobs.schemas import COMPARED_FIELDS, SIDE_FIELDS, VERDICT
from spark_jobs.taxonomy import FieldVerdict, Kind, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.policy import Policy

__all__ = ["DEFAULT_SEGMENTS", "MOST_SEGMENTS", "Segments", "checksums", "matched", "opened", "read_checksums"]

DEFAULT_SEGMENTS: Final = 4096
MOST_SEGMENTS: Final = 65_536
"""A byte each is part of a plan, and a row each is collected."""

_OPEN, _ON_TIME, _NO_TIME = "open", "on_time", "no_time"
_STATES: Final = (_OPEN, _ON_TIME, _NO_TIME)  # a closed segment is called as the timing of all its keys
_LOW: Final = 0xFFFF_FFFF
_HALF_BITS: Final = 32

_OF_AFTER: Final = frozenset({"end_ms", "cost_ms", "success", "context_code"})
_OF_BOTH_HALVES: Final = frozenset({"group_name", "keys"})
_CONSUME: Final = NATIVE_CARRIES[Kind.CONSUME]
_SAID: Final[dict[tuple[Kind, str], frozenset[str]]] = {
    **{(kind, "whole"): carried for kind, carried in NATIVE_CARRIES.items() if kind is not Kind.CONSUME},
    (Kind.CONSUME, "before"): _CONSUME - _OF_AFTER,
    (Kind.CONSUME, "after"): _OF_AFTER | _OF_BOTH_HALVES,
}
"""What each native record says; one that says more or less is no match for a hash."""


@dataclass(frozen=True, slots=True)
class Segments:
    """What became of ``total`` segments: ``states`` has a byte each, ``skipped`` keys are in those that are closed."""

    total: int
    states: bytes
    differing: int
    skipped: int


def checksums(native: DataFrame, otlp: DataFrame, policy: Policy, total: int) -> DataFrame:
    """Return one row per segment that holds anything: ``segment, state`` (``open`` or a timing) and its ``keys``.

    Args:
        native: ``EVENT`` of the native trace.
        otlp: ``EVENT`` of the spans.
        policy: what the run tolerates.
        total: how many segments there are.
    """
    rows = _summands(native, policy, total, is_native=True).unionByName(_summands(otlp, policy, total, is_native=False))
    sums = [name for name in rows.columns if name not in {"segment", "key"}]
    per_key = rows.groupBy("segment", "key").agg(*(F.sum(name).alias(name) for name in sums))
    doubled = F.max(F.col("key").isNotNull() & (F.col("spans") > 1))
    added = per_key.groupBy("segment").agg(
        *(F.sum(name).alias(name) for name in sums), F.count("key").alias("keys"), doubled.alias("doubled")
    )
    return added.select("segment", _state().alias("state"), "keys")


def read_checksums(rows: Iterable[Any], total: int) -> Segments:
    """Fold the collected rows of ``checksums``."""
    states = bytearray(total)
    differing = skipped = 0
    for row in rows:
        states[row["segment"]] = _STATES.index(row["state"])
        differing += row["state"] == _OPEN
        skipped += 0 if row["state"] == _OPEN else row["keys"]
    return Segments(total, bytes(states), differing, skipped)


def opened(events: DataFrame, segments: Segments) -> DataFrame:
    """Return the ``EVENT`` rows of one side that the keyed pass must see."""
    return events.where(_is_in(_OPEN, segments, message_key()))


def matched(otlp: DataFrame, segments: Segments, policy: Policy) -> DataFrame:
    """Return ``VERDICT`` of the keys in closed segments, told by their spans alone, row by row.

    They are what the keyed pass would say, but for what takes several records of a message: ``queue_ms`` and
    ``end_to_end_ms`` are null, and of the native record only what the span repeats is known.
    """
    rows = otlp.where(F.col("scope").isNull()).withColumn("k", message_key())
    closed = rows.where(~_is_in(_OPEN, segments, F.col("k")))
    on_time = _is_in(_ON_TIME, segments, F.col("k"))
    halves = F.when(_is(Kind.CONSUME), 2).otherwise(1)
    told = {
        **{field.name: F.lit(None) for field in VERDICT},
        **{name: F.col(name) for name in ("kind", "msg_id", "topic", "attempt_id", "retry_times")},
        "group": F.col("group_name"),
        "status": F.lit(Status.MATCHED_EXACT.value),
        "key_level": F.lit(1),
        "timing": F.when(on_time, _ON_TIME).otherwise(_NO_TIME),
        "event_ms": F.col("start_ms"),
        **{name: F.lit(1) for name in ("native_count", "otlp_count", "otlp_records")},
        **{f"{side}_{kind}_duplicates": F.lit(0) for side in ("native", "otlp") for kind in ("exact", "other")},
        "native_records": halves,
        "half_merged": halves - 1,
        "field_verdicts": _field_verdicts(policy),
        "native": _as_native(policy),
        "otlp": F.struct(*SIDE_FIELDS),
    }
    return closed.select(*(told[field.name].cast(field.dataType).alias(field.name) for field in VERDICT))


def _is_in(state: str, segments: Segments, key: Column) -> Column:
    known = F.unhex(F.lit(segments.states.hex()))
    byte = F.unhex(F.lit(f"{_STATES.index(state):02X}"))
    return F.substring(known, (_segment(key, segments.total) + 1).cast("int"), F.lit(1)) == byte


def _segment(key: Column, total: int) -> Column:
    return F.pmod(F.xxhash64(key), F.lit(total).cast("long"))


def _summands(events: DataFrame, policy: Policy, total: int, *, is_native: bool) -> DataFrame:
    """Return what each row adds to its segment: one side's hashes are added, the other's taken away."""
    rows = identified(events.where(F.col("scope").isNull()).withColumn("k", message_key()))
    sign = 1 if is_native else -1
    hashes = _native_hashes() if is_native else _span_hashes(policy)
    odd = _is_odd(policy) if is_native else _is_odd(policy) | _is_odd_span(policy)
    key = F.lit(None).cast("long") if is_native else F.xxhash64("k", "kind", "ident")
    added = {
        "records": F.size("hashes") * F.lit(sign),
        "low": _added("hashes", lambda each: each.bitwiseAND(F.lit(_LOW).cast("long"))) * F.lit(sign),
        "high": _added("hashes", lambda each: F.shiftright(each, _HALF_BITS)) * F.lit(sign),
        "odd": F.when(F.coalesce(odd, F.lit(False)), 1).otherwise(0),
        "natives": F.lit(int(is_native)),
        "spans": F.lit(int(not is_native)),
        "natives_timed": F.lit(int(is_native)) * F.col("arrival_ms").isNotNull().cast("int"),
        "spans_timed": F.lit(int(not is_native)) * F.col("arrival_ms").isNotNull().cast("int"),
    }
    hashed = rows.withColumn("hashes", hashes)
    named = {"segment": _segment(F.col("k"), total), "key": key, **{n: v.cast("long") for n, v in added.items()}}
    return hashed.select(*(value.alias(name) for name, value in named.items()))


def _added(hashes: str, part: Callable[[Column], Column]) -> Column:
    return F.aggregate(hashes, F.lit(0).cast("long"), lambda total, each: total + part(each))


def _native_hashes() -> Column:
    """Return the hash of a native record: all it says, whether it should or not."""
    values = {name: F.col(name) for name in COMPARED_FIELDS}
    return F.array(_hash(F.coalesce("half", F.lit("whole")), values))


def _span_hashes(policy: Policy) -> Column:
    """Return the hashes of the native records that a span would be equal to."""
    hashes = F.array().cast("array<bigint>")
    for kind in Kind:
        halves = [half for of, half in _SAID if of is kind]
        hashes = F.when(_is(kind), F.array(*(_span_hash(kind, half, policy) for half in halves))).otherwise(hashes)
    return hashes


def _span_hash(kind: Kind, half: str, policy: Policy) -> Column:
    said = _SAID[kind, half] - policy.never_recorded("native") | _strict(policy)
    absent = {name: F.lit(None).cast(SIDE_FIELDS[name]) for name in COMPARED_FIELDS}
    return _hash(F.lit(half), {**absent, **{name: F.col(name) for name in COMPARED_FIELDS if name in said}})


def _hash(half: Column, values: dict[str, Column]) -> Column:
    """Hash one record; a null leaves the hash as it is, so which of the values are null is hashed as well."""
    nulls = F.concat(*(F.when(value.isNull(), "0").otherwise("1") for value in values.values()))
    return F.xxhash64("k", "kind", "ident", half, nulls, *values.values())


def _strict(policy: Policy) -> frozenset[str]:
    """Return the fields of which the policy counts NOT_COMPARABLE against a key: they must be said, or be null."""
    word = FieldVerdict.NOT_COMPARABLE.value
    return frozenset(name for name in COMPARED_FIELDS if policy.judgement(name, word) in {"warn", "fail"})


def _is_odd(policy: Policy) -> Column:
    """Say whether a row's key may be late, from the future, or one that an earlier run left open."""
    late = minus(F.col("arrival_ms"), F.coalesce("end_ms", "start_ms")) > policy.late_after_ms
    future = minus(F.coalesce("start_ms", "end_ms"), F.col("arrival_ms")) > policy.late_after_ms
    return _any(F.col("first_seen_run").isNotNull(), F.col("left_as").isNotNull(), late, future)


def _is_odd_span(policy: Policy) -> Column:
    """Say whether more than the native record itself is needed to judge its key, or the window leaves it out."""
    unknown = ~F.coalesce(F.col("kind").isin(*(kind.value for kind in Kind)), F.lit(False))
    unnamed = F.col("topic").isNull() | (F.col("attempt_id").isNotNull() & F.col("group_name").isNull())
    wrong = [F.col(name).isNotNull() for name in COMPARED_FIELDS if _is_wrong_when_equal(name, policy)]
    timeless = F.coalesce(F.col("end_ms") < F.col("start_ms"), F.lit(True))
    return _any(unknown, unnamed, timeless, *_outside(policy), *wrong)


def _outside(policy: Policy) -> Iterator[Column]:
    if policy.begin_ms is not None:
        yield F.col("start_ms") < policy.begin_ms
    if policy.end_ms is not None:
        yield F.col("start_ms") > policy.end_ms


def _is_wrong_when_equal(name: str, policy: Policy) -> bool:
    return policy.judgement(name, FieldVerdict.EQUAL.value) in {"warn", "fail"}


def _any(*conditions: Column) -> Column:
    return reduce(operator.or_, (F.coalesce(each, F.lit(False)) for each in conditions))


def _state() -> Column:
    """Return ``open``, or the timing that all keys of a segment have: they do when all rows of a side are timed."""
    differs = reduce(operator.or_, (F.col(name) != 0 for name in ("records", "low", "high", "odd")))
    timed = (F.col("natives_timed") == F.col("natives")) | (F.col("spans_timed") == F.col("spans"))
    untimed = (F.col("natives_timed") == 0) & (F.col("spans_timed") == 0)
    return F.when(differs | F.col("doubled"), _OPEN).when(untimed, _NO_TIME).when(timed, _ON_TIME).otherwise(_OPEN)


def _field_verdicts(policy: Policy) -> Column:
    """Return the verdicts of an exact match: EQUAL where the native record says a field, else NOT_COMPARABLE."""
    pairs = []
    for name in COMPARED_FIELDS:
        verdict = F.when(_is_said(name, policy), FieldVerdict.EQUAL.value).otherwise(FieldVerdict.NOT_COMPARABLE.value)
        pairs += [F.lit(name), F.when(F.col(name).isNotNull(), verdict)]
    return F.map_filter(F.create_map(*pairs), lambda _, verdict: verdict.isNotNull())


def _as_native(policy: Policy) -> Column:
    """Return what the span repeats of the native record that it was found to be equal to."""
    fields = {name: F.lit(None).cast(kind) for name, kind in SIDE_FIELDS.items()}
    fields |= {name: F.when(_is_said(name, policy), F.col(name)) for name in COMPARED_FIELDS}
    fields |= {"attempt_id": F.col("attempt_id"), "writer": F.lit(policy.native_writer)}
    return F.struct(*(value.alias(name) for name, value in fields.items()))


def _is_said(name: str, policy: Policy) -> Column:
    kinds = [kind.value for kind, carried in NATIVE_CARRIES.items() if name in carried]
    if not kinds or name in _strict(policy) | policy.never_recorded("native"):
        return F.lit(name in _strict(policy))
    return F.col("kind").isin(*kinds)


def _is(kind: Kind) -> Column:
    return F.col("kind") == kind.value
