"""The samples of a report: a few of each kind, status and reason that is in order, more of those that are not."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.judging.evidence import SLOWEST, TOTAL
from spark_jobs.report.measured import Exemplar
from spark_jobs.report.result import Sample
from spark_jobs.taxonomy import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["read_samples", "read_slowest"]

_PER_CALM_STRATUM: Final = 8
_CALM: Final = frozenset(
    {Status.MATCHED_EXACT.value, Status.MATCHED_NORMALISED.value, Status.PENDING.value, Reason.BY_DESIGN.value}
)


def read_samples(rows: Iterable[Mapping[str, Any]], *, at_most: int = TOTAL) -> tuple[Sample, ...]:
    """Return at most ``at_most`` samples: a few of each stratum that is in order, more of those that are not."""
    ordered = sorted(map(dict, rows), key=lambda row: (row["stratum"], row["nth"]))
    chosen = []
    for stratum, members in groupby(ordered, key=lambda row: row["stratum"]):
        calm = not _CALM.isdisjoint(stratum.split())
        share = at_most // (TOTAL // _PER_CALM_STRATUM) if calm else at_most
        chosen += [row for row in members if row["nth"] <= share]
    kept = sorted(chosen, key=lambda row: row["nth"])[:at_most]
    return tuple(_sample(row) for row in sorted(kept, key=lambda row: (row["stratum"], row["nth"])))


def _sample(row: dict[str, Any]) -> Sample:
    native, otlp, stratum = row.pop("native"), row.pop("otlp"), row.pop("stratum")
    del row["nth"]
    return Sample(stratum=stratum, verdict=row, native=native, otlp=otlp)


def read_slowest(samples: Iterable[Sample]) -> dict[str, tuple[Exemplar, ...]]:
    """Return the slowest events by each measure among ``samples``, slowest first."""
    found: dict[str, list[Exemplar]] = {}
    for sample in samples:
        word, _, name = sample.stratum.partition(" ")
        if word == SLOWEST:
            found.setdefault(name, []).append(_exemplar(sample, name))
    return {name: tuple(sorted(each, key=lambda one: -one.took_ms)) for name, each in found.items()}


def _exemplar(sample: Sample, name: str) -> Exemplar:
    verdict = sample.verdict
    start, end = (_told(sample, field) for field in ("start_ms", "end_ms"))
    took_ms = verdict[f"{name}_ms"] if f"{name}_ms" in verdict else end - start
    told = {field: verdict[field] for field in ("msg_id", "kind", "topic", "group", "event_ms")}
    return Exemplar(**told, took_ms=took_ms)


def _told(sample: Sample, field: str) -> int:
    told = [side[field] for side in (sample.native, sample.otlp) if side and side[field] is not None]
    return int(told[0]) if told else 0
