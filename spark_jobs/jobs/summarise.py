"""Summarise a judged run: merged counts, balance, gates, verdict, durations and examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_jobs.jobs.examples import read_malformed, read_slowest
from spark_jobs.judging.counts import bucket_width_ms, sort_tally
from spark_jobs.judging.evidence import rank_differing, rank_hosts
from spark_jobs.policy import gates
from spark_jobs.report.result import Conservation, Field, Inputs, Offsets, Result, SideInputs, Span, TimeBucket, Writers
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_jobs.history.carried import CarriedOver
    from spark_jobs.jobs.judge_tasks import Counted
    from spark_jobs.jobs.reading import EventSide
    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.durations import Durations
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.graph import Graph
    from spark_jobs.report.result import Finding, MessageEvent, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A judged run and its inputs.

    Attributes:
        sides: native and OTLP.
        carried: the events that an earlier run left open.
        known: the facts of the run.
        policy: the run's policy.
        counted: counts of all its verdicts.
        durations: of all its verdicts.
        samples: the samples of its report.
    """

    sides: tuple[EventSide, EventSide]
    carried: CarriedOver
    known: Facts
    policy: Policy
    counted: Counted
    durations: Durations
    samples: Sequence[Sample]


def summarise(
    run: JudgedRun,
    *,
    graph: Graph,
    messages: Mapping[str, tuple[MessageEvent, ...]],
    malformed: Sequence[dict[str, Any]],
) -> Result:
    """Return the result of a judged run, without its cost, with its ``graph`` and its samples' ``messages``."""
    known, policy, counts = run.known, run.policy, sort_tally(run.counted.tally)
    inputs, conservation = balance_inputs(run.sides, run.carried, counts, known)
    gated = gates.evaluate_gates(counts, known, policy)
    doubt = gates.find_doubt(counts, known, policy)
    verdict, code = gates.conclude(gated, policy, holds=conservation.holds, conclusive=doubt is None)
    instances, left_off = rank_hosts(run.counted.hosts)
    return Result(
        verdict=verdict.value,
        exit_code=int(code),
        window=_window(policy, known),
        horizon_ms=known.horizon_ms,
        grace_ms=policy.grace_ms,
        writers=_writers(policy),
        inputs=inputs,
        **_count_events(counts),
        reason=dict(counts.reason),
        reason_detail=dict(counts.reason_detail),
        fields=_fields(run, counts),
        gates=gated,
        conservation=conservation,
        loss=gates.count_losses(counts),
        latency=run.durations.latency(),
        arrival=run.durations.arrival(),
        topics=run.durations.topics(),
        groups=run.durations.groups(),
        instances=instances,
        instances_left_off=left_off,
        samples=tuple(run.samples),
        slowest=read_slowest(run.samples),
        timelines=dict(sorted(messages.items())),
        timeline=_timeline(counts, known),
        malformed=read_malformed(malformed, policy),
        graph=graph,
        duplicates=dict(counts.duplicates),
        timing=dict(counts.timing),
        doubt=doubt,
        lifecycle=dict(counts.lifecycle),
        open_break_age=dict(counts.open_age),
    )


def _fields(run: JudgedRun, counts: Tally) -> tuple[Field, ...]:
    found = {name: dict(counts.fields[name]) for name in COMPARED_FIELDS}
    shown = {name for name, verdicts in found.items() if FieldVerdict.DIFFERENT.value in verdicts}
    differing = rank_differing(run.counted.differing)
    return tuple(
        Field(name=name, verdicts=verdicts, differing_pairs=differing.get(name, ()) if name in shown else ())
        for name, verdicts in found.items()
    )


def _writers(policy: Policy) -> Writers:
    profile, native_writer = policy.writer_names
    return Writers(profile=profile, native_writer=native_writer, evidence=policy.writer_evidence)


def _window(policy: Policy, known: Facts) -> Span:
    begin_ms = known.first_ms if policy.begin_ms is None else policy.begin_ms
    return Span(begin_ms=begin_ms, end_ms=known.data_end_ms if policy.end_ms is None else policy.end_ms)


