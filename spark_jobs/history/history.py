"""The history of runs on disk: one line a run, and the state that the next run takes over.

A run that ends replaces ``runs.jsonl`` by its last 2,000 lines, its own included. The last line counts, so a run
that failed or was killed leaves nothing.
``open/run=<number>`` holds the ``open_files`` of that line: ``events`` (``EVENT`` of open keys), ``closed``
(``CLOSED``, the positions of what was open once) and ``paid.json`` (the counted losses that were spent on keys).
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from bridge.storage.locks import hold
from bridge.storage.paths import (
    flush_tree,
    list_files,
    make_directory,
    read_row_groups,
    remove_tree,
    replace_text,
    write_atomically,
)
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._errors import DAMAGE, UnreadableInputError, UsageError, describe_damage
from spark_jobs.report.headline import count_matched
from spark_jobs.schemas import CountedDrop
from spark_jobs.taxonomy import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.report.result import Result, SideInputs

RUNS: Final = "runs.jsonl"
"""The file of the runs, one JSON object a line, oldest first."""

_STATE: Final = "open"
_EVENTS, _CLOSED, _USED_DROPS = "events", "closed", "paid.json"
_KEPT_RUNS: Final = 2_000  # a stream adds one every round
_GROUP_ROWS: Final = 65_536  # so many positions are read at a time


@dataclass(frozen=True, slots=True)
class History:
    """The state of earlier runs, and where this one saves its own; without ``directory`` no history is kept.

    ``runs`` are the lines of earlier runs, oldest first. ``check_held`` raises ``UsageError`` if another run has
    taken the history.
    """

    directory: AnyPath | None = None
    runs: tuple[dict[str, Any], ...] = field(default=())
    check_held: Callable[[], None] = field(default=lambda: None, compare=False)

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
        return self._files(self.last_run, _EVENTS)

    def closed_files(self) -> list[str]:
        """Return the files of ``CLOSED`` of earlier runs."""
        return self._files(self.last_run, _CLOSED)

    def _files(self, run: int | None, name: str) -> list[str]:
        path = self._state(run, name)
        return [] if path is None else list_files(str(path))

    def _count_files(self, run: int | None) -> int:
        used = self._state(run, _USED_DROPS)
        return len([*self._files(run, _EVENTS), *self._files(run, _CLOSED)]) + (used is not None and used.exists())

    def check_files(self) -> None:
        """Raise ``UnreadableInputError`` if a file or line of the last run is gone: open keys would be forgotten."""
        left = self.runs[-1].get("open_files", 0) if self.runs else 0
        found = self._count_files(self.last_run)
        newest = max(map(_run_of, _list_states(self.directory)), default=0) if self.directory else 0
        if found < left:
            place = f"{self.directory} has {found} of the {left} files that run {self.last_run} left"
        elif newest > self.last_run + 1:  # the next run may have been killed before its line was written
            place = f"{self.directory} has files of run {newest}, but no line of run {newest - 1}"
        else:
            return
        raise UnreadableInputError(f"{place}: restore {RUNS} and {_STATE}/, or name another --history")

    def used_drops(self) -> tuple[CountedDrop, ...]:
        """Return the counted losses that were spent on keys left open, and how many of each.

        Raises:
            UnreadableInputError: they are damaged; taken for empty, they would be spent twice.
        """
        path = self._state(self.last_run, _USED_DROPS)
        if path is None or not path.exists():
            return ()
        try:
            return tuple(CountedDrop(**row) for row in json.loads(path.read_text(encoding="utf-8")))
        except DAMAGE as error:
            raise _unreadable(str(path), describe_damage(error)) from error

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

    def keep_used_drops(self, drops: Sequence[CountedDrop]) -> None:
        """Write what was spent on keys; it counts once :meth:`commit` is called."""
        path = self._state(self.run, _USED_DROPS)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([asdict(drop) for drop in drops], ensure_ascii=False), encoding="utf-8")

    def commit(self, line: dict[str, Any]) -> None:
        """Add this run's line once its files are on the disk; drop the state that only earlier lines refer to.

        Raises:
            UsageError: another run has added a line meanwhile.
        """
        if self.directory is None:
            return
        flush_tree(self.directory / _STATE)
        path = self.directory / RUNS
        if History(runs=_read_runs(path)).last_run != self.last_run:  # this run paused, and lost its place
            raise UsageError(f"--history {self.directory} was used by another run meanwhile: run one at a time")
        lines = (*self.runs, {**line, "open_files": self._count_files(self.run)})[-_KEPT_RUNS:]
        replace_text(path, "".join(f"{json.dumps(each, ensure_ascii=False, default=str)}\n" for each in lines))
        _drop_states(self.directory, keep=self.run)

    def _state(self, run: int | None, name: str) -> AnyPath | None:
        return self.directory.absolute() / _STATE / f"run={run}" / name if self.directory and run else None


def read_rows(path: str, schema: pa.Schema) -> pa.Table:
    """Return all rows of a parquet file of ``EVENT`` or ``CLOSED``; ``schema`` may be a part of it.

    Raises:
        UnreadableInputError: the file is damaged.
    """
    return pa.concat_tables([schema.empty_table(), *read_groups(path, schema)])


def read_groups(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a file, some thousand at a time; as :func:`read_rows`."""
    try:
        for rows in read_row_groups(path, schema.names):
            yield rows.cast(schema)
    except (OSError, ValueError, KeyError) as error:  # pa.ArrowInvalid is a ValueError
        raise _unreadable(path, error) from error


