"""Run packing and judging on this machine, without Spark: in this process, and in a few more when it takes long."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError
from spark_jobs.exchange.engine import merge_along
from spark_jobs.exchange.packing import BUCKET_ROWS
from spark_jobs.exchange.workers import LONG_MAP, Worker, count_cores, take_started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock
    from spark_jobs.exchange.engine import Function, Merge, Pack, Receive

_PATIENCE_NS: Final = 100_000_000
"""After so long a map gets further processes; the next ones have them at once. To start one takes half a second."""
_ANSWERS: Final = 16
"""So many answers that are merged are held for each process."""
_TASKS_AT_ONCE: Final = 4
"""Of each process, where the caller may stop early."""


class LocalEngine:
    """An ``Engine`` of up to ``parallelism`` processes, this one among them; by default as many as there are cores."""

    name: Final = "local"
    bucket_rows: Final = 2 * BUCKET_ROWS
    """Nothing else wants the memory of these processes: a tenth less work than in as many buckets as Spark has."""

    def __init__(self, parallelism: int | None = None, *, clock: Clock | None = None) -> None:
        self.parallelism: int = parallelism or count_cores()
        self._clock: Clock = clock or SystemClock()
        self._workers: list[Worker] = take_started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_workers()

    def prepare(self, module: str, tasks: int) -> None:
        """Start the other processes before a long map, so that they have imported ``module`` when it begins."""
        if tasks >= LONG_MAP:
            self._start_workers(min(self.parallelism - 1, tasks - 1), module)

    def map(self, function: Function, tasks: Sequence[Any], *, merge: Merge | None = None) -> list[Any]:
        """Return the answers, as :meth:`Engine.map`."""
        size = len(tasks) // (_ANSWERS * self.parallelism)
        if merge is not None and size > 1:
            groups = [tasks[begin : begin + size] for begin in range(0, len(tasks), size)]
            return self.map(partial(_map_merged, function, merge), groups)
        return self._map(function, tasks, self.parallelism - 1)

    def map_here(self, function: Function, tasks: Sequence[Any]) -> Iterator[Any]:
        """Yield the answer of each task, in order, from running processes, or from this one when one dies."""
        at_once = _TASKS_AT_ONCE * (len(self._workers) + 1)
        for begin in range(0, len(tasks), at_once):
            some = tasks[begin : begin + at_once]
            try:
                yield from self._map(function, some, len(self._workers))
            except PeerError:
                yield from map(function, some)

    def _map(self, function: Function, tasks: Sequence[Any], most_workers: int) -> list[Any]:
        shared = _Shared(function, tasks)
        started_ns = self._clock.monotonic_ns()
        try:
            is_left = True
            while is_left:
                is_long = bool(self._workers) or self._clock.monotonic_ns() - started_ns > _PATIENCE_NS
                if is_long and most_workers and shared.left > 1 and not shared.has_helpers:
                    shared.start(self._start_workers(min(most_workers, shared.left - 1)))
                is_left = shared.run_next(_call)
        except BaseException:
            self._stop_workers()  # what they do is of no use any more
            raise
        finally:
            shared.join()
        return shared.answers()

    def exchange(
        self,
        pack: Pack,
        tasks: Sequence[Any],
        receive: Receive,
        buckets: int,  # noqa: ARG002 - a bucket is a list here: none needs to be made beforehand
        *,
        merge: Merge | None = None,
    ) -> list[Any]:
        """Shuffle the blobs through files, as :meth:`Engine.exchange`."""
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

    def _start_workers(self, count: int, module: str = __name__) -> list[Worker]:
        while len(self._workers) < count:
            self._workers.append(Worker(module))
        return self._workers[:count]


def _map_merged(function: Function, merge: Merge, tasks: Sequence[Any]) -> Any:
    return merge_along(map(function, tasks), merge)


_Blob = tuple[str, int, int]  # a file, where in it, how many bytes


def _pack(pack: Pack, directory: str, numbered: tuple[int, Any]) -> list[tuple[int, _Blob]]:
    number, task = numbered
    path = Path(directory) / f"{number:06d}"
    places = []
    with path.open("wb") as file:
        for bucket, blob in pack(task):
            places.append((bucket, (str(path), file.tell(), len(blob))))
            file.write(blob)
    return places


def _receive(receive: Receive, bucket: tuple[int, Sequence[_Blob]]) -> Any:
    number, places = bucket
    blobs = []
    for path, begin, size in places:
        with Path(path).open("rb") as file:
            file.seek(begin)
            blobs.append(file.read(size))
    return receive(number, blobs)


def _call(function: Function, task: Any) -> Any:
    return function(task)


class _Shared:
    """The tasks of a map; other processes help with them, one thread for each that waits for its answers."""

    def __init__(self, function: Function, tasks: Sequence[Any]) -> None:
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

    def start(self, workers: Iterable[Worker]) -> None:
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

    def _feed(self, worker: Worker) -> None:
        try:
            while self.run_next(worker.run):
                pass
        except BaseException as failure:  # noqa: BLE001 - raised again by the thread that waits
            self._failures.append(failure)
