"""Which keys are shown: a stratified sample, the values that differ most often, the hosts that lose most."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import hash_texts, mix
from spark_jobs.judging.columns import LATEST, NullableInts, encode, equals, find_groups, join_codes
from spark_jobs.judging.durations import measure_rows
from spark_jobs.report.result import Instance
from spark_jobs.schemas import COMPARED_FIELDS, VERDICT
from spark_jobs.taxonomy import FieldVerdict, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = [
    "PER_STRATUM",
    "SLOWEST",
    "TOTAL",
    "Differing",
    "Hosts",
    "count_differing",
    "count_hosts",
    "draw_samples",
    "merge_samples",
    "rank_differing",
    "rank_hosts",
]

PER_STRATUM: Final = 50
"""Samples of each kind, status and reason that are kept, at least."""
TOTAL: Final = 400
"""Samples of a report, unless more or fewer are wanted."""
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
Hosts = dict["str | None", list[Any]]
"""Per client host the values of ``_HOST`` fields, in their order."""


def draw_samples(verdicts: pa.Table, columns: Mapping[str, Column], per_stratum: int) -> pa.Table:
    """Return the rows that may be samples of the run: ``VERDICT``, ``stratum``, ``chance`` and what breaks ``tie``s.

    Of every kind, status and reason the least by a seeded hash; of every measure the slowest.

    Args:
        verdicts: ``VERDICT``.
        columns: ``flatten_sides`` of it.
        per_stratum: how many of each stratum.
    """
    inside = ~equals(columns["status"], Status.OUT_OF_SCOPE.value)
    hashed = [hash_texts(columns[name]) for name in ("msg_id", "kind", "group", "attempt_id")]
    event_ms = NullableInts.of(columns["event_ms"])
    times = event_ms.filled(-1).view(np.uint64)
    chance = (mix(np.full(len(times), _SEED), *hashed, times) >> np.uint64(1)).astype(np.int64)
    coded = [encode(columns[name]) for name in ("status", "reason", "kind")]
    examples, stratum = find_groups(join_codes(*((one.values, one.room) for one in coded)))
    words = [[*one.words, None] for one in coded]
    names = [
        " ".join(filter(None, (known[one.values[row]] for known, one in zip(words, coded, strict=True))))
        for row in examples.tolist()
    ]
    rows = _least(np.flatnonzero(inside), stratum, chance, per_stratum)
    parts = [_sample(verdicts, rows, [names[at] for at in stratum[rows].tolist()], chance[rows], chance[rows])]
    for name, took in measure_rows(columns).items():
        slow = np.flatnonzero(inside & took.exceeds(0))
        slow = slow[np.lexsort((chance[slow], event_ms.filled(-LATEST)[slow], -took.values[slow]))[:_PER_MEASURE]]
        parts.append(_sample(verdicts, slow, [f"{SLOWEST} {name}"] * len(slow), -took.values[slow], chance[slow]))
    return pa.concat_tables(parts)


def _least(rows: Ints, stratum: Ints, chance: Ints, most: int) -> Ints:
    order = rows[np.lexsort((chance[rows], stratum[rows]))]
    ordered = stratum[order]
    begins = np.maximum.accumulate(
        np.where(np.r_[True, ordered[1:] != ordered[:-1]][: len(order)], np.arange(len(order)), 0)
    )
    return order[np.arange(len(order)) - begins < most]


def _sample(verdicts: pa.Table, rows: Ints, strata: Sequence[str], chance: Ints, tie: Ints) -> pa.Table:
    taken = verdicts.take(pa.array(rows, pa.int64()))
    own: list[Any] = [pa.array(strata, pa.string()), pa.array(chance, pa.int64()), pa.array(tie, pa.int64())]
    return pa.table([*taken.columns, *own], schema=_SAMPLE)


def merge_samples(parts: Iterable[pa.Table], per_stratum: int) -> list[dict[str, Any]]:
    """Return the samples of a run as plain rows of ``VERDICT`` with ``stratum`` and ``nth``, from 1."""
    found = pa.concat_tables([_SAMPLE.empty_table(), *parts]).combine_chunks()
    strata = encode(found["stratum"].combine_chunks())
    event_ms = NullableInts.of(found["event_ms"].combine_chunks()).filled(-LATEST)
    order = np.lexsort((np.asarray(found["tie"]), event_ms, np.asarray(found["chance"]), strata.values))
    rows, nth, last = [], 0, -1
    for row in order.tolist():
        nth = nth + 1 if strata.values[row] == last else 1
        last = strata.values[row]
        if nth <= (_PER_MEASURE if strata.words[last].startswith(SLOWEST) else per_stratum):
            rows.append((row, nth))
    plain = found.drop_columns(["chance", "tie"]).take(pa.array([row for row, _ in rows], pa.int64())).to_pylist()
    return [{**_plain(row), "nth": nth} for row, (_, nth) in zip(plain, rows, strict=True)]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    verdicts = row["field_verdicts"]
    return {**row, "field_verdicts": None if verdicts is None else dict(verdicts)}


def count_differing(columns: Mapping[str, Column]) -> Differing:
    """Count the pairs of values of each field that is DIFFERENT somewhere, the most frequent ones of each."""
    maps = columns["field_verdicts"].drop_null()
    rows_of = np.flatnonzero(np.asarray(columns["field_verdicts"].is_valid()))
    if not len(maps):
        return Counter()
    bounds = np.asarray(maps.offsets).astype(np.int64)
    words = maps.items.slice(bounds[0], bounds[-1] - bounds[0])
    hits = np.flatnonzero(equals(words, FieldVerdict.DIFFERENT.value))
    owner = rows_of[np.searchsorted(bounds - bounds[0], hits, side="right") - 1]
    names = np.array(maps.keys.slice(bounds[0], bounds[-1] - bounds[0]).take(pa.array(hits)).to_pylist(), object)
    found: Differing = Counter()
    for name in COMPARED_FIELDS:
        rows = pa.array(owner[names == name])
        if len(rows):
            values = [_as_texts(columns[f"{side}.{name}"].take(rows)) for side in ("native", "otlp")]
            counted = Counter(zip(*values, strict=True))
            found.update({(name, *pair): count for pair, count in counted.most_common(_MOST_PAIRS)})
    return found


def rank_differing(parts: Iterable[Differing]) -> dict[str, tuple[tuple[str, str, int], ...]]:
    """Return ``{field: ((native value, otlp value, keys), …)}``, most frequent first, at most five of each."""
    total: Differing = Counter()
    for part in parts:
        total.update(part)
    found: dict[str, list[tuple[str, str, int]]] = {}
    for (name, native, otlp), count in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        found.setdefault(name, []).append((native, otlp, count))
    return {name: tuple(pairs[:_PAIRS]) for name, pairs in found.items()}


def _as_texts(column: Column) -> list[str]:
    """Return values as Spark writes them when they are cast to text, cut."""
    if pa.types.is_list(column.type):
        return [f"[{', '.join(value)}]"[:_TEXT_CHARACTERS] for value in column.to_pylist()]
    return [value[:_TEXT_CHARACTERS] for value in column.cast(pa.string()).to_pylist()]


_HOST: Final = ("service", "events", "lost_native", "lost_otlp", "attributed", "first_ms", "last_ms")


def count_hosts(columns: Mapping[str, Column], attributed_reasons: Iterable[str]) -> Hosts:
    """Count settled and lost events per client host: what the native record calls it, else what the span does."""
    status = columns["status"]
    rows = np.flatnonzero(~(equals(status, Status.OUT_OF_SCOPE.value) | equals(status, Status.PENDING.value)))
    hosts = encode(pc.coalesce(columns["native.client_host"], columns["otlp.client_host"]).take(pa.array(rows)))
    unexplained = equals(columns["reason"], Reason.UNEXPLAINED.value)
    flags = {
        "lost_native": unexplained & equals(status, Status.OTLP_ONLY.value),
        "lost_otlp": unexplained & equals(status, Status.NATIVE_ONLY.value),
        "attributed": np.logical_or.reduce([equals(columns["reason"], reason) for reason in attributed_reasons]),
    }
    lost = np.logical_or.reduce(list(flags.values()))[rows]
    event_ms = NullableInts.of(columns["event_ms"]).take(rows)
    services = encode(columns["otlp.service"].take(pa.array(rows)))
    names = [*hosts.words, None]
    found: Hosts = {}
    counts = {name: np.bincount(hosts.values[flag[rows]], minlength=hosts.room) for name, flag in flags.items()}
    events = np.bincount(hosts.values, minlength=hosts.room)
    used = np.unique(hosts.values * services.room + services.values)
    for code in np.flatnonzero(events).tolist():
        own = used[used // services.room == code] % services.room
        known = [services.words[at] for at in own.tolist() if at < len(services.words)]
        here = _times_of(event_ms, lost & (hosts.values == code)) if any(c[code] for c in counts.values()) else []
        found[names[code]] = [
            max(known, default=None),
            int(events[code]),
            *(int(counts[name][code]) for name in flags),
            min(here, default=None),
            max(here, default=None),
        ]
    return found


def _times_of(event_ms: NullableInts, mask: Mask) -> list[int]:
    times = event_ms.values[mask & event_ms.known]
    return [int(times.min()), int(times.max())] if len(times) else []


def rank_hosts(parts: Iterable[Hosts]) -> tuple[tuple[Instance, ...], int]:
    """Return the hosts with most losses, and how many more have any."""
    total: Hosts = {}
    for part in parts:
        for host, values in part.items():
            total[host] = values if host not in total else _add_hosts(total[host], values)
    instances = [Instance(host=host, **dict(zip(_HOST, values, strict=True))) for host, values in total.items()]
    losing = [one for one in instances if _lost(one)]
    losing.sort(key=lambda one: (-_lost(one), -one.events, one.host is not None, one.host or ""))
    return tuple(losing[:_MOST_INSTANCES]), max(len(losing) - _MOST_INSTANCES, 0)


def _lost(one: Instance) -> int:
    return one.lost_native + one.lost_otlp + one.attributed


def _add_hosts(one: list[Any], other: list[Any]) -> list[Any]:
    services, firsts, lasts = ([value for value in (one[at], other[at]) if value is not None] for at in (0, 5, 6))
    sums = [left + right for left, right in zip(one[1:5], other[1:5], strict=True)]
    return [max(services, default=None), *sums, min(firsts, default=None), max(lasts, default=None)]
