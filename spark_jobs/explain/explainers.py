"""Give unexplained rows their reasons: a table of rules tried in order; the first that applies wins.

The kernel leaves a settled one-sided key UNEXPLAINED when its own message does not explain it. For these few rows the
whole run yields evidence (``evidence``), and each rule reads it (``rules``). Budgets come after all of these.

To add a rule, add a row to ``EXPLAINERS`` at its place; the order is that of ``taxonomy.Reason``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import is_known, is_true
from spark_jobs.explain import rules
from spark_jobs.explain.evidence import ResidueRows, find_wanted_keys, merge_evidence
from spark_jobs.judging.columns import NullableInts, bare_names, flatten_sides, is_equal
from spark_jobs.policy.profiles import (
    CALL_WITHOUT_REGION,
    LITE_PULL,
    NAMED_LIKE_TRACE_TOPIC,
    NO_TRACE_CONTEXT,
    PRODUCER_NOT_TRACED,
    TRACE_OFF,
)
from spark_jobs.taxonomy import Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_jobs.columns import Column, Mask
    from spark_jobs.explain.evidence import Evidence, WantedKeys
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.policy.profiles import ByDesign

_ROWS_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Explainer:
    """One row of the table.

    Attributes:
        reason: of the rows that the rule explains.
        details: the ``reason_detail`` that it can give.
        find: the rule: returns for each row the place of its detail, counted from 1; 0 where it does not apply.
        confirm: narrows these rows down to those that the whole residue confirms; ``None`` keeps all.
        excludes: returns the keys of earlier runs that the rule does not explain; ``None`` excludes none.
        design: the rule of the capability matrix, which holds for some writers only; ``None`` holds for all.
    """

    reason: Reason
    details: tuple[str, ...]
    find: Callable[[ResidueRows], rules.Found]
    confirm: Callable[[rules.Residue], Mask] | None = None
    excludes: Callable[[Mapping[str, Column]], Mask] | None = None
    design: ByDesign | None = None

    def apply(self, rows: ResidueRows) -> rules.Found:
        """Return what ``find`` does, for the writers that the rule holds for."""
        if self.design is None:
            return self.find(rows)
        is_concerned = rows.policy.is_concerned_by(self.design)
        return self.find(rows) & rows.may_concern(self.design) if is_concerned else rows.none()


def _by_design(design: ByDesign, find: Callable[[ResidueRows], rules.Found], **options: Any) -> Explainer:
    return Explainer(Reason.BY_DESIGN, (design.rule,), find, design=design, **options)


EXPLAINERS: Final = (
    _by_design(NAMED_LIKE_TRACE_TOPIC, rules.find_named_like_trace_topic, excludes=rules.is_carried),
    _by_design(NO_TRACE_CONTEXT, rules.find_untraced_sends),
    _by_design(
        PRODUCER_NOT_TRACED, rules.find_unrecorded_producers, confirm=rules.confirm_producers, excludes=rules.is_carried
    ),
    _by_design(CALL_WITHOUT_REGION, rules.find_calls_without_region),
    _by_design(TRACE_OFF, rules.find_unrecorded_messages, confirm=rules.confirm_trace_off, excludes=rules.was_lost),
    _by_design(LITE_PULL, rules.find_lite_pull, excludes=rules.was_lost),
    Explainer(Reason.NOT_SAMPLED, rules.UNSAMPLED_SENDS, rules.find_unsampled_sends),
    Explainer(Reason.NOT_SAMPLED, rules.UNSAMPLED, rules.find_unsampled, excludes=rules.was_lost),
    Explainer(Reason.WRITER_SILENT, rules.SILENT, rules.find_silent_writer, excludes=rules.is_carried),
    Explainer(Reason.SHUTDOWN_WINDOW, rules.INSTANCES, rules.find_shutdown_window, excludes=rules.is_carried),
    Explainer(Reason.LATE_BEYOND_RETENTION, rules.BEGINNINGS, rules.find_before_input),
    Explainer(Reason.KEY_DEGRADED, ("partner_without_id",), rules.find_weak_keys, confirm=rules.confirm_weak_keys),
)
"""Every rule but the budgets, in the order they are tried."""


class Reasons(NamedTuple):
    """Of each residue row its reason and its detail, as Arrow columns of strings."""

    reasons: Column
    details: Column


NO_REASONS: Final = Reasons(pa.nulls(0, pa.string()), pa.nulls(0, pa.string()))
"""Those of no row."""


def explain(  # noqa: PLR0913 - two parts of the run's input, two ways to reach all others
    residue: pa.Table,
    *,
    policy: Policy,
    facts: Facts,
    collect: Callable[[WantedKeys], Iterable[Evidence]],
    find_neighbours: Callable[[pa.Table], Sequence[Neighbours]],
    rows_at_once: int = _ROWS_AT_ONCE,
) -> Reasons:
    """Return the reasons of the whole residue.

    ``collect`` and ``find_neighbours`` return the evidence for some keys, and the neighbours of some ``DELIVERIES``, in
    each part of the run. This process holds the evidence of ``rows_at_once`` rows, some 20 keys a row.
    """

    def find(rows: pa.Table) -> pa.Table:  # holds the evidence no longer than it is read
        evidence = merge_evidence(collect(find_wanted_keys(rows, policy)))
        return _apply_rules(ResidueRows(rows, evidence, policy, facts))

    findings = [find(residue.slice(begin, rows_at_once)) for begin in range(0, len(residue), rows_at_once)]
    if not findings:
        return NO_REASONS
    columns = flatten_sides(residue)
    whole = rules.Residue(columns, pa.concat_tables(findings), np.zeros(len(residue), bool), policy)
    wanted = _find_gap_deliveries(whole)
    if len(wanted):
        is_missing = is_in_gap(merge_neighbours(find_neighbours(wanted)))
        missing = wanted["msg_id"].filter(pa.array(is_missing)).combine_chunks()
        whole = whole._replace(in_gap=_is_any_of(columns["msg_id"], missing))
    return _choose_reasons(whole)


def _apply_rules(rows: ResidueRows) -> pa.Table:
    """Return a column of what each rule found, and what the confirmations need beside these.

    That is: the producer that each row names, the first plausible time of its message in its group, and whether the
    run has a delivery of its message in its group at all.
    """
    found = {each.find.__name__: pa.array(np.asarray(each.apply(rows), np.int8)) for each in EXPLAINERS}
    names_producer, has_deliveries = "producer" in rows.families, "delivery" in rows.families
    delivery = rows.evidence_of("delivery") if has_deliveries else None
    return pa.table(
        {
            **found,
            "producer": rows.families["producer"].to_arrow() if names_producer else pa.nulls(rows.rows, pa.uint64()),
            "delivered_ms": delivery.value("first_ms").to_arrow() if delivery else pa.nulls(rows.rows, pa.int64()),
            "is_delivered": pa.array(delivery.is_known if delivery else rows.none()),
        }
    )


def _find_gap_deliveries(residue: rules.Residue) -> pa.Table:
    """Return ``DELIVERIES``: the messages whose neighbours decide whether trace was switched off for them."""
    columns, findings = residue.columns, residue.findings
    groups = bare_names(columns["group"])
    is_several = rules.is_unrecorded_by_several_groups(residue)
    is_lost = is_equal(columns["kind"], Kind.CONSUME.value) & ~is_true(columns["on_native"])
    is_wanted = _is_any_of(columns["msg_id"], columns["msg_id"].filter(pa.array(is_several)))
    is_wanted &= _is_any_of(groups, groups.filter(pa.array(is_lost)))
    rows: Any = pa.array(np.flatnonzero(is_wanted & np.asarray(findings["is_delivered"])))
    arrays = [groups.take(rows), columns["msg_id"].take(rows), findings["delivered_ms"].take(rows)]
    distinct: Any = pa.table(arrays, schema=DELIVERIES).group_by(DELIVERIES.names, use_threads=False).aggregate([])
    wanted: pa.Table = distinct.select(DELIVERIES.names)
    return wanted


def _is_any_of(column: Column, values: Column) -> Mask:
    return is_true(pc.is_in(column, value_set=values)) & is_known(column)


def _choose_reasons(residue: rules.Residue) -> Reasons:
    columns = residue.columns
    reasons = np.array(columns["reason"].to_pylist(), object)
    details = np.array(columns["reason_detail"].to_pylist(), object)
    is_open = np.ones(len(reasons), bool)
    for explainer in EXPLAINERS:
        found = np.asarray(residue.findings[explainer.find.__name__])
        applies = is_open & (found > 0)
        if explainer.excludes is not None:
            applies &= ~explainer.excludes(columns)
        if explainer.confirm is not None and applies.any():
            applies &= explainer.confirm(residue)
        reasons[applies] = explainer.reason.value
        details[applies] = np.array(explainer.details, object)[found[applies] - 1]
        is_open &= ~applies
    return Reasons(pa.array(reasons, pa.string()), pa.array(details, pa.string()))


# -- gaps in a group's messages ---------------------------------------------------------------------------------------
# In an outage the message just before or after one is not recorded either. The line of a group is its messages of one
# hour, in the order of their first deliveries. A task has all deliveries of its messages: each returns the nearest
# neighbours that it has, and the nearest of all are chosen from these.
GAP_COLUMNS: Final = ["kind", "msg_id", "group", "event_ms", "native.start_ms"]
"""The columns of ``VERDICT`` that ``find_neighbours`` reads; any field of ``native`` shows where it is absent."""

_TEXT: Final[Any] = pa.string()
DELIVERIES: Final = pa.schema({"group": _TEXT, "msg_id": _TEXT, "at_ms": pa.int64()})
"""Messages of groups (``bare_names``) whose neighbours are wanted, each once; ``at_ms`` is the first plausible time."""

Neighbours: TypeAlias = "list[tuple[_Message | None, _Message | None]]"
"""Of each wanted delivery the nearest message before and after it; ``None`` where its line has none."""

_Message: TypeAlias = tuple[int, str, bool]
"""Time, id, and whether any of its deliveries in this group has a native record."""

_LINE_MS: Final = 3_600_000


def find_neighbours(verdicts: pa.Table, wanted: pa.Table) -> Neighbours:
    """Return the nearest messages before and after each wanted one, among those of ``verdicts``.

    Args:
        verdicts: ``VERDICT`` with at least ``GAP_COLUMNS``: all rows of each message that has any.
        wanted: ``DELIVERIES``.
    """
    lines: defaultdict[Any, list[_Message]] = defaultdict(list)
    for row in _messages_of(verdicts, wanted).to_pylist():
        lines[_line(row)].append((row["at_ms"] or 0, row["msg_id"], row["recorded"]))
    for line in lines.values():
        line.sort()
    found = []
    for row in wanted.to_pylist():
        line, place = lines.get(_line(row), []), (row["at_ms"] or 0, row["msg_id"])
        before, after = bisect_left(line, (*place, False)), bisect_right(line, (*place, True))
        found.append((line[before - 1] if before else None, line[after] if after < len(line) else None))
    return found


def _line(row: dict[str, Any]) -> tuple[str, int | None]:
    return row["group"], None if row["at_ms"] is None else row["at_ms"] // _LINE_MS


def _messages_of(verdicts: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return ``DELIVERIES`` and ``recorded`` of the groups that are wanted."""
    columns = flatten_sides(verdicts.select(["kind", "msg_id", "group", "event_ms", "native"]))
    groups = bare_names(columns["group"])
    is_wanted = is_true(pc.is_in(groups, value_set=pc.unique(wanted["group"])))
    rows = np.flatnonzero(is_wanted & is_equal(columns["kind"], Kind.CONSUME.value) & is_known(columns["msg_id"]))
    deliveries = pa.table(
        {
            "group": groups.take(pa.array(rows)),
            "msg_id": columns["msg_id"].take(pa.array(rows)),
            "at_ms": NullableInts.of(columns["event_ms"]).take(rows).believable().to_arrow(),
            "recorded": columns["on_native"].take(pa.array(rows)),
        }
    )
    messages = deliveries.group_by(["group", "msg_id"], use_threads=False)
    found: pa.Table = messages.aggregate([("at_ms", "min"), ("recorded", "any")])
    return found.select(["group", "msg_id", "at_ms_min", "recorded_any"]).rename_columns(deliveries.column_names)


def merge_neighbours(parts: Sequence[Neighbours]) -> Neighbours:
    """Return the nearest neighbours in all parts of the run, each searched for the same messages."""
    found = []
    for neighbours in zip(*parts, strict=True):
        before = max((before for before, _ in neighbours if before), default=None)
        after = min((after for _, after in neighbours if after), default=None)
        found.append((before, after))
    return found


def is_in_gap(neighbours: Neighbours) -> Mask:
    """Return which unrecorded messages have a neighbour that is not recorded either."""
    return np.fromiter((any(each is not None and not each[2] for each in pair) for pair in neighbours), bool)
