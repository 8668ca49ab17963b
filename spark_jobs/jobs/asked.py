"""Collect what a result needs of a judged run: the merged counts, the graph, the first damaged records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_jobs.graph.legs import legs
from spark_jobs.graph.owners import owners, read_owners
from spark_jobs.jobs.drawing import drawing_of_verdicts
from spark_jobs.judging.evidence import merge_samples, rank_differing, rank_hosts
from spark_jobs.reconcile.malformed import malformed_sample
from spark_jobs.reconcile.together import apart, together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from spark_jobs.jobs.judge_tasks import Counted
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.durations import Durations
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.graph import Graph
    from spark_jobs.report.measured import Instance

__all__ = ["Answered", "ask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A judged run: its verdicts in ``frame`` (``VERDICT``, as written), and everything that was added up of them.

    ``samples`` are rows of ``VERDICT`` with ``stratum`` and ``nth``; ``malformed`` those of ``MALFORMED``.
    """

    frame: DataFrame
    tally: Tally
    durations: Durations
    samples: Sequence[dict[str, Any]]
    differing: Mapping[str, tuple[tuple[str, str, int], ...]]
    instances: tuple[Instance, ...]
    instances_left_off: int
    graph: Graph
    malformed: Sequence[Mapping[str, Any]]
    known: Facts
    policy: Policy
    sides: tuple[NormalisedSide, NormalisedSide]  # native, otlp


def ask(  # noqa: PLR0913 - a judged run, and what it was judged by
    frame: DataFrame,
    counted: Sequence[Counted],
    *,
    tally: Tally,
    durations: Durations,
    known: Facts,
    policy: Policy,
    sides: tuple[NormalisedSide, NormalisedSide],
    per_stratum: int,
) -> Answered:
    """Merge the counts of a run and draw its graph, by one Spark job for the groups' owners and one for the rest."""
    owned = read_owners(owners(legs(frame)).collect())
    drawing = drawing_of_verdicts(frame, owned, known, grace_ms=policy.grace_ms)
    frames = dict(drawing.tables)
    if any(known.malformed.values()):
        frames["malformed"] = malformed_sample(sides[0].malformed.unionByName(sides[1].malformed))
    rows = apart(together(frames).collect())
    instances, left_off = rank_hosts(one.hosts for one in counted)
    return Answered(
        frame=frame,
        tally=tally,
        durations=durations,
        samples=merge_samples((one.samples for one in counted), per_stratum),
        differing=rank_differing(one.differing for one in counted),
        instances=instances,
        instances_left_off=left_off,
        graph=drawing.read(rows),
        malformed=rows.get("malformed", ()),
        known=known,
        policy=policy,
        sides=sides,
    )
