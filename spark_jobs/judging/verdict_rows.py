"""Lay out the verdict rows of some keys: compare, decide, and put both sides beside the answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import apply_to_distinct, as_rows, is_known, take_rows
from spark_jobs.judging.columns import NullableInts, greatest
from spark_jobs.judging.compare import HASH_DIGITS, compare_sides, digest, find_other
from spark_jobs.judging.identity import CONSUME, KINDS
from spark_jobs.judging.merge import AFTER, BEFORE, Sides, count_records
from spark_jobs.judging.plan import Alone
from spark_jobs.judging.status import Evidence, decide
from spark_jobs.schemas import SIDE_FIELDS, VERDICT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.compare import Compared
    from spark_jobs.judging.match import Messages
    from spark_jobs.judging.merge import Input, Merged
    from spark_jobs.judging.plan import Plan

_TIMINGS: Final = ("no_time", "future", "late_both", "late_native", "late_otlp", "on_time")
_DUPLICATES: Final = ("conflicting", "equivalent", "exact", None)


def lay_out(given: Input, keys: Merged, messages: Messages, plan: Plan) -> pa.Table:
    """Return ``VERDICT`` of some keys; ``lifecycle`` is null."""
    sides = Sides(given.events, keys)
    times = _Times(keys, sides)
    compared = compare_sides(sides, plan)
    msg_ids, topics = take_rows(given.events["msg_id"], keys.any_row), _either(sides, "topic")
    if topics.null_count:  # native deliveries carry no topic: they have their send's
        topics = pc.coalesce(topics, take_rows(messages.topic, keys.message))
    counts = count_records(keys)
    rules = _find_rules(sides, topics, is_known(msg_ids), messages.sent_in_batch[keys.message], plan)
    damaged = np.where(sides.on_native, messages.otlp_damaged[keys.message], messages.native_damaged[keys.message])
    status, reason, detail = _decide(keys, sides, times, compared, counts, damaged, rules, plan)
    is_consume = sides.kind == CONSUME
    queue = (times.own_start - messages.sent_end.take(keys.message)).where(is_consume)
    end_to_end = (times.own_end - messages.sent.take(keys.message)).where(is_consume)
    columns = {
        "kind": pa.array(KINDS, pa.string()).take(as_rows(sides.kind)),
        "msg_id": msg_ids,
        "topic": topics,
        "group": _either(sides, "group_name"),
        "attempt_id": _either(sides, "attempt_id"),
        "retry_times": _either(sides, "retry_times"),
        "status": status,
        "reason": reason,
        "reason_detail": detail,
        "key_level": pa.array(keys.level, mask=keys.level == 0),
        "timing": pa.array(_TIMINGS).take(as_rows(times.timing(plan.late_after_ms))),
        "event_ms": times.event.to_arrow(),
        **counts,
        "duplicates": _name_duplicates(keys, counts),
        "queue_ms": queue.to_arrow(),
        "end_to_end_ms": end_to_end.to_arrow(),
        "field_verdicts": compared.field_verdicts,
        **_lay_out_sides(sides, plan),
        "lifecycle": pa.nulls(len(sides), pa.string()),
        "first_seen_run": times.first_seen.to_arrow(),
    }
    arrays = [_typed(columns[field.name], field.type) for field in VERDICT]
    return pa.table(arrays, schema=VERDICT)


def _typed(column: Any, kind: Any) -> Column:
    return (pa.array(column) if isinstance(column, np.ndarray) else column).cast(kind)


def _either(sides: Sides, name: str) -> Column:
    native = sides.native(name)
    return pc.coalesce(native, sides.otlp(name)) if native.null_count else native


class _Times:
    """When the event of each key was: by either side, when its records arrived, which run first saw it."""

    def __init__(self, keys: Merged, sides: Sides) -> None:
        self.native_start, self.native_end = keys.native.start, keys.native.end
        self.otlp_start, self.otlp_end = keys.otlp.start, keys.otlp.end
        arrivals = sides.native("arrival_ms"), sides.otlp("arrival_ms")
        self.native_arrival, self.otlp_arrival = map(NullableInts.of, arrivals)
        seen = sides.native("first_seen_run"), sides.otlp("first_seen_run")
        self.first_seen = NullableInts.of(pc.min_element_wise(*seen))
        self.own_start = self.native_start.coalesce(self.otlp_start)
        self.own_end = self.native_end.coalesce(self.otlp_end)
        self.event = self.own_start.coalesce(self.own_end)
        every = (self.native_start, self.native_end, self.otlp_start, self.otlp_end)
        self.last = greatest(*(one.believable() for one in every))

    def timing(self, late_after_ms: int) -> Ints:
        """Return the place in ``_TIMINGS`` of each key: whether its records arrived soon after the event's end."""
        native_late = (self.native_arrival - self.native_end.coalesce(self.native_start)).exceeds(late_after_ms)
        otlp_late = (self.otlp_arrival - self.otlp_end.coalesce(self.otlp_start)).exceeds(late_after_ms)
        from_future = (self.native_start - self.native_arrival).exceeds(late_after_ms) | (
            self.otlp_start - self.otlp_arrival
        ).exceeds(late_after_ms)
        unknown = ~(self.native_arrival.known | self.otlp_arrival.known)
        cases = [unknown, from_future, native_late & otlp_late, native_late, otlp_late]
        return np.select(cases, list(range(len(cases))), len(cases))


