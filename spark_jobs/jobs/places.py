"""This module knows the job between reading and judging that only spans without message ids ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_jobs.normalise.places import goes_by_place, named_by_sends
from spark_jobs.schemas import EVENT
from spark_jobs.sources.files import spark_path, spark_target

if TYPE_CHECKING:
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.jobs.workplace import Workplace

__all__ = ["with_message_ids"]

_NAMED: Final = "otlp-named"


def with_message_ids(place: Workplace, native: NormalisedSide, otlp: NormalisedSide) -> NormalisedSide:
    """Return ``otlp`` with the ids that native sends know for the places in its spans; as it is where no span asks."""
    asked = otlp.events.where(goes_by_place()).head(1) if otlp.by_place is None else otlp.by_place
    if not asked:
        return otlp
    target = place.work / _NAMED
    named = named_by_sends(otlp.events, native.events)
    named.write.mode("overwrite").parquet(spark_target(target.absolute()))
    return replace(otlp, events=place.spark.read.schema(EVENT).parquet(spark_path(target)))
