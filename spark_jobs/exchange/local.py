"""Run packing and judging on this machine, without Spark: in this process, and in a few more when it takes long."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError
from spark_jobs.exchange.engine import leave_pandas_out, merge_along, use_system_allocator
from spark_jobs.exchange.packing import BUCKET_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock

_PATIENCE_NS: Final = 100_000_000
"""After so long a map gets further processes; the next ones have them at once. To start one takes half a second."""
_LONG_MAP: Final = 4
"""A map of so many tasks is long; one of spans reads 4 MiB in each."""
_ANSWERS: Final = 16
"""So many answers that are merged are held for each process."""
_WORKER: Final = "from spark_jobs.exchange.local import serve; serve()"
_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")


class LocalEngine:
    """An ``Engine`` of up to ``parallelism`` processes, this one among them.

    Args:
        parallelism: how many tasks run at once; by default as many as there are cores.
        clock: measures how long a map takes.
    """

    name: Final = "local"
    bucket_rows: Final = 2 * BUCKET_ROWS
    """Nothing else wants the memory of these processes: a tenth less work than in as many buckets as Spark has."""

    def __init__(self, parallelism: int | None = None, *, clock: Clock | None = None) -> None:
        self.parallelism: int = parallelism or len(os.sched_getaffinity(0))
        self._clock: Clock = clock or SystemClock()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_workers()

    def prepare(self, module: str, tasks: int) -> None:
        """Start the other processes before a long map, so that they have imported ``module`` when it begins."""
        if tasks >= _LONG_MAP:
            self._start_workers(min(self.parallelism - 1, tasks - 1), module)

    def map(
        self,
        function: Callable[[_Task], _Answer],
        tasks: Sequence[_Task],
        *,
        merge: Callable[[Sequence[_Answer]], _Answer] | None = None,
    ) -> list[_Answer]:
        """Return the answer of each task, in order; with ``merge``, which makes one of several, a few for all tasks."""
        size = len(tasks) // (_ANSWERS * self.parallelism)
        if merge is not None and size > 1:
            groups = [tasks[begin : begin + size] for begin in range(0, len(tasks), size)]
            return self.map(partial(_map_merged, function, merge), groups)
        shared = _Shared(function, tasks)
        started_ns = self._clock.monotonic_ns()
        try:
            is_left = True
            while is_left:
                is_long = bool(self._workers) or self._clock.monotonic_ns() - started_ns > _PATIENCE_NS
                if is_long and shared.left > 1 and not shared.has_helpers:
                    shared.start(self._start_workers(min(self.parallelism - 1, shared.left - 1)))
                is_left = shared.run_next(_call)
        except BaseException:
            self._stop_workers()  # what they do is of no use any more
            raise
        finally:
            shared.join()
        return shared.answers()

    def exchange(
        self,
        pack: Callable[[_Task], Iterable[tuple[int, bytes]]],
        tasks: Sequence[_Task],
        receive: Callable[[int, Sequence[bytes]], _Answer],
        buckets: int,  # noqa: ARG002 - a bucket is a list here: none needs to be made beforehand
        *,
        merge: Callable[[Sequence[_Answer]], _Answer] | None = None,
    ) -> list[_Answer]:
        """Send what ``pack`` makes of each task to its bucket; return what ``receive`` makes of each that got any."""
        with tempfile.TemporaryDirectory(prefix="mqtrace-exchange-") as directory:
            packed = self.map(partial(_pack, pack, directory), list(enumerate(tasks)))
            held: dict[int, list[_Blob]] = {}
            for blobs in packed:
                for bucket, blob in blobs:
                    held.setdefault(bucket, []).append(blob)
            return self.map(partial(_receive, receive), sorted(held.items()), merge=merge)

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _start_workers(self, count: int, module: str = __name__) -> list[_Worker]:
        while len(self._workers) < count:
            self._workers.append(_Worker(module))
        return self._workers[:count]


def _map_merged(function: Callable[[Any], Any], merge: Callable[[Sequence[Any]], Any], tasks: Sequence[Any]) -> Any:
    return merge_along(map(function, tasks), merge)


_Blob = tuple[str, int, int]  # a file, where in it, how many bytes


def _pack(
    pack: Callable[[Any], Iterable[tuple[int, bytes]]], directory: str, numbered: tuple[int, Any]
) -> list[tuple[int, _Blob]]:
    """Write the blobs of a task to its file and return where each is."""
    number, task = numbered
    path = Path(directory) / f"{number:06d}"
    places = []
    with path.open("wb") as file:
        for bucket, blob in pack(task):
            places.append((bucket, (str(path), file.tell(), len(blob))))
            file.write(blob)
    return places


def _receive(receive: Callable[[int, Sequence[bytes]], Any], bucket: tuple[int, Sequence[_Blob]]) -> Any:
    number, places = bucket
    blobs = []
    for path, begin, size in places:
        with Path(path).open("rb") as file:
            file.seek(begin)
            blobs.append(file.read(size))
    return receive(number, blobs)


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    return function(task)


class _Shared:
    """The tasks of a map; other processes help with them, one thread for each that waits for its answers."""

    def __init__(self, function: Any, tasks: Sequence[Any]) -> None:
        self._function = function
        self._left = deque(enumerate(tasks))
        self._answers: list[Any] = [None] * len(tasks)
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    @property
    def left(self) -> int:
        """How many tasks no process has taken yet."""
        return len(self._left)

    @property
    def has_helpers(self) -> bool:
        return bool(self._threads)

    def run_next(self, run: Callable[[Any, Any], Any]) -> bool:
        """Run one more task by ``run``; false when none is left."""
        try:
            number, task = self._left.popleft()
        except IndexError:
            return False
        try:
            self._answers[number] = run(self._function, task)
        except BaseException:
            self._left.clear()
            raise
        return True

    def start(self, workers: Iterable[_Worker]) -> None:
        """Let processes help."""
        for worker in workers:
            thread = threading.Thread(target=self._feed, args=(worker,), name="mqtrace-local", daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait for the answers that are still out."""
        for thread in self._threads:
            thread.join()

    def answers(self) -> list[Any]:
        """Return the answers in the order of their tasks.

        Raises:
            Exception: what a task of another process raised.
        """
        for failure in self._failures:
            raise failure
        return self._answers

    def _feed(self, worker: _Worker) -> None:
        try:
            while self.run_next(worker.run):
                pass
        except BaseException as failure:  # noqa: BLE001 - raised again by the thread that waits
            self._failures.append(failure)


