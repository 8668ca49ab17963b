"""This module knows the history of runs on disk: one line a run, and the open events that the next run takes over.

``runs.jsonl`` is only ever appended to; its last whole line is what counts, so that a run that failed, was interrupted
or killed left nothing. ``open/run=<number>`` holds the state that line speaks of: ``events`` (``EVENT`` rows of open
keys), ``closed`` (places of what was open once) and ``paid.json`` (the counted losses that keys are paid with). One run
at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.drops import CountedDrop
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.spark_schemas import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RUNS", "Past", "locked", "opened"]

RUNS: Final = "runs.jsonl"
"""The file of the runs, one JSON object a line, oldest first."""

_STATE: Final = "open"
_EVENTS, _CLOSED, _PAID = "events", "closed", "paid.json"
_LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs of one history left, and where this one leaves its own; without ``directory`` there is none.

    Attributes:
        directory: the history.
        runs: the lines of earlier runs, oldest first.
    """

    directory: Path | None = None
    runs: tuple[dict[str, Any], ...] = field(default=())

    @property
    def run(self) -> int | None:
        """The number of this run, from 1; ``None`` without a history."""
        return None if self.directory is None else self.last_run + 1

    @property
    def last_run(self) -> int:
        """The number of the last run, 0 before the first."""
        return int(self.runs[-1]["run"]) if self.runs else 0

    def carried(self, spark: SparkSession) -> DataFrame | None:
        """Return ``EVENT``: the events of the keys that the last run left open; ``None`` when there are none."""
        path = self._state(self.last_run, _EVENTS)
        return None if path is None or not path.exists() else spark.read.schema(EVENT).parquet(spark_path(path))

    def closed(self, spark: SparkSession) -> DataFrame | None:
        """Return ``lifecycle.CLOSED`` of earlier runs; ``None`` when there is nothing."""
        path = self._state(self.last_run, _CLOSED)
        return None if path is None or not path.exists() else spark.read.parquet(spark_path(path))

    def closed_places(self) -> pa.Table | None:
        """Return what earlier runs closed, for the tasks of this one: ``history.lifecycle.Runs.closed``."""
        path = self._state(self.last_run, _CLOSED)
        if path is None or not path.exists():
            return None
        names = ["side", "path", "record_index", "raw_hash", "first_seen_run"]
        return pa.concat_tables(parquet.read_table(file, columns=names) for file in sorted(path.glob("*.parquet")))

    def paid(self) -> tuple[CountedDrop, ...]:
        """Return the counted losses that keys left open were paid with, as often as they were."""
        path = self._state(self.last_run, _PAID)
        if path is None or not path.exists():
            return ()
        try:
            return tuple(CountedDrop(**row) for row in json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UnreadableInputError(f"{path} cannot be read: {error}; name another --history") from error

    def keep_paid(self, drops: Sequence[CountedDrop]) -> None:
        """Write what keys were paid with; nothing counts before :meth:`commit`."""
        path = self._state(self.run, _PAID)
        if path is not None and drops:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([asdict(drop) for drop in drops], ensure_ascii=False), encoding="utf-8")

    def keep_events(self, events: DataFrame) -> None:
        """Write the events of what this run leaves open; nothing counts before :meth:`commit`."""
        self._keep(events, _EVENTS)

    def keep_closed(self, closed: DataFrame) -> None:
        """Write the places of what was open once; nothing counts before :meth:`commit`."""
        self._keep(closed, _CLOSED)

    def _keep(self, rows: DataFrame, name: str) -> None:
        path = self._state(self.run, name)
        if path is not None:
            rows.write.mode("overwrite").parquet(spark_target(path))

    def _state(self, run: int | None, name: str) -> Path | None:
        return self.directory.absolute() / _STATE / f"run={run}" / name if self.directory and run else None

    def commit(self, line: dict[str, Any]) -> None:
        """Append this run's line, flushed to disk, and drop the state that only earlier lines speak of."""
        if self.directory is None:
            return
        text = json.dumps(line, ensure_ascii=False, default=str) + "\n"
        with (self.directory / RUNS).open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _drop_states(self.directory, keep=self.run)


@contextmanager
def opened(directory: Path | None) -> Iterator[Past]:
    """Give the history in ``directory``, made when absent and removed again when no run was committed to it.

    Raises:
        UsageError: another run is using it, or it cannot be made.
        UnreadableInputError: a line of it is none of ours.
    """
    if directory is None:
        yield Past()
        return
    with locked(directory, name="--history"):
        runs = _runs(directory / RUNS)
        past = Past(directory, runs)
        _drop_states(directory, keep=past.last_run)
        try:
            yield past
        finally:
            if not (directory / RUNS).exists():
                _drop_states(directory, keep=None)


@contextmanager
def locked(directory: Path, *, name: str) -> Iterator[None]:
    """Hold ``directory`` for this process alone, made when absent and removed again when still empty.

    A process that dies lets go of it.

    Raises:
        UsageError: another process holds it, or it cannot be made; the line names the option ``name``.
    """
    with _lock(directory, name):
        try:
            yield
        finally:
            if [path.name for path in directory.iterdir()] == [_LOCK]:
                (directory / _LOCK).unlink()
                with suppress(OSError):  # somebody put something into it this moment
                    directory.rmdir()


def _lock(directory: Path, name: str) -> IO[str]:
    """Return the file that holds the lock as long as it is open."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} {directory} cannot be used: {error.strerror}; name a directory that can") from error
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(f"{name} {directory} is in use by another run: wait for it, or name another") from error
    if os.fstat(file.fileno()).st_nlink:
        return file
    file.close()  # its last holder removed it while we opened it
    return _lock(directory, name)


def _runs(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the lines of earlier runs; what a crash left behind the last newline is cut off the file."""
    if not path.exists():
        return ()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    try:
        runs = tuple(json.loads(line) for line in whole.splitlines())
        last = [int(run["run"]) for run in runs]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableInputError(f"{path} is no history of runs: {error}; name another --history") from error
    return runs if last else ()


def _drop_states(directory: Path, *, keep: int | None) -> None:
    """Remove every state but the one of run ``keep``: superseded, or of a run that never ended."""
    for state in (directory / _STATE).glob("run=*"):
        if state.name != f"run={keep}":
            shutil.rmtree(state)
    with suppress(OSError):
        (directory / _STATE).rmdir()