def write_rows(rows: pa.Table, path: str) -> None:
    """Write rows as the parquet file ``path``, whole or not at all; a file that is there is replaced."""
    with write_atomically(path) as unready:
        parquet.write_table(rows, unready, compression="zstd", row_group_size=_GROUP_ROWS)


def _unreadable(path: str, error: object) -> UnreadableInputError:
    return UnreadableInputError(f"{path} cannot be read: {error}; name another --history")


@contextmanager
def open_history(directory: AnyPath | None) -> Iterator[History]:
    """Give the history in ``directory``, made when absent and removed again when no run was committed to it.

    Raises:
        UsageError: another run is using it, or it cannot be made.
        UnreadableInputError: a line of it is not one of ours, or files that the last run left are gone.
    """
    if directory is None:
        yield History()
        return
    with hold(directory, name="--history") as check_held:
        history = History(directory, _read_runs(directory / RUNS), check_held)
        history.check_files()
        _drop_states(directory, keep=history.last_run)
        try:
            yield history
        finally:
            if not (directory / RUNS).exists():
                _drop_states(directory, keep=None)


def _read_runs(path: AnyPath) -> tuple[dict[str, Any], ...]:
    runs: list[dict[str, Any]] = []
    try:
        for line in path.read_bytes().splitlines() if path.exists() else ():
            run = json.loads(line)
            _check_numbers(run)
            runs.append(run)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        place = f"{path}:{len(runs) + 1}"
        is_ours = isinstance(error, ValueError) and not isinstance(error, UnicodeError)
        why = error if is_ours else describe_damage(error)
        raise UnreadableInputError(f"{place} is not a history of runs: {why}; name another --history") from error
    return tuple(runs)


def _check_numbers(run: dict[str, Any]) -> None:
    """Raise ``ValueError`` where the line of a run has something else than a number that a later run counts with."""
    rate = run.get("match_rate")  # null where no key was to be matched
    numbers = [
        ("run", run["run"]),
        ("open_files", run.get("open_files", 0)),
        ("match_rate", 0 if rate is None else rate),
    ]
    for counts in ("status", "unexplained", "lifecycle"):
        numbers += run.get(counts, {}).items()
    numbers += [(side, counts.get("records_read", 0)) for side, counts in run.get("inputs", {}).items()]
    for name, number in numbers:
        if type(number) not in {int, float} or not math.isfinite(number):
            raise ValueError(f"{name} is {json.dumps(number)}, not a number")


def _list_states(directory: AnyPath) -> Iterable[AnyPath]:
    return (directory / _STATE).glob("run=*")


def _run_of(state: AnyPath) -> int:
    number = state.name.partition("=")[2]
    return int(number) if number.isdecimal() else 0


def _drop_states(directory: AnyPath, *, keep: int | None) -> None:
    """Remove every state but the one of run ``keep``: superseded, or of a run that never ended."""
    for state in _list_states(directory):
        if _run_of(state) != keep:
            remove_tree(str(state))
    with suppress(OSError):
        (directory / _STATE).rmdir()


# -- a line of runs.jsonl, and the trend ------------------------------------------------------------------------------
TREND_RUNS: Final = 30
"""How many runs a trend shows, this one included."""

_SHOWN: Final = ("run", "time", "verdict", "exit_code", "match_rate", "unexplained", "lifecycle")


def summarise_run(result: Result, *, run: int, wall_ns: int) -> dict[str, Any]:
    """Return the line of ``runs.jsonl`` for the run number ``run``, which ended at ``wall_ns`` since 1970."""
    instant = datetime.fromtimestamp(wall_ns // NS_PER_MS / 1000, timezone.utc)
    return {
        "run": run,
        "time": instant.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "version": result.versions.get("otel-mqtrace"),
        "policy": result.policy_hash,
        "profile": result.writers.profile,
        "native_writer": result.writers.native_writer,
        "window": asdict(result.window),
        "horizon": result.horizon_ms,
        "inputs": {"native": _summarise_inputs(result.inputs.native), "otlp": _summarise_inputs(result.inputs.otlp)},
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "conservation": result.conservation.holds,
        "match_rate": count_matched(result).rate,
        "status": dict(result.status),
        "reason": dict(result.reason),
        "gates": {gate.name: {"value": gate.value, "outcome": gate.outcome} for gate in result.gates},
        "unexplained": {side: loss.unexplained for side, loss in result.loss.items()},
        "lifecycle": dict(result.lifecycle),
        "open_break_age": dict(result.open_break_age),
    }


def trend_points(lines: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return what a trend shows of the last ``TREND_RUNS`` lines of ``runs.jsonl``."""
    return tuple(map(_trend_point, lines[-TREND_RUNS:]))


def _trend_point(line: dict[str, Any]) -> dict[str, Any]:
    shown = {name: line.get(name) for name in _SHOWN}
    shown["pending"] = line.get("status", {}).get(Status.PENDING.value, 0)
    shown["records_read"] = {side: inputs.get("records_read") for side, inputs in line.get("inputs", {}).items()}
    return shown


def _summarise_inputs(side: SideInputs) -> dict[str, Any]:
    plain = asdict(side)
    return {"files": len(plain.pop("sources")), **{name: value for name, value in plain.items() if name != "layouts"}}
