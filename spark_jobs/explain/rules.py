"""Why a one-sided key lacks its other side: each rule reads the evidence of the whole run about some unexplained rows.

``find_*`` functions return for each row whether the rule applies, or the place of its detail counted from 1, else 0.
``confirm_*`` functions keep those of the rows that the whole residue bears out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import encode, is_known, is_true, join_codes, map_values
from spark_jobs.explain.evidence import NEXT_IDS
from spark_jobs.explain.keys import COUNTER_VALUES
from spark_jobs.judging.columns import NullableInts, bare_names, either, is_any_of, is_equal
from spark_jobs.taxonomy import CALLED_LOST, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.explain.evidence import ResidueRows, RowEvidence
    from spark_jobs.policy.policy import Policy

Found: TypeAlias = npt.NDArray[np.int8] | npt.NDArray[np.bool_]


class Residue(NamedTuple):
    """The whole residue: its columns, what the rules found of its rows, and which of them are in a gap."""

    columns: Mapping[str, Column]
    findings: pa.Table
    in_gap: Mask
    policy: Policy

    def is_found(self, find: Callable[[ResidueRows], Found]) -> Mask:
        """Return the rows to which a rule applies."""
        return np.asarray(self.findings[find.__name__]) > 0


SILENT: Final = ("topic", "group", "service and topic", "service and group", "service", "process")
"""What may be silent: the details of WRITER_SILENT."""
INSTANCES: Final = ("process", "service")
"""What may have ended: the details of SHUTDOWN_WINDOW."""
BEGINNINGS: Final = ("before_first_native", "before_first_otlp")
"""Which input begins later: the details of LATE_BEYOND_RETENTION."""
UNSAMPLED_SENDS: Final = ("link_flags",)
UNSAMPLED: Final = ("whole_message", "whole_call")
"""What is never created together: the details of NOT_SAMPLED that links of other messages give."""

_SIDES: Final = (("otlp", "native"), ("native", "otlp"))
_ENOUGH: Final = 10  # keys of a service or process before its silence is evidence: one may just be lost
_INSTANT_MS: Final = 1
_SEVERAL: Final = 2  # keys before a name shared by ids is an instance and no accident
_JITTER: Final = NullableInts.constant(20)  # milliseconds between the ends the two hooks of one call see
_SPREADS: Final = 3  # chance keeps within so many standard deviations in 999 of 1 000 stretches
_IDS_PER_KEY: Final = 4  # a message, its context, its share of a trace message, and one to spare
_BUSY_MS: Final = 1_000  # in which not even a busy process generates 65 536 ids
_PROVING_SENDS: Final = 2  # without a context, before their producer is one that does not trace
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


# -- keys that an earlier run left open -------------------------------------------------------------------------------
# This run's input may lack what the earlier run saw around such a key. So a rule whose evidence is that something is
# absent excludes them. If this run reads a key's events again, they have no ``left_as``, and all rules judge the key.
def is_carried(columns: Mapping[str, Column]) -> Mask:
    """Return which keys an earlier run left open and this run does not read again."""
    return is_known(either(columns, "left_as"))


def was_lost(columns: Mapping[str, Column]) -> Mask:
    """Return which of the carried keys an earlier run called lost: it had judged them, with all around them."""
    return is_any_of(either(columns, "left_as"), CALLED_LOST)


# -- sends of producers that do not trace -----------------------------------------------------------------------------
# RocketMQ's client takes message ids, those of its trace messages and one id per trace context from one counter
# of the JVM (MessageClientIDSetter, clients 4.4 to 5.5). A traced send with counter c creates its context before it
# leaves, which takes a later number: a request id that never becomes the id of a message. So when c + 1, generated
# after this send was over, is the id of another message (or of a listener call), this send created no context: native
# trace is off in its producer. Sends without an id and ends of transactions in between take two numbers and one.
# What the rule cannot see stays unexplained: overlapping sends, batches of the agent's new convention, sends after
# which the process generated many ids that no record names. It would excuse a lost record only where the context was
# created late, behind another thread's id (the first send of a JVM), or where an id-less send of an untraced producer,
# or of another instance of the service, followed directly.
class _Send(NamedTuple):
    """A send and the ids around it; milliseconds.

    Attributes:
        next_ms: how long after its own id the next recorded one was generated.
        ids_between: how many ids were generated between the two.
        process_keys: the number of keys of its process in the run; ``None`` where earlier runs had others of them.
        idless_ms: when sends without an id began around its end; ``None`` for too many.
        ends_ms: when transactions ended around its end; ``None`` for too many.
    """

    start_ms: int
    end_ms: int
    next_ms: int
    ids_between: int
    process_keys: int | None
    idless_ms: Sequence[int] | None
    ends_ms: Sequence[int] | None


def find_untraced_sends(rows: ResidueRows) -> Found:
    """Return the sends after which the sequence of ids shows that no trace context was created."""
    found = rows.none()
    for row, send in _sends_with_next_id(rows):
        found[row] = _created_no_context(send)
    return found


def _sends_with_next_id(rows: ResidueRows) -> Iterator[tuple[int, _Send]]:
    nexts = [rows.evidence_of(f"next{step}") for step in range(1, NEXT_IDS + 1)]
    idless, ends = ([rows.evidence_of(f"{what}{later}") for later in (0, 1)] for what in ("idless", "end"))
    start_ms, end_ms = rows.number("otlp.start_ms"), rows.number("otlp.end_ms")
    own_ms, keys = rows.sender.generated_ms.values, rows.evidence_of("process").count("keys")
    was_judged = was_lost(rows.columns)
    is_concerned = np.logical_or.reduce([each.is_known for each in nexts]) & start_ms.known & end_ms.known
    for row in np.flatnonzero(is_concerned & rows.is_alone("otlp") & rows.is_publish).tolist():
        behind = _find_next(nexts, row, int(own_ms[row]))
        if behind is not None:
            times_ms = int(start_ms.values[row]), int(end_ms.values[row])
            process_keys = None if was_judged[row] else int(keys[row])
            yield row, _Send(*times_ms, *behind, process_keys, _collect(idless, row), _collect(ends, row))


def _find_next(nexts: Sequence[RowEvidence], row: int, own_ms: int) -> tuple[int, int] | None:
    for between, evidence in enumerate(nexts):
        later_ms = [moment for moment in evidence.moments(row) or () if moment >= own_ms]
        if later_ms:
            return min(later_ms) - own_ms, between
    return None


def _collect(slices: Sequence[RowEvidence], row: int) -> Sequence[int] | None:
    moments = [evidence.moments(row) for evidence in slices]
    return None if None in moments else [moment for some in moments for moment in some or ()]


def _created_no_context(send: _Send) -> bool:
    if not _LEAST <= send.end_ms - send.start_ms <= min(send.next_ms, _MOST):
        return False
    # Otherwise the counter may have started again in between.
    is_slow = send.process_keys is not None and send.process_keys * _IDS_PER_KEY < COUNTER_VALUES
    if not (is_slow or send.next_ms <= _BUSY_MS) or send.idless_ms is None or send.ends_ms is None:
        return False
    idless, ends = (_count_within(moments, send) for moments in (send.idless_ms, send.ends_ms))
    return send.ids_between == 2 * idless + ends


def _count_within(moments: Sequence[int], send: _Send) -> int:
    until_ms = send.start_ms + send.next_ms
    return sum(send.end_ms <= moment <= until_ms for moment in moments) if until_ms <= _MOST else 0


def find_unrecorded_producers(rows: ResidueRows) -> Found:
    """Return the sends of a producer that the span names and of which the run has no native record at all.

    A native record of the group whose client host is unknown may be of this producer.
    """
    is_recorded = [rows.evidence_of(name).count("native") > 0 for name in ("producer", "producer group")]
    is_sent = rows.is_alone("otlp") & rows.is_publish & rows.families["producer"].known
    found: Mask = is_sent & ~np.logical_or(*is_recorded)
    return found


def confirm_producers(residue: Residue) -> Mask:
    """Return which rows are of a producer that created no trace context for at least ``_PROVING_SENDS`` sends."""
    producers: Column = residue.findings["producer"].combine_chunks()
    values, known = np.asarray(producers.fill_null(0)), is_known(producers)
    keys, counts = np.unique(values[known & residue.is_found(find_untraced_sends)], return_counts=True)
    return known & np.isin(values, keys[counts >= _PROVING_SENDS])


def find_named_like_trace_topic(rows: ResidueRows) -> Found:
    """Return the sends to topics without any record whose name begins like a trace topic that was read."""
    names = tuple(filter(None, rows.facts.trace_topics))
    is_alike = map_values(rows.columns["topic"], lambda topic: topic.startswith(names), pa.bool_())
    is_sent = rows.is_alone("otlp") & rows.is_publish
    return is_sent & is_true(is_alike) & rows.evidence_of("name").has_none("native")


# -- deliveries that RocketMQ does not record -------------------------------------------------------------------------
def find_calls_without_region(rows: ResidueRows) -> Found:
    """Return the deliveries of a call without any native record whose last message was sent in a batch.

    Clients since 5.3.1 group trace records by region, which they take from the last message of the call. Messages that
    were sent in a batch have none, and a record without a region is dropped. Where several messages are the last of a
    call, all of them must have been sent in a batch.
    """
    call = rows.evidence_of("span")
    return rows.is_lost_delivery & call.has_none("native") & call.has_none("call_recorded")


def find_unrecorded_messages(rows: ResidueRows) -> Found:
    """Return the deliveries of messages that no group recorded, in groups that do record others.

    Clients before 5 skip messages with the property ``TRACE_ON=false`` on consume only; no record holds the property.
    So ``confirm_trace_off`` demands several groups, and excludes runs of missing messages.
    """
    records_others = rows.evidence_of("name").count("native") > 0
    return rows.is_lost_delivery & rows.evidence_of("message").has_none("native_deliveries") & records_others


def confirm_trace_off(residue: Residue) -> Mask:
    """Return which of the unrecorded deliveries several groups lack, and are in no gap."""
    return is_unrecorded_by_several_groups(residue) & ~residue.in_gap


def is_unrecorded_by_several_groups(residue: Residue) -> Mask:
    """Return which of the unrecorded deliveries have a message that other groups did not record either."""
    msg_ids, groups = residue.columns["msg_id"], bare_names(residue.columns["group"])
    is_chosen = residue.is_found(find_unrecorded_messages) & is_known(msg_ids) & is_known(groups)
    deliveries = pa.table({"msg_id": msg_ids, "group": groups})
    messages = deliveries.filter(pa.array(is_chosen)).group_by("msg_id", use_threads=False)
    counted = messages.aggregate([("group", "count_distinct")])
    several = counted.filter(pc.greater(counted["group_count_distinct"], pa.scalar(1)))["msg_id"]
    return is_chosen & is_true(pc.is_in(msg_ids, several.combine_chunks()))


def find_lite_pull(rows: ResidueRows) -> Found:
    """Return the deliveries of a group that never has a span and took no time over any message.

    A lite pull consumer runs both hooks one after the other when ``poll`` returns; the agent instruments listeners.
    """
    group = rows.evidence_of("name")
    cost_ms = group.value("cost_ms")
    is_instant = cost_ms.known & (cost_ms.values <= _INSTANT_MS) & _names_any(rows, "otlp", Kind.CONSUME)
    return rows.is_alone("native") & rows.is_consume & group.has_none("otlp") & is_instant


# -- spans that were never created because their message was not sampled ----------------------------------------------
# A single delivery's span is the child of its send and sampled as that was. The span of a batch is a root that decides
# for itself and lists, with their flags, messages that were not sampled. So the flag proves it of some messages, and
# of a sender that it samples at all. Of that sender's other messages only those are excused of which no span exists:
# head sampling takes all of a message's spans or none, a loss takes one here and one there. And only as many as chance
# may leave out: an outage takes all spans for a while, a sampler its share at any time.
def find_unsampled_sends(rows: ResidueRows) -> Found:
    """Return the keys of messages whose send was not sampled, by the flags of a link to it."""
    return _follows_send(rows) & (rows.evidence_of("message").count("unsampled") > 0)


def find_unsampled(rows: ResidueRows) -> Found:
    """Return which of ``UNSAMPLED`` was never created."""
    attempt, sampler = rows.evidence_of("attempt"), rows.evidence_of("sampler")
    is_whole_call = (attempt.count("otlp") == 0) & (attempt.count("keys") > 1)
    of_batch = rows.is_alone("native") & _is_of_batch(rows)
    cases = [
        _follows_send(rows) & (sampler.count("unsampled") > 0) & _is_share_of_sampler(rows),
        of_batch & is_whole_call & (rows.evidence_of("run").count("unsampled") > 0),
    ]
    return _first_case(cases)


def _follows_send(rows: ResidueRows) -> Mask:
    """Return which keys without a span are sampled as their send was, of whose message no span shows that it was."""
    message = rows.evidence_of("message")
    is_unseen = (message.count("following") == 0) & (message.count("sampled") == 0)
    follows: Mask = rows.is_alone("native") & ~_is_of_batch(rows) & is_unseen
    return follows


def _is_of_batch(rows: ResidueRows) -> Mask:
    is_of_batch: Mask = rows.is_consume & (rows.number("native.batch_size").filled(1) > 1)
    return is_of_batch


def _first_case(cases: Sequence[Mask]) -> npt.NDArray[np.int8]:
    """Return of each row the place of the first case that holds, counted from 1; 0 where none does."""
    return np.select(list(cases), list(range(1, len(cases) + 1)), 0).astype(np.int8)


def _is_share_of_sampler(rows: ResidueRows) -> Mask:
    """Return whether no more sends lack their span than chance allows: in this stretch, and of the process in all.

    The links of the sampler, and for a stretch the sends outside of it, are the evidence of its share.
    """
    sampler, stretch = rows.evidence_of("sampler"), rows.evidence_of("stretch")
    linked, unlinked = sampler.count("linked"), sampler.count("unsampled")
    sent, unseen = sampler.count("sent"), sampler.count("unseen")
    here, missing = stretch.count("sent"), stretch.count("unseen")
    elsewhere_seen, elsewhere_unseen = (sent - unseen) - (here - missing), unseen - missing
    overall = unseen <= _most_unsampled(sent, unsampled=unlinked, sampled=linked)
    within = missing <= _most_unsampled(here, unsampled=unlinked + elsewhere_unseen, sampled=linked + elsewhere_seen)
    is_share: Mask = overall & within
    return is_share


def _most_unsampled(sends: Ints, *, unsampled: Ints, sampled: Ints) -> npt.NDArray[np.float64]:
    """Return how many of ``sends`` may go unsampled after so many others did: the beta-binomial's mean and spread."""
    off, on = unsampled + 1.0, sampled + 1.0
    both = off + on
    spread = np.sqrt(sends * off * on * (both + sends) / (both * both * (both + 1)))
    most: npt.NDArray[np.float64] = sends * off / both + _SPREADS * spread
    return most


