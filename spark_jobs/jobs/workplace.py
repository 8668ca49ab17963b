"""What a run works with: an engine, a work directory that goes with it, its history."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.history.history import open_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.history.history import History

__all__ = ["Workplace", "open_workplace", "work_directory"]

_WORK: Final = ".work-"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where a run works: its engine, a directory that goes with it, its history; ``started_ns`` is when it began."""

    engine: Engine
    work: Path
    past: History
    clock: Clock
    started_ns: MonotonicNs

    def make_directory(self, name: str) -> str:
        """Return a new directory in the work directory."""
        path = (self.work / name).absolute()
        path.mkdir()
        return str(path)


@contextmanager
def open_workplace(
    out: Path, history: Path | None, start: Callable[[], AbstractContextManager[Engine]], clock: Clock
) -> Iterator[Workplace]:
    """Give a run all it works with.

    Args:
        out: a directory that exists; the work is done in a hidden one below it.
        history: what earlier runs left and this one leaves to, or ``None``.
        start: starts the engine.
        clock: measures how long the run takes, and tells when it ended.

    Raises:
        UsageError: another run is using the history.
        PeerError: Spark gave up within the block.
    """
    started = clock.monotonic_ns()
    with open_history(history) as past, work_directory(out) as work, start() as engine:
        yield Workplace(engine=engine, work=work, past=past, clock=clock, started_ns=started)


@contextmanager
def work_directory(out: Path) -> Iterator[Path]:
    """Give an empty hidden directory below ``out`` that goes with the block; those of killed runs are removed now."""
    for left in out.glob(f"{_WORK}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    # A cancelled job may still be writing there, which must not hide that it was cancelled.
    with (
        tempfile.TemporaryDirectory(prefix=_WORK, dir=out, ignore_cleanup_errors=True) as made,
        (Path(made) / _LOCK).open("wb") as lock,
    ):
        with suppress(OSError):  # where nothing can be locked, nothing is taken for abandoned
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield Path(made)


def _is_abandoned(work: Path) -> bool:
    """Tell whether no process holds the lock in a work directory; it ends with the process."""
    try:
        with (work / _LOCK).open("rb") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or there is none
        return False
    return True
