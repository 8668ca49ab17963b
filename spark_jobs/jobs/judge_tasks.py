"""What a task does with a bucket of messages: judge it, write its verdicts, count them."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bridge.storage.paths import as_path
from spark_jobs.exchange.engine import merge_along, release_memory
from spark_jobs.exchange.packing import make_blob, open_bucket, pack_pieces, split_blobs
from spark_jobs.explain.budgets import Settled, note_settled
from spark_jobs.explain.keys import is_residue, narrow
from spark_jobs.graph.legs import find_verdict_owners
from spark_jobs.history.carried import CarriedPositions, drop_read_again
from spark_jobs.history.lifecycle import (
    CLOSED,
    assign_lifecycle,
    find_closed,
    keep_open_events,
    read_closed,
    select_left_open,
)
from spark_jobs.jobs.reading import open_rows
from spark_jobs.judging.columns import flatten_sides
from spark_jobs.judging.counts import Tally, count_verdicts
from spark_jobs.judging.durations import Durations, count_messages, find_messages, measure
from spark_jobs.judging.highlights import Samples, count_differing, count_hosts, draw_samples, merge_differing
from spark_jobs.judging.kernel import judge_slices
from spark_jobs.policy.gates import ATTRIBUTED
from spark_jobs.sums import by, sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spark_jobs.exchange.packing import Piece
    from spark_jobs.graph.legs import Owners
    from spark_jobs.judging.facts import Facts
    from spark_jobs.judging.highlights import Differing, Hosts
    from spark_jobs.judging.kernel import JudgedSlice
    from spark_jobs.judging.plan import Plan
    from spark_jobs.policy.policy import Policy

CANDIDATES: Final = "candidates-"
"""What the file of a residue's events is called beside the residue's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """What every bucket is judged by, and the directories its verdicts go to: those with a reason, those without.

    ``plan`` is made of the ``policy`` and the ``facts``; ``near`` is that of ``explain.budgets.note_settled``. With a
    history, ``run`` is the number of this run and ``closed`` are files of ``lifecycle.CLOSED``. ``left_open`` is then
    the directory for the events that the next run takes over.
    """

    policy: Policy
    facts: Facts
    plan: Plan
    settled: str
    residue: str
    run: int | None = None
    closed: tuple[str, ...] = ()
    left_open: str | None = None
    near: tuple[range, ...] | None = None

    @property
    def forget_before_ms(self) -> int:
        """What was closed before then is forgotten."""
        return (self.facts.data_end_ms or 0) - self.policy.forget_after_ms


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of verdicts with final reasons, which add up; ``closed`` are rows of ``lifecycle.CLOSED``."""

    tally: Tally = field(default_factory=Tally)
    samples: Samples = field(default_factory=Samples)
    differing: Differing = field(default_factory=Counter, metadata=by(merge_differing))
    hosts: Hosts = field(default_factory=dict)
    closed: pa.Table = field(default_factory=CLOSED.empty_table)

    @classmethod
    def of(cls, verdicts: pa.Table, how: BucketPlan) -> Counted:
        """Count ``VERDICT`` rows."""
        columns = flatten_sides(verdicts)
        return cls(
            count_verdicts(columns, how.facts, grace_ms=how.policy.grace_ms),
            draw_samples(verdicts, columns),
            count_differing(columns),
            count_hosts(columns, ATTRIBUTED),
            CLOSED.empty_table() if how.left_open is None else find_closed(verdicts, since_ms=how.forget_before_ms),
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of some buckets: counts of their settled verdicts, durations of all, the budgets' input.

    ``residue`` maps a bucket to its verdicts without a reason yet: a blob of ``explain.keys.RESIDUE``, in the file's
    order. ``owners`` map consumer groups to services.
    """

    counted: Counted = field(default_factory=Counted)
    durations: Durations = field(default_factory=Durations)
    settled: Settled = field(default_factory=Settled)
    residue: Mapping[int, bytes] = field(default_factory=dict)
    owners: Owners = field(default_factory=dict)


