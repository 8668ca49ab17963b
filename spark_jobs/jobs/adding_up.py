"""This module knows how a judged run becomes its result: the last actions on the verdicts, and words for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.engine import versions
from spark_jobs.jobs.asked import answered
from spark_jobs.reconcile import balance, evidence, facts, gates, tally
from spark_jobs.reconcile.masking import hidden
from spark_jobs.report.result import MalformedSample, Offsets, Result, Span, TimeBucket
from spark_jobs.sources.lines import line_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.jobs.asked import Counted, Judged
    from spark_jobs.jobs.carry import Carried
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.reconcile.policy import Policy

__all__ = ["added_up"]


def added_up(run: Judged, counted: Counted, *, most_samples: int) -> Result:
    """Return what a judged run is worth: books, gates, verdict, samples; what it cost is not known here."""
    known, policy, counts = run.known, run.policy, counted.tally
    native, otlp = (_side_read(side, name, run.taken) for side, name in zip(run.sides, ("native", "otlp"), strict=True))
    inputs, conservation = balance.balanced(native, otlp, counts, known)
    gated = gates.judged(counts, known, policy)
    doubt = gates.doubt(counts, known, policy)
    verdict, code = gates.concluded(gated, policy, holds=conservation.holds, conclusive=doubt is None)
    answers = answered(run, counted, most_samples=most_samples)
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
        gates=gated,
        conservation=conservation,
        loss=gates.losses(counts),
        timeline=_timeline(counts, tally.bucket_width_ms(known)),
        malformed=_malformed(answers.malformed, policy),
        graph=answers.graph,
        versions=versions(run.frame.sparkSession),
        duplicates=dict(counts.duplicates),
        timing=dict(counts.timing),
        doubt=doubt,
        lifecycle=dict(counts.lifecycle),
        open_break_age=dict(counts.open_age),
        **answers.measured,
    )


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


def _window(policy: Policy, known: facts.Facts) -> Span:
    begin_ms = known.first_ms if policy.begin_ms is None else policy.begin_ms
    return Span(begin_ms=begin_ms, end_ms=known.data_end_ms if policy.end_ms is None else policy.end_ms)


def _malformed(rows: Iterable[Mapping[str, Any]], policy: Policy) -> tuple[MalformedSample, ...]:
    pieces = _located(evidence.read_malformed(rows))
    return tuple(replace(piece, text=hidden(piece.text, policy)) for piece in pieces)


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


def _timeline(counts: tally.Tally, width_ms: int) -> tuple[TimeBucket, ...]:
    return tuple(
        TimeBucket(start_ms=start_ms, width_ms=width_ms, status=dict(found))
        for start_ms, found in sorted(counts.buckets.items())
    )