# -- silent writers, the end of an instance, the late beginning of an input -------------------------------------------
# Silent is a topic (of publishes) or a consumer group of which the other side shows nothing at all while it does show
# others; a service and its topic or group; or a service, a process, that is nowhere on the other side.
# An instance is the process that generated an id (a sender by its messages, a consumer by its request ids), or the
# service where only spans are left. Both exporters send in the order in which calls ended. So what dies with an
# instance is the end of its line: the missing side shows nothing of it that ended later.
def find_silent_writer(rows: ResidueRows) -> Found:
    """Return which of ``SILENT`` is silent on the side that a key lacks.

    Topics and groups count from the policy's ``writer_silent_minimum`` on, the finer ones from ``_ENOUGH``.
    """
    found = np.zeros(rows.rows, np.int8)
    minimum = rows.policy.writer_silent_minimum
    finer = max(minimum, _ENOUGH)
    for own, other in _SIDES:
        instance = "service" if own == "otlp" else "process"
        for kind, name, is_kind in ((Kind.PUBLISH, "topic", rows.is_publish), (Kind.CONSUME, "group", rows.is_consume)):
            is_here = rows.is_alone(own) & is_kind
            is_named = np.full(rows.rows, _names_any(rows, other, kind))
            cases = {
                name: is_named & _is_silent(rows, "name", own, other, minimum),
                f"service and {name}": is_named & _is_silent(rows, "service name", own, other, finer),
                instance: _is_silent(rows, instance, own, other, finer),
            }
            found[is_here] = np.select(list(cases.values()), [1 + SILENT.index(detail) for detail in cases], 0)[is_here]
    return found


