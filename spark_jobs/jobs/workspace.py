"""The resources of a run: an engine, a temporary work directory, the history."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.history.history import open_history
from spark_jobs.storage import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bridge.storage import AnyPath, StorePath
    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.history.history import History

__all__ = ["Workspace", "open_workspace", "work_directory"]

_WORK: Final = ".work-"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The engine, the work directory and the history of a run that began at ``started_ns``."""

    engine: Engine
    work: AnyPath
    past: History
    clock: Clock
    started_ns: MonotonicNs

    def make_directory(self, name: str) -> str:
        """Return a new directory in the work directory."""
        path = (self.work / name).absolute()
        path.mkdir(parents=True)
        return str(path)


@contextmanager
def open_workspace(
    out: AnyPath, history: AnyPath | None, start: Callable[[], AbstractContextManager[Engine]], clock: Clock
) -> Iterator[Workspace]:
    """Open the resources of a run.

    Args:
        out: an existing directory; the work directory is a hidden one below it.
        history: the directory of the history, or ``None``.
        start: starts the engine.
        clock: measures the run.

    Raises:
        UsageError: another run is using the history.
        PeerError: Spark failed within the block.
    """
    started = clock.monotonic_ns()
    with open_history(history) as past, work_directory(out) as work, start() as engine:
        yield Workspace(engine=engine, work=work, past=past, clock=clock, started_ns=started)


@contextmanager
def work_directory(out: AnyPath) -> Iterator[AnyPath]:
    """Yield an empty hidden directory below ``out``, removed with the block; remove those of killed runs first."""
    if not isinstance(out, Path):
        with _work_in_store(out) as work:
            yield work
        return
    for left in out.glob(f"{_WORK}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    # A cancelled job may still write there; that error must not hide the cancellation.
    with (
        tempfile.TemporaryDirectory(prefix=_WORK, dir=out, ignore_cleanup_errors=True) as made,
        (Path(made) / _LOCK).open("wb") as lock,
    ):
        with suppress(OSError):  # without locks no directory counts as abandoned
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield Path(made)


@contextmanager
def _work_in_store(out: StorePath) -> Iterator[StorePath]:
    """Yield a work directory in a store, which locks nothing: a run has its ``--out`` alone there."""
    for left in out.glob(f"{_WORK}*"):
        remove_tree(left)
    work = out / f"{_WORK}{secrets.token_hex(4)}"
    try:
        yield work
    finally:
        with suppress(OSError):  # a cancelled task may still write there
            remove_tree(work)


def _is_abandoned(work: Path) -> bool:
    """Return whether no process holds the lock of a work directory."""
    try:
        with (work / _LOCK).open("rb") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or there is none
        return False
    return True
