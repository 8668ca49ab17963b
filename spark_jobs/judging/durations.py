"""How long things took, and who consumed what: histograms and counts per topic and consumer group, which add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from otel_mqtrace.model import strip_namespace
from spark_jobs.columns import apply_to_distinct, begins_run, is_known, is_true, map_values, runs_of
from spark_jobs.judging.columns import NullableInts, either, is_equal
from spark_jobs.report.result import GROUP_COUNTS, Group, Latency, Topic
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Ints

MEASURES: Final = ("publish", "queue", "process", "end_to_end")
"""publish and process: of one call; queue: end of the first send to start; end_to_end: its start to the end."""
ARRIVALS: Final = ("native", "otlp")
"""From the end of an event to the arrival of that side's record, if the source records arrivals."""
_RANKS: Final = (0.5, 0.95, 0.99)
_CURVE: Final = (0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 0.995, 0.999, 0.9999)
_DELIVERED: Final = ["topic", "group", "msg_id"]
_NAMED: Final = {Kind.PUBLISH.value: ("sends", "publish"), Kind.CONSUME.value: ("deliveries", "process", "queue")}
"""By kind of event: what their number is called, and their measures."""

_Name = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Durations:
    """Histograms by measure (arrivals as ``arrival_SIDE``) and name, and by name the counts that reports show.

    A name is that of a topic sent to, ``(topic, None)``, or of a group, ``(topic, group)``; ``None`` is the whole run.
    """

    histograms: dict[tuple[str, _Name | None], Histogram] = field(default_factory=dict)
    counts: dict[_Name, Counter[str]] = field(default_factory=dict)

    def latency(self) -> dict[str, Latency]:
        """Return the four latencies of the whole run, with their curves."""
        return {name: self._latency(name) for name in MEASURES}

    def arrival(self) -> dict[str, Latency]:
        """Return each side's arrival latencies; a side without arrival times is absent."""
        found = {side: self._latency(f"arrival_{side}") for side in ARRIVALS}
        return {side: latency for side, latency in found.items() if latency.count}

    def topics(self) -> tuple[Topic, ...]:
        """Return what was sent to each topic, by name."""
        names = sorted(topic for topic, group in self.counts if group is None)
        return tuple(
            Topic(
                topic=topic,
                **{name: self.counts[topic, None][name] for name in ("sends", "failures", "unmatched")},
                publish=self._latency("publish", (topic, None)),
            )
            for topic in names
        )

    def groups(self) -> tuple[Group, ...]:
        """Return who consumed what, by topic and group."""
        names = sorted((topic, group) for topic, group in self.counts if group is not None)
        return tuple(
            Group(
                topic=topic,
                group=group,
                **{name: self.counts[topic, group][name] for name in GROUP_COUNTS},
                process=self._latency("process", (topic, group)),
                queue=self._latency("queue", (topic, group)),
            )
            for topic, group in names
        )

    def _latency(self, measure_name: str, name: _Name | None = None) -> Latency:
        found = self.histograms.get((measure_name, name))
        if found is None:
            return Latency()
        p50, p95, p99 = found.rank(_RANKS)
        curve = () if name else tuple(zip(_CURVE, found.rank(_CURVE), strict=True))
        return Latency(count=found.count, p50=p50, p95=p95, p99=p99, max=found.most, curve=curve)


def measure_rows(verdicts: Mapping[str, Column]) -> dict[str, NullableInts]:
    """Return every measure of each verdict, milliseconds; unknown where it does not apply."""
    is_publish, is_consume = (is_equal(verdicts["kind"], kind) for kind in _NAMED)
    end, start = (NullableInts.of(either(verdicts, name)) for name in ("end_ms", "start_ms"))
    took = end - start
    return {
        "publish": took.where(is_publish),
        "queue": NullableInts.of(verdicts["queue_ms"]).where(is_consume),
        "process": took.where(is_consume),
        "end_to_end": NullableInts.of(verdicts["end_to_end_ms"]).where(is_consume),
    }


def measure(verdicts: Mapping[str, Column]) -> Durations:
    """Measure verdicts, given as the columns of ``flatten_sides``; ``count_messages`` adds the messages of groups."""
    found = Durations()
    inside = ~is_equal(verdicts["status"], Status.OUT_OF_SCOPE.value)
    measures = measure_rows(verdicts)
    for side in ARRIVALS:
        arrival, end = (NullableInts.of(verdicts[f"{side}.{name}"]) for name in ("arrival_ms", "end_ms"))
        measures[f"arrival_{side}"] = arrival - end
    for name, values in measures.items():
        chosen = values.known & inside
        if chosen.any():
            found.histograms[name, None] = Histogram.of(values.values[chosen])
    succeeded = either(verdicts, "success")
    flags = {
        "failures": np.asarray(succeeded.is_valid()) & ~is_true(succeeded),
        "redeliveries": NullableInts.of(verdicts["retry_times"]).exceeds(0),
        "unmatched": ~(np.asarray(verdicts["on_native"]) & np.asarray(verdicts["on_otlp"])),
    }
    for kind, (size, *names) in _NAMED.items():
        rows = np.flatnonzero(is_equal(verdicts["kind"], kind) & inside)
        topics, groups = (_take_names(verdicts[name], rows) for name in _DELIVERED[:2])
        groups = groups if kind == Kind.CONSUME.value else pa.nulls(len(rows), pa.string())
        labels, like = apply_to_distinct(lambda *name: name, topics, groups)
        totals = {size: np.bincount(like, minlength=len(labels))}
        totals |= {name: np.bincount(like[flag[rows]], minlength=len(labels)) for name, flag in flags.items()}
        for at, label in enumerate(labels):
            found.counts[label] = Counter({name: int(total[at]) for name, total in totals.items()})
        for name in names:
            of_kind = group_histograms(like, measures[name].take(rows))
            found.histograms.update({(name, labels[at]): one for at, one in of_kind})
    return found


