"""Run packing and judging on Spark: tasks yield blobs, Spark shuffles them by bucket, answers come back as rows."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_jobs.exchange.engine import leave_pandas_out, use_system_allocator, with_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkEngine"]

_TASKS_PER_CORE = 4
_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
_BLOB: Any = pa.schema({"bucket": pa.int32(), "blob": pa.binary()})  # type: ignore[arg-type]  # the stubs want one type for all
_ANSWER: Any = pa.schema([pa.field("answer", pa.binary())])


class SparkEngine:
    """Runs picklable functions on picklable tasks; a task that Spark runs twice is answered once."""

    name = "spark"

    def __init__(self, session: SparkSession, parallelism: int, *, group: str = "", owns_workers: bool = False) -> None:
        self.session = session
        self.parallelism = parallelism
        self.group = group
        self._prepare = _prepare_own_worker if owns_workers else use_system_allocator

    def prepare(self, module: str, tasks: int) -> None:
        """Do nothing: Spark starts its workers with their first task."""

    def map(self, function: Callable[[_Task], _Answer], tasks: Sequence[_Task]) -> list[_Answer]:
        """Return the answer of each task, in order; answers are small."""
        if not tasks:
            return []
        one_each = self.session.range(0, len(tasks), 1, min(len(tasks), _TASKS_PER_CORE * self.parallelism))
        answers = one_each.mapInArrow(
            partial(_map_tasks, self._prepare, with_stores(function), tasks), "id long, answer binary"
        ).collect()
        found = {row["id"]: row["answer"] for row in answers}
        return [pickle.loads(found[number]) for number in range(len(tasks))]  # noqa: S301 - our own tasks' answers

    def map_frame(self, function: Callable[[Iterator[pa.RecordBatch]], _Answer], frame: DataFrame) -> list[_Answer]:
        """Return the answer for each partition of a frame, in no order.

        Args:
            function: is given the partition's batches; it may be called again for one whose first call was lost.
            frame: of columns that Arrow has.
        """
        answers = frame.mapInArrow(partial(_map_partition, self._prepare, with_stores(function)), "answer binary")
        return [pickle.loads(row["answer"]) for row in answers.collect()]  # noqa: S301 - our own tasks' answers

    def exchange(
        self,
        pack: Callable[[_Task], Iterable[tuple[int, bytes]]],
        tasks: Sequence[_Task],
        receive: Callable[[int, Sequence[bytes]], _Answer],
        buckets: int,
    ) -> list[_Answer]:
        """Send what ``pack`` makes of each task to its bucket; return what ``receive`` makes of each that got any.

        Args:
            pack: yields ``(bucket, blob)`` with ``0 <= bucket < buckets``.
            tasks: one call of ``pack`` each.
            receive: called once for a bucket that got any blob, with its number and its blobs in no order.
            buckets: how many there are.
        """
        if not tasks:
            return []
        one_each = self.session.range(0, len(tasks), 1, len(tasks))
        blobs = one_each.mapInArrow(
            partial(_pack_tasks, self._prepare, with_stores(pack), tasks), "bucket int, blob binary"
        )
        answers = _by_bucket(blobs, buckets).mapInArrow(
            partial(_receive_buckets, self._prepare, with_stores(receive)), "answer binary"
        )
        return [pickle.loads(row["answer"]) for row in answers.collect()]  # noqa: S301 - our own tasks' answers


def _prepare_own_worker() -> None:
    use_system_allocator()
    leave_pandas_out()


def _by_bucket(blobs: DataFrame, buckets: int) -> DataFrame:
    """Return the blobs of a bucket in one partition; Spark before 4.1 may put several buckets into one."""
    by_id = getattr(blobs, "repartitionById", None)
    shuffled: DataFrame = blobs.repartition(buckets, "bucket") if by_id is None else by_id(buckets, "bucket")
    return shuffled


def _pack_tasks(
    prepare: Callable[[], None],
    pack: Callable[[Any], Iterable[tuple[int, bytes]]],
    tasks: Sequence[Any],
    ids: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    prepare()
    for batch in ids:
        numbers: Any = batch.column("id").to_pylist()
        for number in numbers:
            for bucket, blob in pack(tasks[number]):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([bucket], pa.int32()), pa.array([blob], pa.binary())], schema=_BLOB
                )


def _map_partition(
    prepare: Callable[[], None], function: Callable[[Iterator[pa.RecordBatch]], Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(function(batches))], pa.binary())], schema=_ANSWER)


def _map_tasks(
    prepare: Callable[[], None], function: Callable[[Any], Any], tasks: Sequence[Any], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    for batch in ids:
        numbers: Any = batch.column("id").to_pylist()
        for number in numbers:
            answer = pickle.dumps(function(tasks[number]))
            columns: list[Any] = [pa.array([number], pa.int64()), pa.array([answer], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "answer"])


def _receive_buckets(
    prepare: Callable[[], None], receive: Callable[[int, Sequence[bytes]], Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    held: dict[int, list[bytes]] = {}
    for batch in batches:
        columns: Any = (batch.column(name).to_pylist() for name in ("bucket", "blob"))
        for bucket, blob in zip(*columns, strict=True):
            held.setdefault(bucket, []).append(blob)
    for bucket in sorted(held):
        answer = pickle.dumps(receive(bucket, held.pop(bucket)))
        yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], schema=_ANSWER)
