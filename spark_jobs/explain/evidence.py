"""Evidence of a whole run about its unexplained rows: measures by key, added up within tasks and then over tasks.

An unexplained row has keys of several families (``process``, ``message``, ``next3``, …). Every verdict, and every span
in which trace messages were sent, adds its measures to the wanted keys it has.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import is_known, is_true, mark
from spark_jobs.explain.keys import KeyedRows, Keys
from spark_jobs.judging.columns import NullableInts, flatten_sides, is_equal, maximum
from spark_jobs.policy.profiles import BATCH_SENT, CALL_WITHOUT_REGION, NO_TRACE_CONTEXT, TRACE_OFF
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.policy.profiles import ByDesign

MOST_MOMENTS: Final = 256
"""The moments of a key with more than these are dropped, to bound what a task returns."""
NEXT_IDS: Final = 8
"""How many of the ids behind a send's own are looked up."""
TRAFFIC_COLUMNS: Final = ("msg_id", "start_ms", "end_ms")
"""The columns of ``EVENT`` that ``collect_traffic`` reads."""

_ROWS_AT_ONCE: Final = 1 << 16
_ADDED_AT_ONCE: Final = 1 << 14
"""Rows whose keys are added up at a time, by groupings that take seven times the memory of their rows."""
_KEYED_AT_ONCE: Final = 1 << 13
"""Rows of the residue whose keys are made at a time: for 100,000 at a time they took 120 MiB, for these 30."""
_EARLIEST: Final = -(1 << 63)
_RULES: Final = (NO_TRACE_CONTEXT, CALL_WITHOUT_REGION, TRACE_OFF)
_COLUMNS: Final = (
    *("kind", "msg_id", "topic", "group", "reason_detail", "event_ms"),
    *(f"native.{name}" for name in ("start_ms", "end_ms", "cost_ms", "batch_size", "attempt_id")),
    *(f"otlp.{name}" for name in ("start_ms", "end_ms", "batch_size", "service", "sent_sampled")),
)
_RULE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    NO_TRACE_CONTEXT.rule: tuple(
        f"{side}.{name}" for side in ("native", "otlp") for name in ("client_host", "group_name")
    ),
    CALL_WITHOUT_REGION.rule: tuple(
        f"otlp.{name}" for name in ("trace_id", "span_id", "parent_span_id", "writer", "record_index")
    ),
}

