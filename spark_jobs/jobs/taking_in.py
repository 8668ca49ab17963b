"""This module knows how a stream takes in what is new, files and messages, by the batch run's own readers."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._errors import UsageError
from spark_jobs.engine import as_meant
from spark_jobs.failure import told_by_cause
from spark_jobs.jobs.intake import Books, Intake
from spark_jobs.jobs.new_files import each_batch_of_new_files
from spark_jobs.jobs.new_messages import new_ranges
from spark_jobs.jobs.normalise import normalise_native, normalise_otlp
from spark_jobs.jobs.options import reading
from spark_jobs.sources.detect import Layout, Side
from spark_jobs.sources.files import source_files
from spark_jobs.sources.kafka.address import apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from spark_jobs.jobs.normalise import NormaliseOptions
    from spark_jobs.jobs.options import ReconcileOptions

__all__ = ["STREAM", "TakingIn", "size_of"]

STREAM: Final = "stream"
"""The directory under ``out`` of what a stream has taken in."""

_NORMALISERS: Final = {"native": normalise_native, "otlp": normalise_otlp}
_HOW: Final = "how.json"


class TakingIn:
    """One stream over the sources of ``options``; at most ``files_per_batch`` files of a source make one batch."""

    def __init__(self, options: ReconcileOptions, *, files_per_batch: int, progress: Callable[[str], None]) -> None:
        self._options = options
        self._files_per_batch = files_per_batch
        self._progress = progress
        self._directory = options.out / STREAM
        self.intake = Intake(self._directory / "events")

    def how(self) -> NormaliseOptions:
        """Return how both sides are read, as the options say."""
        return reading(self._options)

    def check_how(self) -> None:
        """Refuse to add to what was read otherwise."""
        how = self.how()
        told = {
            "--native-writer": how.native_writer,
            "--msg-type-map": how.msg_type_map,
            "--charset": how.charset,
            "--otlp-format": how.otlp_format,
        }
        path = self._directory / _HOW
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else told
        for name, value in told.items():
            if before.get(name) != value:
                raise UsageError(
                    f"{self._directory} was read with {name} {before.get(name)}: give the same, or another --out"
                )
        path.write_text(json.dumps(told), encoding="utf-8")

    def take_in(self, spark: SparkSession) -> int:
        """Normalise and keep what is new; return how many batches that made."""
        self._progress("looking for what is new")
        before = self.intake.names()
        files = [apart(srcs)[0] for srcs in (self._options.native, self._options.otlp)]
        srcs = tuple(dict.fromkeys(src for one in files for src in one))
        checkpoint = self._directory / "checkpoint" / _digest(srcs)

        def take(name: str, paths: Sequence[Path]) -> None:
            self._take_files(spark, name, paths)

        with as_meant(spark), told_by_cause():
            self._take_topics(spark)
            each_batch_of_new_files(spark, srcs, take, checkpoint=checkpoint, files_per_batch=self._files_per_batch)
        brought = len(set(self.intake.names()) - set(before))
        with as_meant(spark), told_by_cause():
            self.intake.compact(spark)
        return brought

    def _take_topics(self, spark: SparkSession) -> None:
        """Take in what the topics hold behind the offsets of earlier batches; a killed batch has left none."""
        how = self.how()
        topics = {"native": apart(self._options.native)[1], "otlp": apart(self._options.otlp)[1]}
        taken = self.intake.offsets()
        behind = {side: new_ranges(names, how.client_config, taken[side]) for side, names in topics.items()}
        if not any(behind.values()):
            return
        self._progress("reading new messages")
        ends = {(side, one.address, one.partition): one.end for side in topics for one in (*taken[side], *behind[side])}
        name = f"topics-{sum(ends.values()):020d}"
        incoming = self.intake.incoming(name)
        books = {
            side: Books.of(
                _NORMALISERS[side](
                    spark,
                    [str(address) for address in topics[side]],
                    incoming,
                    options=replace(how, ranges=behind[side]),
                ),
                {},
            )
            for side in topics
            if behind[side]
        }
        self.intake.take_in(name, books)

    def _take_files(self, spark: SparkSession, name: str, paths: Sequence[Path]) -> None:
        known = {
            source
            for batch, books in self.intake.books().items()
            if batch != name
            for book in books.values()
            for source in book.sources
        }
        fresh = frozenset(path for path in (path.resolve() for path in paths) if str(path) not in known)
        how = self.how()
        layout = None if how.otlp_format is None else Layout(how.otlp_format)
        native = source_files(apart(self._options.native)[0], Side.NATIVE, only=fresh)
        otlp = source_files(apart(self._options.otlp)[0], Side.OTLP, layout=layout, only=fresh)
        if native or otlp:
            found = {"native": [str(file.path) for file in native], "otlp": [str(file.path) for file in otlp]}
            self._normalise(spark, name, found, how)

    def _normalise(self, spark: SparkSession, name: str, srcs: dict[str, list[str]], how: NormaliseOptions) -> None:
        self._progress(f"reading {sum(map(len, srcs.values()))} new files")
        sizes = {path: size_of(path) for paths in srcs.values() for path in paths}
        incoming = self.intake.incoming(name)
        books = {
            side: Books.of(
                _NORMALISERS[side](spark, srcs[side], incoming, options=how),
                {path: sizes[path] for path in srcs[side]},
            )
            for side in srcs
            if srcs[side]
        }
        self.intake.take_in(name, books)


def size_of(path: str) -> int:
    """Return the bytes of a file, 0 when it is gone: whoever read it has it."""
    with suppress(OSError):
        return Path(path).stat().st_size
    return 0


def _digest(srcs: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(srcs).encode()).hexdigest()[:16]
