"""This module knows whose a group is: where only the native side saw a leg, the one service that else uses its group.

The few groups that this concerns are collected before the legs are looked at again: a join would take a job of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

__all__ = ["MOST_OWNERS", "owners", "read_owners", "with_owner"]

MOST_OWNERS: Final = 1_000
"""Groups that are given their service, those with the most legs first; each is a literal of the plan."""


def owners(legs: DataFrame) -> DataFrame:
    """Return ``kind, group, owner`` of ``LEG``: the groups of one service only, some of whose legs name none."""
    found = (
        legs.where(F.col("group").isNotNull())
        .groupBy("kind", "group")
        .agg(
            F.min("service").alias("owner"),
            F.max("service").alias("other"),
            F.count("service").alias("used"),
            F.count(F.lit(1)).alias("legs"),
        )
    )
    sole = found.where((F.col("owner") == F.col("other")) & (F.col("used") < F.col("legs")))
    most_used = sole.orderBy(F.desc("used"), "kind", "group").limit(MOST_OWNERS)
    return most_used.select("kind", "group", "owner")


def read_owners(rows: Iterable[Any]) -> dict[tuple[str, str], str]:
    """Return ``{(kind, group): service}`` of the collected rows of ``owners``."""
    return {(row["kind"], row["group"]): row["owner"] for row in rows}


def with_owner(legs: DataFrame, owned: Mapping[tuple[str, str], str]) -> DataFrame:
    """Return ``LEG`` with the service of ``owned`` wherever a leg names none."""
    if not owned:
        return legs
    places = [F.lit(text) for (kind, group), owner in sorted(owned.items()) for text in (_place(kind, group), owner)]
    place = F.concat(F.col("kind"), F.lit(" "), F.col("group"))
    return legs.withColumn("service", F.coalesce("service", F.try_element_at(F.create_map(*places), place)))


def _place(kind: str, group: str) -> str:
    return f"{kind} {group}"  # a kind has no blank
