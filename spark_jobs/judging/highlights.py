"""Which keys are shown: a stratified sample, the values that differ most often, the hosts that lose most."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.columns import apply_to_distinct, encode, is_known, mix, unnest
from spark_jobs.judging.columns import LATEST, NullableInts, either, is_equal, number_in_runs, single_arrays
from spark_jobs.judging.durations import measure_rows
from spark_jobs.report.result import Instance
from spark_jobs.schemas import COMPARED_FIELDS, VERDICT
from spark_jobs.taxonomy import FieldVerdict, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.columns import Column, Ints

PER_STRATUM: Final = 50
"""Samples of each kind, status and reason that are kept, at least."""
SLOWEST: Final = "slowest"
"""The strata of the slowest events begin with it."""
_PER_MEASURE: Final = 5
_SEED: Final = np.uint64(42)
_PAIRS: Final = 5
_MOST_PAIRS: Final = 1_000
_TEXT_CHARACTERS: Final = 200
_MOST_INSTANCES: Final = 50
_SAMPLE: Final = pa.schema(
    [*VERDICT, pa.field("stratum", pa.string()), pa.field("chance", pa.int64()), pa.field("tie", pa.int64())]
)

Differing = Counter[tuple[str, str, str]]
"""How many keys have this field DIFFERENT with these two values, as text."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of ``VERDICT`` with ``stratum``, ``chance`` and ``tie``-breakers; of a stratum ``PER_STRATUM`` are kept."""

    rows: pa.Table = field(default_factory=_SAMPLE.empty_table)

    @classmethod
    def merge(cls, parts: Sequence[Samples]) -> Samples:
        """Return the samples of all parts, those of each stratum in order."""
        found = pa.concat_tables(part.rows for part in parts).combine_chunks()
        columns = single_arrays(found.select(["stratum", "chance", "tie", "event_ms"]))
        strata, event_ms = encode(columns["stratum"]), NullableInts.of(columns["event_ms"]).filled(-LATEST)
        order = np.lexsort((np.asarray(columns["tie"]), event_ms, np.asarray(columns["chance"]), strata.values))
        most = [_PER_MEASURE if word.startswith(SLOWEST) else PER_STRATUM for word in strata.words]
        stratum = strata.values[order]
        kept: Any = pa.array(order[number_in_runs(stratum) < np.array(most, np.int64)[stratum]])
        return cls(found.take(kept))


def draw_samples(verdicts: pa.Table, columns: Mapping[str, Column]) -> Samples:
    """Return the rows that may be samples of the run.

    They are those with the smallest seeded hash of every kind, status and reason, and the slowest of every measure.
    """
    inside = ~is_equal(columns["status"], Status.OUT_OF_SCOPE.value)
    event_ms = NullableInts.of(columns["event_ms"])
    hashes = (NullableInts.of(columns[f"{side}.raw_hash"]).filled(0).view(np.uint64) for side in ("native", "otlp"))
    chance = (mix(np.full(len(verdicts), _SEED), *hashes) >> np.uint64(1)).astype(np.int64)
    words = (columns[name] for name in ("status", "reason", "kind"))
    names, stratum = apply_to_distinct(lambda *row: " ".join(filter(None, row)), *words)
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((chance[rows], stratum[rows]))]
    rows = rows[number_in_runs(stratum[rows]) < PER_STRATUM]
    parts = [_sample(verdicts, rows, [names[at] for at in stratum[rows].tolist()], chance[rows], chance[rows])]
    for name, took in measure_rows(columns).items():
        slow = np.flatnonzero(inside & took.exceeds(0))
        slow = slow[np.lexsort((chance[slow], event_ms.filled(-LATEST)[slow], -took.values[slow]))[:_PER_MEASURE]]
        parts.append(_sample(verdicts, slow, [f"{SLOWEST} {name}"] * len(slow), -took.values[slow], chance[slow]))
    return Samples(pa.concat_tables(parts))


def _sample(verdicts: pa.Table, rows: Ints, strata: Sequence[str], chance: Ints, tie: Ints) -> pa.Table:
    taken = verdicts.take(pa.array(rows, pa.int64()))
    own: list[Any] = [pa.array(strata, pa.string()), pa.array(chance, pa.int64()), pa.array(tie, pa.int64())]
    return pa.table([*taken.columns, *own], schema=_SAMPLE)


