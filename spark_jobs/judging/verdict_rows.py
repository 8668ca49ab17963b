"""Lay out the verdict rows of some keys: compare, decide, and put both sides beside the answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import apply_to_distinct, is_known, map_distinct, take_rows
from spark_jobs.judging.columns import NullableInts, maximum
from spark_jobs.judging.compare import HASH_DIGITS, compare_sides, digest, find_other
from spark_jobs.judging.identity import CONSUME, KINDS
from spark_jobs.judging.merge import AFTER, BEFORE, Sides, count_records
from spark_jobs.judging.plan import Alone
from spark_jobs.judging.status import Decision, KeyEvidence, decide
from spark_jobs.schemas import SIDE_FIELDS, VERDICT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.match import MessageContexts
    from spark_jobs.judging.merge import Input, Merged
    from spark_jobs.judging.plan import Plan

_TIMINGS: Final = ("no_time", "future", "late_both", "late_native", "late_otlp", "on_time")
_DUPLICATES: Final = ("conflicting", "equivalent", "exact", None)


def lay_out(given: Input, keys: Merged, messages: MessageContexts, plan: Plan) -> pa.Table:
    """Return ``VERDICT`` of some keys; ``lifecycle`` is null."""
    sides = Sides(given.events, keys)
    compared = compare_sides(sides, plan)
    msg_ids, topics = take_rows(given.events["msg_id"], keys.any_row), sides.either("topic")
    if topics.null_count:  # native deliveries carry no topic: they have their send's
        topics = pc.coalesce(topics, take_rows(messages.topic, keys.message))
    counts = count_records(keys)
    rules = _find_rules(sides, topics, is_known(msg_ids), messages.sent_in_batch[keys.message], plan)
    start, end = keys.start, keys.end
    event = start.coalesce(end)
    first_seen = pc.min_element_wise(sides.native("first_seen_run"), sides.otlp("first_seen_run"))
    flags = {
        "is_outside": _is_outside(event, plan) & ~is_known(first_seen),  # an earlier run's window had what it left open
        "differs": compared.differs,
        "all_equal": compared.all_equal,
        "is_damaged": np.where(
            sides.on_native, messages.otlp_damaged[keys.message], messages.native_damaged[keys.message]
        ),
        **_describe_records(keys, counts, plan),
    }
    status, reason, detail = _decide(sides.kind, rules, flags, plan)
    is_consume = sides.kind == CONSUME
    queue = (start - messages.sent_end.take(keys.message)).where(is_consume)
    end_to_end = (end - messages.sent.take(keys.message)).where(is_consume)
    columns = {
        "kind": pa.array(KINDS, pa.string()).take(sides.kind),
        "msg_id": msg_ids,
        "topic": topics,
        "group": sides.either("group_name"),
        "attempt_id": sides.either("attempt_id"),
        "retry_times": sides.either("retry_times"),
        "status": status,
        "reason": reason,
        "reason_detail": detail,
        "key_level": pa.array(keys.level, mask=keys.level == 0),
        "timing": pa.array(_TIMINGS).take(_find_timings(keys, sides, plan.late_after_ms)),
        "event_ms": event.to_arrow(),
        **counts,
        "duplicates": _name_duplicates(keys, counts),
        "queue_ms": queue.to_arrow(),
        "end_to_end_ms": end_to_end.to_arrow(),
        "field_verdicts": compared.field_verdicts,
        **_lay_out_sides(sides, plan),
        "lifecycle": pa.nulls(len(sides), pa.string()),
        "first_seen_run": first_seen,
    }
    arrays = [_cast(columns[field.name], field.type) for field in VERDICT]
    return pa.table(arrays, schema=VERDICT)


def _cast(column: Any, kind: Any) -> Column:
    return (pa.array(column) if isinstance(column, np.ndarray) else column).cast(kind)


def _find_timings(keys: Merged, sides: Sides, late_after_ms: int) -> Ints:
    """Return the place in ``_TIMINGS`` of each key: whether its records arrived soon after the event's end."""
    has_arrival, from_future, late = [], [], []
    for times, read in ((keys.native, sides.native), (keys.otlp, sides.otlp)):
        arrival = NullableInts.of(read("arrival_ms"))
        has_arrival.append(arrival.known)
        from_future.append((times.start - arrival).exceeds(late_after_ms))
        late.append((arrival - times.end.coalesce(times.start)).exceeds(late_after_ms))
    unknown = ~np.logical_or(*has_arrival)
    cases = [unknown, np.logical_or(*from_future), np.logical_and(*late), *late]
    return np.select(cases, list(range(len(cases))), len(cases))


