"""Make the result of a judged run: books, gates, verdict, measures and samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.engine import versions
from spark_jobs.jobs.sampled import read_samples, read_slowest
from spark_jobs.judging.counts import bucket_width_ms
from spark_jobs.policy import gates
from spark_jobs.reconcile import balance, lives
from spark_jobs.reconcile.malformed import read_malformed
from spark_jobs.report.result import Field, MalformedSample, Offsets, Result, Span, TimeBucket
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.sources.lines import line_numbers
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

    from spark_jobs.jobs.asked import Answered
    from spark_jobs.jobs.carry import Carried
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.measured import Life
    from spark_jobs.report.result import Sample

__all__ = ["added_up"]


def added_up(run: Answered, *, most_samples: int, taken: Carried) -> Result:
    """Return what a judged run is worth: books, gates, verdict, samples; what it cost is not known here."""
    known, policy, counts = run.known, run.policy, run.tally
    native, otlp = (_side_read(side, name, taken) for side, name in zip(run.sides, ("native", "otlp"), strict=True))
    inputs, conservation = balance.balanced(native, otlp, counts, known)
    gated = gates.judged(counts, known, policy)
    doubt = gates.doubt(counts, known, policy)
    verdict, code = gates.concluded(gated, policy, holds=conservation.holds, conclusive=doubt is None)
    samples = read_samples(run.samples, at_most=most_samples)
    return Result(
        verdict=verdict.value,
        exit_code=int(code),
        window=_window(policy, known),
        horizon_ms=known.horizon_ms,
        grace_ms=policy.grace_ms,
        profile=policy.profile.name,
        native_writer=policy.native_writer,
        inputs=inputs,
        status=dict(counts.status),
        status_by_kind={kind: dict(found) for kind, found in counts.status_by_kind.items()},
        reason=dict(counts.reason),
        reason_detail=dict(counts.reason_detail),
        fields=_fields(run),
        gates=gated,
        conservation=conservation,
        loss=gates.losses(counts),
        latency=run.durations.latency(),
        arrival=run.durations.arrival(),
        topics=run.durations.topics(),
        groups=run.durations.groups(),
        instances=run.instances,
        instances_left_off=run.instances_left_off,
        samples=samples,
        slowest=read_slowest(samples),
        lives=_lives(run.frame, samples),
        ageing={word: dict(ages) for word, ages in counts.ageing.items()},
        timeline=_timeline(counts, bucket_width_ms(known.first_ms, known.data_end_ms)),
        malformed=_malformed(run.malformed, policy),
        graph=run.graph,
        versions=versions(run.frame.sparkSession),
        duplicates=dict(counts.duplicates),
        timing=dict(counts.timing),
        doubt=doubt,
        lifecycle=dict(counts.lifecycle),
        open_break_age=dict(counts.open_age),
    )


def _fields(run: Answered) -> tuple[Field, ...]:
    found = {name: dict(run.tally.fields[name]) for name in COMPARED_FIELDS}
    shown = {name for name, verdicts in found.items() if FieldVerdict.DIFFERENT.value in verdicts}
    pairs = {name: run.differing.get(name, ()) for name in shown}
    return tuple(
        Field(name=name, verdicts=verdicts, differing_pairs=pairs.get(name, ())) for name, verdicts in found.items()
    )


def _lives(judged: DataFrame, samples: tuple[Sample, ...]) -> dict[str, tuple[Life, ...]]:
    msg_ids = sorted({sample.verdict["msg_id"] for sample in samples if sample.verdict["msg_id"] is not None})
    return lives.read_lives(lives.lives(judged, msg_ids).collect()) if msg_ids else {}


def _side_read(side: NormalisedSide, name: str, taken: Carried) -> balance.SideRead:
    return balance.SideRead(
        sources=side.sources,
        layouts=side.layouts,
        records_read=side.records_read,
        exploded=side.exploded,
        truncated_tails=side.truncated_tails,
        last_event_ms=side.last_event_ms,
        carried=taken.carried.get(name, 0),
        read_again=taken.read_again.get(name, 0),
        offsets=tuple(
            Offsets(source=str(one.address), partition=one.partition, first=one.first, end=one.end)
            for one in side.offsets
        ),
        offsets_without_message=side.offsets_without_message,
    )


def _window(policy: Policy, known: Facts) -> Span:
    begin_ms = known.first_ms if policy.begin_ms is None else policy.begin_ms
    return Span(begin_ms=begin_ms, end_ms=known.data_end_ms if policy.end_ms is None else policy.end_ms)


def _malformed(rows: Iterable[Mapping[str, Any]], policy: Policy) -> tuple[MalformedSample, ...]:
    pieces = _located(read_malformed(rows))
    return tuple(replace(piece, text=policy.hide(piece.text)) for piece in pieces)


def _located(pieces: tuple[MalformedSample, ...]) -> tuple[MalformedSample, ...]:
    """Give samples from files too large to be read whole their line, where exactly one line begins with their text."""
    wanted: dict[str, set[str]] = {}
    for piece in pieces:
        if piece.line is None and piece.text:
            wanted.setdefault(piece.path, set()).add(piece.text)
    found = {path: line_numbers(Path(path), texts) for path, texts in wanted.items()}

    def placed(piece: MalformedSample) -> MalformedSample:
        numbers = found.get(piece.path, {}).get(piece.text, ()) if piece.line is None else ()
        return replace(piece, line=numbers[0]) if len(numbers) == 1 else piece

    return tuple(map(placed, pieces))


def _timeline(counts: Tally, width_ms: int) -> tuple[TimeBucket, ...]:
    return tuple(
        TimeBucket(start_ms=start_ms, width_ms=width_ms, status=dict(found))
        for start_ms, found in sorted(counts.buckets.items())
    )