def count_differing(columns: Mapping[str, Column]) -> Differing:
    """Count the pairs of values of each field that is DIFFERENT somewhere, the most frequent ones of each."""
    maps = columns["field_verdicts"].drop_null()
    rows_of = np.flatnonzero(is_known(columns["field_verdicts"]))
    bounds, (keys, words) = unnest(maps, maps.keys, maps.items)
    hits = np.flatnonzero(is_equal(words, FieldVerdict.DIFFERENT.value))
    owner = rows_of[np.searchsorted(bounds, hits, side="right") - 1]
    names = np.array(keys.take(pa.array(hits)).to_pylist(), object)
    found: Differing = Counter()
    for name in COMPARED_FIELDS:
        rows = pa.array(owner[names == name])
        if len(rows):
            values = [_as_texts(columns[f"{side}.{name}"].take(rows)) for side in ("native", "otlp")]
            counted = Counter(zip(*values, strict=True))
            found.update({(name, *pair): count for pair, count in counted.most_common(_MOST_PAIRS)})
    return found


def merge_differing(parts: Iterable[Differing], most: int = _MOST_PAIRS) -> Differing:
    """Return the sum of the parts: of each field the most frequent pairs, most frequent first."""
    total: Differing = Counter()
    for part in parts:
        total.update(part)
    kept: Differing = Counter()
    seen: Counter[str] = Counter()
    for pair, count in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        seen[pair[0]] += 1
        if seen[pair[0]] <= most:
            kept[pair] = count
    return kept


def rank_differing(total: Differing) -> dict[str, tuple[tuple[str, str, int], ...]]:
    """Return ``{field: ((native value, otlp value, keys), …)}``, most frequent first, at most five of each."""
    found: dict[str, tuple[tuple[str, str, int], ...]] = {}
    for (name, native, otlp), count in merge_differing([total], _PAIRS).items():
        found[name] = (*found.get(name, ()), (native, otlp, count))
    return found


def _as_texts(column: Column) -> list[str]:
    """Return values as Spark writes them when they are cast to text; a long one is cut, and shows its whole length."""
    is_list = pa.types.is_list(column.type)
    texts = (
        (f"[{', '.join(value)}]" for value in column.to_pylist()) if is_list else column.cast(pa.string()).to_pylist()
    )
    return [
        text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}… ({len(text):,} characters)"
        for text in texts
    ]


Hosts = dict["str | None", Instance]
"""By client host."""


def count_hosts(columns: Mapping[str, Column], attributed_reasons: Iterable[str]) -> Hosts:
    """Count settled and lost events per client host: what the native record calls it, else what the span does."""
    status = columns["status"]
    is_settled = ~(is_equal(status, Status.OUT_OF_SCOPE.value) | is_equal(status, Status.PENDING.value))
    unexplained = is_equal(columns["reason"], Reason.UNEXPLAINED.value)
    lost = {
        "lost_native": unexplained & is_equal(status, Status.OTLP_ONLY.value),
        "lost_otlp": unexplained & is_equal(status, Status.NATIVE_ONLY.value),
        "attributed": np.logical_or.reduce([is_equal(columns["reason"], reason) for reason in attributed_reasons]),
    }
    lost_ms = NullableInts.of(columns["event_ms"]).where(np.logical_or.reduce(list(lost.values())))
    events = {
        "host": either(columns, "client_host"),
        "service": columns["otlp.service"],
        "lost_ms": lost_ms.to_arrow(),
        **{name: pa.array(flag.astype(np.int64)) for name, flag in lost.items()},
    }
    by_host = pa.table(events).filter(pa.array(is_settled)).group_by("host", use_threads=False)
    measures: list[Any] = [([], "count_all"), ("service", "max"), ("lost_ms", "min"), ("lost_ms", "max")]
    return {
        row["host"]: Instance(
            host=row["host"],
            service=row["service_max"],
            events=row["count_all"],
            **{name: row[f"{name}_sum"] for name in lost},
            first_ms=row["lost_ms_min"],
            last_ms=row["lost_ms_max"],
        )
        for row in by_host.aggregate([*measures, *((name, "sum") for name in lost)]).to_pylist()
    }


def rank_hosts(total: Hosts) -> tuple[tuple[Instance, ...], int]:
    """Return the hosts with most losses, and how many more have any."""
    losing = [one for one in total.values() if one.lost]
    losing.sort(key=lambda one: (-one.lost, -one.events, one.host is not None, one.host or ""))
    return tuple(losing[:_MOST_INSTANCES]), max(len(losing) - _MOST_INSTANCES, 0)
