"""The first pieces of input that could not be read, as the report shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_jobs.report.result import MalformedSample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

__all__ = ["malformed_sample", "read_malformed"]

_MALFORMED: Final = 50


def malformed_sample(malformed: DataFrame) -> DataFrame:
    """Return the first pieces that could not be read, in the order of the input."""
    return malformed.orderBy("side", "path", "line", "record_index").limit(_MALFORMED)


def read_malformed(rows: Iterable[Any]) -> tuple[MalformedSample, ...]:
    """Return the collected rows of ``malformed_sample`` as plain data."""
    names = ("side", "path", "line", "record_index", "field", "reason", "text")
    return tuple(MalformedSample(**{name: row[name] for name in names}) for row in rows)
