"""Turn a batch of spans into canonical events, one rule per column."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.otlp.aliases import TRACE_TOPIC_NAMES
from bridge.otlp.plain_span import offset_in_id
from spark_jobs.columns import Column, coalesced, each, equal, greater, where
from spark_jobs.normalise.spans import SpanBatch
from spark_jobs.normalise.values import event_batch, folded_id, integer, present, row_hashes
from spark_jobs.schemas import LEDGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column

__all__ = ["RULES", "event_batches", "id_source", "msg_id", "offset_msg_id"]

_KAFKA: Final = "kafka"


def msg_id(spans: SpanBatch) -> Column:
    """Return the message's id; by default its position, as RocketMQ's own ``getMsgId`` and we do."""
    own = where(_undotted(spans).is_null(), spans.text("msg_id"))
    return folded_id(coalesced(own, _place(spans)))


def offset_msg_id(spans: SpanBatch) -> Column:
    """Return the place of the message: ``topic-partition@offset``, or what the writer calls its physical id."""
    return folded_id(_place(spans))


def id_source(spans: SpanBatch) -> Column:
    """Say where the id stood: a send that got no answer (one-way, refused) has it in a captured property only."""
    source = pc.if_else(spans.messages.own_text("msg_id").is_valid(), "own", "header")
    return where(spans.text("msg_id").is_valid(), source)


def _place(spans: SpanBatch) -> Column:
    given = spans.text("offset_msg_id")
    return coalesced(given, _position(spans), _undotted(spans)) if given.null_count else given


def _position(spans: SpanBatch) -> Column:
    partition, offset = spans.text("partition"), spans.text("kafka_offset")
    is_partition = greater(integer(partition, pa.int32()), -1)
    is_offset = greater(integer(offset, pa.int64()), -1)
    place = pc.binary_join_element_wise(spans.text("topic"), "-", partition, "@", offset, "")
    return where(pc.and_(is_partition, is_offset), place)


def _undotted(spans: SpanBatch) -> Column:
    """Return the place in an id ``topic.partition.offset``, as OpenTelemetry's Python instrumentations write it."""
    ids = spans.text("msg_id")
    likely = pc.and_(equal(spans.text("system"), _KAFKA), pc.match_substring(ids, "."))
    if not pc.any(likely).as_py():
        return pa.nulls(len(ids), pa.string())
    dotted = zip(where(likely, ids).to_pylist(), spans.text("topic").to_pylist(), strict=True)
    return pa.array([offset_in_id(one, topic) for one, topic in dotted], pa.string())


_NS_PER_MS: Final = 1_000_000
_SAMPLED: Final = 0x01
_REMOTENESS_KNOWN: Final = 0x100
_LINE_ENDS: Final = "\n\r\x85\u2028\u2029"
# What Java finds by ^ConsumeMessageThread_(.+)_\d+$.
_THREAD_OF_GROUP: Final = re.compile(rf"ConsumeMessageThread_([^{_LINE_ENDS}]+)_[0-9]+(\r\n|[{_LINE_ENDS}])?")
_INT, _LONG = pa.int32(), pa.int64()


def _of_span(name: str, spans: SpanBatch) -> Column:
    return spans.messages.of_span(name)


def _of_role(name: str, spans: SpanBatch) -> Column:
    return spans.roles[name]


def _present(name: str, spans: SpanBatch) -> Column:
    return present(spans.text(name))


def _folded(name: str, spans: SpanBatch) -> Column:
    return folded_id(spans.text(name))


def _number(name: str, kind: Any, spans: SpanBatch) -> Column:
    return integer(spans.text(name), kind)


def _milliseconds(name: str, spans: SpanBatch) -> Column:
    """Whole milliseconds, cut as Java's clock cuts them; an unset time (0) is null."""
    nanoseconds = spans.messages.of_span(name)
    return where(greater(nanoseconds, 0), pc.divide(nanoseconds, _NS_PER_MS))


def _end_ms(spans: SpanBatch) -> Column:
    return where(spans.roles["has_ended"], _milliseconds("end_ns", spans))


def _cost_ms(spans: SpanBatch) -> Column:
    took = pc.subtract(_milliseconds("end_ns", spans), _milliseconds("start_ns", spans))
    return where(spans.roles["has_ended"], coalesced(_number("cost_ms", _LONG, spans), took))


