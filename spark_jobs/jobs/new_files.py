"""This module knows which files below the sources are new: Spark's file stream says, its checkpoint remembers.

The stream reads no content, only paths. A file counts once, by its path: what is appended to it later is not seen here.
"""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from otel_mqtrace._errors import MqTraceError, PeerError
from spark_jobs.sources.files import spark_path, spark_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FILES_PER_BATCH", "each_batch_of_new_files"]

FILES_PER_BATCH: Final = 1_000
"""How many files of a source one batch takes: what is read again after a kill, and what one job lists."""

_LISTING: Final = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_FOR_EVER: Final = "36500d"  # files that arrive with an old time of modification are new all the same
_POLL_S: Final = 0.5  # between two looks whether it has ended, in which an interrupt gets through
_MAGIC: Final = re.compile(r"[*?\[]")


def each_batch_of_new_files(
    spark: SparkSession,
    srcs: Sequence[str],
    take: Callable[[str, list[Path]], None],
    *,
    checkpoint: Path,
    files_per_batch: int = FILES_PER_BATCH,
) -> str | None:
    """Call ``take(name, paths)`` for all files that are new since the last call with this ``checkpoint``.

    A batch whose ``take`` did not return comes again next time, with the same name and the same paths. ``paths`` are
    everything the stream sees below the sources: hidden names are left out, other things beside the data are not.

    Args:
        spark: a session with a JVM of its own.
        srcs: files, directories, globs; the same ones every time.
        take: what to do with one batch; its name is made of the checkpoint's id and the batch's number.
        checkpoint: a directory of the stream's own.
        files_per_batch: files of one source in one batch, at most.

    Returns:
        The group of the Spark jobs this took; ``None`` without sources.

    Raises:
        MqTraceError: what ``take`` raised of that kind.
        PeerError: the stream failed otherwise.
    """
    if not srcs:
        return None
    failures: list[MqTraceError] = []

    def taken(frame: DataFrame, batch: int) -> None:
        try:
            name = f"{_query_id(checkpoint)}-{batch:09d}"
            take(name, sorted({Path(row["path"]) for row in frame.collect()}))
        except MqTraceError as error:
            failures.append(error)  # it would come back as text, wrapped several times
            raise

    listed = reduce(lambda one, other: one.unionByName(other), (_listing(spark, src, files_per_batch) for src in srcs))
    writer = listed.writeStream.foreachBatch(taken).option("checkpointLocation", spark_target(checkpoint.absolute()))
    query = writer.trigger(availableNow=True).start()
    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # seconds may be a fraction
            pass
    except StreamingQueryException as error:
        if failures:
            raise failures[0] from error
        raise PeerError(f"Spark gave up: {_first_line(error)}; mend that and run it again") from error
    finally:
        query.stop()
    return str(query.runId)


def _listing(spark: SparkSession, src: str, files_per_batch: int) -> DataFrame:
    reader = (
        spark.readStream.format("binaryFile")
        .schema(_LISTING)
        .options(
            recursiveFileLookup=True, maxFilesPerTrigger=files_per_batch, maxFileAge=_FOR_EVER, ignoreMissingFiles=True
        )
    )
    path = F.regexp_replace("path", "^file:/+", "/").alias("path")
    return reader.load(_place(src)).select(path)


def _place(src: str) -> str:
    """Return what Spark is to list for a source: for ``**``, which Hadoop does not know, everything below its root."""
    path = Path(src.removeprefix("file://")).absolute()
    if path.exists():
        return spark_path(path)
    if "**" in path.parts:
        return spark_path(Path(*path.parts[: next(at for at, part in enumerate(path.parts) if _MAGIC.search(part))]))
    return spark_target(re.sub(r"([{}\\])", r"\\\1", str(path)))


def _query_id(checkpoint: Path) -> str:
    """Return what Spark calls the stream of this checkpoint; it is the same after every restart."""
    return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])[:8]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
