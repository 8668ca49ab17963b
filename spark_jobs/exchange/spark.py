"""Run packing and judging on Spark: tasks yield blobs, Spark shuffles them by bucket and returns results as rows."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_jobs.exchange.engine import (
    Engine,
    leave_pandas_out,
    merge_along,
    release_memory,
    use_system_allocator,
    with_stores,
)
from spark_jobs.exchange.packing import BUCKET_ROWS, compress, decompress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.exchange.engine import Function, Merge, Pack, Receive

_TASKS_PER_CORE = 4
_PAIRS = "number int, blob binary"
"""What every step yields: a bucket and its rows, or the number of a task or bucket and its answer."""


class SparkEngine(Engine):
    """Runs picklable functions on picklable tasks; a task that Spark runs twice is answered once."""

    name = "spark"
    bucket_rows = BUCKET_ROWS

    def __init__(self, session: SparkSession, parallelism: int, *, group: str = "", owns_workers: bool = False) -> None:
        self.session = session
        self.parallelism = parallelism
        self.group = group
        self._prepare = _prepare_own_worker if owns_workers else use_system_allocator

    def map(self, function: Function, tasks: Sequence[Any], *, merge: Merge | None = None) -> list[Any]:
        """Return the answers, as :meth:`Engine.map`."""
        if not tasks:
            return []
        numbers = self.session.range(0, len(tasks), 1, min(len(tasks), _TASKS_PER_CORE * self.parallelism))
        answers = self._run(partial(_map_tasks, with_stores(function), tasks, merge), numbers)
        return _read_answers(sorted(answers.collect()), merge)

    def map_frame(self, function: Function, frame: DataFrame) -> list[Any]:
        """Return the answer for each partition of a frame, in no order.

        Args:
            function: is given the partition's batches; it may be called again for one whose first call was lost.
            frame: of columns that Arrow has.
        """
        return _read_answers(self._run(partial(_map_partition, with_stores(function)), frame).collect())

    def exchange(
        self, pack: Pack, tasks: Sequence[Any], receive: Receive, buckets: int, *, merge: Merge | None = None
    ) -> list[Any]:
        """Shuffle the blobs of ``pack`` to their buckets, as :meth:`Engine.exchange`."""
        if not tasks:
            return []
        numbers = self.session.range(0, len(tasks), 1, len(tasks))
        blobs = _by_number(self._run(partial(_pack_tasks, with_stores(pack), tasks), numbers), buckets)
        answers = self._run(partial(_receive_buckets, with_stores(receive)), blobs)
        if merge is not None and buckets > _TASKS_PER_CORE * self.parallelism:
            # A collected answer is held three times, by the JVM twice.
            answers = self._run(partial(_merge_answers, merge), answers.repartition(self.parallelism, "number"))
        return _read_answers(answers.collect(), merge)

    def _run(
        self, step: Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[int, bytes]]], rows: DataFrame
    ) -> DataFrame:
        return rows.mapInArrow(partial(_run_step, self._prepare, step), _PAIRS)


def _dump(answer: Any) -> bytes:
    # Compressed: a collected answer is held three times, by the JVM twice.
    return compress(pickle.dumps(answer))


def _load(answer: bytes) -> Any:
    return pickle.loads(decompress(answer))  # noqa: S301 - our own tasks' answers


def _read_answers(rows: list[Any], merge: Merge | None = None) -> list[Any]:
    """Return the answers in collected rows, or with ``merge`` one for all; each row is freed when it is read."""
    rows.reverse()
    answers = (_load(rows.pop()["blob"]) for _ in range(len(rows)))
    return [*answers] if merge is None or not rows else [merge_along(answers, merge)]


def _prepare_own_worker() -> None:
    use_system_allocator()
    leave_pandas_out()


def _by_number(blobs: DataFrame, buckets: int) -> DataFrame:
    """Return the blobs of a bucket in one partition; Spark before 4.1 may put several buckets into one."""
    by_id = getattr(blobs, "repartitionById", None)
    shuffled: DataFrame = blobs.repartition(buckets, "number") if by_id is None else by_id(buckets, "number")
    return shuffled


# -- in a task ------------------------------------------------------------------------------------------------------
def _run_step(
    prepare: Callable[[], None],
    step: Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[int, bytes]]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    prepare()
    for number, blob in step(batches):
        yield pa.RecordBatch.from_arrays(
            [pa.array([number], pa.int32()), pa.array([blob], pa.binary())], names=["number", "blob"]
        )


def _values(batches: Iterator[pa.RecordBatch], at: int) -> Iterator[Any]:
    return (value.as_py() for batch in batches for value in batch.column(at))


def _pack_tasks(pack: Pack, tasks: Sequence[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for number in _values(batches, 0):
        yield from pack(tasks[number])
        release_memory()


def _map_partition(function: Function, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    yield 0, _dump(function(batches))
    release_memory()


def _map_tasks(
    function: Function, tasks: Sequence[Any], merge: Merge | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int, bytes]]:
    numbers = [*_values(batches, 0)]
    answers: Iterator[Any] = (function(tasks[number]) for number in numbers)
    if merge is not None and numbers:
        numbers, answers = numbers[:1], iter([merge_along(answers, merge)])
    for number, answer in zip(numbers, answers, strict=True):
        yield number, _dump(answer)
    release_memory()


def _merge_answers(merge: Merge, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    yield 0, _dump(merge_along(map(_load, _values(batches, 1)), merge))


def _receive_buckets(receive: Receive, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    held: dict[int, list[bytes]] = {}
    for batch in batches:
        for bucket, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            held.setdefault(bucket, []).append(blob)
    for bucket in sorted(held):
        yield bucket, _dump(receive(bucket, held.pop(bucket)))
        release_memory()