def _count_events(counts: Tally) -> dict[str, Any]:
    """Return the events by status, by kind, by finding and by age, under the names of a ``Result``."""
    findings: dict[Finding, dict[str, int]] = {}
    for (status, reason, kind), keys in counts.strata.items():
        findings.setdefault((status, reason), {})[kind] = keys
    return {
        "status": dict(counts.status),
        "status_by_kind": {kind: dict(found) for kind, found in counts.status_by_kind.items()},
        "findings": findings,
        "ageing": {word: dict(ages) for word, ages in counts.ageing.items()},
    }


def _timeline(counts: Tally, known: Facts) -> tuple[TimeBucket, ...]:
    width_ms = bucket_width_ms(known.first_ms, known.data_end_ms)
    return tuple(
        TimeBucket(start_ms=start_ms, width_ms=width_ms, findings=dict(found))
        for start_ms, found in sorted(counts.buckets.items())
    )


# -- the balance: every record that was read is counted once, on each side and across both -----------------------------
def balance_inputs(
    sides: tuple[EventSide, EventSide], carried: CarriedOver, tally: Tally, facts: Facts
) -> tuple[Inputs, Conservation]:
    """Return the balance of both sides and whether it holds: counts before parsing against those of the verdicts."""
    native, otlp = sides
    books = {
        "native": _books("native", native, carried, tally, facts),
        "otlp": _books("otlp", otlp, carried, tally, facts),
    }
    holds, sentences = True, {}
    for side, book in books.items():
        read, found = book.records_read + book.exploded + book.carried, _accounted_for(book)
        holds = holds and read == found
        sentences[side] = _sentence(book, read, found)
    native_both = tally.keys["native"] - tally.status[Status.NATIVE_ONLY.value] - tally.pending["native"]
    otlp_both = tally.keys["otlp"] - tally.status[Status.OTLP_ONLY.value] - tally.pending["otlp"]
    holds = holds and native_both == otlp_both == tally.keys["both"]
    return Inputs(**books), Conservation(
        holds=holds,
        native=f"{sentences['native']}; {native_both} keys on both sides",
        otlp=f"{sentences['otlp']}; {otlp_both} keys on both sides",
    )


def _books(side: str, read: EventSide, carried: CarriedOver, tally: Tally, facts: Facts) -> SideInputs:
    return SideInputs(
        sources=read.sources,
        layouts=read.layouts,
        records_read=read.records_read,
        exploded=read.exploded,
        malformed=facts.malformed.get(side, 0),
        out_of_scope=sum(facts.scopes.get(side, {}).values()) + tally.outside[side],
        half_merged=tally.sums["half_merged"] if side == "native" else 0,
        exact_duplicates=tally.sums[f"{side}_exact_duplicates"],
        other_duplicates=tally.sums[f"{side}_other_duplicates"],
        canonical_keys=tally.keys[side],
        truncated_tails=read.truncated_tails,
        last_event_ms=read.last_event_ms,
        carried=carried.counts.get(side, 0),
        read_again=carried.read_again.get(side, 0),
        offsets=tuple(
            Offsets(source=str(one.address), partition=one.partition, first=one.first, end=one.end)
            for one in read.offsets
        ),
        offsets_without_message=read.offsets_without_message,
    )


def _accounted_for(book: SideInputs) -> int:
    duplicates = book.exact_duplicates + book.other_duplicates
    return book.malformed + book.out_of_scope + book.half_merged + duplicates + book.read_again + book.canonical_keys


def _sentence(book: SideInputs, read: int, found: int) -> str:
    carried = f" + {book.carried} carried" if book.carried else ""
    again = f"{book.read_again} read again + " if book.carried else ""
    return (
        f"{book.records_read} read + {book.exploded} exploded{carried} {'=' if read == found else '≠'} {again}"
        f"{book.malformed} malformed + {book.out_of_scope} out of scope + {book.half_merged} halves merged + "
        f"{book.exact_duplicates} exact and {book.other_duplicates} other duplicates + {book.canonical_keys} keys"
    )
