"""Turn a batch of spans into canonical events."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.otlp.aliases import TRACE_TOPIC_NAMES
from bridge.otlp.plain_span import offset_in_id
from spark_jobs.columns import coalesced, each, equal, greater, where
from spark_jobs.normalise.spans import SpanBatch
from spark_jobs.normalise.values import event_batch, folded_id, integer, present, row_hashes
from spark_jobs.schemas import LEDGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.columns import Column

_OF_SPAN: Final = (
    *("path", "line", "trace_id", "span_id", "parent_span_id", "service", "dropped_attributes"),
    *("bad", "expected", "tails"),
)
_OF_ROLE: Final = (
    *("kind", "half", "scope", "writer", "msg_type", "from_transaction_check"),
    *("success", "context_code"),
)
_PRESENT: Final = ("topic", "region_id", "tags", "store_host", "client_host", "transaction_state")
_KEPT_OF_BAD: Final = frozenset({"path", "line", "raw_hash", "bad", *LEDGER.names})
_KAFKA: Final = "kafka"
_NS_PER_MS: Final = 1_000_000
_SAMPLED: Final = 0x01
_REMOTENESS_KNOWN: Final = 0x100
_LINE_ENDS: Final = "\n\r\x85\u2028\u2029"
# What Java finds by ^ConsumeMessageThread_(.+)_\d+$.
_THREAD_OF_GROUP: Final = re.compile(rf"ConsumeMessageThread_([^{_LINE_ENDS}]+)_[0-9]+(\r\n|[{_LINE_ENDS}])?")
_INT, _LONG = pa.int32(), pa.int64()


def event_batches(batches: Iterable[pa.RecordBatch], *, trace_topics: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Turn spans (``READ_SPAN``) into events (``READ_EVENT``), batch by batch.

    A row of the ledger is passed on as it is; an unreadable span becomes one row with its ``bad``. ``trace_topics`` add
    to RocketMQ's own names of trace topics.
    """
    topics = frozenset({*TRACE_TOPIC_NAMES, *trace_topics})
    for batch in batches:
        if batch.num_rows:
            spans = SpanBatch(_hashed(batch), topics)
            yield event_batch(_events(spans), len(spans))


def _hashed(batch: pa.RecordBatch) -> dict[str, Column]:
    """Return the columns of a batch with ``LEDGER`` and ``raw_hash``; a bad span keeps no other fields."""
    columns: dict[str, Column] = {name: pa.nulls(batch.num_rows, pa.int64()) for name in LEDGER.names}
    columns.update(zip(batch.schema.names, batch.columns, strict=True))
    columns["raw_hash"] = row_hashes(columns)
    if columns["bad"].null_count == batch.num_rows:
        return columns
    is_good = columns["bad"].is_null()
    return {name: one if name in _KEPT_OF_BAD else where(is_good, one) for name, one in columns.items()}


def _events(spans: SpanBatch) -> dict[str, Column]:
    """Return the columns of ``READ_EVENT`` that spans fill."""
    messages, roles, has_ended = spans.messages, spans.roles, spans.roles["has_ended"]
    start_ms, end_ms = (_milliseconds(messages.of_span(name)) for name in ("start_ns", "end_ns"))
    dotted, keys = _dotted_place(spans), messages.keys()
    place = _place(spans, dotted)
    own_id = spans.text("msg_id")
    id_source = pc.if_else(messages.own_text("msg_id").is_valid(), "own", "header")
    return {
        **{name: messages.of_span(name) for name in _OF_SPAN},
        **{name: roles[name] for name in _OF_ROLE},
        **{name: present(spans.text(name)) for name in _PRESENT},
        **{name: folded_id(spans.text(name)) for name in ("attempt_id", "transaction_id")},
        **{name: integer(spans.text(name), _INT) for name in ("retry_times", "body_length")},
        # Without an id a message is named by its place, as RocketMQ's own getMsgId and we do.
        "msg_id": folded_id(coalesced(where(dotted.is_null(), own_id), place)),
        "offset_msg_id": folded_id(place),
        # A send that got no answer (one-way, refused) has its id in a captured property only.
        "id_source": where(own_id.is_valid(), id_source),
        "group_name": _group_names(spans),
        "keys": where(greater(pc.list_value_length(keys), 0), keys),
        "start_ms": start_ms,
        "end_ms": where(has_ended, end_ms),
        "cost_ms": where(has_ended, coalesced(integer(spans.text("cost_ms"), _LONG), pc.subtract(end_ms, start_ms))),
        "batch_size": _batch_sizes(spans),
        "links": messages.link_places(),
        "sent_sampled": _sent_sampled(spans),
        "side": where(spans.is_row, pa.repeat("otlp", len(spans))),
        "raw_hash": where(spans.is_row, messages.of_span("raw_hash")),
        "record_index": where(spans.is_row, pa.array(messages.at, _INT)),
        "extra": where(spans.is_row, pa.array(messages.at > 0).cast(_LONG)),
    }


