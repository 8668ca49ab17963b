"""The resources of a run: an engine, a temporary work directory, the history."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.storage import remove_tree
from otel_mqtrace._errors import UsageError
from spark_jobs.history.history import open_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bridge.storage import AnyPath, StorePath
    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.history.history import History

_WORK: Final = ".work-"
_MARK: Final = "lock"
"""A file that only work directories of ours have."""


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
        out: a directory, as of :func:`work_directory`.
        history: the directory of the history, or ``None``.
        start: starts the engine.
        clock: measures the run.

    Raises:
        UsageError: another run is using ``out`` or the history, or ``out`` cannot be made.
        PeerError: Spark failed within the block.
    """
    started = clock.monotonic_ns()
    with work_directory(out) as work, open_history(history) as past, start() as engine:
        yield Workspace(engine=engine, work=work, past=past, clock=clock, started_ns=started)


@contextmanager
def work_directory(out: AnyPath) -> Iterator[AnyPath]:
    """Yield an empty hidden directory below ``out``, removed with the block; remove those of killed runs first.

    ``out`` is this run's alone for the block. It is made when absent, and removed again if the block fails and leaves
    it empty.

    Raises:
        UsageError: another run is using ``out``, or it cannot be made.
    """
    if not isinstance(out, Path):
        with _work_in_store(out) as work:
            yield work
        return
    with (
        _held(out),
        # A cancelled job may still write there; that error must not hide the cancellation.
        tempfile.TemporaryDirectory(prefix=_WORK, dir=out, ignore_cleanup_errors=True) as made,
    ):
        (Path(made) / _MARK).touch()
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


@contextmanager
def _held(out: Path) -> Iterator[None]:
    absent = [path for path in (out, *out.parents) if not path.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create --out {out}: {error.strerror}; choose another directory") from error
    with _locked(out):
        try:
            yield
        except BaseException:
            with suppress(OSError):  # it is not empty
                for path in absent:
                    path.rmdir()
            raise


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Hold ``out`` alone, and remove what killed runs left in it; the lock ends with the process."""
    handle = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # where nothing can be locked, what others left stays
            _lock(handle, out)
            for left in out.glob(f"{_WORK}*"):
                if (left / _MARK).exists():
                    shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"--out {out} is in use by another run: wait for it, or name another") from error