def _find_rules(sides: Sides, topics: Column, has_id: Mask, in_batch: Mask, plan: Plan) -> Ints:
    """Return for each one-sided key the number of the by-design rule that holds, from 1; 0 for none."""
    found = np.zeros(len(sides), np.int64)
    rows = np.flatnonzero(sides.on_native != sides.on_otlp)
    if not plan.side_rules or not len(rows):
        return found
    columns = [
        pa.array(KINDS, pa.string()).take(as_rows(sides.kind[rows])),
        take_rows(topics, rows),
        *(take_rows(_either(sides, name), rows) for name in ("group_name", "service", "success")),
        pa.array(is_known(_either(sides, "offset_msg_id"))[rows]),
        pa.array(has_id[rows]),
        take_rows(_either(sides, "id_source"), rows),
        pa.array(in_batch[rows]),
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


def _decide(  # noqa: PLR0913, PLR0917 - all that decides about a key
    keys: Merged,
    sides: Sides,
    times: _Times,
    compared: Compared,
    counts: Mapping[str, Ints],
    damaged: Mask,
    rules: Ints,
    plan: Plan,
) -> list[Column]:
    """Return status, reason and detail: ``decide`` is called once per distinct evidence."""
    age = NullableInts.constant(len(sides), plan.data_end_ms) - times.native_start
    flags = {
        "on_native": sides.on_native,
        "on_otlp": sides.on_otlp,
        "is_outside": _is_outside(times, plan),
        "native_excess": counts["native_exact_duplicates"] + counts["native_other_duplicates"] > 0,
        "otlp_excess": counts["otlp_exact_duplicates"] + counts["otlp_other_duplicates"] > 0,
        "differs": compared.differs,
        "all_equal": compared.all_equal,
        "has_before": keys.records[:, BEFORE] > 0,
        "has_after": keys.records[:, AFTER] > 0,
        "is_young": age.known & (age.values <= plan.consume_timeout_ms),
        "is_damaged": damaged,
        "is_unsettled": _is_unsettled(times, plan),
    }
    names = [None, *(rule.rule for rule in plan.side_rules)]
    decisions, like = apply_to_distinct(
        lambda kind, rule, *known: decide(
            Evidence(kind=KINDS[kind], rule=names[rule], **dict(zip(flags, known, strict=True)))
        ),
        *map(pa.array, (sides.kind, rules, *flags.values())),
    )
    columns = zip(*decisions, strict=True) if decisions else ((), (), ())
    return [pa.array(column, pa.string()).take(as_rows(like)) for column in columns]


def _is_outside(times: _Times, plan: Plan) -> Mask:
    outside = np.zeros(len(times.event.values), bool)
    if plan.begin_ms is not None:
        outside |= times.event.known & (times.event.values < plan.begin_ms)
    if plan.end_ms is not None:
        outside |= times.event.exceeds(plan.end_ms)
    return outside & ~times.first_seen.known  # what an earlier run left open was in that run's window


def _is_unsettled(times: _Times, plan: Plan) -> Mask:
    if plan.horizon_ms is None:
        return np.ones(len(times.last.values), bool)
    return times.last.exceeds(plan.horizon_ms)


def _name_duplicates(keys: Merged, counts: Mapping[str, Ints]) -> Column:
    conflicting = (keys.contents > 1).any(axis=1)
    equivalent = ((keys.versions > 1) & (keys.contents == 1)).any(axis=1)
    exact = counts["native_exact_duplicates"] + counts["otlp_exact_duplicates"] > 0
    codes = np.select([conflicting, equivalent, exact], [0, 1, 2], 3)
    return pa.array(_DUPLICATES, pa.string()).take(as_rows(codes))


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
    hidden, like = apply_to_distinct(lambda some: some and sorted(_hide(key, plan) for key in some), keys)
    return pa.array(hidden, keys.type).take(as_rows(like))


def _hide(key: str, plan: Plan) -> str:
    return plan.mask_text if plan.mask_keys == "mask" else digest(key, plan)[:HASH_DIGITS]