class _Worker:
    """A process that runs one task at a time."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for this process: it stops the others
        )

    def run(self, function: Callable[[Any], Any], task: Any) -> Any:
        """Return what ``function(task)`` returns there.

        Raises:
            PeerError: the process has ended.
            Exception: what the function raised.
        """
        to, back = self._process.stdin, self._process.stdout
        try:
            pickle.dump((function, task), to)  # type: ignore[arg-type]
            to.flush()  # type: ignore[union-attr]
            is_done, answer = pickle.load(back)  # type: ignore[arg-type]  # noqa: S301 - our own process
        except (OSError, EOFError) as error:
            code = self._process.wait()
            raise PeerError(
                f"a process of the local engine ended ({code}); give it more memory, or use --engine spark"
            ) from error
        if not is_done:
            raise answer
        return answer

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()  # type: ignore[union-attr]


def serve() -> None:
    """Import the module of the first argument, then run tasks from standard input until it ends."""
    use_system_allocator()
    leave_pandas_out()
    importlib.import_module(sys.argv[1])
    tasks: IO[bytes] = sys.stdin.buffer
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        while True:
            try:
                function, task = pickle.load(tasks)  # noqa: S301 - our own driver
            except EOFError:
                return
            try:
                answer = (True, function(task))
            except Exception as error:  # noqa: BLE001 - raised again by the driver
                answer = (False, error)
            pickle.dump(answer, answers)
            answers.flush()