def _milliseconds(nanoseconds: Column) -> Column:
    """Whole milliseconds, cut as Java's clock cuts them; an unset time (0) is null."""
    return where(greater(nanoseconds, 0), pc.divide(nanoseconds, _NS_PER_MS))


def _place(spans: SpanBatch, dotted: Column) -> Column:
    """Return the place of the message: ``topic-partition@offset``, or what the writer calls its physical id."""
    given = spans.text("offset_msg_id")
    if not given.null_count:
        return given
    partition, offset = spans.text("partition"), spans.text("kafka_offset")
    is_place = pc.and_(greater(integer(partition, _INT), -1), greater(integer(offset, _LONG), -1))
    place = pc.binary_join_element_wise(spans.text("topic"), "-", partition, "@", offset, "")
    return coalesced(given, where(is_place, place), dotted)


def _dotted_place(spans: SpanBatch) -> Column:
    ids = spans.text("msg_id")
    likely = pc.and_(equal(spans.text("system"), _KAFKA), pc.match_substring(ids, "."))
    if not pc.any(likely).as_py():
        return pa.nulls(len(ids), pa.string())
    dotted = zip(where(likely, ids).to_pylist(), spans.text("topic").to_pylist(), strict=True)
    return pa.array([offset_in_id(one, topic) for one, topic in dotted], pa.string())


def _group_names(spans: SpanBatch) -> Column:
    """Old names of the Java agent: the group is only in the name of the thread that ran the listener."""
    threads = each(spans.text("thread_name"), _group_of_thread, pa.string())
    return coalesced(present(spans.text("group_name")), where(equal(spans.roles["kind"], "consume"), threads))


def _group_of_thread(name: str) -> str | None:
    found = _THREAD_OF_GROUP.fullmatch(name)
    return None if found is None else found[1]


def _batch_sizes(spans: SpanBatch) -> Column:
    """Return how many messages were in the same call; null where the span leaves it open."""
    together = pa.array(spans.messages.together, _INT)
    counted = where(greater(together, 1), together)
    alone = where(spans.roles["is_alone"], pa.repeat(pa.scalar(1, _INT), len(spans)))
    return coalesced(counted, integer(spans.text("batch_count"), _INT), alone)


def _sent_sampled(spans: SpanBatch) -> Column:
    """Return the sampled flag of the message's link to its send, where the writer sets flags.

    An exported span was sampled: without the bit its writer never sets it (OpenTelemetry for Python), nor on links. The
    bit is off, not just unset, where the flags hold remoteness.
    """
    link = spans.messages.link_flags()
    is_sampled = _has_bit(link, _SAMPLED)
    is_known = pc.or_(is_sampled, _has_bit(link, _REMOTENESS_KNOWN))
    is_honest = _has_bit(spans.messages.of_span("flags"), _SAMPLED)
    is_delivery = equal(spans.roles["kind"], "consume")
    return where(pc.and_(pc.and_(is_delivery, is_honest), is_known), is_sampled)


def _has_bit(flags: Column, bit: int) -> Column:
    return equal(pc.bit_wise_and(flags, bit), bit)
