"""The history of runs on disk: one line a run, and the state that the next run takes over.

``runs.jsonl`` is only appended to. Its last whole line counts, so a run that failed or was killed leaves nothing.
``open/run=<number>`` holds the state of that line: ``events`` (``EVENT`` of open keys), ``closed`` (``CLOSED``, the
places of what was open once) and ``paid.json`` (the counted losses that keys are paid with).
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.drops import CountedDrop
from spark_jobs.history.carrying import PLACE_AND_LINE, CarriedPlaces
from spark_jobs.history.leaving import CLOSED
from spark_jobs.history.lifecycle import ClosedPositions
from spark_jobs.history.places import PLACE
from spark_jobs.schemas import EVENT
from spark_jobs.storage import committed, list_files, make_directory, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "RUNS",
    "Past",
    "lock_directory",
    "open_history",
    "read_carried",
    "read_carried_places",
    "read_closed",
    "read_closed_positions",
    "write_rows",
]

RUNS: Final = "runs.jsonl"
"""The file of the runs, one JSON object a line, oldest first."""

_STATE: Final = "open"
_EVENTS, _CLOSED, _PAID = "events", "closed", "paid.json"
_LOCK: Final = ".lock"
_GROUP_ROWS: Final = 65_536  # so many places are read at a time


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

    def carried_files(self) -> list[str]:
        """Return the files of ``EVENT`` that the last run left open."""
        path = self._state(self.last_run, _EVENTS)
        return [] if path is None else list_files(str(path))

    def closed_files(self) -> list[str]:
        """Return the files of ``CLOSED`` of earlier runs."""
        path = self._state(self.last_run, _CLOSED)
        return [] if path is None else list_files(str(path))

    def paid(self) -> tuple[CountedDrop, ...]:
        """Return the counted losses that keys left open were paid with, and how many of each.

        Raises:
            UnreadableInputError: they are damaged; without them they would pay twice.
        """
        path = self._state(self.last_run, _PAID)
        if path is None or not path.exists():
            return ()
        try:
            return tuple(CountedDrop(**row) for row in json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise _unreadable(str(path), error) from error

    def make_events_directory(self) -> str | None:
        """Return the directory, made now, for the events that this run leaves open; ``None`` without a history.

        Tasks write any number of parquet files of ``EVENT`` there; they count once :meth:`commit` is called.
        """
        path = self._state(self.run, _EVENTS)
        if path is None:
            return None
        make_directory(str(path))
        return str(path)

    def keep_closed(self, closed: pa.Table) -> None:
        """Write ``CLOSED``; it counts once :meth:`commit` is called."""
        path = self._state(self.run, _CLOSED)
        if path is not None and len(closed):
            make_directory(str(path))
            write_rows(closed, str(path / "part-00000.parquet"))

    def keep_paid(self, drops: Sequence[CountedDrop]) -> None:
        """Write what keys were paid with; it counts once :meth:`commit` is called."""
        path = self._state(self.run, _PAID)
        if path is not None and drops:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([asdict(drop) for drop in drops], ensure_ascii=False), encoding="utf-8")

    def commit(self, line: dict[str, Any]) -> None:
        """Append this run's line, flushed to disk, and drop the state that only earlier lines refer to."""
        if self.directory is None:
            return
        text = json.dumps(line, ensure_ascii=False, default=str) + "\n"
        with (self.directory / RUNS).open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _drop_states(self.directory, keep=self.run)

    def _state(self, run: int | None, name: str) -> Path | None:
        return self.directory.absolute() / _STATE / f"run={run}" / name if self.directory and run else None


def read_carried(path: str) -> pa.Table:
    """Return ``EVENT``: the carried events in a file.

    Raises:
        UnreadableInputError: the file is damaged.
    """
    return _read(path, EVENT)


def read_carried_places(paths: Sequence[str]) -> CarriedPlaces:
    """Return where the carried events in ``paths`` came from; rows are numbered through the files in this order.

    Raises:
        UnreadableInputError: a file is damaged.
    """
    narrow = pa.schema([EVENT.field(name) for name in PLACE_AND_LINE])
    return CarriedPlaces.of(pa.concat_tables([narrow.empty_table(), *(_read(path, narrow) for path in paths)]))


def read_closed(paths: Sequence[str]) -> pa.Table:
    """Return ``CLOSED``: all rows of some files.

    Raises:
        UnreadableInputError: a file is damaged.
    """
    return pa.concat_tables([CLOSED.empty_table(), *(_read(path, CLOSED) for path in paths)])


def read_closed_positions(paths: Sequence[str]) -> ClosedPositions | None:
    """Return what :func:`assign_lifecycle` needs of earlier runs, once a task; ``None`` when nothing was closed.

    Raises:
        UnreadableInputError: a file is damaged.
    """
    narrow = pa.schema([CLOSED.field(name) for name in (*PLACE, "first_seen_run")])
    return ClosedPositions.of(rows for path in paths for rows in _read_groups(path, narrow)) if paths else None


def write_rows(rows: pa.Table, path: str) -> None:
    """Write rows as the parquet file ``path``, whole or not at all; a file that is there is replaced."""
    with committed(path) as unready:
        parquet.write_table(rows, unready, compression="zstd", row_group_size=_GROUP_ROWS)


def _read(path: str, schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *_read_groups(path, schema)])


def _read_groups(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    try:
        file: Any = parquet.ParquetFile(path)
        for group in range(file.metadata.num_row_groups):
            yield file.read_row_group(group, columns=schema.names, use_threads=False).cast(schema)
    except (OSError, ValueError, KeyError) as error:  # pa.ArrowInvalid is a ValueError
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> UnreadableInputError:
    return UnreadableInputError(f"{path} cannot be read: {error}; name another --history")


@contextmanager
def open_history(directory: Path | None) -> Iterator[Past]:
    """Give the history in ``directory``, made when absent and removed again when no run was committed to it.

    Raises:
        UsageError: another run is using it, or it cannot be made.
        UnreadableInputError: a line of it is not one of ours.
    """
    if directory is None:
        yield Past()
        return
    with lock_directory(directory, name="--history"):
        past = Past(directory, _read_runs(directory / RUNS))
        _drop_states(directory, keep=past.last_run)
        try:
            yield past
        finally:
            if not (directory / RUNS).exists():
                _drop_states(directory, keep=None)


@contextmanager
def lock_directory(directory: Path, *, name: str) -> Iterator[None]:
    """Hold ``directory`` for this process alone, made when absent and removed again when still empty.

    The lock ends with the process.

    Raises:
        UsageError: another process holds it, or it cannot be made; the message names the option ``name``.
    """
    with _lock(directory, name):
        try:
            yield
        finally:
            if [path.name for path in directory.iterdir()] == [_LOCK]:
                (directory / _LOCK).unlink()
                with suppress(OSError):  # another process put a file into it this moment
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


def _read_runs(path: Path) -> tuple[dict[str, Any], ...]:
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
        for run in runs:
            int(run["run"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableInputError(f"{path} is no history of runs: {error}; name another --history") from error
    return runs


def _drop_states(directory: Path, *, keep: int | None) -> None:
    """Remove every state but the one of run ``keep``: superseded, or of a run that never ended."""
    for state in (directory / _STATE).glob("run=*"):
        if state.name != f"run={keep}":
            remove_tree(str(state))
    with suppress(OSError):
        (directory / _STATE).rmdir()
