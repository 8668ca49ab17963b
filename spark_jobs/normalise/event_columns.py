"""This module knows how each column of an event is told from the messages of a batch: one rule per column."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.normalise.aliases import ALIASES, TRACE_TOPIC_PREFIX
from spark_jobs.normalise.columns import Column, coalesced, equal, greater, where
from spark_jobs.normalise.distinct import distinct_rows, each
from spark_jobs.normalise.messages import Messages
from spark_jobs.normalise.roles import Role, Told, role_of
from spark_jobs.normalise.text_rules import folded_id, integer, key_set, present

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["RULES", "Seen"]

_NS_PER_MS: Final = 1_000_000
_KAFKA: Final = "kafka"
_DOTTED_PLACE: Final = re.compile(r"\.([0-9]+)\.([0-9]+)\Z")
_SAMPLED: Final = 0x01
_REMOTENESS_KNOWN: Final = 0x100
_LINE_ENDS: Final = "\n\r\x85\u2028\u2029"
# As Java reads ``^ConsumeMessageThread_(.+)_\d+$``.
_THREAD_OF_GROUP: Final = re.compile(rf"ConsumeMessageThread_([^{_LINE_ENDS}]+)_[0-9]+(\r\n|[{_LINE_ENDS}])?")
_INT, _LONG, _BOOL, _TEXT = pa.int32(), pa.int64(), pa.bool_(), pa.string()
_BITS: Final = {_INT: 32, _LONG: 64}
_FLAGS_OF_ROLES: Final = frozenset({"success", "from_transaction_check", "has_ended", "is_alone"})
_ROLE_TYPES: Final = {name: _BOOL if name in _FLAGS_OF_ROLES else _TEXT for name in Role.__slots__}
_TOLD_TEXTS: Final = tuple(name for name in Told.__slots__ if name in ALIASES)


class Seen:
    """One batch of spans (``schemas.READ_SPAN`` and ``LEDGER``) as the rules see it.

    Attributes:
        messages: what the spans are about.
        text: the column of a field of ``aliases.ALIASES``, as text; looked for once.
        is_row: which messages are rows of spans, good or bad, and not of the ledger.
        roles: a column for each attribute of ``roles.Role``.
    """

    def __init__(self, spans: Mapping[str, Column], trace_topics: Collection[str]) -> None:
        self.messages = Messages(spans)
        self.text = cache(self.messages.text)
        self.is_row = self.messages.of_span("due").is_null()
        rows, like = distinct_rows(self._told(trace_topics))
        roles = [role_of(Told(**row)) for row in rows]
        self.roles = {
            name: pa.array([None if role is None else getattr(role, name) for role in roles], kind).take(like)
            for name, kind in _ROLE_TYPES.items()
        }

    def __len__(self) -> int:
        return len(self.is_row)

    def _told(self, trace_topics: Collection[str]) -> dict[str, Column]:
        def is_traffic(topic: str) -> bool:
            return topic in trace_topics or topic.startswith(TRACE_TOPIC_PREFIX)

        messages = self.messages
        return {
            "is_span": pc.and_(self.is_row, messages.of_span("bad").is_null()),
            "span_kind": messages.of_span("kind"),
            "library": messages.of_span("scope"),
            "status": messages.of_span("status"),
            "is_trace_traffic": each(self.text("topic"), is_traffic, _BOOL),
            "has_id": messages.given_id.is_valid(),
            "linked": pa.array(messages.linked),
            "unnamed": pa.array(messages.unnamed),
            **{name: self.text(name) for name in _TOLD_TEXTS},
        }


def _of_span(name: str, seen: Seen) -> Column:
    return seen.messages.of_span(name)


def _of_role(name: str, seen: Seen) -> Column:
    return seen.roles[name]


def _present(name: str, seen: Seen) -> Column:
    return each(seen.text(name), present, _TEXT)


def _folded(name: str, seen: Seen) -> Column:
    return each(seen.text(name), folded_id, _TEXT)


def _number(name: str, kind: Any, seen: Seen) -> Column:
    return each(seen.text(name), partial(integer, bits=_BITS[kind]), kind)


def _milliseconds(name: str, seen: Seen) -> Column:
    """Whole milliseconds, cut as Java's clock cuts them; an unset time (0) is null."""
    nanoseconds = seen.messages.of_span(name)
    return where(greater(nanoseconds, 0), pc.divide(nanoseconds, _NS_PER_MS))


def _end_ms(seen: Seen) -> Column:
    return where(seen.roles["has_ended"], _milliseconds("end_ns", seen))


