"""This module knows OTLP files as a frame of spans, whatever their layout.

JSON lines, the layout of large files, stay inside Spark: text, ``from_json`` with a given schema (never inferred: a
``doubleValue`` is a number or a text), explode. Every other layout has no line for Spark to split at and goes through
the container reader in the executors, one task per file, as Arrow batches; the files must be visible there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from otel_mqtrace._errors import UsageError
from spark_jobs.schemas import LEDGER, READ_SPAN
from spark_jobs.sources.detect import OTLP_FORMATS, Layout, Side
from spark_jobs.sources.files import source_files
from spark_jobs.sources.json_lines import spans_from_lines
from spark_jobs.sources.lines import read_lines, torn_tails, without_tails
from spark_jobs.sources.span_rows import span_batches
from spark_jobs.sources.spans import parse_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.sources.files import SourceFile

__all__ = ["OtlpSource", "read_spans", "span_files"]

_FILE = StructType([StructField("path", StringType()), StructField("layout", StringType())])


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSource:
    """Spans to normalise.

    ``frame`` is ``READ_SPAN``. ``counts`` are observations, filled when the frame is run: ``records`` (spans, and lines
    or frames that held none), told by the size of the lists in each parsed message before a span is taken out, and, of
    containers, ``tails``: files cut off inside a line or frame. ``truncated_tails`` counts those of JSON lines.
    """

    frame: DataFrame
    counts: tuple[Observation, ...]
    files: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int


def read_spans(spark: SparkSession, srcs: Sequence[str], *, layout: str | None = None) -> OtlpSource:
    """Return the spans behind ``srcs``; only the heads of the files, and the ends of those of lines, are read yet.

    Raises:
        UsageError: a source names nothing, or there is no such layout.
        UnreadableInputError: a source holds no OTLP traces.
    """
    files = span_files(srcs, layout=layout)
    lines = [file for file in files if file.layout is Layout.JSON_LINES]
    packed = [file for file in files if file.layout not in {Layout.JSON_LINES, Layout.EMPTY}]
    counts = (Observation("otlp-lines"), Observation("otlp-messages"))
    torn = {path: tail for path, tail in torn_tails([file.path for file in lines]).items() if _is_torn(tail)}
    parts: list[tuple[DataFrame, Observation]] = []
    if lines:
        text = without_tails(read_lines(spark, [file.path for file in lines]), torn)
        parts.append((spans_from_lines(text, counts[0]), counts[0]))
    if packed:
        parts.append((_from_containers(spark, packed, counts[1]), counts[1]))
    frames = [frame for frame, _ in parts] or [spark.createDataFrame([], READ_SPAN)]
    return OtlpSource(
        frame=reduce(lambda left, right: left.unionByName(right), frames),
        counts=tuple(count for _, count in parts),
        files=tuple(str(file.path) for file in files),
        layouts=tuple(sorted({file.layout.value for file in files if file.layout is not Layout.EMPTY})),
        truncated_tails=len(torn),
    )


def span_files(srcs: Sequence[str], *, layout: str | None = None) -> tuple[SourceFile, ...]:
    """Return the files behind ``srcs``, or raise what :func:`read_spans` would; this takes no Spark."""
    if layout is not None and layout not in OTLP_FORMATS:
        raise UsageError(f"unknown OTLP format {layout!r}; choose one of {', '.join(OTLP_FORMATS)}")
    return source_files(srcs, Side.OTLP, layout=None if layout is None else Layout(layout))


def _is_torn(tail: str) -> bool:
    return parse_message(tail.encode()) is None


def _from_containers(spark: SparkSession, files: Sequence[SourceFile], count: Observation) -> DataFrame:
    listed = spark.createDataFrame([(str(file.path), file.layout.value) for file in files], _FILE)
    spread = listed.repartition(len(files)) if len(files) > 1 else listed
    read = spread.mapInArrow(span_batches, StructType([*READ_SPAN.fields, *LEDGER.fields]))
    watched = read.observe(count, F.sum("due").alias("records"), F.sum("tails").alias("tails"))
    return watched.where(F.col("due").isNull()).select(*READ_SPAN.names)
