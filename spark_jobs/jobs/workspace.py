"""The resources of a run: its engine (Spark, or this machine without Java), a temporary work directory, the history.

pyspark is imported only where Spark is chosen.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.storage.locks import hold
from bridge.storage.paths import remove_tree, replace_tree, sorted_glob
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import NO_ROOM, UsageError, describe_write_fix
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.history.history import open_history
from spark_jobs.report.result import RESULT_FILE, VERDICTS, SparkCost
from spark_jobs.session import (
    build_session,
    count_jobs,
    is_connect,
    job_group,
    mute_interrupted_calls,
    peer_errors,
    read_parallelism,
    read_versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from bridge.storage.paths import AnyPath
    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.history.history import History
    from spark_jobs.jobs.options import ReconcileOptions
    from spark_jobs.report.result import Result

_REPLACED: Final = "replaced"
_WORK: Final = ".work-"
_MARK: Final = "lock"
"""A file that only work directories of ours have."""
_DISTRIBUTION: Final = "otel-mqtrace"
_NS_PER_S: Final = 1_000_000_000


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
    out: AnyPath,
    history: AnyPath | None,
    start: Callable[[], AbstractContextManager[Engine]],
    clock: Clock | None = None,
) -> Iterator[Workspace]:
    """Open the resources of a run; ``out`` is held for the block, ``start`` starts the engine.

    Raises:
        UsageError: another run uses ``out`` or the history, or ``out`` cannot be created.
        PeerError: Spark failed within the block.
    """
    clock = clock or SystemClock()
    started = clock.monotonic_ns()
    held = hold(out, name="--out")
    with held as check_held, work_directory(out) as work, open_history(history) as past, start() as engine:
        yield Workspace(engine=engine, work=work, past=past, clock=clock, started_ns=started, check_held=check_held)


@contextmanager
def work_directory(out: AnyPath) -> Iterator[AnyPath]:
    """Yield an empty hidden directory below the held ``out``, removed at the end; remove those of killed runs.

    Raises:
        UsageError: the disk or quota of a local ``out`` became full within the block, or that of temporary files.
    """
    for left in sorted_glob(out, f"{_WORK}*"):
        if not isinstance(left, Path) or (left / _MARK).exists():
            _remove(left)
    work = out / f"{_WORK}{secrets.token_hex(4)}"
    try:
        work.mkdir()
        (work / _MARK).write_bytes(b"")
        yield work
    except OSError as error:
        if error.errno not in NO_ROOM or not isinstance(out, Path):
            raise
        # pyarrow's error has no file name, so both places are named
        fix = describe_write_fix(error, "set TMPDIR to another disk")
        why = f"cannot write below --out {out} or in {tempfile.gettempdir()}: {os.strerror(error.errno or 0).lower()}"
        raise UsageError(f"{why}; {fix}") from error
    finally:
        _remove(work)


def _remove(work: AnyPath) -> None:
    """Remove a directory as far as that can be done: a cancelled task may still write there."""
    if isinstance(work, Path):
        shutil.rmtree(work, ignore_errors=True)
    else:
        with suppress(OSError):
            remove_tree(work)


def replace_outcome(texts: Mapping[str, str], work: AnyPath, out: AnyPath, *, has_verdicts: bool) -> None:
    """Write ``texts``, by file name, over those below ``out``; with ``has_verdicts`` also the verdicts in ``work``.

    Of a local ``out`` all are replaced or, if one cannot be, none. ``result.json`` is removed before verdicts are
    replaced and written last, so a store that fails in between has none. Lone surrogates are escaped.

    Raises:
        UsageError: ``out`` cannot be written.
    """
    contents = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    try:
        if isinstance(out, Path):
            for name, content in contents.items():
                (work / name).write_bytes(content)
            names = dict.fromkeys((VERDICTS, *texts, RESULT_FILE)) if has_verdicts else texts
            _rename_all([*names], Path(work), out)
            return
        if has_verdicts:
            replace_tree(work / VERDICTS, out / VERDICTS, spare=work / _REPLACED, stale=out / RESULT_FILE)
        for name, content in contents.items():
            (out / name).write_bytes(content)
    except OSError as refused:
        why, fix = refused.strerror or refused, describe_write_fix(refused, "choose another --out")
        raise UsageError(f"cannot write the report into {out}: {why}; {fix}") from refused


def _rename_all(names: Sequence[str], work: Path, out: Path) -> None:
    """Replace these in ``out`` one by one, the last one being absent meanwhile; move all back if one cannot be."""
    replaced = work / _REPLACED
    replaced.mkdir()
    moves = [(out / name, replaced / name) for name in names[-1:]]
    for name in names:
        moves += [(out / name, replaced / name), (work / name, out / name)]
    with ExitStack() as undo:
        for source, target in moves:
            if os.path.lexists(source):
                source.rename(target)
                undo.callback(target.rename, source)
        undo.pop_all()


# -- the engine --------------------------------------------------------------------------------------------------------
@contextmanager
def open_engine(
    name: str,
    options: ReconcileOptions,
    *,
    spark: SparkSession | None = None,
    progress: Callable[[str], None],
    description: str = "mqtrace reconcile",
) -> Iterator[Engine]:
    """Yield the engine of this name: of Spark on the session given, else on one built from the options.

    Spark's jobs form one group, which an interrupt cancels. Open it inside the work directory's block: the directory
    must outlive the jobs.

    Raises:
        PeerError: Spark gave up within the block.
        MissingExtraError, UsageError: as :func:`spark_jobs.session.build_session`.
    """
    if name == "local":
        with LocalEngine() as engine:
            yield engine
        return
    with mute_interrupted_calls():
        session = start_spark(options, progress) if spark is None else spark
        from spark_jobs.exchange.spark import SparkEngine  # noqa: PLC0415 - start_spark reports a missing pyspark

        group = f"mqtrace-{secrets.token_hex(8)}"
        with job_group(session, group, description), peer_errors():
            # Python processes of a Spark of our own run only our tasks: they need no pandas (40 MiB).
            yield SparkEngine(session, read_parallelism(session), group=group, owns_workers=not is_connect(session))


def start_spark(options: ReconcileOptions, progress: Callable[[str], None]) -> SparkSession:
    """Return the session of the options; raises as :func:`spark_jobs.session.build_session`."""
    progress("starting Spark")
    return build_session(master=options.master, driver_memory=options.driver_memory, extra=options.conf)


def record_engine(result: Result, place: Workspace) -> Result:
    """Return the result with ``engine``, ``spark``, ``versions`` and ``wall_seconds`` of the run that ends now."""
    engine, wall_seconds = place.engine, round((place.clock.monotonic_ns() - place.started_ns) / _NS_PER_S, 3)
    spark, found = None, {_DISTRIBUTION: version(_DISTRIBUTION)}
    if engine.name == "spark":
        jobs, stages = count_jobs(engine.session, engine.group)  # type: ignore[attr-defined]
        spark = SparkCost(jobs=jobs, stages=stages, wall_seconds=wall_seconds)
        found |= read_versions(engine.session)  # type: ignore[attr-defined]
    return replace(result, engine=engine.name, spark=spark, versions=found, wall_seconds=wall_seconds)