def _cost_ms(seen: Seen) -> Column:
    taken = pc.subtract(_milliseconds("end_ns", seen), _milliseconds("start_ns", seen))
    return where(seen.roles["has_ended"], coalesced(_number("cost_ms", _LONG, seen), taken))


def _msg_id(seen: Seen) -> Column:
    """Return the message's id; where it has none it goes by its place, as RocketMQ's own ``getMsgId`` and we do."""
    own = where(_undotted(seen).is_null(), seen.text("msg_id"))
    return each(coalesced(own, _offset_id(seen)), folded_id, _TEXT)


def _offset_msg_id(seen: Seen) -> Column:
    return each(_offset_id(seen), folded_id, _TEXT)


def _offset_id(seen: Seen) -> Column:
    """Return ``topic-partition@offset`` of a Kafka message, or what the writer calls its physical id."""
    given = seen.text("offset_msg_id")
    return coalesced(given, _position(seen), _undotted(seen)) if given.null_count else given


def _position(seen: Seen) -> Column:
    partition, offset = _number("partition", _INT, seen), _number("kafka_offset", _LONG, seen)
    is_whole = pc.and_(greater(partition, -1), greater(offset, -1))
    parts = (seen.text("topic"), "-", seen.text("partition"), "@", seen.text("kafka_offset"))
    return where(is_whole, pc.binary_join_element_wise(*parts, ""))


def _undotted(seen: Seen) -> Column:
    """Return the place in an id ``topic.partition.offset``, as OpenTelemetry's Python instrumentations write it."""
    ids = seen.text("msg_id")
    likely = pc.and_(equal(seen.text("system"), _KAFKA), pc.match_substring(ids, "."))
    if not pc.any(likely).as_py():
        return pa.nulls(len(ids), _TEXT)
    candidates = zip(where(likely, ids).to_pylist(), seen.text("topic").to_pylist(), strict=True)
    return pa.array([_place_in(msg_id, topic) for msg_id, topic in candidates], _TEXT)


def _place_in(msg_id: str | None, topic: str | None) -> str | None:
    if msg_id is None or topic is None or not msg_id.startswith(f"{topic}."):
        return None
    place, found = _DOTTED_PLACE.subn(r"-\1@\2", msg_id)
    return place if found else None


def _group_name(seen: Seen) -> Column:
    """Old names of the Java agent: the group is only in the name of the thread that ran the listener."""
    threads = each(seen.text("thread_name"), _group_of_thread, _TEXT)
    return coalesced(_present("group_name", seen), where(equal(seen.roles["kind"], "consume"), threads))


def _group_of_thread(name: str) -> str | None:
    found = _THREAD_OF_GROUP.fullmatch(name)
    return None if found is None else found[1]


def _keys(seen: Seen) -> Column:
    return pa.array([key_set(keys) for keys in seen.messages.texts("keys").to_pylist()], pa.list_(_TEXT))


def _batch_size(seen: Seen) -> Column:
    """Messages in the same call; null where the span leaves it open."""
    together = pa.array(seen.messages.together, _INT)
    one = where(seen.roles["is_alone"], pa.array(seen.messages.together * 0 + 1, _INT))
    return coalesced(where(greater(together, 1), together), _number("batch_count", _INT, seen), one)


def _links(seen: Seen) -> Column:
    return seen.messages.places()


def _side(seen: Seen) -> Column:
    return where(seen.is_row, pa.array(["otlp"]).take(pa.array(seen.messages.at * 0)))


def _raw_hash(seen: Seen) -> Column:
    return where(seen.is_row, seen.messages.of_span("raw_hash"))


def _record_index(seen: Seen) -> Column:
    return where(seen.is_row, pa.array(seen.messages.at, _INT))


def _extra(seen: Seen) -> Column:
    return where(seen.is_row, pa.array((seen.messages.at > 0).astype(int), _LONG))


def _id_source(seen: Seen) -> Column:
    """A send that got no answer (one-way, refused) carries its id in a captured property only."""
    source = pc.if_else(seen.messages.own_text("msg_id").is_valid(), "own", "header")
    return where(seen.text("msg_id").is_valid(), source)


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
    **_all(
        _of_role, "kind", "half", "scope", "writer", "msg_type", "success", "context_code", "from_transaction_check"
    ),
    **_all(_present, "topic", "region_id", "tags", "store_host", "client_host", "transaction_state"),
    **_all(_folded, "attempt_id", "transaction_id"),
    "side": _side,
    "raw_hash": _raw_hash,
    "record_index": _record_index,
    "extra": _extra,
    "msg_id": _msg_id,
    "offset_msg_id": _offset_msg_id,
    "id_source": _id_source,
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
}
"""How the columns of ``otlp.READ_EVENT`` are told; no span knows of the others."""
