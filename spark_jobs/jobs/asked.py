"""This module knows what is asked of the verdicts together: three jobs, each for what needs the answers before it.

First the counts and the durations, by which all the rest is chosen, and the groups' owners, by which legs are told
apart. Then every table of the result at once, and the samples. The lives of whole messages need those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_jobs.graph.legs import legs
from spark_jobs.graph.owners import owners, read_owners
from spark_jobs.jobs.drawing import drawing_of_verdicts
from spark_jobs.jobs.measure import measured, tables
from spark_jobs.reconcile import evidence, lifecycle, tally
from spark_jobs.reconcile.durations import durations
from spark_jobs.reconcile.together import apart, together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from spark_jobs.jobs.carry import Carried
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy
    from spark_jobs.report.graph import Graph

__all__ = ["Answers", "Counted", "Judged", "answered", "counted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run whose keys have their verdicts, in ``frame`` (``VERDICT``, read back).

    ``everything`` has the verdicts that are counted and not written as well.
    """

    frame: DataFrame
    everything: DataFrame
    known: Facts
    policy: Policy
    sides: tuple[NormalisedSide, NormalisedSide]  # native, otlp
    taken: Carried


@dataclass(frozen=True, slots=True)
class Counted:
    """The first job's answers: the books, the rows of ``durations``, ``owners.read_owners`` of the verdicts' legs.

    ``waiting`` is ``lifecycle.read_open_messages`` of the rows of that name.
    """

    tally: tally.Tally
    timed: Sequence[Mapping[str, Any]]
    owned: Mapping[tuple[str, str], str]
    waiting: Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The others': attributes of a ``Result`` by their names, the graph, the rows of ``evidence.malformed_sample``."""

    measured: Mapping[str, Any]
    graph: Graph
    malformed: Sequence[Mapping[str, Any]]


def counted(everything: DataFrame, known: Facts, policy: Policy, *, waiting: DataFrame | None) -> Counted:
    """Count ``VERDICT``, by one job; ``waiting`` are those whose open keys a next run takes over, if any will."""
    width_ms = tally.bucket_width_ms(known)
    frames = {
        "patterns": tally.patterns(everything, width_ms, known.data_end_ms, policy.grace_ms),
        "owners": owners(legs(everything)),
        "durations": durations(everything),
    }
    if waiting is not None:
        frames["waiting"] = lifecycle.open_messages(waiting)
    rows = apart(together(frames).collect())
    books = tally.read_tally(rows.get("patterns", ()), known)
    return Counted(
        books,
        timed=rows.get("durations", ()),
        owned=read_owners(rows.get("owners", ())),
        waiting=lifecycle.read_open_messages(rows.get("waiting", ())),
    )


def answered(run: Judged, counts: Counted, *, most_samples: int) -> Answers:
    """Ask everything else of a run's verdicts, by two jobs; its damaged records come along where there are any."""
    known = run.known
    drawing = drawing_of_verdicts(run.everything, counts.owned, known, grace_ms=run.policy.grace_ms)
    asked = tables(run.frame, counts.tally, counts.timed, everything=run.everything, most_samples=most_samples)
    frames = {**asked, **drawing.tables}
    if any(known.malformed.values()):
        damaged = run.sides[0].malformed.unionByName(run.sides[1].malformed)
        frames["malformed"] = evidence.malformed_sample(damaged)
    rows = apart(together(frames).collect())
    return Answers(
        measured=measured(run.frame, counts.tally, counts.timed, rows, most_samples=most_samples),
        graph=drawing.read(rows),
        malformed=rows.get("malformed", ()),
    )