def _take_names(column: Column, rows: Ints) -> Column:
    """Return the topics or groups of some rows, without namespaces, which some writers leave out."""
    return map_values(column.take(rows).fill_null(""), strip_namespace, pa.string())


def find_messages(verdicts: Mapping[str, Column]) -> pa.Table:
    """Return ``topic``, ``group`` and ``msg_id`` of deliveries, each combination once."""
    inside = ~is_equal(verdicts["status"], Status.OUT_OF_SCOPE.value)
    is_delivery = is_equal(verdicts["kind"], Kind.CONSUME.value) & is_known(verdicts["msg_id"])
    rows = np.flatnonzero(inside & is_delivery)
    found = {name: _take_names(verdicts[name], rows) for name in _DELIVERED[:2]}
    found["msg_id"] = verdicts["msg_id"].take(rows)
    return pa.table(found).group_by(_DELIVERED, use_threads=False).aggregate([])


def count_messages(durations: Durations, parts: Sequence[pa.Table]) -> None:
    """Add to each group in ``durations`` how many different messages it was given.

    ``parts`` are of ``find_messages``; all verdicts of a message are behind them.
    """
    found = parts[0]
    if len(parts) > 1:
        found = pa.concat_tables(parts).group_by(_DELIVERED, use_threads=False).aggregate([])
    for row in found.group_by(_DELIVERED[:2], use_threads=False).aggregate([([], "count_all")]).to_pylist():
        durations.counts.setdefault((row["topic"], row["group"]), Counter())["messages"] += row["count_all"]


def group_histograms(groups: Ints, values: NullableInts) -> Iterator[tuple[int, Histogram]]:
    """Yield each group that has known values, and their histogram."""
    names, known = groups[values.known], values.values[values.known]
    order = np.argsort(known)
    order = order[np.argsort(names[order], kind="stable")]  # np.lexsort takes twice the time
    names, known = names[order], known[order]
    begins = np.flatnonzero(begins_run(names) | begins_run(known))
    counts = np.diff(np.r_[begins, len(names)])
    names, known = names[begins], known[begins]
    for begin, end in runs_of(names):
        one = Histogram(known[begin:end], counts[begin:end], int(known[begin]), int(known[end - 1]))
        yield int(names[begin]), one.bound()


_MOST_VALUES: Final = 10_000
"""So many distinct values are counted exactly; beyond, values are rounded to four significant digits."""
_DIGITS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distinct ``values`` in ascending order and how often each was seen; ``least`` and ``most`` are always exact.

    Values are rounded once there were more than are counted exactly, so that any order of merging gives the same.
    """

    values: Ints
    counts: Ints
    least: int
    most: int
    is_rounded: bool = False

    @classmethod
    def of(cls, values: Ints) -> Histogram:
        """Return the histogram of at least one value."""
        distinct, counts = np.unique(values, return_counts=True)
        return cls(distinct, counts, int(distinct[0]), int(distinct[-1])).bound()

    @classmethod
    def merge(cls, parts: Sequence[Histogram]) -> Histogram:
        """Return the histogram of all values of at least one part."""
        values, places = np.unique(np.concatenate([part.values for part in parts]), return_inverse=True)
        counts = np.bincount(places, weights=np.concatenate([part.counts for part in parts])).astype(np.int64)
        least, most = min(part.least for part in parts), max(part.most for part in parts)
        return cls(values, counts, least, most, any(part.is_rounded for part in parts)).bound()

    @property
    def count(self) -> int:
        """How many values there are."""
        return int(self.counts.sum())

    def rank(self, shares: Sequence[float]) -> list[int]:
        """Return for each share the least value that at least this share of all values does not exceed."""
        so_far = np.cumsum(self.counts)
        wanted = np.ceil(np.array(shares) * so_far[-1])
        return [int(value) for value in self.values[np.searchsorted(so_far, wanted)]]

    def bound(self) -> Histogram:
        """Return it with no more values than are counted exactly."""
        if len(self.values) <= _MOST_VALUES and not self.is_rounded:
            return self
        size = 10.0 ** np.floor(np.log10(np.maximum(np.abs(self.values.astype(np.float64)), 1)))
        step = np.maximum(size / (_DIGITS / 10), 1).astype(np.int64)
        rounded = self.values // step * step
        distinct, places = np.unique(rounded, return_inverse=True)
        counts = np.bincount(places, weights=self.counts).astype(np.int64)
        return Histogram(distinct, counts, self.least, self.most, is_rounded=True)
