"""The result of a run as plain data: what ``result.json`` holds and every report is rendered from.

Durations are milliseconds, times epoch milliseconds. ``to_json`` writes the public contract (``schema_version`` 1):
keys are only ever added.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_jobs.sums import by, greatest, least
from spark_jobs.taxonomy import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.report.graph import Graph

RESULT_FILE: Final = "result.json"
VERDICTS: Final = "verdicts"
"""The directory of verdicts, below ``--out`` and, as judged, in the work directory."""

MOST_SAMPLES: Final = 400
"""Samples of a report, unless more or fewer are wanted."""

Finding = tuple[str, "str | None"]
"""A status and its reason, if it has one."""
_Row = TypeVar("_Row", bound="Topic | Group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A period of time, both ends included; ``None`` when there was no event."""

    begin_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The writers that a run assumed; ``evidence`` gives the reason for each one that was detected."""

    profile: str = "mqtrace"
    native_writer: str = "mqtrace"
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets ``[first, end)`` read from one partition of a topic; ``source`` is the address of the topic."""

    source: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInputs:
    """The balance of one side.

    ``records_read + exploded + carried = malformed + out_of_scope + half_merged + exact_duplicates + other_duplicates +
    read_again + canonical_keys``, or the run fails.

    Attributes:
        exploded: extra rows made from batch ids and links.
        half_merged: SubBefore and SubAfter halves, or spans of them, merged into one consume.
        carried: events that an earlier run of the history left open.
        read_again: those of ``carried`` that this run read again.
        offsets: the Kafka offsets that were read.
        offsets_without_message: offsets without a message: compacted, a transaction marker, or expired meanwhile.
    """

    sources: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    records_read: int = 0
    exploded: int = 0
    malformed: int = 0
    out_of_scope: int = 0
    half_merged: int = 0
    exact_duplicates: int = 0
    other_duplicates: int = 0
    canonical_keys: int = 0
    truncated_tails: int = 0
    last_event_ms: int | None = None
    offsets: tuple[Offsets, ...] = ()
    offsets_without_message: int = 0
    carried: int = 0
    read_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The balance of both sides."""

    native: SideInputs = field(default_factory=SideInputs)
    otlp: SideInputs = field(default_factory=SideInputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One threshold: ``value op threshold`` must hold; ``outcome`` is a ``taxonomy.Outcome``.

    ``sample`` counts the keys, records or comparisons measured; below ``minimum_sample`` the gate is inconclusive.
    """

    name: str
    op: str
    threshold: float
    value: float | None
    outcome: str
    severity: str = "fail"
    explanation: str = ""
    sample: int | None = None
    minimum_sample: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservation:
    """Whether the balance identity holds, and the equation of each side with its numbers."""

    holds: bool
    native: str
    otlp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Keys that one side lacks, and the 95 % upper bound of the unexplained rate in parts per million."""

    unexplained: int = 0
    attributed: int = 0
    checked: int = 0
    upper_bound_95_ppm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One compared field: its verdicts and the most frequent pairs of differing values."""

    name: str
    verdicts: dict[str, int]
    differing_pairs: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBucket:
    """Keys of each finding that started within one bucket: ten minutes, or as suits the length of the run."""

    start_ms: int
    width_ms: int
    findings: dict[Finding, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One verdict row, or a part of it, as evidence; ``native`` and ``otlp`` are fields of each side, or ``None``."""

    stratum: str = ""
    verdict: dict[str, Any]
    native: dict[str, Any] | None
    otlp: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedSample:
    """One piece of input that could not be mapped, and its position."""

    side: str
    path: str
    line: int | None
    record_index: int | None
    field: str | None
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCost:
    """Spark's part of the run; Spark Connect does not report ``jobs`` and ``stages``."""

    jobs: int | None = 0
    stages: int | None = 0
    wall_seconds: float = 0.0


# -- durations and counts besides the verdicts
AGES: Final = (
    *(("under 1 min", 60_000), ("1 to 5 min", 300_000), ("5 to 15 min", 900_000), ("15 to 60 min", 3_600_000)),
    *(("1 to 24 h", 86_400_000), ("over 24 h", None)),
)
"""Bands of the age of an open event at the end of the data: label, and the age below which it applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of one duration over ``count`` events; ``curve`` is (share of events, duration), fastest first."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One consumer group on one topic."""

    topic: str
    group: str
    messages: int
    deliveries: int
    failures: int
    redeliveries: int
    unmatched: int
    process: Latency
    queue: Latency


GROUP_COUNTS: Final = ("messages", "deliveries", "failures", "redeliveries", "unmatched")
"""The fields of ``Group`` that are counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Sends to one topic that either side recorded; ``unmatched`` are on one side only."""

    topic: str
    sends: int
    failures: int
    unmatched: int
    publish: Latency


def split_heaviest(rows: Sequence[_Row], size: str, at_most: int) -> tuple[list[_Row], list[_Row]]:
    """Return the rows with most unmatched and failed events, then of most ``size``, in their order, and all others."""
    by_weight = sorted(
        range(len(rows)), key=lambda at: (rows[at].unmatched + rows[at].failures, getattr(rows[at], size)), reverse=True
    )
    return [rows[at] for at in sorted(by_weight[:at_most])], [rows[at] for at in by_weight[at_most:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One of the slowest events of a stage."""

    msg_id: str | None
    kind: str
    topic: str | None
    group: str | None
    event_ms: int | None
    took_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One client host and service with settled events that one side lacks.

    ``lost_native`` and ``lost_otlp`` count unexplained losses by the side that lacks them, ``attributed`` explained
    ones; ``first_ms`` and ``last_ms`` are the times of the first and the last of all three.
    """

    host: str | None = field(metadata=by(itemgetter(0)))
    service: str | None = field(default=None, metadata=by(greatest))
    events: int = 0
    lost_native: int = 0
    lost_otlp: int = 0
    attributed: int = 0
    first_ms: int | None = field(default=None, metadata=by(least))
    last_ms: int | None = field(default=None, metadata=by(greatest))

    @property
    def lost(self) -> int:
        """The events that either side lacks."""
        return self.lost_native + self.lost_otlp + self.attributed


# -- the drop ledger
@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One cause of one component: ``counted = attributed + surplus``, in the unit of the counter (messages or spans).

    ``attributed`` explains missing keys of this side and deliveries that lack their native end.
    """

    side: str
    component: str
    cause: str
    service: str | None
    counted: int
    attributed: int
    surplus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledgers of a run; ``attributed`` and ``surplus`` are by the side that lost (``native``, ``otlp``).

    ``lines`` come largest first; ``notes`` are sentences about the limits of the counts.
    """

    files: tuple[str, ...] = ()
    rows_read: int = 0
    attributed: dict[str, int] = field(default_factory=dict)
    surplus: dict[str, int] = field(default_factory=dict)
    lines: tuple[LedgerLine, ...] = ()
    notes: tuple[str, ...] = ()
    over_time: tuple[tuple[int, str, int], ...] = ()  # start of the counter's bucket in epoch ms, side, counted


# -- the result
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The input of every report. Counts are of canonical keys; names with ``records`` or ``spans`` count those."""

    verdict: str
    exit_code: int
    window: Span
    horizon_ms: int | None
    grace_ms: int
    writers: Writers
    inputs: Inputs
    status: dict[str, int]
    status_by_kind: dict[str, dict[str, int]]  # {kind: {status: n}}
    findings: dict[Finding, dict[str, int]]  # of keys in scope: {kind: n}
    reason: dict[str, int]
    reason_detail: dict[str, int]  # {rule: n} behind BY_DESIGN and OUT_OF_SCOPE
    fields: tuple[Field, ...]
    gates: tuple[Gate, ...]
    conservation: Conservation
    loss: dict[str, Loss]  # by the side that lacks the keys: native, otlp
    latency: dict[str, Latency]  # publish, queue, process, end_to_end
    groups: tuple[Group, ...] = ()
    timeline: tuple[TimeBucket, ...] = ()
    samples: tuple[Sample, ...] = ()
    malformed: tuple[MalformedSample, ...] = ()
    engine: str = "spark"  # or local
    spark: SparkCost | None = None  # None with the local engine
    wall_seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)  # {exact | equivalent | conflicting: keys}
    timing: dict[str, int] = field(default_factory=dict)  # {flag: keys}
    ledger: Ledger | None = None
    graph: Graph | None = None
    policy_hash: str | None = None
    doubt: str | None = None  # why the run is inconclusive, and what to do
    topics: tuple[Topic, ...] = ()
    arrival: dict[str, Latency] = field(default_factory=dict)  # native, otlp: end of event to arrival
    slowest: dict[str, tuple[Exemplar, ...]] = field(default_factory=dict)  # by the names of ``latency``
    ageing: dict[str, dict[str, int]] = field(default_factory=dict)  # {IN_FLIGHT | ABANDONED | PENDING: {age: events}}
    instances: tuple[Instance, ...] = ()  # those with losses, most losses first
    instances_left_off: int = 0
    timelines: dict[str, tuple[Sample, ...]] = field(default_factory=dict)  # message id: earliest event first

    run: int | None = None  # number in its history, from 1
    lifecycle: dict[str, int] = field(default_factory=dict)  # {taxonomy.Lifecycle: keys that are or were open}
    open_break_age: dict[str, int] = field(default_factory=dict)  # {lifecycle.AGES: open keys}
    trend: tuple[dict[str, Any], ...] = ()  # the last runs of its history, this one included, oldest first
    unknown_files: frozenset[str] = frozenset()  # among the sources, of neither side

    @property
    def resolved_since_last_run(self) -> int:
        """Keys left open by an earlier run that now have their other half."""
        return self.lifecycle.get(Lifecycle.RESOLVED.value, 0)

    def to_json(self) -> dict[str, Any]:
        """Return ``result.json`` as a dictionary: all but samples, timelines, findings, buckets and files."""
        left_out: dict[str, Any] = {
            "samples": (),
            "timeline": (),
            "timelines": {},
            "findings": {},
            "unknown_files": frozenset(),
        }
        plain = asdict(replace(self, graph=None, **left_out))  # it copies each value
        plain = {name: value for name, value in plain.items() if name not in left_out}
        plain["horizon"] = plain.pop("horizon_ms")
        # older than ``writers``; the contract only adds keys
        plain |= {"profile": self.writers.profile, "native_writer": self.writers.native_writer}
        plain["graph"] = None if self.graph is None else self.graph.to_json()
        plain["resolved_since_last_run"] = self.resolved_since_last_run
        plain["fields"] = {item.name: dict(item.verdicts) for item in self.fields}
        plain["differing_pairs"] = {item.name: item.differing_pairs for item in self.fields if item.differing_pairs}
        return {"schema_version": 1, **plain}

    def dumps(self) -> str:
        """Return ``result.json`` as text: indented, stable keys, non-ASCII kept, NaN as ``null``."""
        return json.dumps(_finite(self.to_json()), indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    """Return ``value`` with ``None`` for every NaN and infinity, which JSON cannot express."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


# -- the balance sheet
_COMING_IN = (
    ("records_read", "Records read"),
    ("exploded", "plus rows made of batch ids and links"),
    ("carried", "plus events an earlier run left open"),
)
_GOING_OUT = (
    ("malformed", "less malformed"),
    ("out_of_scope", "less out of scope"),
    ("half_merged", "less halves folded into one consume"),
    ("exact_duplicates", "less exact duplicates"),
    ("other_duplicates", "less other duplicates"),
    ("read_again", "less carried events read again"),
)


@dataclass(frozen=True, slots=True)
class BalanceLine:
    """One line of the balance sheet; ``name`` is the field of ``SideInputs``, ``total`` marks a sum."""

    name: str
    label: str
    native: int
    otlp: int
    total: bool = False


def balance(inputs: Inputs) -> tuple[BalanceLine, ...]:
    """Return the sheet from records read to canonical keys; the last line, not accounted for, must be 0."""
    entries = [_balance_line(inputs, name, label) for name, label in (*_COMING_IN, *_GOING_OUT)]
    keys = _balance_line(inputs, "canonical_keys", "Canonical keys", total=True)
    return (*entries, keys, BalanceLine("gap", "Not accounted for", gap(inputs.native), gap(inputs.otlp)))


def gap(side: SideInputs) -> int:
    """Return the number of records of ``side`` that the balance misses (negative: counts twice)."""
    coming_in: int = sum(getattr(side, name) for name, _ in _COMING_IN)
    going_out: int = sum(getattr(side, name) for name, _ in _GOING_OUT)
    return coming_in - going_out - side.canonical_keys


def _balance_line(inputs: Inputs, name: str, label: str, *, total: bool = False) -> BalanceLine:
    return BalanceLine(name, label, getattr(inputs.native, name), getattr(inputs.otlp, name), total=total)
