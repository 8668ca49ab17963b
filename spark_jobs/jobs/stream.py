"""This module knows the stream: what is new is normalised and taken in, then everything is judged as one batch.

Spark's file stream only says which files are new; readers, normalisers and judge are those of the batch run. What was
taken in stays under ``out / "stream"``, so that a run that is killed anywhere goes on where it was, and one on the next
day reads what has come since.
"""

from __future__ import annotations

import hashlib
import json
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from spark_jobs.engine import as_meant, is_connect
from spark_jobs.failure import told_by_cause
from spark_jobs.interrupt import unlogged
from spark_jobs.jobs.batch import checked, concluded, counted_losses, reading, silent, starter, unreported
from spark_jobs.jobs.history import locked
from spark_jobs.jobs.intake import Books, Intake
from spark_jobs.jobs.judge import judge
from spark_jobs.jobs.new_files import FILES_PER_BATCH, each_batch_of_new_files
from spark_jobs.jobs.normalise import normalise_native, normalise_otlp
from spark_jobs.jobs.workplace import workplace
from spark_jobs.sources.detect import Layout, Side
from spark_jobs.sources.files import source_files
from spark_jobs.sources.kafka.address import apart
from spark_jobs.taxonomy import ExitCode, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock
    from spark_jobs.jobs.batch import ReconcileOptions
    from spark_jobs.jobs.normalise import NormaliseOptions
    from spark_jobs.reconcile.policy import Policy
    from spark_jobs.report.result import Result

__all__ = ["STREAM", "run"]

STREAM: Final = "stream"
"""The directory under ``out`` of what a stream has taken in."""

_HOW: Final = "how.json"
_MS_PER_S: Final = 1_000


def run(  # noqa: PLR0913 - those of a batch run, and the rhythm
    options: ReconcileOptions,
    *,
    every_ms: int | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = silent,
    report: Callable[[Result], object] = unreported,
    clock: Clock | None = None,
    wait: Callable[[float], None] = time.sleep,
    files_per_batch: int = FILES_PER_BATCH,
) -> Result:
    """Take in what is new, judge everything, report; once, or again and again until SIGINT or SIGTERM.

    Args:
        options: what to reconcile, and how; ``history`` as in a batch run.
        every_ms: from the end of one round to the beginning of the next; ``None`` is a single round. A round that
            brings nothing is not reported, except the first.
        spark: a session to use; built from the options when absent.
        progress: told the name of each stage as it begins.
        report: given each result before the history remembers its run.
        clock: tells how long a run took, and when it ended.
        wait: sleeps for so many seconds.
        files_per_batch: files of one source in one batch, at most: what a kill makes to be read again.

    Returns:
        The last result.

    Raises:
        UsageError, UnreadableInputError, MissingExtraError, PeerError: as a batch run does.
        KeyboardInterrupt: interrupted before the first report, or in a single round.
    """
    policy = checked(options)
    stream = _Stream(options, policy, files_per_batch, progress)
    last: Result | None = None
    with locked(options.out / STREAM, name="--out"), unlogged(), _ended_by_signals(several=every_ms is not None):
        stream.check_how()
        try:
            session = starter(options, spark, progress)()
            _check_session(session)
            while True:
                brought = stream.take_in(session)
                if brought or last is None:
                    last = stream.judged(session, clock or SystemClock(), report)
                if every_ms is None:
                    return last
                progress("waiting for what is new")
                wait(every_ms / _MS_PER_S)
        except KeyboardInterrupt:
            if every_ms is None or last is None:
                raise
            return last


