"""This module knows how each column of an event is told: one rule per column, asked of a batch."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.distinct import each
from spark_jobs.normalise.columns import Column, coalesced, equal, greater, where
from spark_jobs.normalise.event_ids import id_source, msg_id, offset_msg_id
from spark_jobs.normalise.text_rules import folded_id, integer, present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_jobs.normalise.seen import Seen

__all__ = ["RULES"]

_NS_PER_MS: Final = 1_000_000
_SAMPLED: Final = 0x01
_REMOTENESS_KNOWN: Final = 0x100
_LINE_ENDS: Final = "\n\r\x85\u2028\u2029"
# What Java finds by ^ConsumeMessageThread_(.+)_\d+$.
_THREAD_OF_GROUP: Final = re.compile(rf"ConsumeMessageThread_([^{_LINE_ENDS}]+)_[0-9]+(\r\n|[{_LINE_ENDS}])?")
_INT, _LONG = pa.int32(), pa.int64()


def _of_span(name: str, seen: Seen) -> Column:
    return seen.messages.of_span(name)


def _of_role(name: str, seen: Seen) -> Column:
    return seen.roles[name]


def _present(name: str, seen: Seen) -> Column:
    return present(seen.text(name))


def _folded(name: str, seen: Seen) -> Column:
    return folded_id(seen.text(name))


def _number(name: str, kind: Any, seen: Seen) -> Column:
    return integer(seen.text(name), kind)


def _milliseconds(name: str, seen: Seen) -> Column:
    """Whole milliseconds, cut as Java's clock cuts them; an unset time (0) is null."""
    nanoseconds = seen.messages.of_span(name)
    return where(greater(nanoseconds, 0), pc.divide(nanoseconds, _NS_PER_MS))


def _end_ms(seen: Seen) -> Column:
    return where(seen.roles["has_ended"], _milliseconds("end_ns", seen))


def _cost_ms(seen: Seen) -> Column:
    took = pc.subtract(_milliseconds("end_ns", seen), _milliseconds("start_ns", seen))
    return where(seen.roles["has_ended"], coalesced(_number("cost_ms", _LONG, seen), took))


def _group_name(seen: Seen) -> Column:
    """Old names of the Java agent: the group is only in the name of the thread that ran the listener."""
    threads = each(seen.text("thread_name"), _group_of_thread, pa.string())
    return coalesced(_present("group_name", seen), where(equal(seen.roles["kind"], "consume"), threads))


def _group_of_thread(name: str) -> str | None:
    found = _THREAD_OF_GROUP.fullmatch(name)
    return None if found is None else found[1]


def _keys(seen: Seen) -> Column:
    keys = seen.messages.keys()
    return where(greater(pc.list_value_length(keys), 0), keys)


def _batch_size(seen: Seen) -> Column:
    """Messages in the same call; null where the span leaves it open."""
    together = pa.array(seen.messages.together, _INT)
    counted = where(greater(together, 1), together)
    alone = where(seen.roles["is_alone"], pa.repeat(pa.scalar(1, _INT), len(seen)))
    return coalesced(counted, _number("batch_count", _INT, seen), alone)


def _links(seen: Seen) -> Column:
    return seen.messages.link_places()


def _side(seen: Seen) -> Column:
    return where(seen.is_row, pa.repeat("otlp", len(seen)))


def _raw_hash(seen: Seen) -> Column:
    return where(seen.is_row, seen.messages.of_span("raw_hash"))


def _record_index(seen: Seen) -> Column:
    return where(seen.is_row, pa.array(seen.messages.at, _INT))


def _extra(seen: Seen) -> Column:
    return where(seen.is_row, pa.array(seen.messages.at > 0).cast(_LONG))


def _sent_sampled(seen: Seen) -> Column:
    """What this message's link says of the send it points at, where the writer's flags can be believed.

    A span that was exported was sampled: one without the bit is from a writer that never sets it (OpenTelemetry for
    Python), and its links say as little. The bit is off, not just unset, where the flags know of remoteness.
    """
    link = seen.messages.link_flags()
    is_sampled = _has_bit(link, _SAMPLED)
    is_told = pc.or_(is_sampled, _has_bit(link, _REMOTENESS_KNOWN))
    is_honest = _has_bit(seen.messages.of_span("flags"), _SAMPLED)
    is_delivery = equal(seen.roles["kind"], "consume")
    return where(pc.and_(pc.and_(is_delivery, is_honest), is_told), is_sampled)


def _has_bit(flags: Column, bit: int) -> Column:
    return equal(pc.bit_wise_and(flags, bit), bit)


def _all(rule: Callable[..., Column], *names: str) -> dict[str, Callable[[Seen], Column]]:
    return {name: partial(rule, name) for name in names}


RULES: Final[Mapping[str, Callable[[Seen], Column]]] = {
    **_all(_of_span, "path", "line", "trace_id", "span_id", "parent_span_id", "service", "dropped_attributes"),
    **_all(_of_span, "bad", "due", "tails"),
    **_all(_of_role, "kind", "half", "scope", "writer", "msg_type", "from_transaction_check"),
    **_all(_of_role, "success", "context_code"),
    **_all(_present, "topic", "region_id", "tags", "store_host", "client_host", "transaction_state"),
    **_all(_folded, "attempt_id", "transaction_id"),
    "msg_id": msg_id,
    "offset_msg_id": offset_msg_id,
    "id_source": id_source,
    "group_name": _group_name,
    "keys": _keys,
    "retry_times": partial(_number, "retry_times", _INT),
    "body_length": partial(_number, "body_length", _INT),
    "start_ms": partial(_milliseconds, "start_ns"),
    "end_ms": _end_ms,
    "cost_ms": _cost_ms,
    "batch_size": _batch_size,
    "links": _links,
    "sent_sampled": _sent_sampled,
    "side": _side,
    "raw_hash": _raw_hash,
    "record_index": _record_index,
    "extra": _extra,
}
"""How the columns of ``read_event.READ_EVENT`` are told; of those that are not here no span knows anything."""