def _group_name(spans: SpanBatch) -> Column:
    """Old names of the Java agent: the group is only in the name of the thread that ran the listener."""
    threads = each(spans.text("thread_name"), _group_of_thread, pa.string())
    return coalesced(_present("group_name", spans), where(equal(spans.roles["kind"], "consume"), threads))


def _group_of_thread(name: str) -> str | None:
    found = _THREAD_OF_GROUP.fullmatch(name)
    return None if found is None else found[1]


def _keys(spans: SpanBatch) -> Column:
    keys = spans.messages.keys()
    return where(greater(pc.list_value_length(keys), 0), keys)


def _batch_size(spans: SpanBatch) -> Column:
    """Messages in the same call; null where the span leaves it open."""
    together = pa.array(spans.messages.together, _INT)
    counted = where(greater(together, 1), together)
    alone = where(spans.roles["is_alone"], pa.repeat(pa.scalar(1, _INT), len(spans)))
    return coalesced(counted, _number("batch_count", _INT, spans), alone)


def _links(spans: SpanBatch) -> Column:
    return spans.messages.link_places()


def _side(spans: SpanBatch) -> Column:
    return where(spans.is_row, pa.repeat("otlp", len(spans)))


def _raw_hash(spans: SpanBatch) -> Column:
    return where(spans.is_row, spans.messages.of_span("raw_hash"))


def _record_index(spans: SpanBatch) -> Column:
    return where(spans.is_row, pa.array(spans.messages.at, _INT))


def _extra(spans: SpanBatch) -> Column:
    return where(spans.is_row, pa.array(spans.messages.at > 0).cast(_LONG))


def _sent_sampled(spans: SpanBatch) -> Column:
    """What this message's link says of the send it points at, where the writer's flags can be believed.

    A span that was exported was sampled: one without the bit is from a writer that never sets it (OpenTelemetry for
    Python), and its links say as little. The bit is off, not just unset, where the flags know of remoteness.
    """
    link = spans.messages.link_flags()
    is_sampled = _has_bit(link, _SAMPLED)
    is_known = pc.or_(is_sampled, _has_bit(link, _REMOTENESS_KNOWN))
    is_honest = _has_bit(spans.messages.of_span("flags"), _SAMPLED)
    is_delivery = equal(spans.roles["kind"], "consume")
    return where(pc.and_(pc.and_(is_delivery, is_honest), is_known), is_sampled)


def _has_bit(flags: Column, bit: int) -> Column:
    return equal(pc.bit_wise_and(flags, bit), bit)


def _all(rule: Callable[..., Column], *names: str) -> dict[str, Callable[[SpanBatch], Column]]:
    return {name: partial(rule, name) for name in names}


RULES: Final[Mapping[str, Callable[[SpanBatch], Column]]] = {
    **_all(_of_span, "path", "line", "trace_id", "span_id", "parent_span_id", "service", "dropped_attributes"),
    **_all(_of_span, "bad", "expected", "tails"),
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
"""How the columns of ``schemas.READ_EVENT`` are computed; spans say nothing about the others."""


_KEPT_OF_BAD: Final = frozenset({"path", "line", "raw_hash", "bad", *LEDGER.names})


def event_batches(batches: Iterable[pa.RecordBatch], *, trace_topics: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Turn spans into events, batch by batch.

    A row of the ledger goes through as it is; a span that could not be read is one row with its ``bad``.

    Args:
        batches: ``READ_SPAN``, with ``LEDGER`` or without.
        trace_topics: topics whose sends are trace traffic, beside RocketMQ's own names.

    Yields:
        ``READ_EVENT``.
    """
    topics = frozenset({*TRACE_TOPIC_NAMES, *trace_topics})
    for batch in batches:
        if batch.num_rows:
            spans = SpanBatch(_hashed(batch), topics)
            yield event_batch({name: rule(spans) for name, rule in RULES.items()}, len(spans))


def _hashed(batch: pa.RecordBatch) -> dict[str, Column]:
    """Return the columns of a batch with ``LEDGER``, and ``raw_hash``, and without what else a bad span still says."""
    columns: dict[str, Column] = {name: pa.nulls(batch.num_rows, pa.int64()) for name in LEDGER.names}
    columns.update(zip(batch.schema.names, batch.columns, strict=True))
    columns["raw_hash"] = row_hashes(columns)
    if columns["bad"].null_count == batch.num_rows:
        return columns
    is_good = columns["bad"].is_null()
    return {name: one if name in _KEPT_OF_BAD else where(is_good, one) for name, one in columns.items()}
