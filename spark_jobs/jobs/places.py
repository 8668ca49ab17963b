"""This module knows the job between reading and judging that only spans without message ids ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_jobs.normalise.places import goes_by_place, named_by_sends
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.spark_schemas import EVENT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

__all__ = ["with_message_ids"]

_NAMED: Final = "otlp-named"


def with_message_ids(otlp: DataFrame, native: DataFrame, work: Path, *, by_place: int | None) -> DataFrame:
    """Return ``otlp`` with the ids that native sends know for the places in its spans; as it is where no span asks.

    Args:
        otlp: ``EVENT``.
        native: ``EVENT``.
        work: where what was found is written.
        by_place: how many of ``otlp`` go by their place; ``None`` when nobody counted.
    """
    if not (otlp.where(goes_by_place()).head(1) if by_place is None else by_place):
        return otlp
    target = work / _NAMED
    named_by_sends(otlp, native).write.mode("overwrite").parquet(spark_target(target.absolute()))
    return otlp.sparkSession.read.schema(EVENT).parquet(spark_path(target))