def _is_silent(rows: ResidueRows, family: str, own: str, other: str, minimum: int) -> Mask:
    evidence = rows.evidence_of(family)
    return evidence.has_none(other) & (evidence.count(own) >= minimum)


def _names_any(rows: ResidueRows, side: str, kind: Kind) -> bool:
    """Return whether a side names any topic or group at all; otherwise it proves nothing about one of them."""
    return rows.facts.named.get((side, kind.value), 0) > 0


def find_shutdown_window(rows: ResidueRows) -> Found:
    """Return in whose last ``shutdown_window`` a key lies: of ``INSTANCES``.

    The instance must have ended before the horizon: of one that goes on, what is missing may still arrive or is lost.
    """
    horizon_ms = rows.facts.horizon_ms
    if horizon_ms is None:
        return rows.none()
    on_otlp = rows.is_alone("otlp")
    by_service = rows.is_lost_delivery
    # Native records name no service: that none of the group's ended later holds for its processes as well.
    native_ms = rows.evidence_of("name").value("native_ms")
    none_later = _is_at_least(rows.number("otlp.end_ms") + _JITTER, native_ms)
    of_process = rows.is_alone("native") & _is_last_of(rows, "process", "native", horizon_ms)
    of_process |= on_otlp & ~by_service & _is_last_of(rows, "process", "otlp", horizon_ms)
    return _first_case([of_process, by_service & none_later & _is_last_of(rows, "service", "otlp", horizon_ms)])


