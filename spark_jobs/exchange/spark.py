"""Run packing and judging on Spark: tasks yield blobs, Spark shuffles them by bucket and returns results as rows."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_jobs.exchange.engine import leave_pandas_out, merge_along, release_memory, use_system_allocator, with_stores
from spark_jobs.exchange.packing import BUCKET_ROWS, compress, decompress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.exchange.engine import Function, Merge, Pack, Receive

_TASKS_PER_CORE = 4
_BLOB: Any = pa.schema({"bucket": pa.int32(), "blob": pa.binary()})  # type: ignore[arg-type]  # the stubs want one type for all
_ANSWER: Any = pa.schema([pa.field("answer", pa.binary())])


class SparkEngine:
    """Runs picklable functions on picklable tasks; a task that Spark runs twice is answered once."""

    name = "spark"
    bucket_rows = BUCKET_ROWS

    def __init__(self, session: SparkSession, parallelism: int, *, group: str = "", owns_workers: bool = False) -> None:
        self.session = session
        self.parallelism = parallelism
        self.group = group
        self._prepare = _prepare_own_worker if owns_workers else use_system_allocator

    def prepare(self, module: str, tasks: int) -> None:
        """Do nothing: Spark starts its workers with their first task."""

    def map(self, function: Function, tasks: Sequence[Any], *, merge: Merge | None = None) -> list[Any]:
        """Return the answers, as :meth:`Engine.map`."""
        if not tasks:
            return []
        one_each = self.session.range(0, len(tasks), 1, min(len(tasks), _TASKS_PER_CORE * self.parallelism))
        answers = one_each.mapInArrow(
            partial(_map_tasks, self._prepare, with_stores(function), tasks, merge), "id long, answer binary"
        ).collect()
        return _read_answers(sorted(answers), merge)

    def map_here(self, function: Function, tasks: Sequence[Any]) -> Iterator[Any]:
        """Return the answer of each task, in order; the driver is the only process here."""
        return map(function, tasks)

    def map_frame(self, function: Function, frame: DataFrame) -> list[Any]:
        """Return the answer for each partition of a frame, in no order.

        Args:
            function: is given the partition's batches; it may be called again for one whose first call was lost.
            frame: of columns that Arrow has.
        """
        answers = frame.mapInArrow(partial(_map_partition, self._prepare, with_stores(function)), "answer binary")
        return _read_answers(answers.collect())

    def exchange(
        self, pack: Pack, tasks: Sequence[Any], receive: Receive, buckets: int, *, merge: Merge | None = None
    ) -> list[Any]:
        """Shuffle the blobs of ``pack`` to their buckets, as :meth:`Engine.exchange`."""
        if not tasks:
            return []
        one_each = self.session.range(0, len(tasks), 1, len(tasks))
        blobs = one_each.mapInArrow(
            partial(_pack_tasks, self._prepare, with_stores(pack), tasks), "bucket int, blob binary"
        )
        answers = _by_bucket(blobs, buckets).mapInArrow(
            partial(_receive_buckets, self._prepare, with_stores(receive)), "bucket int, answer binary"
        )
        if merge is not None and buckets > _TASKS_PER_CORE * self.parallelism:
            # A collected answer is held three times, by the JVM twice.
            some = answers.repartition(self.parallelism, "bucket").select("answer")
            answers = some.mapInArrow(partial(_merge_answers, self._prepare, merge), "answer binary")
        return _read_answers(answers.collect(), merge)


def _dump(answer: Any) -> bytes:
    # Compressed: a collected answer is held three times, by the JVM twice.
    return compress(pickle.dumps(answer))


def _load(answer: bytes) -> Any:
    return pickle.loads(decompress(answer))  # noqa: S301 - our own tasks' answers


def _read_answers(rows: list[Any], merge: Merge | None = None) -> list[Any]:
    """Return the answers in collected rows, or with ``merge`` one for all; each row is freed when it is read."""
    rows.reverse()
    answers = (_load(rows.pop()["answer"]) for _ in range(len(rows)))
    return [*answers] if merge is None or not rows else [merge_along(answers, merge)]


def _prepare_own_worker() -> None:
    use_system_allocator()
    leave_pandas_out()


def _by_bucket(blobs: DataFrame, buckets: int) -> DataFrame:
    """Return the blobs of a bucket in one partition; Spark before 4.1 may put several buckets into one."""
    by_id = getattr(blobs, "repartitionById", None)
    shuffled: DataFrame = blobs.repartition(buckets, "bucket") if by_id is None else by_id(buckets, "bucket")
    return shuffled


def _pack_tasks(
    prepare: Callable[[], None], pack: Pack, tasks: Sequence[Any], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    for batch in ids:
        numbers: Any = batch.column("id").to_pylist()
        for number in numbers:
            for bucket, blob in pack(tasks[number]):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([bucket], pa.int32()), pa.array([blob], pa.binary())], schema=_BLOB
                )
            release_memory()


def _map_partition(
    prepare: Callable[[], None], function: Function, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    yield pa.RecordBatch.from_arrays([pa.array([_dump(function(batches))], pa.binary())], schema=_ANSWER)
    release_memory()


def _map_tasks(
    prepare: Callable[[], None],
    function: Function,
    tasks: Sequence[Any],
    merge: Merge | None,
    ids: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    prepare()
    numbers: list[Any] = [number for batch in ids for number in batch.column("id").to_pylist()]
    answers: Iterator[Any] = (function(tasks[number]) for number in numbers)
    if merge is not None and numbers:
        numbers, answers = numbers[:1], iter([merge_along(answers, merge)])
    for number, answer in zip(numbers, answers, strict=True):
        yield _numbered("id", pa.array([number], pa.int64()), answer)
    release_memory()


def _numbered(name: str, number: Any, answer: Any) -> pa.RecordBatch:
    columns: list[Any] = [number, pa.array([_dump(answer)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=[name, "answer"])


def _merge_answers(
    prepare: Callable[[], None], merge: Merge, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    answers = (_load(answer.as_py()) for batch in batches for answer in batch.column("answer"))
    answer = _dump(merge_along(answers, merge))
    yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], schema=_ANSWER)


def _receive_buckets(
    prepare: Callable[[], None], receive: Receive, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare()
    held: dict[int, list[bytes]] = {}
    for batch in batches:
        columns: Any = (batch.column(name).to_pylist() for name in ("bucket", "blob"))
        for bucket, blob in zip(*columns, strict=True):
            held.setdefault(bucket, []).append(blob)
    for bucket in sorted(held):
        yield _numbered("bucket", pa.array([bucket], pa.int32()), receive(bucket, held.pop(bucket)))
        release_memory()
