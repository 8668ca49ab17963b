"""This module knows what a run measures on its verdicts, and the evidence it shows: small answers to few jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_jobs.reconcile import durations, evidence, instances, lives
from spark_jobs.report.result import Field
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from spark_jobs.reconcile.tally import Tally
    from spark_jobs.report.measured import Life
    from spark_jobs.report.result import Sample

__all__ = ["measured", "tables"]


def tables(
    judged: DataFrame,
    counts: Tally,
    timed: Sequence[Mapping[str, Any]],
    *,
    everything: DataFrame,
    most_samples: int,
) -> dict[str, DataFrame]:
    """Return the frames whose rows ``measured`` goes by, to be collected by one job; ``timed`` are those of durations.

    Evidence is drawn from ``judged``, the rows as written; what is counted is that of ``everything``.
    """
    slow_from_ms = evidence.slow_from_ms(durations.read_latency(timed))
    per_stratum = max(evidence.PER_STRATUM, most_samples * evidence.PER_STRATUM // evidence.TOTAL)
    frames = {
        "distinct": durations.distinct_messages(everything),
        "samples": evidence.sampled(judged, counts.strata, slow_from_ms, per_stratum=per_stratum),
    }
    differing = [name for name in COMPARED_FIELDS if counts.fields[name][FieldVerdict.DIFFERENT.value]]
    if differing:
        frames["differing"] = evidence.differing(judged, differing)
    if counts.one_sided:
        frames["instances"] = instances.instances(everything)
    return frames


def measured(
    judged: DataFrame,
    counts: Tally,
    timed: Sequence[Mapping[str, Any]],
    answers: Mapping[str, list[dict[str, Any]]],
    *,
    most_samples: int,
) -> dict[str, Any]:
    """Return the parts of a ``Result`` that are measured on the verdicts, by the names of its attributes.

    ``answers`` are the collected rows of ``tables``; the messages that the samples belong to take a job of their own.
    """
    samples = evidence.read_samples(answers.get("samples", ()), at_most=most_samples)
    losing, left_off = instances.read_instances(answers.get("instances", ()))
    return {
        "latency": durations.read_latency(timed),
        "arrival": durations.read_arrival(timed),
        "topics": durations.read_topics(timed),
        "groups": durations.read_groups(timed, answers.get("distinct", ())),
        "fields": _fields(counts, answers.get("differing", [])),
        "instances": losing,
        "instances_left_off": left_off,
        "samples": samples,
        "slowest": evidence.read_slowest(samples),
        "lives": _lives(judged, samples),
        "ageing": {word: dict(ages) for word, ages in counts.ageing.items()},
    }


def _lives(judged: DataFrame, samples: tuple[Sample, ...]) -> dict[str, tuple[Life, ...]]:
    msg_ids = sorted({sample.verdict["msg_id"] for sample in samples if sample.verdict["msg_id"] is not None})
    return lives.read_lives(lives.lives(judged, msg_ids).collect()) if msg_ids else {}


def _fields(counts: Tally, rows: list[dict[str, Any]]) -> tuple[Field, ...]:
    pairs = evidence.read_differing(rows)
    return tuple(
        Field(name=name, verdicts=dict(counts.fields[name]), differing_pairs=pairs.get(name, ()))
        for name in COMPARED_FIELDS
    )
