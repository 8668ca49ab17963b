"""This module knows the job before judging that finds out which segments are equal, and what becomes of their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.reconcile.segments import checksums, matched, opened, read_checksums
from spark_jobs.report.result import Segments as Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark_jobs.jobs.carry import Carried
    from spark_jobs.reconcile.policy import Policy
    from spark_jobs.reconcile.segments import Segments

__all__ = ["Aside", "set_aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """Both sides' ``EVENT`` that must be judged, and ``VERDICT`` of the keys that need not be: ``None`` for none."""

    native: DataFrame
    otlp: DataFrame
    matched: DataFrame | None = None
    segments: Segments | None = None

    def beside(self, judged: DataFrame) -> DataFrame:
        """Return the verdicts as written, and those of the keys that were set aside."""
        return judged if self.matched is None else judged.unionByName(self.matched)

    def told(self) -> Told | None:
        """Return what the result says of the segments; ``None`` when there are none."""
        found = self.segments
        if found is None:
            return None
        return Told(total=found.total, differing=found.differing, keys_skipped=found.skipped)


def set_aside(taken: Carried, policy: Policy, total: int | None, progress: Callable[[str], None]) -> Aside:
    """Return what is to be judged when ``total`` segments are compared first; everything when it is ``None``."""
    if total is None:
        return Aside(native=taken.native, otlp=taken.otlp)
    progress("comparing segments")
    found = read_checksums(checksums(taken.native, taken.otlp, policy, total).collect(), total)
    if not found.skipped:
        return Aside(native=taken.native, otlp=taken.otlp, segments=found)
    return Aside(
        native=opened(taken.native, found),
        otlp=opened(taken.otlp, found),
        matched=matched(taken.otlp, found, policy),
        segments=found,
    )
