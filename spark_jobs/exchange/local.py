"""Run packing and judging on this machine, without Spark: in this process, and in a few more when it takes long."""

from __future__ import annotations

import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._clock import SystemClock
from spark_jobs.exchange.engine import Engine, merge_along, with_stores
from spark_jobs.exchange.packing import BUCKET_ROWS
from spark_jobs.exchange.workers import Worker, count_cores, take_started

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock
    from spark_jobs.exchange.engine import Function, Merge, Pack, Receive

_PATIENCE_NS: Final = 100_000_000
"""After so long a map gets further processes; the next ones have them at once. To start one takes half a second."""
_ANSWERS: Final = 16
"""So many answers that are merged are held for each process."""


class LocalEngine(Engine):
    """Up to ``parallelism`` processes, this one among them; by default as many as there are cores."""

    name = "local"
    bucket_rows = 2 * BUCKET_ROWS
    """Nothing else wants the memory of these processes: a tenth less work than in as many buckets as Spark has."""

    def __init__(self, parallelism: int | None = None, *, clock: Clock | None = None) -> None:
        self.parallelism = parallelism or count_cores()
        self._clock: Clock = clock or SystemClock()
        self._workers: list[Worker] = take_started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_workers()

    def map(self, function: Function, tasks: Sequence[Any], *, merge: Merge | None = None) -> list[Any]:
        """Return the answers, as :meth:`Engine.map`."""
        size = len(tasks) // (_ANSWERS * self.parallelism)
        if merge is not None and size > 1:
            groups = [tasks[begin : begin + size] for begin in range(0, len(tasks), size)]
            return self.map(partial(_map_merged, function, merge), groups)
        most_workers = self.parallelism - 1
        left, answers = deque(enumerate(tasks)), [None] * len(tasks)
        helpers: list[Future[None]] = []
        started_ns = self._clock.monotonic_ns()
        with ThreadPoolExecutor(most_workers or 1, "mqtrace-local") as pool:  # a thread waits for each other process
            try:
                while left:
                    is_long = bool(self._workers) or self._clock.monotonic_ns() - started_ns > _PATIENCE_NS
                    if is_long and most_workers and len(left) > 1 and not helpers:
                        workers = self._start_workers(min(most_workers, len(left) - 1))
                        there = with_stores(function)
                        helpers = [pool.submit(_run_all, partial(one.run, there), left, answers) for one in workers]
                    _run_next(function, left, answers)
                for helper in helpers:
                    helper.result()
            except BaseException:
                self._stop_workers()  # what they do is of no use any more
                raise
        return answers

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

    def _start_workers(self, count: int) -> list[Worker]:
        while len(self._workers) < count:
            self._workers.append(Worker(__name__))
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


def _run_all(call: Function, left: deque[tuple[int, Any]], answers: list[Any]) -> None:
    while left:
        _run_next(call, left, answers)


def _run_next(call: Function, left: deque[tuple[int, Any]], answers: list[Any]) -> None:
    """Run the next task that no process has taken yet; none is left after one that failed."""
    try:
        number, task = left.popleft()
    except IndexError:  # another thread took the last one
        return
    try:
        answers[number] = call(task)
    except BaseException:
        left.clear()
        raise