_LAST: Final = ("call_ms", "call_index", "call_recorded")
"""Of a listener call: where its last message stands, and whether that is recorded."""
_HOW: Final = {
    "keys": "sum",
    "native": "sum",
    "otlp": "sum",
    "following": "sum",  # spans that are sampled as their send was
    "sent": "sum",  # sends that a sampler decided about one by one
    "unseen": "sum",  # those of them without a span
    "linked": "sum",  # sampled sends named by links; deliveries sampled with their send do not sample all sends
    "sampled": "sum",  # links with the sampled flag
    "unsampled": "sum",
    "native_deliveries": "sum",
    "moments": "sum",
    "first_ms": "min",
    **dict.fromkeys(("native_ms", "otlp_ms", "cost_ms"), "max"),
    **dict.fromkeys(_LAST, "last"),
}
"""How each measure of the rows of a key is added up."""
_MEASURES: Final = pa.schema([("key", pa.uint64()), *((name, pa.int64()) for name in _HOW)])
_MOMENTS: Final = pa.schema({"key": pa.uint64(), "at_ms": pa.int64()})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measures by key: counts, the first and last times (null where unknown), and the single moments under a key."""

    measures: pa.Table
    moments: pa.Table


def merge_evidence(parts: Iterable[Evidence]) -> Evidence:
    """Return the evidence of several tasks, or of parts of one, as one with each key once."""
    given = list(parts)
    rows = pa.concat_tables([_MEASURES.empty_table(), *(part.measures for part in given)])
    # Each part has each key once: one alone is not added up again, which would hold it twice.
    measures = rows if len(given) == 1 else pa.concat_tables(map(_add_up_by_key, _split_by_key(rows)))
    moments = pa.concat_tables([_MOMENTS.empty_table(), *(part.moments for part in given)])
    crowded = measures["key"].filter(pc.greater(measures["moments"], pa.scalar(MOST_MOMENTS)))
    if len(crowded):
        moments = moments.filter(pc.invert(pc.is_in(moments["key"], crowded.combine_chunks())))
    return Evidence(measures, moments)


def _split_by_key(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield some rows at a time, those of one key together."""
    parts = np.uint64(-(-len(rows) // _ADDED_AT_ONCE) or 1)
    part_of = np.asarray(rows["key"]) % parts
    for part in range(int(parts)):
        yield rows if parts == 1 else rows.filter(pa.array(part_of == part))


def _add_up_by_key(rows: pa.Table) -> pa.Table:
    if rows["call_ms"].null_count < len(rows):
        rows = rows.sort_by([(name, "ascending") for name in ("key", *_LAST)])
    aggregates: Any = list(_HOW.items())
    grouped = rows.group_by("key", use_threads=False).aggregate(aggregates)
    found = pa.table([grouped["key"], *(grouped["_".join(one)] for one in aggregates)], schema=_MEASURES)
    # The groups come in pieces of one array, and each would be pickled with all of it: five times their size.
    return found.combine_chunks()


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """The keys of unexplained rows, sorted, each once, and the names of the rules that have keys of their own."""

    keys: npt.NDArray[np.uint64]
    rules: frozenset[str]

    @property
    def columns(self) -> list[str]:
        """The columns of ``VERDICT`` that ``collect_evidence`` reads, fields of a side as ``native.topic``."""
        return [*_COLUMNS, *(name for rule in sorted(self.rules) for name in _RULE_COLUMNS.get(rule, ()))]


def find_wanted_keys(residue: pa.Table, policy: Policy) -> WantedKeys:
    """Return the keys of the rows of ``residue`` (``RESIDUE``, some 100,000 rows at most)."""
    rules, found = _rules_of(policy), [np.empty(0, np.uint64)]
    for begin in range(0, len(residue), _KEYED_AT_ONCE):
        rows = KeyedRows(flatten_sides(residue.slice(begin, _KEYED_AT_ONCE)))
        families = _wanted_families(rows, rules).values()
        found.append(np.unique(np.concatenate([keys.values[keys.known] for keys in families])))
    return WantedKeys(np.unique(np.concatenate(found)), rules)


def _rules_of(policy: Policy) -> frozenset[str]:
    return frozenset(rule.rule for rule in _RULES if policy.is_concerned_by(rule))


def _wanted_families(rows: KeyedRows, rules: frozenset[str]) -> dict[str, Keys]:
    names = ("run", "name", "process", "sampler", "service", "service name", "message", "attempt")
    wanted = {**{name: rows.keys(name) for name in names}, "stretch": rows.stretches()}
    if NO_TRACE_CONTEXT.rule in rules:
        wanted |= _wanted_of_sends(rows)
    if CALL_WITHOUT_REGION.rule in rules:
        wanted["span"] = rows.keys("span")
    if TRACE_OFF.rule in rules:
        wanted["delivery"] = rows.keys("delivery")
    return wanted


def _wanted_of_sends(rows: KeyedRows) -> dict[str, Keys]:
    """Return the keys of sends without a native record: the ids behind their own, and the calls that took some."""
    is_sent = rows.is_publish & ~is_true(rows.columns["on_native"])
    has_span = is_sent & is_known(rows.columns["otlp.span_id"])
    over_ms, behind = rows.over_ms("otlp"), _count_ids_behind(rows)
    wanted = {
        f"next{step}": rows.ids(rows.sender, behind + NullableInts.constant(step)).where(has_span)
        for step in range(1, NEXT_IDS + 1)
    }
    for later in (0, 1):
        wanted[f"idless{later}"] = rows.in_slice("idless", "service", over_ms, later).where(has_span)
        wanted[f"end{later}"] = rows.in_slice("end", "sender", over_ms, later).where(has_span)
    named = {"producer": rows.producers("otlp"), "producer group": rows.producer_groups("otlp")}
    return wanted | {name: keys.where(is_sent) for name, keys in named.items()}


def _count_ids_behind(rows: KeyedRows) -> NullableInts:
    """Return how many ids a send generated after this message's own: those of the rest of its batch.

    A batch of the agent's old convention lists its ids in the order of their generation; a ``create`` span does not.
    """
    size, place = rows.number("otlp.batch_size"), rows.number("otlp.record_index")
    alone = NullableInts.constant(0).where(_is_one(size))
    return alone.coalesce((size - NullableInts.constant(1) - place).where(size.exceeds(1)))


def collect_evidence(verdicts: pa.Table, wanted: WantedKeys) -> Evidence:
    """Return what a part of the run adds to the wanted keys.

    ``verdicts`` is ``VERDICT`` with at least ``wanted.columns``, settled rows and residue alike.
    """
    sieve = _Sieve(wanted.keys)
    parts = []
    for begin in range(0, len(verdicts), _ROWS_AT_ONCE):
        rows = KeyedRows(flatten_sides(verdicts.slice(begin, _ROWS_AT_ONCE)))
        parts.append(_add_up(_counted_families(rows, wanted.rules), _measure_rows(rows, wanted.rules), sieve))
    return merge_evidence(parts)


def collect_traffic(events: pa.Table, wanted: WantedKeys) -> Evidence:
    """Return the evidence for ``wanted`` keys in ``events``: ``TRAFFIC_COLUMNS`` of spans that sent trace messages.

    The id of a trace message is one of its process's, and its span shows how long the spans of that process went on.
    """
    rows = KeyedRows(flatten_sides(events.select(TRAFFIC_COLUMNS)))
    over_ms = rows.number("end_ms").coalesce(rows.number("start_ms")).believable()
    families = [(rows.senders(), None), (rows.ids(rows.sender), rows.sender.generated_ms)]
    return _add_up(families, {"otlp_ms": over_ms.to_arrow()}, _Sieve(wanted.keys))


class _Sieve:
    """Finds the wanted keys among many: a table by their low bits turns most others away."""

    def __init__(self, wanted: npt.NDArray[np.uint64]) -> None:
        self._wanted = wanted
        bits = min(max(len(wanted) * 8, 1 << 10).bit_length(), 24)
        self._mask = np.uint64((1 << bits) - 1)
        self._table = mark(1 << bits, wanted & self._mask)

    def find(self, keys: Keys) -> Ints:
        """Return the rows whose key is wanted."""
        rows = np.flatnonzero(keys.known & self._table[keys.values & self._mask])
        places = np.searchsorted(self._wanted, keys.values[rows])
        places[places == len(self._wanted)] = 0
        return rows[self._wanted[places] == keys.values[rows]] if len(rows) else rows


_Counted = tuple[Keys, "NullableInts | None"]
"""Keys, and the moment that each row adds under its key."""


def _counted_families(rows: KeyedRows, rules: frozenset[str]) -> Iterator[_Counted]:
    """Yield the keys to which each verdict adds its measures."""
    sent_sampled = rows.columns["otlp.sent_sampled"]
    yield rows.keys("run").where(is_equal(sent_sampled, value=False)), None
    yield rows.keys("sampler").where(rows.is_publish | is_known(sent_sampled)), None
    yield rows.stretches().where(rows.is_publish), None
    for name in ("name", "process", "service", "service name", "message", "attempt"):
        yield rows.keys(name), None
    if NO_TRACE_CONTEXT.rule in rules:
        yield from _counted_of_sends(rows)
    if CALL_WITHOUT_REGION.rule in rules:
        yield rows.keys("span"), None
    if TRACE_OFF.rule in rules:
        yield rows.keys("delivery").where(rows.is_consume), None


def _counted_of_sends(rows: KeyedRows) -> Iterator[_Counted]:
    for drawn in (rows.sender, rows.listener):
        yield rows.ids(drawn), drawn.generated_ms
    event_ms = rows.number("event_ms").believable()
    is_idless = rows.is_publish & ~is_known(rows.columns["msg_id"])
    yield rows.in_slice("idless", "service", rows.number("otlp.start_ms")).where(is_idless), event_ms
    on_native = is_true(rows.columns["on_native"])
    is_end = is_equal(rows.columns["kind"], Kind.TRANSACTION_END.value) & on_native
    yield rows.in_slice("end", "sender", event_ms).where(is_end), event_ms
    has_host = is_known(rows.columns["native.client_host"]) | is_known(rows.columns["otlp.client_host"])
    yield rows.producers("native", "otlp").where(on_native), None
    yield rows.producer_groups("native", "otlp").where(on_native & ~has_host), None


def _measure_rows(rows: KeyedRows, rules: frozenset[str]) -> dict[str, Column]:
    """Return what each verdict adds to its keys, by the names of ``_MEASURES``."""
    columns = rows.columns
    on_native, on_otlp = is_true(columns["on_native"]), is_true(columns["on_otlp"])
    is_sampled, is_unsampled = (is_equal(columns["otlp.sent_sampled"], value) for value in (True, False))
    follows_send = rows.is_publish | _is_one(rows.number("otlp.batch_size"))
    batch_size = rows.number("native.batch_size")
    sent_alone = rows.is_publish & is_known(columns["native.start_ms"]) & (_is_one(batch_size) | ~batch_size.known)
    counts = {
        "keys": np.ones(rows.rows, bool),
        "native": on_native,
        "otlp": on_otlp,
        "following": on_otlp & follows_send,
        "sent": sent_alone,
        "unseen": sent_alone & ~on_otlp,
        "linked": is_sampled & ~follows_send,
        "sampled": is_sampled,
        "unsampled": is_unsampled,
        "native_deliveries": rows.is_consume & on_native,
    }
    times = {
        "first_ms": rows.number("event_ms").believable(),
        "native_ms": rows.over_ms("native").believable(),
        "otlp_ms": rows.over_ms("otlp").believable(),
        "cost_ms": rows.number("native.cost_ms"),
    }
    measures: dict[str, Column] = {name: pa.array(of.astype(np.int64)) for name, of in counts.items()}
    measures |= {name: of.to_arrow() for name, of in times.items()}
    if CALL_WITHOUT_REGION.rule in rules:
        measures["call_ms"] = pa.array(rows.number("otlp.start_ms").filled(_EARLIEST))
        measures["call_index"] = pa.array(rows.number("otlp.record_index").filled(_EARLIEST))
        measures["call_recorded"] = pa.array((~is_equal(columns["reason_detail"], BATCH_SENT)).astype(np.int64))
    return measures


def _is_one(numbers: NullableInts) -> Mask:
    is_one: Mask = numbers.known & (numbers.values == 1)
    return is_one


def _add_up(families: Iterable[_Counted], measures: Mapping[str, Column], sieve: _Sieve) -> Evidence:
    """Return the sums of ``measures`` under each wanted key."""
    parts = []
    for keys, moments in families:
        rows = sieve.find(keys)
        if not len(rows):
            continue
        found = pa.array(keys.values[rows])
        of_rows = {name: column.take(pa.array(rows)) for name, column in measures.items()}
        collected = _MOMENTS.empty_table()
        if moments is not None:
            some = moments.take(rows)
            of_rows["moments"] = pa.array(some.known.astype(np.int64))
            collected = pa.table([found, some.to_arrow()], schema=_MOMENTS).filter(pa.array(some.known))
        arrays = [
            of_rows.get(field.name, pa.nulls(len(rows), field.type)) for field in _MEASURES if field.name != "key"
        ]
        parts.append(Evidence(_add_up_by_key(pa.table([found, *arrays], schema=_MEASURES)), collected))
    return merge_evidence(parts)


class RowEvidence:
    """The evidence under one key of each unexplained row."""

    def __init__(self, evidence: Evidence, moments: Mapping[int, list[int]], keys: Keys) -> None:
        self._evidence, self._moments, self._keys = evidence, moments, keys
        self._places: Any = pc.index_in(keys.to_arrow(), value_set=evidence.measures["key"].combine_chunks())

    @property
    def is_known(self) -> Mask:
        """Which rows have any evidence."""
        return is_known(self._places)

    def value(self, measure: str) -> NullableInts:
        """Return a measure, null without evidence or a value; ``last_ms`` is of either side."""
        if measure == "last_ms":
            return maximum(self.value("native_ms"), self.value("otlp_ms"))
        return NullableInts.of(self._evidence.measures[measure].combine_chunks().take(self._places))

    def count(self, measure: str) -> Ints:
        """Return a count, 0 without evidence."""
        return self.value(measure).filled(0)

    def has_none(self, measure: str) -> Mask:
        """Return which rows have evidence with a count of 0."""
        is_none: Mask = self.is_known & (self.count(measure) == 0)
        return is_none

    @cached_property
    def _is_crowded(self) -> Mask:
        return self.value("moments").exceeds(MOST_MOMENTS)

    def moments(self, row: int) -> Sequence[int] | None:
        """Return the moments under the key of one row; ``None`` where they were too many to keep."""
        if self._is_crowded[row]:
            return None
        return self._moments.get(int(self._keys.values[row]), ()) if self._keys.known[row] else ()


class ResidueRows(KeyedRows):
    """Some rows of the residue, the evidence for their keys, the policy and the facts of the run's input."""

    def __init__(self, residue: pa.Table, evidence: Evidence, policy: Policy, facts: Facts) -> None:
        super().__init__(flatten_sides(residue))
        self.policy, self.facts = policy, facts
        self._evidence = evidence
        self._known: dict[str, RowEvidence] = {}

    @cached_property
    def families(self) -> dict[str, Keys]:
        """The keys of the rows by family."""
        return _wanted_families(self, _rules_of(self.policy))

    @cached_property
    def _moments(self) -> dict[int, list[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for key, at_ms in zip(*(column.to_pylist() for column in self._evidence.moments.columns), strict=True):
            found[key].append(at_ms)
        return found

    def evidence_of(self, family: str) -> RowEvidence:
        """Return the evidence under one family of keys."""
        if family not in self._known:
            self._known[family] = RowEvidence(self._evidence, self._moments, self.families[family])
        return self._known[family]

    def may_concern(self, rule: ByDesign) -> Mask:
        """Return which keys a rule may concern: if sources mix writers, those without a span of ours."""
        own = self.policy.other is not None and not rule.holds(self.policy.profile.name, self.policy.native_writer)
        return ~(is_equal(self.columns["otlp.writer"], "mqtrace") & own)

    def none(self) -> Mask:
        """Return a mask of no rows."""
        return np.zeros(self.rows, bool)

    def is_alone(self, side: str) -> Mask:
        """Return which keys are on this side only."""
        status = Status.NATIVE_ONLY if side == "native" else Status.OTLP_ONLY
        return is_equal(self.columns["status"], status.value)

    @property
    def is_lost_delivery(self) -> Mask:
        """Which keys are deliveries without a native record."""
        return self.is_alone("otlp") & self.is_consume
