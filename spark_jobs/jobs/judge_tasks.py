"""What a task does with a bucket of messages: judge it, write its verdicts, count them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from spark_jobs.exchange.packing import open_blobs
from spark_jobs.explain.residue import narrow
from spark_jobs.history.lifecycle import assign_lifecycle
from spark_jobs.judging.columns import flatten_sides
from spark_jobs.judging.counts import Patterns, count_patterns
from spark_jobs.judging.durations import Durations, count_messages, measure, merge_durations
from spark_jobs.judging.evidence import count_differing, count_hosts, draw_samples
from spark_jobs.judging.kernel import judge_slices
from spark_jobs.policy.gates import ATTRIBUTED
from spark_jobs.storage import committed
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from spark_jobs.history.lifecycle import Runs
    from spark_jobs.judging.counts import CountPlan
    from spark_jobs.judging.evidence import Differing, Hosts
    from spark_jobs.judging.plan import Plan

__all__ = ["BucketPlan", "Counted", "Judged", "count_file", "judge_bucket"]

_MESSAGE_COLUMNS: Final = ("kind", "status", "topic", "group", "msg_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """What every bucket is judged by, and the directories its verdicts go to: those with a reason, those without."""

    plan: Plan
    runs: Runs
    counting: CountPlan
    settled: str
    residue: str


@dataclass(frozen=True, slots=True)
class Counted:
    """What verdicts with final reasons come to: it adds up over tables."""

    patterns: Patterns
    samples: pa.Table
    differing: Differing
    hosts: Hosts

    @classmethod
    def of(cls, verdicts: pa.Table, how: CountPlan) -> Counted:
        """Count ``VERDICT`` rows."""
        columns = flatten_sides(verdicts)
        return cls(
            count_patterns(columns, how),
            draw_samples(verdicts, columns, how.per_stratum),
            count_differing(columns),
            count_hosts(columns, ATTRIBUTED),
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer of a bucket.

    Counts of its settled verdicts, durations of all, and those that have no reason yet as ``explain.residue.RESIDUE``,
    in the order of their file.
    """

    bucket: int
    counted: tuple[Counted, ...]
    durations: Durations
    residue: pa.Table


def judge_bucket(how: BucketPlan, bucket: int, blobs: Sequence[bytes]) -> Judged:
    """Judge the events in ``blobs``, write their verdicts and return what they come to."""
    counted, durations, messages, residue = [], [], [], []
    with _Parts(how, bucket) as parts:
        for judged in judge_slices(open_blobs(blobs), how.plan):
            verdicts = assign_lifecycle(judged.verdicts, how.runs)
            durations.append(measure(flatten_sides(verdicts)))
            messages.append(verdicts.select(_MESSAGE_COLUMNS))
            unexplained = pc.equal(verdicts["reason"], pa.scalar(Reason.UNEXPLAINED.value))
            is_open: Any = pc.fill_null(unexplained, pa.scalar(False))  # noqa: FBT003 - a value, not a flag
            settled = verdicts.filter(pc.invert(is_open))
            parts.write("settled", settled)
            parts.write("residue", verdicts.filter(is_open))
            residue.append(narrow(verdicts))
            counted.append(Counted.of(settled, how.counting))
    merged = merge_durations(durations)
    count_messages(merged, flatten_sides(pa.concat_tables(messages)))
    return Judged(bucket, tuple(counted), merged, pa.concat_tables(residue))


def count_file(path: str, how: CountPlan) -> Iterator[Counted]:
    """Count the verdicts in a file, a row group at a time."""
    file = parquet.ParquetFile(path)
    for group in range(file.metadata.num_row_groups):
        yield Counted.of(file.read_row_group(group, use_threads=False), how)


class _Parts:
    """The two files of a bucket: each is there once it is whole, and none where it has no rows."""

    def __init__(self, how: BucketPlan, bucket: int) -> None:
        self._targets = {
            name: str(Path(directory) / f"part-{bucket:05d}.parquet")
            for name, directory in (("settled", how.settled), ("residue", how.residue))
        }
        self._commits: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def write(self, name: str, verdicts: pa.Table) -> None:
        if not len(verdicts):
            return
        if name not in self._writers:
            self._commits[name] = committed(self._targets[name])
            # Ids gain nothing from a dictionary: only columns that repeat keep one.
            self._writers[name] = parquet.ParquetWriter(
                self._commits[name].__enter__(),
                verdicts.schema,
                compression="zstd",
                write_statistics=False,
                dictionary_pagesize_limit=64 << 10,
            )
        self._writers[name].write_table(verdicts)

    def __exit__(self, *failure: object) -> None:
        for name, writer in self._writers.items():
            writer.close()
            self._commits[name].__exit__(*failure)
