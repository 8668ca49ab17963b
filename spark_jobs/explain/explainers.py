"""The table of explainers and how they give the residue its reasons: tried in order, the first that applies wins.

The kernel leaves a settled one-sided key UNEXPLAINED when nothing of its own message explains it. That residue is small
in every run worth trusting, so only it is taken further: the whole run answers its questions (``questions``), and each
explainer looks at the answers. What no explainer takes stays UNEXPLAINED. Budgets come after all of these.

To add an explainer, add a row to ``EXPLAINERS`` at its place; the order is that of ``taxonomy.Reason``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.explain.absence import (
    BEGINNINGS,
    INSTANCES,
    SILENT,
    find_before_the_input,
    find_lite_pull,
    find_shutdown,
    find_silent_writer,
)
from spark_jobs.explain.answered import AnsweredRows
from spark_jobs.explain.calls import find_calls_without_region, find_unrecorded_messages, has_several_groups
from spark_jobs.explain.degraded import find_nameless, is_beside_nameless
from spark_jobs.explain.gaps import DELIVERIES
from spark_jobs.explain.keys import Keys
from spark_jobs.explain.sampling import UNSAMPLED, find_unsampled
from spark_jobs.explain.sequence import find_sends_without_producer_record, find_untraced_sends, is_of_untraced_producer
from spark_jobs.judging.columns import NullableInts, equals, flatten_sides, is_known, is_true
from spark_jobs.policy.profiles import (
    CALL_WITHOUT_REGION,
    LITE_PULL,
    NO_TRACE_CONTEXT,
    PRODUCER_NOT_TRACED,
    TRACE_OFF,
)
from spark_jobs.taxonomy import Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from spark_jobs.explain.answers import Answers
    from spark_jobs.judging.columns import Column, Mask
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy

__all__ = ["EXPLAINERS", "Evidence", "Explainer", "Reasons", "Whole", "explain", "find_evidence", "find_gap_questions"]


class Whole(NamedTuple):
    """The whole residue of a run: its columns, the evidence of its rows, and which of them are in a gap."""

    columns: Mapping[str, Column]
    evidence: Evidence
    in_gap: Mask
    policy: Policy


@dataclass(frozen=True, slots=True)
class Explainer:
    """One row of the table.

    Attributes:
        reason: what keys are given.
        details: the ``reason_detail`` that it can give.
        find: returns for each of some rows the place of its detail, counted from 1; 0 where the reason does not apply.
        confirms: of those, the rows that all of the residue together confirms; ``None`` where nothing else counts.
        of_carried: off where absence from this run's input is the evidence: that says nothing of a key that an earlier
            run left open, whose other side that run's input would have held.
    """

    reason: Reason
    details: tuple[str, ...]
    find: Callable[[AnsweredRows], npt.NDArray[np.int8]]
    confirms: Callable[[Whole], Mask] | None = None
    of_carried: bool = True


def _confirm_producers(whole: Whole) -> Mask:
    is_untraced_send = whole.evidence.of(find_untraced_sends) > 0
    return is_of_untraced_producer(whole.evidence.producers, is_untraced_send)


def _confirm_trace_off(whole: Whole) -> Mask:
    return has_several_groups(whole.columns, whole.evidence.of(find_unrecorded_messages) > 0) & ~whole.in_gap


def _confirm_nameless(whole: Whole) -> Mask:
    return is_beside_nameless(whole.columns, whole.policy.widest_tolerance("start_ms"))


def _find_nameless(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    return find_nameless(rows.column("msg_id"), rows.on_native)


EXPLAINERS: Final = (
    Explainer(Reason.BY_DESIGN, (NO_TRACE_CONTEXT.rule,), find_untraced_sends),
    Explainer(
        Reason.BY_DESIGN,
        (PRODUCER_NOT_TRACED.rule,),
        find_sends_without_producer_record,
        confirms=_confirm_producers,
        of_carried=False,
    ),
    Explainer(Reason.BY_DESIGN, (CALL_WITHOUT_REGION.rule,), find_calls_without_region),
    Explainer(Reason.BY_DESIGN, (TRACE_OFF.rule,), find_unrecorded_messages, confirms=_confirm_trace_off),
    Explainer(Reason.BY_DESIGN, (LITE_PULL.rule,), find_lite_pull),
    Explainer(Reason.NOT_SAMPLED, UNSAMPLED, find_unsampled),
    Explainer(Reason.WRITER_SILENT, SILENT, find_silent_writer, of_carried=False),
    Explainer(Reason.SHUTDOWN_WINDOW, INSTANCES, find_shutdown, of_carried=False),
    Explainer(Reason.LATE_BEYOND_RETENTION, BEGINNINGS, find_before_the_input, of_carried=False),
    Explainer(Reason.KEY_DEGRADED, ("partner_without_id",), _find_nameless, confirms=_confirm_nameless),
)
"""Every explainer but the budgets, in the order they are tried."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the answers of the run show of some rows of the residue.

    Attributes:
        found: for each of ``EXPLAINERS`` and each row what its ``find`` returned.
        producers: the producers that sends without a native record name.
        delivered_ms: the first believable time of the row's message in its group.
        is_delivered: whether the run has a delivery of the row's message in its group.
    """

    found: npt.NDArray[np.int8]
    producers: Keys
    delivered_ms: NullableInts
    is_delivered: Mask

    def of(self, find: Callable[[AnsweredRows], npt.NDArray[np.int8]]) -> npt.NDArray[np.int8]:
        """Return what one explainer found."""
        finds = [each.find for each in EXPLAINERS]
        found: npt.NDArray[np.int8] = self.found[finds.index(find)]
        return found


def find_evidence(residue: pa.Table, answers: Answers, *, policy: Policy, facts: Facts) -> Evidence:
    """Return what the run shows of some rows of the residue.

    Args:
        residue: ``RESIDUE``: the rows whose questions were answered.
        answers: of the whole run to the questions of these rows.
        policy: what the run tolerates.
        facts: what is known of the run's whole input.
    """
    rows = AnsweredRows(residue, answers, policy, facts)
    unknown = Keys(np.zeros(rows.rows, np.uint64), rows.none())
    delivery = rows.hear("delivery") if rows.holds(TRACE_OFF) else None
    return Evidence(
        found=np.stack([each.find(rows) for each in EXPLAINERS]),
        producers=rows.asked["producer"] if rows.holds(PRODUCER_NOT_TRACED) else unknown,
        delivered_ms=delivery.value("first_ms") if delivery else NullableInts.constant(rows.rows, None),
        is_delivered=delivery.is_answered if delivery else rows.none(),
    )


def _join(parts: Sequence[Evidence]) -> Evidence:
    return Evidence(
        np.concatenate([part.found for part in parts], axis=1),
        Keys(*(np.concatenate(arrays) for arrays in zip(*(part.producers for part in parts), strict=True))),
        NullableInts(
            np.concatenate([part.delivered_ms.values for part in parts]),
            np.concatenate([part.delivered_ms.known for part in parts]),
        ),
        np.concatenate([part.is_delivered for part in parts]),
    )


def find_gap_questions(residue: pa.Table, evidence: Sequence[Evidence]) -> pa.Table:
    """Return ``gaps.DELIVERIES``: the messages whose neighbours decide whether trace was switched off for them.

    Args:
        residue: ``RESIDUE``, whole.
        evidence: of all its rows, in their order. Without rows in what is returned no gap has to be looked for.
    """
    columns, joined = flatten_sides(residue), _join(evidence)
    is_several = has_several_groups(columns, joined.of(find_unrecorded_messages) > 0)
    is_lost = equals(columns["kind"], Kind.CONSUME.value) & ~is_true(columns["on_native"])
    is_asked = _of_same(columns["msg_id"], is_several) & _of_same(columns["group"], is_lost)
    rows = np.flatnonzero(is_asked & joined.is_delivered)
    table = pa.table(
        {
            "group": columns["group"].take(pa.array(rows)),
            "msg_id": columns["msg_id"].take(pa.array(rows)),
            "at_ms": joined.delivered_ms.take(rows).to_arrow(),
        }
    )
    distinct: pa.Table = table.group_by(DELIVERIES.names, use_threads=False).aggregate([])
    return distinct.select(DELIVERIES.names)


class Reasons(NamedTuple):
    """Of each residue row its reason and its detail, as Arrow columns of strings."""

    reasons: Column
    details: Column


def explain(
    residue: pa.Table,
    evidence: Sequence[Evidence],
    gaps: tuple[pa.Table, Mask] | None = None,
    *,
    policy: Policy,
) -> Reasons:
    """Return the reasons of the residue.

    Args:
        residue: ``RESIDUE``, whole.
        evidence: of all its rows, in their order.
        gaps: what ``find_gap_questions`` returned, and which of these messages are in a gap.
        policy: what the run tolerates.
    """
    columns, joined = flatten_sides(residue), _join(evidence)
    whole = Whole(columns, joined, _is_in_gap(columns, gaps), policy)
    is_carried = is_known(columns["native.first_seen_run"]) | is_known(columns["otlp.first_seen_run"])
    reasons = np.array(columns["reason"].to_pylist(), object)
    details = np.array(columns["reason_detail"].to_pylist(), object)
    is_open = np.ones(len(residue), bool)
    for explainer, found in zip(EXPLAINERS, joined.found, strict=True):
        applies = is_open & (found > 0) & (explainer.of_carried | ~is_carried)
        if explainer.confirms is not None and applies.any():
            applies &= explainer.confirms(whole)
        reasons[applies] = explainer.reason.value
        details[applies] = np.array(explainer.details, object)[found[applies] - 1]
        is_open &= ~applies
    return Reasons(pa.array(reasons, pa.string()), pa.array(details, pa.string()))


def _is_in_gap(columns: Mapping[str, Column], gaps: tuple[pa.Table, Mask] | None) -> Mask:
    """Tell which residue rows are of a message that is in a gap of any group's line."""
    if gaps is None:
        return np.zeros(len(columns["msg_id"]), bool)
    wanted, in_gap = gaps
    missing = wanted["msg_id"].filter(pa.array(in_gap)).combine_chunks()
    return _is_any_of(columns["msg_id"], missing)


def _of_same(column: Column, chosen: Mask) -> Mask:
    """Tell which rows have the value of any of the chosen rows."""
    return _is_any_of(column, column.filter(pa.array(chosen)))


def _is_any_of(column: Column, values: Any) -> Mask:
    return is_true(pc.is_in(column, value_set=values)) & is_known(column)
