"""Count the verdicts of a table by what was judged, when, and with what evidence; counts of tables add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.columns import take_rows, unnest
from spark_jobs.judging.columns import NullableInts, is_any_of, is_equal, maximum
from spark_jobs.judging.merge import COUNTS
from spark_jobs.report.result import AGES, Finding
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import Lifecycle, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Mask
    from spark_jobs.judging.facts import Facts

_BUCKET_MS: Final = 600_000
_LEAST_BUCKETS: Final = 12
_MOST_BUCKETS: Final = 288  # two days of ten minutes; what is collected and drawn does not grow beyond
_WIDE_MS: Final = tuple(minutes * 60_000 for minutes in (10, 20, 30, 60, 120, 180, 360, 720, 1440))
_NICE_MS: Final = (1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, _BUCKET_MS)
_OPEN: Final = (Reason.IN_FLIGHT.value, Reason.ABANDONED.value)
_WORDS: Final = ("kind", "status", "reason", "reason_detail", "timing", "duplicates", "lifecycle")


def bucket_width_ms(first_ms: int | None, data_end_ms: int | None) -> int:
    """Return ten minutes; for a short run the largest round width that still gives a dozen buckets.

    For a long one the smallest round width that gives no more than ``_MOST_BUCKETS``, beyond 288 days whole days.
    """
    if first_ms is None or data_end_ms is None:
        return _BUCKET_MS
    span_ms = data_end_ms - first_ms
    if span_ms > _MOST_BUCKETS * _BUCKET_MS:
        days = -(-span_ms // (_MOST_BUCKETS * _WIDE_MS[-1]))
        return next((width for width in _WIDE_MS if span_ms <= _MOST_BUCKETS * width), days * _WIDE_MS[-1])
    wanted = span_ms / _LEAST_BUCKETS
    return max((width for width in _NICE_MS if width <= wanted), default=_NICE_MS[0])


def _age_bands(
    verdicts: Mapping[str, Column], event: NullableInts, end: NullableInts, grace_ms: int
) -> dict[str, Column]:
    """Return the band of each open event's age and that of each open key's, null for all others: nearly all rows."""
    status, reason, lifecycle = (verdicts[name] for name in ("status", "reason", "lifecycle"))
    waits = is_equal(status, Status.PENDING.value) | is_any_of(reason, _OPEN)
    carried = is_any_of(lifecycle, CARRIED_ON)
    last = end - find_last(verdicts) if carried.any() else end
    labels, limits = zip(*AGES, strict=True)
    multiples = [multiple * grace_ms + 1 for multiple in _MULTIPLES]
    return {
        "age": _name_bands(end - event, waits, limits[:-1], (*labels, None)),
        "open_break_age": _name_bands(last, carried, multiples, OPEN_AGES),
    }


def _name_bands(age: NullableInts, mask: Mask, limits: Sequence[int], names: Sequence[str | None]) -> Column:
    """Return for the rows of ``mask`` the name of the band that the age is in, the last one for an unknown age."""
    bands = np.where(age.known, np.searchsorted(limits, age.values, side="right"), len(names) - 1)
    return take_rows(pa.array(names, pa.string()), np.where(mask, bands, -1))


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of canonical keys, as in ``Result`` where that has the name, and sums of ``merge.COUNTS`` in scope."""

    status: Counter[str] = field(default_factory=Counter)
    status_by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    findings: dict[Finding, Counter[str]] = field(default_factory=dict)
    reason: Counter[str] = field(default_factory=Counter)
    reason_detail: Counter[str] = field(default_factory=Counter)
    timing: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    ageing: dict[str, Counter[str]] = field(default_factory=dict)
    lifecycle: Counter[str] = field(default_factory=Counter)
    open_break_age: Counter[str] = field(default_factory=Counter)
    fields: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in COMPARED_FIELDS})
    buckets: dict[int, Counter[Finding]] = field(default_factory=dict)
    keys: Counter[str] = field(default_factory=Counter)  # native, otlp, both
    pending: Counter[str] = field(default_factory=Counter)  # native, otlp: pending keys that only that side has
    sums: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)  # records of keys outside the window, per side


