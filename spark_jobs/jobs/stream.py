"""Reconcile again and again: what is new is read and taken in, then everything is judged as one batch.

Spark's file stream only says which files are new; readers, normalisers and judge are those of the batch run. What was
taken in stays under ``out / "stream"``, so that a run that is killed anywhere goes on where it was, and one on the next
day reads what has come since.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import SystemClock, pause
from otel_mqtrace._errors import UsageError
from spark_jobs.engine import is_connect
from spark_jobs.history.history import lock_directory
from spark_jobs.interrupt import unlogged
from spark_jobs.jobs.engines import choose_engine, open_engine, session_starter
from spark_jobs.jobs.ingest import STREAM, Ingest, size_of
from spark_jobs.jobs.intake import survey_again
from spark_jobs.jobs.new_files import FILES_PER_BATCH
from spark_jobs.jobs.options import checked, choose, counted_losses, silent, unreported
from spark_jobs.jobs.reconcile import conclude, reconcile
from spark_jobs.jobs.workplace import open_workplace
from spark_jobs.taxonomy import ExitCode, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock
    from spark_jobs.jobs.intake import Intake
    from spark_jobs.jobs.options import Chosen, ReconcileOptions
    from spark_jobs.jobs.workplace import Workplace
    from spark_jobs.report.result import Result

__all__ = ["run"]

_MS_PER_S: Final = 1_000


def run(  # noqa: PLR0913 - those of a batch run, and the rhythm
    options: ReconcileOptions,
    *,
    every_ms: int | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = silent,
    report: Callable[[Result], object] = unreported,
    clock: Clock | None = None,
    wait: Callable[[float], None] = pause,
    files_per_batch: int = FILES_PER_BATCH,
) -> Result:
    """Take in what is new, judge everything, report; once, or until SIGINT or SIGTERM. Return the last result.

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

    Raises:
        UsageError, UnreadableInputError, MissingExtraError, PeerError: as a batch run does.
        KeyboardInterrupt: interrupted before the first report, or in a single round.
    """
    if every_ms is not None and every_ms < _MS_PER_S:
        raise UsageError("--every is less than a second: write at least 1s")
    choose_engine(options, stream=True, has_session=spark is not None)
    ingest = Ingest(options, files_per_batch=files_per_batch, progress=progress)
    chosen = checked(options, ingest.known_writers())
    clock = clock or SystemClock()
    last: Result | None = None
    start = session_starter(options, spark, progress)
    with lock_directory(options.out / STREAM, name="--out"), _end_by_signals(several=every_ms is not None):
        ingest.use(chosen)
        try:
            with unlogged():
                session = _own(start())
            while True:
                if not chosen.is_settled:
                    chosen = choose(options, ingest.known_writers())
                    ingest.use(chosen)
                opener = partial(open_engine, "spark", lambda: session, clock=clock)
                with opener() as engine:
                    brought = ingest.take_in(engine, session)
                if brought or last is None:
                    with open_workplace(options.out, options.history, opener, clock) as place:
                        last = _judge(place, ingest.intake, chosen, progress=progress, report=report)
                if every_ms is None:
                    return last
                progress("waiting for what is new")
                wait(every_ms / _MS_PER_S)
        except KeyboardInterrupt:
            if every_ms is None or last is None:
                raise
            return last


def _judge(
    place: Workplace,
    intake: Intake,
    chosen: Chosen,
    *,
    progress: Callable[[str], None],
    report: Callable[[Result], object],
) -> Result:
    """Judge everything taken in, as a batch run would, report it and commit it to the history."""
    native, spans = intake.sides()
    options = chosen.options
    result = reconcile(
        place,
        (native, survey_again(place.engine, spans, native.trace_topics)),
        chosen.policy,
        most_samples=options.samples,
        progress=progress,
        ledger=counted_losses(options),
        trace_topics=native.trace_topics,
    )
    return conclude(place, _doubted(result, intake), report, out=options.out)


def _doubted(result: Result, intake: Intake) -> Result:
    """Call a result inconclusive when a file has grown since it was read: the stream does not read it again."""
    grown = [path for path, size in intake.sizes().items() if size_of(path) > size]
    if not grown or not result.conservation.holds:
        return result
    more = f" and {len(grown) - 1} more files have" if len(grown) > 1 else " has"
    doubt = (
        f"{grown[0]}{more} grown since it was read: a stream takes a file once, when it is complete; "
        "give it only what is written beside and renamed, or rotated, and start with another --out"
    )
    return replace(result, doubt=doubt, verdict=Verdict.INCONCLUSIVE.value, exit_code=int(ExitCode.INCONCLUSIVE))


def _own(session: SparkSession) -> SparkSession:
    if is_connect(session):
        raise UsageError("--stream needs a Spark of its own, not Spark Connect: give another --master")
    return session


@contextmanager
def _end_by_signals(*, several: bool) -> Iterator[None]:
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
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
