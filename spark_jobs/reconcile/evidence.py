"""This module knows which keys are shown: a seeded, stratified sample, and the values that differ most often."""

from __future__ import annotations

import operator
from functools import reduce
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.durations import measures
from spark_jobs.reconcile.instants import minus
from spark_jobs.report.measured import Exemplar
from spark_jobs.report.result import MalformedSample, Sample
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame

    from spark_jobs.report.measured import Latency

__all__ = [
    "PER_STRATUM",
    "TOTAL",
    "differing",
    "malformed_sample",
    "read_differing",
    "read_malformed",
    "read_samples",
    "read_slowest",
    "sampled",
    "slow_from_ms",
]

PER_STRATUM: Final = 50
TOTAL: Final = 400
_PER_CALM_STRATUM: Final = 8
_PAIRS: Final = 5
_MALFORMED: Final = 50
_TEXT_CHARACTERS: Final = 200
_TIMES_RANKED: Final = 20  # what is kept of a large stratum is chosen from so many times more; too few never come
_SLOWEST: Final = "slowest"
_PER_MEASURE: Final = 5
_SEED: Final = 42
_CALM: Final = frozenset(
    {Status.MATCHED_EXACT.value, Status.MATCHED_NORMALISED.value, Status.PENDING.value, Reason.BY_DESIGN.value}
)


def slow_from_ms(latency: Mapping[str, Latency]) -> dict[str, float]:
    """Return, per measure, from which duration an event may be among the slowest; few of a large run take as long."""
    found = {}
    for name, measured in latency.items():
        if measured.max is None:
            continue
        tail = [] if measured.count <= _TIMES_RANKED * PER_STRATUM else [(measured.p99 or 0) + 1, measured.curve[-1][1]]
        found[name] = max((1, *tail))
    return found


def sampled(
    verdicts: DataFrame,
    strata: Mapping[tuple[str, str | None, str], int],
    slow_from_ms: Mapping[str, float] = MappingProxyType({}),
    *,
    per_stratum: int = PER_STRATUM,
) -> DataFrame:
    """Return at most ``per_stratum`` verdicts of every kind, status and reason; which ones, the seeded hash says.

    ``strata`` is ``Tally.strata``: of a large one only a share is ranked, several times what is kept, since ranking
    would sort every row of it. The slowest by each measure of ``slow_from_ms`` come again as strata of their own.
    """
    stratum = F.concat_ws(" ", "status", F.coalesce("reason", F.lit("")), "kind")
    chance = F.xxhash64(F.lit(_SEED), "msg_id", "kind", "group", "attempt_id", "event_ms")
    by_chance = Window.partitionBy("stratum").orderBy("chance", "event_ms", "msg_id")
    inside = verdicts.where(F.col("status") != Status.OUT_OF_SCOPE.value)
    named = inside.withColumns({"stratum": F.regexp_replace(stratum, " +", " "), "chance": chance})
    drawn = F.when(_is_drawn(strata, _TIMES_RANKED * per_stratum), F.struct("stratum", "chance"))
    found = named.withColumn("as", F.explode(F.array_compact(F.array(drawn, *_slow(slow_from_ms)))))
    placed = found.withColumns({"stratum": F.col("as")["stratum"], "chance": F.col("as")["chance"]}).drop("as")
    numbered = placed.withColumn("nth", F.row_number().over(by_chance))
    kept = F.when(F.col("stratum").startswith(_SLOWEST), _PER_MEASURE).otherwise(per_stratum)
    return numbered.where(F.col("nth") <= kept).drop("chance")


def _is_drawn(strata: Mapping[tuple[str, str | None, str], int], ranked: int) -> Column:
    """Thin out each stratum that has far more keys than can be shown."""
    drawn = F.lit(True)
    for (status, reason, kind), count in strata.items():
        if count > ranked:
            here = (F.col("status") == status) & F.col("reason").eqNullSafe(F.lit(reason)) & (F.col("kind") == kind)
            drawn = drawn & (~here | (F.pmod("chance", F.lit(count)) < ranked))
    return drawn


def _slow(slow_from_ms: Mapping[str, float]) -> list[Column]:
    """Return one place more for a verdict that is slow by a measure; the slowest is the first of its stratum."""
    return [
        F.when(
            took >= slow_from_ms[name],
            F.struct(F.lit(f"{_SLOWEST} {name}").alias("stratum"), minus(F.lit(0), took).alias("chance")),
        )
        for name, took in measures().items()
        if name in slow_from_ms
    ]


