"""This module knows which keys are shown: a seeded, stratified sample, and the values that differ most often."""

from __future__ import annotations

import operator
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.report.result import MalformedSample, Sample
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame

__all__ = ["differing", "malformed_sample", "read_differing", "read_malformed", "read_samples", "sampled"]

PER_STRATUM: Final = 50
TOTAL: Final = 400
_PER_CALM_STRATUM: Final = 8
_PAIRS: Final = 5
_MALFORMED: Final = 50
_TEXT_CHARACTERS: Final = 200
_RANKED: Final = 20 * PER_STRATUM  # expected of a large stratum; fewer than PER_STRATUM never happens
_SEED: Final = 42
_CALM: Final = frozenset(
    {Status.MATCHED_EXACT.value, Status.MATCHED_NORMALISED.value, Status.PENDING.value, Reason.BY_DESIGN.value}
)


def sampled(verdicts: DataFrame, strata: Mapping[tuple[str, str | None, str], int]) -> DataFrame:
    """Return at most ``PER_STRATUM`` verdicts of every kind, status and reason; which ones, the seeded hash says.

    ``strata`` is ``Tally.strata``: of a large one only a share is ranked, several times what is kept, since ranking
    would sort every row of it.
    """
    stratum = F.concat_ws(" ", "status", F.coalesce("reason", F.lit("")), "kind")
    chance = F.xxhash64(F.lit(_SEED), "msg_id", "kind", "group", "attempt_id", "event_ms")
    by_chance = Window.partitionBy("stratum").orderBy("chance", "event_ms")
    inside = verdicts.where(F.col("status") != Status.OUT_OF_SCOPE.value)
    named = inside.withColumns({"stratum": F.regexp_replace(stratum, " +", " "), "chance": chance})
    numbered = named.where(_is_drawn(strata)).withColumn("nth", F.row_number().over(by_chance))
    return numbered.where(F.col("nth") <= PER_STRATUM).drop("chance")


def _is_drawn(strata: Mapping[tuple[str, str | None, str], int]) -> Column:
    """Thin out each stratum that has far more keys than can be shown."""
    drawn = F.lit(True)
    for (status, reason, kind), count in strata.items():
        if count > _RANKED:
            here = (F.col("status") == status) & F.col("reason").eqNullSafe(F.lit(reason)) & (F.col("kind") == kind)
            drawn = drawn & (~here | (F.pmod("chance", F.lit(count)) < _RANKED))
    return drawn


def read_samples(rows: Iterable[Any]) -> tuple[Sample, ...]:
    """Return at most ``TOTAL`` samples: a few of each stratum that is in order, more of those that are not."""
    ordered = sorted((row.asDict(recursive=True) for row in rows), key=lambda row: (row["stratum"], row["nth"]))
    chosen = []
    for stratum, members in groupby(ordered, key=lambda row: row["stratum"]):
        calm = not _CALM.isdisjoint(stratum.split())
        chosen += [row for row in members if row["nth"] <= (_PER_CALM_STRATUM if calm else PER_STRATUM)]
    kept = sorted(chosen, key=lambda row: row["nth"])[:TOTAL]
    return tuple(_sample(row) for row in sorted(kept, key=lambda row: (row["stratum"], row["nth"])))


def _sample(row: dict[str, Any]) -> Sample:
    native, otlp, stratum = row.pop("native"), row.pop("otlp"), row.pop("stratum")
    del row["nth"]
    return Sample(stratum=stratum, verdict=row, native=native, otlp=otlp)


def differing(verdicts: DataFrame) -> DataFrame:
    """Return the most frequent pairs of values of every field that is DIFFERENT somewhere, at most five of each."""
    pairs = F.array(
        *(
            F.struct(
                F.lit(name).alias("name"),
                F.substring(F.col("native")[name].cast("string"), 1, _TEXT_CHARACTERS).alias("native"),
                F.substring(F.col("otlp")[name].cast("string"), 1, _TEXT_CHARACTERS).alias("otlp"),
            )
            for name in COMPARED_FIELDS
        )
    )
    different = FieldVerdict.DIFFERENT.value
    inside = F.filter(pairs, lambda pair: F.col("field_verdicts")[pair["name"]] == different)
    conditions = (F.col("field_verdicts")[name] == different for name in COMPARED_FIELDS)
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