def _find_rules(sides: Sides, topics: Column, has_id: Mask, in_batch: Mask, plan: Plan) -> Ints:
    """Return for each one-sided key the number of the by-design rule that holds, from 1; 0 for none."""
    found = np.zeros(len(sides), np.int64)
    rows = np.flatnonzero(sides.on_native != sides.on_otlp)
    if not plan.side_rules or not len(rows):
        return found
    columns = [
        pa.array(KINDS, pa.string()).take(sides.kind[rows]),
        take_rows(topics, rows),
        *(take_rows(sides.either(name), rows) for name in ("group_name", "service", "success")),
        pa.array(is_known(sides.either("offset_msg_id"))[rows]),
        pa.array(has_id[rows]),
        take_rows(sides.either("id_source"), rows),
        pa.array(in_batch[rows]),
        take_rows(sides.either("writer"), rows),
        pa.array(find_other(sides, plan)[rows]),
        pa.array(sides.on_native[rows]),
    ]
    answers, answer_of = apply_to_distinct(partial(_find_rule, plan), *columns)
    found[rows] = np.array(answers, np.int64)[answer_of]
    return found


def _find_rule(plan: Plan, *values: Any) -> int:
    *own, on_native = values
    status = "NATIVE_ONLY" if on_native else "OTLP_ONLY"
    alone = Alone(*own)
    holding = (at for at, rule in enumerate(plan.side_rules, start=1) if rule.status == status and rule.holds(alone))
    return next(holding, 0)


def _describe_records(keys: Merged, counts: Mapping[str, Ints], plan: Plan) -> dict[str, Mask]:
    """Return those fields of ``KeyEvidence`` that the records of each key show."""
    age = NullableInts.constant(plan.data_end_ms) - keys.native.start
    every = (keys.native.start, keys.native.end, keys.otlp.start, keys.otlp.end)
    last = maximum(*(one.believable() for one in every))
    excess = {
        f"{side}_excess": counts[f"{side}_exact_duplicates"] + counts[f"{side}_other_duplicates"] > 0
        for side in ("native", "otlp")
    }
    return excess | {
        "on_native": keys.on_native,
        "on_otlp": keys.on_otlp,
        "has_before": keys.records[:, BEFORE] > 0,
        "has_after": keys.records[:, AFTER] > 0,
        "is_young": age.known & (age.values <= plan.consume_timeout_ms),
        "is_unsettled": np.ones(len(keys), bool) if plan.horizon_ms is None else last.exceeds(plan.horizon_ms),
    }


def _is_outside(event: NullableInts, plan: Plan) -> Mask:
    outside = np.zeros(len(event.values), bool)
    if plan.begin_ms is not None:
        outside |= event.known & (event.values < plan.begin_ms)
    if plan.end_ms is not None:
        outside |= event.exceeds(plan.end_ms)
    return outside


def _decide(kinds: Ints, rules: Ints, flags: Mapping[str, Mask], plan: Plan) -> list[Column]:
    """Return status, reason and detail."""
    names = [None, *(rule.rule for rule in plan.side_rules)]
    decided = map_distinct(
        lambda kind, rule, *known: decide(
            KeyEvidence(kind=KINDS[kind], rule=names[rule], **dict(zip(flags, known, strict=True)))
        ),
        pa.struct([*map(VERDICT.field, Decision._fields)]),
        *map(pa.array, (kinds, rules, *flags.values())),
    )
    return list(decided.flatten())


def _name_duplicates(keys: Merged, counts: Mapping[str, Ints]) -> Column:
    conflicting = (keys.contents > 1).any(axis=1)
    equivalent = ((keys.versions > 1) & (keys.contents == 1)).any(axis=1)
    exact = counts["native_exact_duplicates"] + counts["otlp_exact_duplicates"] > 0
    codes = np.select([conflicting, equivalent, exact], [0, 1, 2], 3)
    return pa.array(_DUPLICATES, pa.string()).take(codes)


def _lay_out_sides(sides: Sides, plan: Plan) -> dict[str, Column]:
    made = {}
    for side, read, on_side in (("native", sides.native, sides.on_native), ("otlp", sides.otlp, sides.on_otlp)):
        columns = {name: read(name) for name in SIDE_FIELDS}
        columns["keys"] = _mask_keys(columns["keys"], plan)
        fields = [pa.field(name, kind) for name, kind in SIDE_FIELDS.items()]
        made[side] = pa.StructArray.from_arrays(list(columns.values()), fields=fields, mask=pa.array(~on_side))
    return made


def _mask_keys(keys: Column, plan: Plan) -> Column:
    if plan.mask_keys == "none":
        return keys
    return map_distinct(lambda some: some and sorted(_hide(key, plan) for key in some), keys.type, keys)


def _hide(key: str, plan: Plan) -> str:
    return plan.mask_text if plan.mask_keys == "mask" else digest(key, plan)[:HASH_DIGITS]
