"""This module knows how several small answers come out of one Spark job: each row as JSON beside its answer's name."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

__all__ = ["apart", "together"]


def together(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return ``of, row``: the rows of every frame, of at least one; a job each would be started for nothing."""
    packed = [
        frame.select(F.lit(name).alias("of"), F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row"))
        for name, frame in frames.items()
    ]
    return reduce(lambda one, other: one.unionAll(other), packed)


def apart(rows: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return ``{name: rows}`` of the collected rows of ``together``; a frame without rows is not there."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["of"], []).append(json.loads(row["row"]))
    return found
