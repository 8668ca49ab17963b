"""This module knows how many records become one: halves are merged, copies counted and told apart.

Within one identity: an **exact** copy has the same ``raw_hash``, an **equivalent** one says the same in other bytes, a
**conflicting** one contradicts. The record kept is the earliest, ties broken by hash and position, never by row order.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import LATEST, minus, plus, times
from spark_jobs.schemas import COMPARED_FIELDS, SIDE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

__all__ = ["COUNTS", "folded"]

_PARTS: Final = {
    "before": ("native", "before"),
    "after": ("native", "after"),
    "whole": ("native", "whole"),
    "otlp": ("otlp", None),
}
_SIDES: Final = ("native", "otlp")
_CARRIED: Final = ("first_seen_run", "left_as")
_ORDER: Final = ("raw_hash", "path", "line", "record_index")

COUNTS: Final = (
    *("native_count", "native_records", "native_exact_duplicates", "native_other_duplicates", "half_merged"),
    *("otlp_count", "otlp_records", "otlp_exact_duplicates", "otlp_other_duplicates"),
)
"""The numbers of one key that the books are kept with; all of them add up when keys are paired."""


def folded(rows: DataFrame) -> DataFrame:
    """Return one row per ``k, kind, ident``: both sides' fields as structs, ``COUNTS``, and what the copies are.

    Takes the output of ``keys.identified``. ``native`` or ``otlp`` is null where that side is silent; ``has_before``
    and ``has_after`` say which halves of a native consume were there; ``conflicting`` and ``equivalent`` whether any
    side has such copies.
    """
    everything = F.struct(*SIDE_FIELDS)
    per_part = [column for part in _PARTS for column in _aggregates(part, everything)]
    grouped = rows.groupBy("k", "kind", "ident").agg(
        F.first("msg_id").alias("msg_id"),
        F.min("full_key").alias("full_key"),
        *(
            F.min(F.when(F.col("side") == side, F.col(name))).alias(f"{name}_{side}")
            for side in _SIDES
            for name in _CARRIED
        ),
        F.collect_set(_version()).alias("versions"),
        *per_part,
    )
    return grouped.withColumns(_differing()).select(
        *("k", "kind", "ident", "msg_id", "full_key"),
        _native().alias("native"),
        reduce(lambda otlp, name: otlp.withField(name, F.col(f"{name}_otlp")), _CARRIED, F.col("otlp")).alias("otlp"),
        (F.col("n_before") > 0).alias("has_before"),
        (F.col("n_after") > 0).alias("has_after"),
        *_counts(),
        _any_part(lambda part: F.col(f"values_{part}") > 1).alias("conflicting"),
        _any_part(lambda part: (F.col(f"distinct_{part}") > 1) & (F.col(f"values_{part}") == 1)).alias("equivalent"),
    )


def _aggregates(part: str, everything: Column) -> list[Column]:
    side, half = _PARTS[part]
    wanted = F.col("side") == side
    if half is not None:
        wanted = wanted & (F.coalesce("half", F.lit("whole")) == half)
    order = F.struct(F.coalesce("start_ms", "end_ms", F.lit(LATEST)), *_ORDER)
    return [
        F.min_by(everything, F.when(wanted, order)).alias(part),
        F.count(F.when(wanted, 1)).cast("int").alias(f"n_{part}"),
    ]


def _version() -> Column:
    """Return what tells a record from others of its key: its part, its bytes and what it says."""
    values = F.xxhash64(*[F.col(name) for name in COMPARED_FIELDS])
    part = F.when(F.col("side") == "otlp", "otlp").otherwise(F.coalesce("half", F.lit("whole")))
    return F.struct(part.alias("part"), F.coalesce("raw_hash", F.lit(0)).alias("bytes"), values.alias("values"))


def _differing() -> dict[str, Column]:
    """Return how many records of each part are different in bytes, and in what they say: nearly always the only one."""

    def different(part: str, name: str) -> Column:
        own = F.filter("versions", lambda version: version["part"] == part)
        several = F.size(F.array_distinct(F.transform(own, lambda version: version[name])))
        return F.when(F.col(f"n_{part}") < 2, F.col(f"n_{part}")).otherwise(several)  # noqa: PLR2004 - none has one twin

    named = (("distinct", "bytes"), ("values", "values"))
    return {f"{word}_{part}": different(part, name) for part in _PARTS for word, name in named}


def _native() -> Column:
    """Merge the halves: the start from ``before``, the outcome from ``after``, whatever only one of them knows."""
    fields = [F.coalesce(*(F.col(part)[name] for part in ("before", "after", "whole"))) for name in SIDE_FIELDS]
    named = dict(zip(SIDE_FIELDS, fields, strict=True))
    named["arrival_ms"] = F.greatest(*(F.col(part)["arrival_ms"] for part in ("before", "after", "whole")))
    named |= {name: F.col(f"{name}_native") for name in _CARRIED}
    elapsed = times(named["cost_ms"], F.coalesce(named["batch_size"], F.col("otlp")["batch_size"], F.lit(1)))
    start_ms, end_ms = named["start_ms"], named["end_ms"]
    named["start_ms"] = F.coalesce(start_ms, minus(end_ms, elapsed))
    named["end_ms"] = F.coalesce(end_ms, F.when(F.col("n_after") > 0, plus(start_ms, elapsed)))
    present = F.col("n_before") + F.col("n_after") + F.col("n_whole") > 0
    return F.when(present, F.struct(*(column.alias(name) for name, column in named.items())))


def _counts() -> list[Column]:
    native = ("before", "after", "whole")
    halves = reduce(operator.add, ((F.col(f"n_{part}") > 0).cast("int") for part in native))
    return [
        F.greatest(*(F.col(f"n_{part}") for part in native)).alias("native_count"),
        _sum("n_{}", native).alias("native_records"),
        (_sum("n_{}", native) - _sum("distinct_{}", native)).alias("native_exact_duplicates"),
        _sum_excess(native).alias("native_other_duplicates"),
        F.greatest(halves - 1, F.lit(0)).alias("half_merged"),
        F.col("n_otlp").alias("otlp_count"),
        F.col("n_otlp").alias("otlp_records"),
        (F.col("n_otlp") - F.col("distinct_otlp")).alias("otlp_exact_duplicates"),
        _sum_excess(("otlp",)).alias("otlp_other_duplicates"),
    ]


def _sum(pattern: str, parts: tuple[str, ...]) -> Column:
    return reduce(operator.add, (F.col(pattern.format(part)) for part in parts))


def _sum_excess(parts: tuple[str, ...]) -> Column:
    return reduce(operator.add, (F.greatest(F.col(f"distinct_{part}") - 1, F.lit(0)) for part in parts))


def _any_part(condition: Callable[[str], Column]) -> Column:
    return reduce(operator.or_, (condition(part) for part in _PARTS))