def count_verdicts(verdicts: Mapping[str, Column], facts: Facts, *, grace_ms: int) -> Tally:
    """Count verdicts, given as the columns of ``flatten_sides``."""
    tally = Tally()
    event = NullableInts.of(verdicts["event_ms"]).believable()
    words = {name: verdicts[name] for name in (*_WORDS, "on_native", "on_otlp")}
    words |= _age_bands(verdicts, event, NullableInts.constant(facts.data_end_ms), grace_ms)
    sums = {name: verdicts[name] for name in COUNTS}
    for row in _group(words, sums):
        add_judgement(tally, row)
    width_ms = bucket_width_ms(facts.first_ms, facts.data_end_ms)
    starts = NullableInts(event.values // width_ms * width_ms, event.known).to_arrow()
    for row in _group({"start_ms": starts, "status": verdicts["status"], "reason": verdicts["reason"]}):
        if row["start_ms"] is not None:
            tally.buckets.setdefault(row["start_ms"], Counter())[row["status"], row["reason"]] += row["keys"]
    inside = pa.array(~is_equal(verdicts["status"], Status.OUT_OF_SCOPE.value))
    maps = verdicts["field_verdicts"].filter(inside).drop_null()
    names, found = unnest(maps, maps.keys, maps.items)[1]
    for row in _group({"name": names, "verdict": found}):
        tally.fields[row["name"]][row["verdict"]] += row["keys"]
    return tally


def _group(words: Mapping[str, Column], sums: Mapping[str, Column] | None = None) -> Iterator[dict[str, Any]]:
    """Yield each distinct row of ``words``, the number of such rows as ``keys``, and the totals of their ``sums``."""
    sums = sums or {}
    measures: list[Any] = [([], "count_all"), *((name, "sum") for name in sums)]
    found = pa.table({**words, **sums}).group_by(list(words), use_threads=False).aggregate(measures)
    columns = (found[name].to_pylist() for name in (*words, "count_all", *(f"{name}_sum" for name in sums)))
    for row in zip(*columns, strict=True):
        yield dict(zip((*words, "keys", *sums), row, strict=True))


_PLACES: Final = {word: place for words in (Status, Reason) for place, word in enumerate(list[str](words))}


def sort_counts(counts: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the same counts in one order, whatever the buckets: statuses and reasons as in their lists."""
    items = sorted(counts.items(), key=_order)
    return {key: sort_counts(each) if isinstance(each, dict) else each for key, each in items}


def _order(item: tuple[Any, Any]) -> list[tuple[int, str]]:
    words = item[0] if isinstance(item[0], tuple) else (item[0],)
    return [(-1 if word is None else _PLACES.get(word, len(_PLACES)), str(word)) for word in words]


def add_unjudged(tally: Tally, *, malformed: int, scopes: Iterable[Mapping[str, int]]) -> None:
    """Add the unreadable pieces of input, and per side the records outside any verdict, by scope."""
    if malformed:
        tally.status[Status.MALFORMED.value] += malformed
    for counts in scopes:
        for scope, count in counts.items():
            tally.status[Status.OUT_OF_SCOPE.value] += count
            tally.reason_detail[scope] += count
            if scope == Reason.TRACE_TRAFFIC.value:
                tally.reason[scope] += count


def add_judgement(tally: Tally, row: Mapping[str, Any]) -> None:
    """Add one distinct judgement: its words, its age, its sides, its number of keys and the sums of ``COUNTS``."""
    keys, status = row["keys"], row["status"]
    tally.status[status] += keys
    tally.status_by_kind.setdefault(row["kind"], Counter())[status] += keys
    if row["reason_detail"] and row["reason"] != Reason.HALF_RECORD.value:
        tally.reason_detail[row["reason_detail"]] += keys
    if status == Status.OUT_OF_SCOPE.value:
        for side in ("native", "otlp"):
            tally.outside[side] += row[f"{side}_records"]
        return
    _add_in_scope(tally, row, keys)
    for name in COUNTS:
        tally.sums[name] += row[name]


def _add_in_scope(tally: Tally, row: Mapping[str, Any], keys: int) -> None:
    tally.findings.setdefault((row["status"], row["reason"]), Counter())[row["kind"]] += keys
    for name in ("timing", "duplicates", "lifecycle", "open_break_age"):
        if row[name]:
            getattr(tally, name)[row[name]] += keys
    if row["reason"]:
        tally.reason[row["reason"]] += keys
    if row["age"]:
        still_open = row["reason"] if row["reason"] in _OPEN else Status.PENDING.value
        tally.ageing.setdefault(still_open, Counter())[row["age"]] += keys
    for side in ("native", "otlp"):
        if row[f"on_{side}"]:
            tally.keys[side] += keys
            tally.pending[side] += keys * (row["status"] == Status.PENDING.value)
    tally.keys["both"] += keys * (row["on_native"] and row["on_otlp"])


OPEN_AGES: Final = ("0-1x", "1-2x", "2-5x", ">5x", "no_time")
"""How old an open key is, in multiples of the grace; the last one has no believable time."""
CARRIED_ON: Final = frozenset({Lifecycle.NEW.value, Lifecycle.STILL_OPEN.value, Lifecycle.REGRESSED.value})
"""The lifecycles of keys that the next run of a history takes over."""
_MULTIPLES: Final = (1, 2, 5)


def find_last(verdicts: Mapping[str, Column]) -> NullableInts:
    """Return the latest believable time of each key, of the columns of ``flatten_sides``."""
    times = (
        NullableInts.of(verdicts[f"{side}.{name}"]) for side in ("native", "otlp") for name in ("start_ms", "end_ms")
    )
    return maximum(*(one.believable() for one in times))
