"""Summarise a judged run: merged counts, balance, gates, verdict, durations and examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage.paths import as_path, open_parquet
from spark_jobs.judging.counts import bucket_width_ms, sort_counts
from spark_jobs.judging.highlights import SLOWEST, rank_differing, rank_hosts
from spark_jobs.policy import gates
from spark_jobs.report.result import (
    MOST_SAMPLES,
    Conservation,
    Exemplar,
    Field,
    Inputs,
    MalformedSample,
    Offsets,
    Result,
    Sample,
    SideInputs,
    Span,
    TimeBucket,
    Writers,
    gap,
)
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.sources.splits import line_numbers
from spark_jobs.taxonomy import FieldVerdict, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from spark_jobs.history.carried import CarriedOver
    from spark_jobs.jobs.judge_tasks import Judged
    from spark_jobs.jobs.reading import EventSide
    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.graph import Graph

MOST_EVENTS: Final = 12
"""Events of one message that are shown; a message redelivered a thousand times is not drawn as a thousand lanes."""
_MOST_MALFORMED: Final = 50
_PER_CALM_STRATUM: Final = 8
_CALM: Final = frozenset(
    {Status.MATCHED_EXACT.value, Status.MATCHED_NORMALISED.value, Status.PENDING.value, Reason.BY_DESIGN.value}
)
_PLACE: Final = ("side", "path", "line", "record_index")
_ORDERING: Final = ("event_ms", "kind", "group", "attempt_id", "retry_times", "status")
"""What orders the events of a message."""
_OF_SIDE: Final = ("start_ms", "end_ms", "success", "store_host")


# -- samples ----------------------------------------------------------------------------------------------------------
def read_samples(samples: pa.Table) -> tuple[Sample, ...]:
    """Return at most ``MOST_SAMPLES`` samples: a few of each stratum that is in order, more of those that are not.

    ``samples`` are the rows of ``judging.highlights.Samples``.
    """
    rows = sorted(samples.drop_columns(["chance", "tie"]).to_pylist(), key=itemgetter("stratum"))
    chosen: list[tuple[int, dict[str, Any]]] = []
    for stratum, members in groupby(rows, key=itemgetter("stratum")):
        is_calm = not _CALM.isdisjoint(stratum.split())
        chosen += enumerate(islice(members, _PER_CALM_STRATUM if is_calm else MOST_SAMPLES))
    kept = sorted(chosen, key=itemgetter(0))[:MOST_SAMPLES]
    return tuple(_sample(row) for _, row in sorted(kept, key=lambda one: (one[1]["stratum"], one[0])))


def _sample(row: dict[str, Any]) -> Sample:
    native, otlp, stratum = (row.pop(name) for name in ("native", "otlp", "stratum"))
    verdicts = row["field_verdicts"]
    row["field_verdicts"] = None if verdicts is None else dict(verdicts)
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
    start, end = (_first_known(sample, field) for field in ("start_ms", "end_ms"))
    took_ms = verdict[f"{name}_ms"] if f"{name}_ms" in verdict else end - start
    shown = {field: verdict[field] for field in ("msg_id", "kind", "topic", "group", "event_ms")}
    return Exemplar(**shown, took_ms=took_ms)


def _first_known(sample: Sample, field: str) -> int:
    known = [side[field] for side in (sample.native, sample.otlp) if side and side[field] is not None]
    return int(known[0]) if known else 0


# -- the message behind a sample --------------------------------------------------------------------------------------
def read_timelines(paths: Iterable[str], msg_ids: Sequence[str]) -> dict[str, tuple[Sample, ...]]:
    """Return the first ``MOST_EVENTS`` events, in order, of each of ``msg_ids`` in files of ``VERDICT``.

    ``paths`` are the files of a bucket: all verdicts of a message are in them.
    """
    is_wanted = partial(pc.is_in, value_set=pa.array(msg_ids, pa.string()))
    of_sides = [f"{side}.{name}" for side in ("native", "otlp") for name in _OF_SIDE]
    found: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for rows in _read_wanted(path, "msg_id", is_wanted, [*_ORDERING, *of_sides]):
            for row in rows:
                if row["status"] != Status.OUT_OF_SCOPE.value:
                    found.setdefault(row["msg_id"], []).append(row)
            found = {msg_id: sorted(some, key=_order)[:MOST_EVENTS] for msg_id, some in found.items()}
    return {
        msg_id: tuple(Sample(native=row.pop("native"), otlp=row.pop("otlp"), verdict=row) for row in some)
        for msg_id, some in found.items()
    }


def _order(row: Mapping[str, Any]) -> list[Any]:
    return _nulls_first(row[name] for name in _ORDERING)


def _nulls_first(values: Iterable[Any]) -> list[Any]:
    return [(value is not None, value) for value in values]


def _read_wanted(
    path: str, name: str, is_wanted: Callable[[Any], Any], others: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the wanted rows of each row group; where there are none, only the column ``name`` is read."""
    file: Any = open_parquet(path)
    for group in range(file.metadata.num_row_groups):
        wanted = is_wanted(file.read_row_group(group, columns=[name], use_threads=False)[name])
        if pc.any(wanted).as_py():
            rows = file.read_row_group(group, columns=[name, *others], use_threads=False)
            yield rows.filter(wanted).to_pylist()


