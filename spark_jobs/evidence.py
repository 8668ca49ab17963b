"""This module knows how a piece of input that could not be mapped is written down: what, why, and whom it mentions."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.mentions import MESSAGE_ID
from spark_jobs.spark_schemas import BAD

__all__ = ["SAMPLE_CHARACTERS", "bad"]

SAMPLE_CHARACTERS: Final = 200
"""Characters of an offending text that are kept."""


def bad(field: str, reason: str, text: Column) -> Column:
    """Return the ``schemas.BAD`` of one bad piece.

    Args:
        field: the field at fault.
        reason: why it could not be mapped.
        text: the offending text; its first ``SAMPLE_CHARACTERS`` are kept.
    """
    return F.struct(
        F.lit(field).alias("field"),
        F.lit(reason).alias("reason"),
        F.left(text, F.lit(SAMPLE_CHARACTERS)).alias("text"),
        _mentioned_ids(text).alias("mentions"),
    ).cast(BAD)


def _mentioned_ids(text: Column) -> Column:
    """Return the message ids readable in ``text``: distinct, upper case, in order of appearance."""
    return F.array_distinct(F.transform(F.regexp_extract_all(text, F.lit(MESSAGE_ID)), F.upper))
