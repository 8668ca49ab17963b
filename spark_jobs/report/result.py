"""The result of a run as plain data: what ``result.json`` holds and every report is rendered from.

``to_json`` writes the public contract (``schema_version`` 1): keys are only ever added.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from spark_jobs.taxonomy import Lifecycle

if TYPE_CHECKING:
    from spark_jobs.report.graph import Graph
    from spark_jobs.report.ledger import Ledger
    from spark_jobs.report.measured import Exemplar, Group, Instance, Latency, Life, Topic

__all__ = [
    "Conservation",
    "Field",
    "Finding",
    "Gate",
    "Inputs",
    "Loss",
    "MalformedSample",
    "Offsets",
    "Result",
    "Sample",
    "SideInputs",
    "Span",
    "SparkCost",
    "TimeBucket",
    "Writers",
]


Finding = tuple[str, "str | None"]
"""A status and its reason, which most have not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time, epoch milliseconds, both ends included; ``None`` when there was nothing to see."""

    begin_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The writers a run was judged by; ``evidence`` says why each that no option named was chosen."""

    profile: str = "mqtrace"
    native_writer: str = "mqtrace"
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets ``[first, end)`` that were read of one partition of a topic; ``source`` is the topic's address."""

    source: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInputs:
    """The books of one side.

    ``records_read + exploded + carried = malformed + out_of_scope + half_merged + exact_duplicates + other_duplicates +
    read_again + canonical_keys``: every record is accounted for or the run fails. ``exploded`` counts the extra rows
    made of batch ids and links, ``half_merged`` the SubBefore/SubAfter halves folded into one consume, ``carried`` the
    events that an earlier run of the history left open, ``read_again`` those of them that were read again.

    Of Kafka topics, ``offsets`` are what was read; at ``offsets_without_message`` of them there was none: compacted
    away, the marker of a transaction, or removed meanwhile.
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
    """Both sides' books."""

    native: SideInputs = field(default_factory=SideInputs)
    otlp: SideInputs = field(default_factory=SideInputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One threshold: ``value op threshold`` must hold; ``outcome`` is pass, warn, fail or inconclusive.

    ``sample`` is on how many keys, records or comparisons it was measured; below ``minimum_sample`` it decides nothing.
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
    """Whether the balance identity holds, and the sentence for each side that says with which numbers."""

    holds: bool
    native: str
    otlp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one side lacks: counts of keys, and the 95 % upper bound of the unexplained rate in parts per million."""

    unexplained: int = 0
    attributed: int = 0
    checked: int = 0
    upper_bound_95_ppm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One compared field: its verdicts, and the most frequent pairs of values that differ."""

    name: str
    verdicts: dict[str, int]
    differing_pairs: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBucket:
    """Keys of each finding that started in one bucket of ten minutes (less for a short run, more for a long one)."""

    start_ms: int
    width_ms: int
    findings: dict[Finding, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One key as evidence: the verdict row, ``native`` and ``otlp`` being each side's own fields or ``None``."""

    stratum: str
    verdict: dict[str, Any]
    native: dict[str, Any] | None
    otlp: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedSample:
    """One piece of input that could not be mapped, and where it stands."""

    side: str
    path: str
    line: int | None
    record_index: int | None
    field: str | None
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCost:
    """What the run cost the cluster; jobs and stages are ``None`` over Spark Connect, which has no count of them."""

    jobs: int | None = 0
    stages: int | None = 0
    wall_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything a report may say. Counts are of canonical keys unless a name says records or spans.

    ``status_by_kind`` is ``{kind: {status: n}}``. ``reason_detail`` is ``{rule: n}``, the rules behind BY_DESIGN and
    OUT_OF_SCOPE. ``duplicates`` is ``{exact | equivalent | conflicting: keys}``, ``timing`` ``{flag: keys}``.
    ``loss["native"]`` is what the **native** side lacks although OTLP has it, ``loss["otlp"]`` the reverse.
    """

    verdict: str
    exit_code: int
    window: Span
    horizon_ms: int | None
    grace_ms: int
    writers: Writers
    inputs: Inputs
    status: dict[str, int]
    status_by_kind: dict[str, dict[str, int]]
    findings: dict[Finding, dict[str, int]]  # of keys in scope: {kind: n}
    reason: dict[str, int]
    reason_detail: dict[str, int]
    fields: tuple[Field, ...]
    gates: tuple[Gate, ...]
    conservation: Conservation
    loss: dict[str, Loss]  # native, otlp
    latency: dict[str, Latency]  # publish, queue, process, end_to_end
    groups: tuple[Group, ...] = ()
    timeline: tuple[TimeBucket, ...] = ()
    samples: tuple[Sample, ...] = ()
    malformed: tuple[MalformedSample, ...] = ()
    engine: str = "spark"  # or local
    spark: SparkCost | None = None  # None with the local engine
    wall_seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    timing: dict[str, int] = field(default_factory=dict)
    ledger: Ledger | None = None  # None when none was given
    graph: Graph | None = None  # who sends what to whom
    policy_hash: str | None = None
    doubt: str | None = None  # why the run can vouch for nothing, and the mend; None when it can
    topics: tuple[Topic, ...] = ()
    arrival: dict[str, Latency] = field(default_factory=dict)  # native, otlp: end of event to arrival
    slowest: dict[str, tuple[Exemplar, ...]] = field(default_factory=dict)  # by the names of ``latency``
    ageing: dict[str, dict[str, int]] = field(default_factory=dict)  # {IN_FLIGHT | ABANDONED | PENDING: {age: events}}
    instances: tuple[Instance, ...] = ()  # those with losses, most losses first
    instances_left_off: int = 0
    lives: dict[str, tuple[Life, ...]] = field(default_factory=dict)  # message id: its events, earliest first

    run: int | None = None  # its number in its history, from 1; None without one
    lifecycle: dict[str, int] = field(default_factory=dict)  # {taxonomy.Lifecycle: keys that are or were open}
    open_break_age: dict[str, int] = field(default_factory=dict)  # {lifecycle.AGES: open keys}
    trend: tuple[dict[str, Any], ...] = ()  # the last runs of its history, oldest first, this one included

    @property
    def resolved_since_last_run(self) -> int:
        """How many keys that an earlier run left open have got their other half."""
        return self.lifecycle.get(Lifecycle.RESOLVED.value, 0)

    def to_json(self) -> dict[str, Any]:
        """Return ``result.json`` as a dictionary; samples, their messages, findings and timeline stay in the report."""
        plain = asdict(self)
        for evidence in ("samples", "timeline", "lives", "findings"):
            plain.pop(evidence)
        plain["horizon"] = plain.pop("horizon_ms")
        # Both stood here before ``writers`` did, and keys are only ever added.
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
    """Return ``value`` with every NaN and infinity replaced by ``None``: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