# -- what could not be read -------------------------------------------------------------------------------------------
def find_malformed(path: str) -> list[MalformedSample]:
    """Return the first malformed rows, in the order of the input, of a file of ``NORMALISED``."""
    found: list[MalformedSample] = []
    for rows in _read_wanted(path, "bad", pc.is_valid, _PLACE):
        found = first_malformed([*found, *map(_malformed, rows)])
    return found


def _malformed(row: dict[str, Any]) -> MalformedSample:
    place, bad = {name: row[name] for name in _PLACE}, row["bad"]
    return MalformedSample(**place, field=bad["field"], reason=bad["reason"], text=bad["text"])


def first_malformed(pieces: Iterable[MalformedSample]) -> list[MalformedSample]:
    """Return the first of some malformed pieces, in the order of the input."""
    return sorted(pieces, key=lambda piece: _nulls_first(getattr(piece, name) for name in _PLACE))[:_MOST_MALFORMED]


def _locate_lines(pieces: Sequence[MalformedSample]) -> list[MalformedSample]:
    """Give samples from files too large to be read whole their line, where exactly one line begins with their text."""
    wanted: dict[str, set[str]] = {}
    for piece in pieces:
        if piece.line is None and piece.text:
            wanted.setdefault(piece.path, set()).add(piece.text)
    lines = {path: line_numbers(as_path(path), texts) for path, texts in wanted.items()}

    def locate(piece: MalformedSample) -> MalformedSample:
        numbers = lines.get(piece.path, {}).get(piece.text, ()) if piece.line is None else ()
        return replace(piece, line=numbers[0]) if len(numbers) == 1 else piece

    return [locate(piece) for piece in pieces]


_COUNTED: Final = (
    *("status", "status_by_kind", "findings", "reason", "reason_detail", "ageing", "duplicates", "timing"),
    *("lifecycle", "open_break_age"),
)
"""The counts of keys that a ``Result`` has of its ``Tally``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A judged run: both sides (native, OTLP), what an earlier run left open, and what all its verdicts come to."""

    sides: tuple[EventSide, EventSide]
    carried: CarriedOver
    known: Facts
    policy: Policy
    judged: Judged
    samples: Sequence[Sample]


def summarise(
    run: JudgedRun, *, graph: Graph, messages: Mapping[str, tuple[Sample, ...]], malformed: Sequence[MalformedSample]
) -> Result:
    """Return the result of a judged run, without its cost, with its ``graph`` and its samples' ``messages``."""
    known, policy, counts = run.known, run.policy, run.judged.counted.tally
    inputs, conservation = balance_inputs(run.sides, run.carried, counts, known)
    gated = gates.evaluate_gates(counts, known, policy)
    doubt = gates.find_doubt(counts, known, policy)
    verdict, code = gates.decide_verdict(gated, policy, holds=conservation.holds, conclusive=doubt is None)
    instances, left_off = rank_hosts(run.judged.counted.hosts)
    profile, native_writer = policy.writer_names
    width_ms = bucket_width_ms(known.first_ms, known.data_end_ms)
    counted: dict[str, Any] = {name: sort_counts(getattr(counts, name)) for name in _COUNTED}
    return Result(
        verdict=verdict.value,
        exit_code=int(code),
        window=judged_window(known, policy),
        horizon_ms=known.horizon_ms,
        grace_ms=policy.grace_ms,
        writers=Writers(profile=profile, native_writer=native_writer, evidence=policy.writer_evidence),
        inputs=inputs,
        fields=_fields(run, counts),
        gates=gated,
        conservation=conservation,
        loss=gates.count_losses(counts),
        latency=run.judged.durations.latency(),
        arrival=run.judged.durations.arrival(),
        topics=run.judged.durations.topics(),
        groups=run.judged.durations.groups(),
        instances=instances,
        instances_left_off=left_off,
        samples=tuple(run.samples),
        slowest=read_slowest(run.samples),
        timelines=dict(sorted(messages.items())),
        timeline=tuple(
            TimeBucket(start_ms=start_ms, width_ms=width_ms, findings=sort_counts(found))
            for start_ms, found in sorted(counts.buckets.items())
        ),
        malformed=tuple(replace(piece, text=policy.hide(piece.text)) for piece in _locate_lines(malformed)),
        graph=graph,
        doubt=doubt,
        **counted,
    )


