"""The resources of a run: its engine, a temporary work directory, the history."""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.storage import hold, remove_tree, sorted_glob
from otel_mqtrace._errors import UsageError
from spark_jobs.history.history import open_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bridge.storage import AnyPath
    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.history.history import History

VERDICTS: Final = "verdicts"
"""The directory of verdicts below ``--out``."""
_WORK: Final = ".work-"
_MARK: Final = "lock"
"""A file that only work directories of ours have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The engine, the work directory and the history of a run that began at ``started_ns``.

    ``check_held`` raises ``UsageError`` if another run has taken ``--out``.
    """

    engine: Engine
    work: AnyPath
    past: History
    clock: Clock
    started_ns: MonotonicNs
    check_held: Callable[[], None]

    def make_directory(self, name: str) -> str:
        """Return a new directory in the work directory."""
        path = (self.work / name).absolute()
        path.mkdir(parents=True)
        return str(path)


@contextmanager
def open_workspace(
    out: AnyPath, history: AnyPath | None, start: Callable[[], AbstractContextManager[Engine]], clock: Clock
) -> Iterator[Workspace]:
    """Open the resources of a run; ``out`` is held for the block, ``start`` starts the engine.

    Raises:
        UsageError: another run uses ``out`` or the history, ``out`` cannot be created, or it holds files of others.
        PeerError: Spark failed within the block.
    """
    started = clock.monotonic_ns()
    _check_verdicts(out)
    with (
        hold(out, name="--out") as check_held,
        work_directory(out) as work,
        open_history(history) as past,
        start() as engine,
    ):
        yield Workspace(engine=engine, work=work, past=past, clock=clock, started_ns=started, check_held=check_held)


def _check_verdicts(out: AnyPath) -> None:
    """Refuse a local ``out`` whose verdicts, which the run replaces, include files that no run wrote."""
    verdicts = out / VERDICTS
    if not isinstance(verdicts, Path):
        return
    for path in verdicts.rglob("*"):
        if path.suffix != ".parquet" and not path.name.startswith((".", "_")) and path.is_file():
            raise UsageError(f"--out {out}: {path} is not a run's, and a run replaces {verdicts}: choose another --out")


@contextmanager
def work_directory(out: AnyPath) -> Iterator[AnyPath]:
    """Yield an empty hidden directory below the held ``out``, removed at the end; remove those of killed runs."""
    for left in sorted_glob(out, f"{_WORK}*"):
        if not isinstance(left, Path) or (left / _MARK).exists():
            _remove(left)
    work = out / f"{_WORK}{secrets.token_hex(4)}"
    try:
        work.mkdir()
        (work / _MARK).write_bytes(b"")
        yield work
    finally:
        _remove(work)


def _remove(work: AnyPath) -> None:
    """Remove a directory as far as that can be done: a cancelled task may still write there."""
    if isinstance(work, Path):
        shutil.rmtree(work, ignore_errors=True)
    else:
        with suppress(OSError):
            remove_tree(work)