def read_samples(rows: Iterable[Mapping[str, Any]], *, at_most: int = TOTAL) -> tuple[Sample, ...]:
    """Return at most ``at_most`` samples: a few of each stratum that is in order, more of those that are not."""
    ordered = sorted(map(dict, rows), key=lambda row: (row["stratum"], row["nth"]))
    chosen = []
    for stratum, members in groupby(ordered, key=lambda row: row["stratum"]):
        calm = not _CALM.isdisjoint(stratum.split())
        share = at_most // (TOTAL // _PER_CALM_STRATUM) if calm else at_most
        chosen += [row for row in members if row["nth"] <= share]
    kept = sorted(chosen, key=lambda row: row["nth"])[:at_most]
    return tuple(_sample(row) for row in sorted(kept, key=lambda row: (row["stratum"], row["nth"])))


def _sample(row: dict[str, Any]) -> Sample:
    native, otlp, stratum = row.pop("native"), row.pop("otlp"), row.pop("stratum")
    del row["nth"]
    return Sample(stratum=stratum, verdict=row, native=native, otlp=otlp)


def read_slowest(samples: Iterable[Sample]) -> dict[str, tuple[Exemplar, ...]]:
    """Return the slowest events by each measure among ``samples``, slowest first."""
    found: dict[str, list[Exemplar]] = {}
    for sample in samples:
        word, _, name = sample.stratum.partition(" ")
        if word == _SLOWEST:
            found.setdefault(name, []).append(_exemplar(sample, name))
    return {name: tuple(sorted(each, key=lambda one: -one.took_ms)) for name, each in found.items()}


def _exemplar(sample: Sample, name: str) -> Exemplar:
    verdict = sample.verdict
    start, end = (_told(sample, field) for field in ("start_ms", "end_ms"))
    took_ms = verdict[f"{name}_ms"] if f"{name}_ms" in verdict else end - start
    told = {field: verdict[field] for field in ("msg_id", "kind", "topic", "group", "event_ms")}
    return Exemplar(**told, took_ms=took_ms)


def _told(sample: Sample, field: str) -> int:
    told = [side[field] for side in (sample.native, sample.otlp) if side and side[field] is not None]
    return int(told[0]) if told else 0


def differing(verdicts: DataFrame, fields: Iterable[str] = COMPARED_FIELDS) -> DataFrame:
    """Return the most frequent pairs of values of each of ``fields`` that is DIFFERENT somewhere, at most five of each.

    ``fields`` are at least one.
    """
    names = tuple(fields)
    pairs = F.array(
        *(
            F.struct(
                F.lit(name).alias("name"),
                F.substring(F.col("native")[name].cast("string"), 1, _TEXT_CHARACTERS).alias("native"),
                F.substring(F.col("otlp")[name].cast("string"), 1, _TEXT_CHARACTERS).alias("otlp"),
            )
            for name in names
        )
    )
    different = FieldVerdict.DIFFERENT.value
    inside = F.filter(pairs, lambda pair: F.col("field_verdicts")[pair["name"]] == different)
    conditions = (F.col("field_verdicts")[name] == different for name in names)
    somewhere = reduce(operator.or_, (F.coalesce(each, F.lit(False)) for each in conditions))
    counted = verdicts.where(somewhere).select(F.inline(inside)).groupBy("name", "native", "otlp").count()
    by_count = Window.partitionBy("name").orderBy(F.desc("count"), "native", "otlp")
    return counted.withColumn("nth", F.row_number().over(by_count)).where(F.col("nth") <= _PAIRS)


def read_differing(rows: Iterable[Any]) -> dict[str, tuple[tuple[str, str, int], ...]]:
    """Return ``{field: ((native value, otlp value, keys), …)}``, most frequent first."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for row in sorted(rows, key=lambda row: (row["name"], row["nth"])):
        found.setdefault(row["name"], []).append((row["native"], row["otlp"], row["count"]))
    return {name: tuple(pairs) for name, pairs in found.items()}


def malformed_sample(malformed: DataFrame) -> DataFrame:
    """Return the first pieces that could not be read, in the order of the input."""
    return malformed.orderBy("side", "path", "line", "record_index").limit(_MALFORMED)


def read_malformed(rows: Iterable[Any]) -> tuple[MalformedSample, ...]:
    """Return the collected rows of ``malformed_sample`` as plain data."""
    names = ("side", "path", "line", "record_index", "field", "reason", "text")
    return tuple(MalformedSample(**{name: row[name] for name in names}) for row in rows)