def judged_window(known: Facts, policy: Policy) -> Span:
    """Return the window of a run; a bound that was not given is where the data begins or ends, if that is inside."""
    begin_ms = known.first_ms if policy.begin_ms is None else policy.begin_ms
    end_ms = known.data_end_ms if policy.end_ms is None else policy.end_ms
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:  # all data is outside of what was given
        begin_ms = end_ms = end_ms if policy.begin_ms is None else begin_ms
    return Span(begin_ms=begin_ms, end_ms=end_ms)


def _fields(run: JudgedRun, counts: Tally) -> tuple[Field, ...]:
    found = {name: sort_counts(counts.fields[name]) for name in COMPARED_FIELDS}
    shown = {name for name, verdicts in found.items() if FieldVerdict.DIFFERENT.value in verdicts}
    differing = rank_differing(run.judged.counted.differing)
    return tuple(
        Field(name=name, verdicts=verdicts, differing_pairs=differing.get(name, ()) if name in shown else ())
        for name, verdicts in found.items()
    )


# -- the balance: every record that was read is counted once, on each side and across both -----------------------------
def balance_inputs(
    sides: tuple[EventSide, EventSide], carried: CarriedOver, tally: Tally, facts: Facts
) -> tuple[Inputs, Conservation]:
    """Return the balance of both sides and whether it holds: counts before parsing against those of the verdicts."""
    named = zip(("native", "otlp"), sides, strict=True)
    balances = {side: _balance_side(side, read, carried, tally, facts) for side, read in named}
    native_both = tally.keys["native"] - tally.status[Status.NATIVE_ONLY.value] - tally.pending["native"]
    otlp_both = tally.keys["otlp"] - tally.status[Status.OTLP_ONLY.value] - tally.pending["otlp"]
    return Inputs(**balances), Conservation(
        holds=not any(map(gap, balances.values())) and native_both == otlp_both == tally.keys["both"],
        native=f"{_describe_balance(balances['native'])}; {native_both} keys on both sides",
        otlp=f"{_describe_balance(balances['otlp'])}; {otlp_both} keys on both sides",
    )


def _balance_side(side: str, read: EventSide, carried: CarriedOver, tally: Tally, facts: Facts) -> SideInputs:
    sums = tally.sums  # halves of spans are what is neither a key nor a copy; ``half_merged`` has those of both sides
    copies = sums["otlp_exact_duplicates"] + sums["otlp_other_duplicates"]
    of_spans = sums["otlp_records"] - copies - tally.keys["otlp"]
    return SideInputs(
        sources=read.sources,
        layouts=read.layouts,
        records_read=read.records_read,
        exploded=read.exploded,
        malformed=facts.malformed.get(side, 0),
        out_of_scope=sum(facts.scopes.get(side, {}).values()) + tally.outside[side],
        half_merged=of_spans if side == "otlp" else sums["half_merged"] - of_spans,
        exact_duplicates=sums[f"{side}_exact_duplicates"],
        other_duplicates=sums[f"{side}_other_duplicates"],
        canonical_keys=tally.keys[side],
        truncated_tails=read.truncated_tails,
        last_event_ms=read.last_event_ms,
        carried=carried.counts.get(side, 0),
        read_again=carried.read_again.get(side, 0),
        offsets=tuple(
            Offsets(source=one.address.text, partition=one.partition, first=one.first, end=one.end)
            for one in read.offsets
        ),
        offsets_without_message=read.offsets_without_message,
    )


def _describe_balance(side: SideInputs) -> str:
    carried = f" + {side.carried} carried" if side.carried else ""
    again = f"{side.read_again} read again + " if side.carried else ""
    return (
        f"{side.records_read} read + {side.exploded} exploded{carried} {'≠' if gap(side) else '='} {again}"
        f"{side.malformed} malformed + {side.out_of_scope} out of scope + {side.half_merged} halves merged + "
        f"{side.exact_duplicates} exact and {side.other_duplicates} other duplicates + {side.canonical_keys} keys"
    )