def _is_last_of(rows: ResidueRows, instance: str, own: str, horizon_ms: int) -> Mask:
    """Return which keys, on side ``own`` only, lie at the end of their instance."""
    evidence, over_ms = rows.evidence_of(instance), rows.over_ms(own)
    window_ms = NullableInts.constant(rows.policy.shutdown_window_ms)
    last_ms, first_ms = evidence.value("last_ms"), evidence.value("first_ms")
    shown_ms = evidence.value("otlp_ms" if own == "native" else "native_ms")
    is_short = _is_at_least(window_ms, last_ms - first_ms)
    shows_nothing_later = _is_at_least(over_ms + _JITTER, shown_ms)
    is_over = last_ms.known & (last_ms.values < horizon_ms)
    at_the_end = _is_at_least(window_ms, last_ms - over_ms)
    is_several = evidence.count("keys") >= _SEVERAL
    return is_several & is_over & at_the_end & np.where(shown_ms.known, shows_nothing_later, is_short)


def find_before_input(rows: ResidueRows) -> Found:
    """Return for each key which of ``BEGINNINGS`` it lies before: the other side's input begins after it.

    The gap exceeds ``late_after``: a late record would still be in the input. Records lost at the very beginning look
    the same. Keys of earlier runs are judged only if this run's input includes all of theirs.
    """
    found = np.zeros(rows.rows, np.int8)
    is_judged = np.full(rows.rows, rows.facts.has_earlier_input) | ~is_known(either(rows.columns, "first_seen_run"))
    for place, (own, other) in enumerate(_SIDES, 1):
        first_ms = rows.facts.first.get(other)
        if first_ms is not None:
            over_ms = rows.over_ms(own)
            is_before = over_ms.known & (over_ms.values < first_ms - rows.policy.late_after_ms)
            found[rows.is_alone(own) & is_before & is_judged] = place
    return found