@dataclass(frozen=True, slots=True)
class _Stream:
    """One stream over the sources of ``options``."""

    options: ReconcileOptions
    policy: Policy
    files_per_batch: int
    progress: Callable[[str], None]

    @property
    def _directory(self) -> Path:
        return self.options.out / STREAM

    @property
    def _intake(self) -> Intake:
        return Intake(self._directory / "events")

    def check_how(self) -> None:
        """Refuse to add to what was read otherwise."""
        how = reading(self.options)
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
        self.progress("looking for new files")
        before = self._intake.names()
        files = [apart(srcs)[0] for srcs in (self.options.native, self.options.otlp)]
        srcs = tuple(dict.fromkeys(src for one in files for src in one))
        checkpoint = self._directory / "checkpoint" / _digest(srcs)

        def take(name: str, paths: Sequence[Path]) -> None:
            self._take_files(spark, name, paths)

        with as_meant(spark), told_by_cause():
            each_batch_of_new_files(spark, srcs, take, checkpoint=checkpoint, files_per_batch=self.files_per_batch)
        return len(set(self._intake.names()) - set(before))

    def _take_files(self, spark: SparkSession, name: str, paths: Sequence[Path]) -> None:
        known = {
            source
            for batch, books in self._intake.books().items()
            if batch != name
            for book in books.values()
            for source in book.sources
        }
        fresh = frozenset(path for path in (path.resolve() for path in paths) if str(path) not in known)
        how = reading(self.options)
        layout = None if how.otlp_format is None else Layout(how.otlp_format)
        native = source_files(apart(self.options.native)[0], Side.NATIVE, only=fresh)
        otlp = source_files(apart(self.options.otlp)[0], Side.OTLP, layout=layout, only=fresh)
        if native or otlp:
            found = {"native": [str(file.path) for file in native], "otlp": [str(file.path) for file in otlp]}
            self._normalise(spark, name, found, how)

    def _normalise(self, spark: SparkSession, name: str, srcs: dict[str, list[str]], how: NormaliseOptions) -> None:
        self.progress(f"reading {sum(map(len, srcs.values()))} new files")
        sizes = {path: _size(path) for paths in srcs.values() for path in paths}
        incoming = self._intake.incoming(name)
        books = {
            side: Books.of(
                normalise(spark, srcs[side], incoming, options=how), {path: sizes[path] for path in srcs[side]}
            )
            for side, normalise in (("native", normalise_native), ("otlp", normalise_otlp))
            if srcs[side]
        }
        self._intake.take_in(name, books)

    def judged(self, session: SparkSession, clock: Clock, report: Callable[[Result], object]) -> Result:
        """Judge everything taken in, as a batch run would, report it and let the history remember it."""
        out, most_samples = self.options.out, self.options.samples
        with workplace(out, self.options.history, lambda: session, clock) as place:
            sides = self._intake.sides(session)
            result = judge(
                place,
                sides,
                self.policy,
                out=out,
                most_samples=most_samples,
                progress=self.progress,
                ledger=counted_losses(self.options),
            )
            return concluded(place, self._doubted(result), report)

    def _doubted(self, result: Result) -> Result:
        """Call a result inconclusive when a file has grown since it was read: the stream does not read it again."""
        grown = [path for path, size in self._sizes().items() if _size(path) > size]
        if not grown or not result.conservation.holds:
            return result
        more = f" and {len(grown) - 1} more files have" if len(grown) > 1 else " has"
        doubt = (
            f"{grown[0]}{more} grown since it was read: a stream takes a file once, when it is complete; "
            "give it only what is written beside and renamed, or rotated, and start with another --out"
        )
        return replace(result, doubt=doubt, verdict=Verdict.INCONCLUSIVE.value, exit_code=int(ExitCode.INCONCLUSIVE))

    def _sizes(self) -> dict[str, int]:
        every = (book for books in self._intake.books().values() for book in books.values())
        return {path: size for book in every for path, size in book.sizes.items()}


def _size(path: str) -> int:
    """Return the bytes of a file, 0 when it is gone: whoever read it has it."""
    with suppress(OSError):
        return Path(path).stat().st_size
    return 0


def _digest(srcs: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(srcs).encode()).hexdigest()[:16]


def _check_session(session: SparkSession) -> None:
    if is_connect(session):
        raise UsageError("--stream needs a Spark of its own, not Spark Connect: give another --master")


@contextmanager
def _ended_by_signals(*, several: bool) -> Iterator[None]:
    """Let SIGTERM end the block as SIGINT does, where a stream goes on until it is told; handlers are given back."""
    if not several:
        yield
        return

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {number: signal.signal(number, interrupted) for number in numbers}
    except ValueError:  # not the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
