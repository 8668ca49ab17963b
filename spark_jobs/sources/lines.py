"""This module knows files of lines as a frame: ``path``, ``line``, ``text``, and whether the line is a cut-off tail.

Lines end at U+000A only: a Collector writes U+2028 raw inside a line. Line numbers come from reading a file whole, so a
file above ``whole_bytes`` is read line by line instead and its lines have none, until ``line_numbers`` looks for them.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.sources.files import spark_path, torn_tail

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["WHOLE_BYTES", "line_numbers", "read_lines", "source_path", "torn_tails", "without_tails"]

WHOLE_BYTES: Final = 4 << 20
"""The largest file that one row may hold: line numbers for evidence, at a
memory per core that a 1 GB driver has for many cores (the text, its lines and the spans of each are held at once)."""


def read_lines(spark: SparkSession, paths: Sequence[Path], *, whole_bytes: int = WHOLE_BYTES) -> DataFrame:
    """Return every line of ``paths`` that is not blank: ``path``, ``line`` (from 1, null in large files), ``text``."""
    small = [path for path in paths if path.stat().st_size <= whole_bytes]
    large = [path for path in paths if path.stat().st_size > whole_bytes]
    parts = []
    if small:
        whole = spark.read.text([spark_path(path) for path in small], wholetext=True)
        split = F.posexplode(F.split("value", "\n")).alias("at", "text")
        parts.append(whole.select(source_path().alias("path"), split).withColumn("line", F.col("at") + 1))
    if large:
        rows = spark.read.text([spark_path(path) for path in large], lineSep="\n")
        by_line = rows.select(source_path().alias("path"), F.col("value").alias("text"))
        parts.append(by_line.withColumn("line", F.lit(None).cast("bigint")))
    lines = [part.select("path", F.col("line").cast("bigint").alias("line"), "text") for part in parts]
    return reduce(lambda left, right: left.unionByName(right), lines).where(F.col("text").rlike(r"\S"))


def line_numbers(path: Path, beginnings: Collection[str]) -> dict[str, list[int]]:
    """Return where in a local file lines begin with each of ``beginnings``: numbers from 1, in order.

    For the few lines of a large file that a report shows. One pass, a chunk in memory at a time; what is not a local
    file has no numbers.
    """
    found: dict[str, list[int]] = {beginning: [] for beginning in beginnings}
    lengths = {len(beginning) for beginning in found}
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            for length in lengths:
                if length <= len(line) and (beginning := line[:length]) in found:
                    found[beginning].append(number)
    return found


def torn_tails(paths: Sequence[Path]) -> dict[str, str]:
    """Return the text behind the last newline of each file that does not end in one, by path."""
    found = {str(path): torn_tail(path) for path in paths}
    return {path: tail for path, tail in found.items() if tail is not None}


def without_tails(lines: DataFrame, torn: dict[str, str]) -> DataFrame:
    """Return ``lines`` without the cut-off ones, by path and text as :func:`torn_tails` found them."""
    for path, tail in torn.items():
        lines = lines.where(~((F.col("path") == path) & (F.make_valid_utf8("text") == tail)))
    return lines


def source_path() -> Column:
    """Return the path of the file a row was read from, as its user writes it (Spark gives a quoted URL)."""
    url = F.regexp_replace(F.col("_metadata.file_path"), "^file:/+", "/")
    return F.try_url_decode(F.replace(url, F.lit("+"), F.lit("%2B")))