def pack_events(
    buckets: int, together: int, again: Sequence[str], pieces: Sequence[Piece]
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(bucket, blob)`` of the pieces; ``together`` buckets are packed as one.

    An event that is both carried (in the files ``again``) and read again is packed as carried.
    """
    keep = partial(drop_read_again, CarriedPositions.read(again)) if again else None
    yield from pack_pieces(buckets, pieces, together=together, keep=keep)


def judge_buckets(how: BucketPlan, buckets: int, together: int, number: int, blobs: list[bytes]) -> Judged:
    """Judge the buckets that were packed as one (number ``number``), write their verdicts and return their counts.

    ``blobs`` is emptied if several buckets travel together.
    """
    closed = read_closed(how.closed)
    if together == 1:
        return _judge_bucket(how, closed, number, blobs)

    def answers() -> Iterator[Judged]:
        for bucket, own in split_blobs(blobs, buckets):
            release_memory()
            yield _judge_bucket(how, closed, bucket, own)

    return merge_along(answers(), partial(sum_of, Judged))


def _judge_bucket(how: BucketPlan, closed: pa.Table | None, bucket: int, blobs: list[bytes]) -> Judged:
    opened = open_bucket(blobs)
    with ExitStack() as stack:
        files = _Files(how, bucket, stack)
        # By map() no slice is held while the next one is judged.
        slices = judge_slices(opened.events, how.plan, columns=opened.columns)
        parts, residues, messages = zip(*map(partial(_count_slice, how, closed, files), slices), strict=True)
    judged = sum_of(Judged, parts)
    count_messages(judged.durations, messages)
    residue = pa.concat_tables(residues)
    return replace(judged, residue={bucket: make_blob(residue.combine_chunks())} if len(residue) else {})


def _count_slice(
    how: BucketPlan, closed: pa.Table | None, files: _Files, part: JudgedSlice
) -> tuple[Judged, pa.Table, pa.Table]:
    """Write some verdicts of a bucket; return what they come to but for the residue, that, and their messages."""
    verdicts = assign_lifecycle(part.verdicts, how.policy, how.facts, run=how.run, closed=closed)
    columns = flatten_sides(verdicts)
    final = files.write(part, verdicts)
    judged = Judged(
        counted=Counted.of(final, how),
        durations=measure(columns),
        settled=note_settled(final, how.near),
        owners=find_verdict_owners(verdicts),
    )
    return judged, narrow(verdicts), find_messages(columns)


class _Files:
    """The files of a bucket: each is there once ``stack`` has been left, and none where it has no rows."""

    def __init__(self, how: BucketPlan, bucket: int, stack: ExitStack) -> None:
        def open_file(directory: str, name: str) -> Callable[[pa.Table], None]:
            return stack.enter_context(open_rows(str(as_path(directory) / name)))

        name = f"part-{bucket:05d}.parquet"
        self._keeps_open = how.left_open is not None
        self._residue_rows = 0
        self._write_settled = open_file(how.settled, name)
        self._write_residue = open_file(how.residue, name)
        self._write_left = open_file(how.left_open or how.residue, name)
        self._write_candidates = open_file(how.residue, f"{CANDIDATES}{name}")

    def write(self, judged: JudgedSlice, verdicts: pa.Table) -> pa.Table:
        """Write the verdicts, and where there is a history their events that may be left open; return the settled."""
        without_reason = is_residue(verdicts)
        settled = verdicts.filter(pa.array(~without_reason))
        residue = verdicts.filter(pa.array(without_reason))
        self._write_settled(settled)
        self._write_residue(residue)
        if self._keeps_open:
            keep = partial(keep_open_events, judged.events, judged.verdict_of, verdicts)
            self._write_left(select_left_open(keep(~without_reason), settled))
            self._write_candidates(keep(without_reason, offset=self._residue_rows))
            self._residue_rows += int(np.count_nonzero(without_reason))
        return settled