def _is_at_least(one: NullableInts, other: NullableInts) -> Mask:
    at_least: Mask = one.known & other.known & (one.values >= other.values)
    return at_least


# -- a record, and a span without an id that may be its pair ----------------------------------------------------------
def find_weak_keys(rows: ResidueRows) -> Found:
    """Return the keys that may be half of a pair without a common id: native records, and spans without an id."""
    return ~is_known(rows.columns["msg_id"]) | rows.is_alone("native")


def confirm_weak_keys(residue: Residue) -> Mask:
    """Return which residue keys have at least as many spans without an id around them as native records.

    The spans have the key's topic (or group) and kind and start within the tolerance. With fewer spans than records
    some are certainly lost, and all stay unexplained.
    """
    columns, tolerance_ms = residue.columns, residue.policy.start_tolerance_ms
    is_consume = is_equal(columns["kind"], Kind.CONSUME.value)
    name = bare_names(pc.if_else(pa.array(is_consume), columns["group"], columns["topic"]))
    near_ms = NullableInts.of(columns["event_ms"]).believable()
    is_named = (is_consume | is_equal(columns["kind"], Kind.PUBLISH.value)) & is_known(name)
    rows = np.flatnonzero(is_named & near_ms.known)
    kinds, names = encode(columns["kind"]), encode(name)
    groups = join_codes((kinds.values, kinds.room), (names.values, names.room))[rows]
    order = np.lexsort((near_ms.values[rows], groups))
    found = np.zeros(len(is_named), bool)
    for members in np.split(rows[order], np.flatnonzero(np.diff(groups[order])) + 1):
        times = near_ms.values[members]
        first = np.searchsorted(times, times - tolerance_ms, side="left")
        behind = np.searchsorted(times, times + tolerance_ms, side="right")
        masks = (~is_known(columns["msg_id"])[members], is_true(columns["on_native"])[members])
        sums = (np.concatenate([[0], np.cumsum(mask)]) for mask in masks)
        spans, records = (total[behind] - total[first] for total in sums)
        found[members] = (spans >= records) & (records > 0)
    return found
