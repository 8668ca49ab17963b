"""Turn a batch of spans into canonical events: their attributes, the messages they are about, the role of each."""

from __future__ import annotations

from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bridge.otlp.roles import (
    ALIASES,
    FACT_FIELDS,
    NAMING_FIELDS,
    TRACE_TOPIC_NAMES,
    TRACE_TOPIC_PREFIX,
    EventRole,
    SpanFacts,
    role_of,
)
from bridge.otlp.values import group_of_thread, offset_in_id
from otel_mqtrace._clock import NS_PER_MS
from spark_jobs.columns import (
    coalesce,
    fields_of,
    is_known,
    make_batch,
    map_distinct,
    map_values,
    offsets_from,
    pc,
    repeat_rows,
    take_rows,
    unnest,
    where,
)
from spark_jobs.normalise.values import first_texts, fold_ids, hash_spans, key_sets_of_json, null_where_absent, to_ints
from spark_jobs.schemas import READ_EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from spark_jobs.columns import Column

_OF_SPAN: Final = (
    *("path", "line", "trace_id", "span_id", "parent_span_id", "service", "dropped_attributes", "raw_hash", "bad"),
)
_OF_ROLE: Final = (
    *("kind", "half", "scope", "writer", "msg_type", "from_transaction_check"),
    *("success", "context_code"),
)
_PRESENT: Final = ("topic", "region_id", "tags", "store_host", "client_host", "transaction_state")
_KEPT_OF_BAD: Final = frozenset({"path", "line", "raw_hash", "bad"})
_KAFKA: Final = "kafka"
_SAMPLED: Final = 0x01
_REMOTENESS_KNOWN: Final = 0x100
_INT, _LONG = pa.int32(), pa.int64()


def event_batches(batches: Iterable[pa.RecordBatch], *, trace_topics: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Turn spans (``SPAN``) into events (``READ_EVENT``), batch by batch.

    An unreadable span becomes one row with its ``bad``. ``trace_topics`` add to RocketMQ's own names of trace topics.
    """
    topics = frozenset({*TRACE_TOPIC_NAMES, *trace_topics})
    for batch in batches:
        if batch.num_rows:
            spans = SpanBatch(_add_hashes(batch), topics)
            yield make_batch(_events(spans), len(spans), READ_EVENT)


def _add_hashes(batch: pa.RecordBatch) -> dict[str, Column]:
    """Return the columns of a batch with ``raw_hash``; a bad span keeps no other fields."""
    columns: dict[str, Column] = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["raw_hash"] = hash_spans(columns)
    if columns["bad"].null_count == batch.num_rows:
        return columns
    rows = pa.array(range(batch.num_rows))
    good = where(columns["bad"].is_null(), rows)  # taken: pyarrow 15 has no if_else of maps
    return {name: one if name in _KEPT_OF_BAD else one.take(good) for name, one in columns.items()}


def _events(spans: SpanBatch) -> dict[str, Column]:
    """Return the columns of ``READ_EVENT`` that spans fill."""
    messages, roles, has_ended = spans.messages, spans.roles, spans.roles["has_ended"]
    edges = (messages.of_span(name) for name in ("start_ns", "end_ns"))
    # cut as Java's clock cuts them; an unset time (0) is null
    start_ms, end_ms = (where(pc.greater(edge, 0), pc.divide(edge, NS_PER_MS)) for edge in edges)
    dotted, keys = _dotted_place(spans), messages.keys()
    place = _place(spans, dotted)
    own_id = spans.text("msg_id")
    id_source = pc.if_else(messages.own_text("msg_id").is_valid(), "own", "header")
    return {
        **{name: messages.of_span(name) for name in _OF_SPAN},
        **{name: roles[name] for name in _OF_ROLE},
        **{name: null_where_absent(spans.text(name)) for name in _PRESENT},
        **{name: fold_ids(spans.text(name)) for name in ("attempt_id", "transaction_id")},
        **{name: to_ints(spans.text(name), _INT) for name in ("retry_times", "body_length")},
        # Without an id a message is named by its place, as RocketMQ's own getMsgId and we do.
        "msg_id": fold_ids(coalesce(where(dotted.is_null(), own_id), place)),
        "offset_msg_id": fold_ids(place),
        # A send that got no answer (one-way, refused) has its id in a captured property only.
        "id_source": where(own_id.is_valid(), id_source),
        "group_name": _group_names(spans),
        "keys": where(pc.greater(pc.list_value_length(keys), 0), keys),
        "start_ms": start_ms,
        "end_ms": where(has_ended, end_ms),
        "cost_ms": where(has_ended, coalesce(to_ints(spans.text("cost_ms"), _LONG), pc.subtract(end_ms, start_ms))),
        "batch_size": _batch_sizes(spans),
        "links": messages.link_places(),
        "sent_sampled": _sent_sampled(spans),
        "side": pa.repeat("otlp", len(spans)),
        "record_index": pa.array(messages.at, _INT),
        "extra": pa.array(messages.at > 0).cast(_LONG),
    }


def _place(spans: SpanBatch, dotted: Column) -> Column:
    """Return the place of the message: ``topic-partition@offset``, or what the writer calls its physical id."""
    given = spans.text("offset_msg_id")
    partition, offset = spans.text("partition"), spans.text("kafka_offset")
    is_place = pc.and_(pc.greater(to_ints(partition, _INT), -1), pc.greater(to_ints(offset, _LONG), -1))
    place = pc.binary_join_element_wise(spans.text("topic"), "-", partition, "@", offset, "")
    return coalesce(given, where(is_place, place), dotted)


def _dotted_place(spans: SpanBatch) -> Column:
    ids = spans.text("msg_id")
    likely = pc.and_(pc.equal(spans.text("system"), _KAFKA), pc.match_substring(ids, "."))
    return map_distinct(offset_in_id, pa.string(), where(likely, ids), spans.text("topic"))


def _group_names(spans: SpanBatch) -> Column:
    """Old names of the Java agent: the group is only in the name of the thread that ran the listener."""
    threads = map_values(spans.text("thread_name"), group_of_thread, pa.string())
    is_consume = pc.equal(spans.roles["kind"], "consume")
    return coalesce(null_where_absent(spans.text("group_name")), where(is_consume, threads))


def _batch_sizes(spans: SpanBatch) -> Column:
    """Return how many messages were in the same call; null where the span leaves it open."""
    together = pa.array(spans.messages.together, _INT)
    counted = where(pc.greater(together, 1), together)
    alone = where(spans.roles["is_alone"], pa.repeat(pa.scalar(1, _INT), len(spans)))
    return coalesce(counted, to_ints(spans.text("batch_count"), _INT), alone)


def _sent_sampled(spans: SpanBatch) -> Column:
    """Return the sampled flag of the message's link to its send, where the writer sets flags.

    An exported span was sampled: without the bit its writer never sets it (OpenTelemetry for Python), nor on links. The
    bit is off, not just unset, where the flags hold remoteness.
    """
    link = spans.messages.link_flags()
    is_sampled = _has_bit(link, _SAMPLED)
    is_known = pc.or_(is_sampled, _has_bit(link, _REMOTENESS_KNOWN))
    is_honest = _has_bit(spans.messages.of_span("flags"), _SAMPLED)
    is_delivery = pc.equal(spans.roles["kind"], "consume")
    return where(pc.and_(pc.and_(is_delivery, is_honest), is_known), is_sampled)


def _has_bit(flags: Column, bit: int) -> Column:
    return pc.equal(pc.bit_wise_and(flags, bit), bit)


_NAMES: Final = sorted({name for alias in ALIASES.values() for name in (*alias.names, *alias.arrays)})
_CODES: Final = {name: code for code, name in enumerate(_NAMES)}
_TEXTS: Final = pa.list_(pa.string())


class Attributes:
    """The attributes of the spans of a batch, or of their links: a column of maps, and texts found in it."""

    def __init__(self, maps: Column) -> None:
        bounds, (keys, self._values) = unnest(maps, maps.keys, maps.items)
        codes: Column = pc.index_in(keys, pa.array(_NAMES, pa.string()))
        known = np.flatnonzero(is_known(codes) & is_known(self._values))
        found = codes.fill_null(0).to_numpy()[known].astype(np.int16)  # which numpy sorts in linear time
        order = np.argsort(found, kind="stable")
        self._places = known[order]
        self._owners = np.repeat(np.arange(len(maps)), np.diff(bounds))[self._places]
        self._starts = np.searchsorted(found[order], np.arange(len(_NAMES) + 1)).tolist()
        self._count = len(maps)

    def text(self, field: str) -> Column:
        """Return a field as text: the first name that is there, else the first text in the first array that is."""
        firsts = (first_texts(column) for column in self._named(ALIASES[field].arrays))
        return self._first([*self._named(ALIASES[field].names), *firsts], pa.string())

    def own_text(self, field: str) -> Column:
        """Return a field as text where the span has its attribute."""
        return self._first(self._named(ALIASES[field].names), pa.string())

    def keys(self) -> Column:
        """Return the keys of the message, the first array that is there, as a set; it may be empty."""
        found = self._named(ALIASES["keys"].arrays)
        return self._first([key_sets_of_json(column) for column in found], _TEXTS)

    def _named(self, names: Iterable[str]) -> list[Column]:
        pieces = (slice(self._starts[code], self._starts[code + 1]) for code in map(_CODES.__getitem__, names))
        return [self._column(piece) for piece in pieces if piece.start < piece.stop]

    def _column(self, piece: slice) -> Column:
        rows = np.full(self._count, -1)
        rows[self._owners[piece]] = self._places[piece]
        return take_rows(self._values, rows)

    def _first(self, columns: list[Column], kind: Any) -> Column:
        return coalesce(*columns) if columns else pa.nulls(self._count, kind)


_JOINED: Final = ","
_PLACE: Final = ["trace_id", "span_id"]


class SpanMessages:
    """The messages of a batch of spans, in order.

    Attributes:
        at: index of each among its span's messages.
        together: number of its span's messages.
        linked: whether its span has links.
        unnamed: whether its span has links and none of them names a message.
        given_id: the id, or ids, on its span.
    """

    def __init__(self, spans: Mapping[str, Column]) -> None:
        self._spans, links = spans, spans["links"]
        bounds, (self._links,) = unnest(links, links.values)
        self._first_link, self._link_count = bounds[:-1], np.diff(bounds)
        self._of_spans, self._of_links = Attributes(spans["attributes"]), Attributes(self._links.field("attributes"))
        self._given = self._of_spans.text("msg_id")
        commas: Column = pc.count_substring(self._given, _JOINED)
        is_naming = self._find_naming()
        ids, named = 1 + commas.fill_null(0).to_numpy().astype(np.int64), self._count_links(is_naming) > 0
        # Another link of a span of ours leads to the application's span, of another writer's to a message without id.
        is_message = is_naming | np.repeat(~is_known(self._of_spans.text("trace_type")), self._link_count)
        by_link = np.where(named & (ids == 1), self._count_links(is_message), 0)
        counts = np.where(by_link > 0, by_link, ids)
        self._span, self.at = repeat_rows(counts)
        self.together = counts[self._span]
        self._is_link = by_link[self._span] > 0
        self._link = np.full(len(self._span), -1)
        self._link[self._is_link] = np.flatnonzero(is_message & np.repeat(by_link > 0, self._link_count))
        self.given_id = self._spread(self._given)
        self.linked = self._link_count[self._span] > 0
        self.unnamed = self.linked & ~named[self._span]

    def _find_naming(self) -> NDArray[np.bool_]:
        """Return which links name a message."""
        return np.asarray(np.any([is_known(self._of_links.text(field)) for field in NAMING_FIELDS], axis=0))

    def _count_links(self, links: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many of ``links`` each span has."""
        before = np.concatenate([[0], np.cumsum(links)])
        return np.asarray(before[self._first_link + self._link_count] - before[self._first_link])

    def of_span(self, name: str) -> Column:
        """Return a column of the spans, once for each message."""
        return self._spread(self._spans[name])

    def text(self, field: str) -> Column:
        """Return a field as text: from the message's own link first, then from the span."""
        of_span = self._own_ids() if field == "msg_id" else None
        return self._read(methodcaller("text", field), of_span)

    def own_text(self, field: str) -> Column:
        """Return a field as text where link or span has its attribute, not only a captured header."""
        return self._read(methodcaller("own_text", field))

    def keys(self) -> Column:
        """Return the keys of each message as a set; it may be empty."""
        return self._read(Attributes.keys)

    def link_flags(self) -> Column:
        """Return the flags of the message's own link, or of the only one of its span."""
        only = np.where(self._link_count == 1, self._first_link, -1)[self._span]
        return take_rows(self._links.field("flags"), np.where(self._is_link, self._link, only))

    def link_places(self) -> Column:
        """Return the one link of a message that has its own; else the first message of the span has them all."""
        all_links = np.where(self.at == 0, self._link_count[self._span], 0)
        counts = np.where(self._is_link, 1, all_links)
        messages, at = repeat_rows(counts)
        links = pa.array(np.where(self._is_link, self._link, self._first_link[self._span])[messages] + at)
        places = pa.StructArray.from_arrays([self._links.field(name).take(links) for name in _PLACE], _PLACE)
        has_links = self._is_link | (self.at == 0) & is_known(self._spans["links"])[self._span]
        return pa.ListArray.from_arrays(offsets_from(counts), places, mask=pa.array(~has_links))

    def _own_ids(self) -> Column:
        """Return for each message its own one of the ids on its span."""
        split = pc.split_pattern(self._given, _JOINED)
        place = split.offsets.to_numpy()[self._span] + np.where(self._is_link, 0, self.at)
        return split.values.take(pa.array(place, mask=~is_known(self.given_id)))

    def _read(self, field: Callable[[Attributes], Column], of_span: Column | None = None) -> Column:
        """Return a field of the message's own link, else of its span, where it is ``of_span`` if that is given."""
        if of_span is None:
            of_span = self._spread(field(self._of_spans))
        return coalesce(take_rows(field(self._of_links), self._link), of_span) if self._is_link.any() else of_span

    def _spread(self, column: Column) -> Column:
        return column.take(pa.array(self._span))


_BOOLEANS: Final = frozenset({"success", "from_transaction_check", "has_ended", "is_alone"})
_ROLE: Final = pa.struct([(name, pa.bool_() if name in _BOOLEANS else pa.string()) for name in EventRole._fields])


class SpanBatch:
    """One batch of spans (``schemas.SPAN``) as the rules see it.

    Attributes:
        messages: what the spans are about.
        text: the column of a field of ``roles.ALIASES``, as text; looked for once.
        roles: a column for each attribute of ``roles.EventRole``.
    """

    def __init__(self, spans: Mapping[str, Column], trace_topics: Collection[str]) -> None:
        self.messages = SpanMessages(spans)
        self.text = cache(self.messages.text)
        facts = self._facts(trace_topics)
        self.roles = fields_of(
            map_distinct(lambda *row: role_of(SpanFacts(**dict(zip(facts, row, strict=True)))), _ROLE, *facts.values())
        )

    def __len__(self) -> int:
        return len(self.messages.at)

    def _facts(self, trace_topics: Collection[str]) -> dict[str, Column]:
        def is_traffic(topic: str) -> bool:
            return topic in trace_topics or topic.startswith(TRACE_TOPIC_PREFIX)

        messages = self.messages
        return {
            "is_span": messages.of_span("bad").is_null(),
            "span_kind": messages.of_span("kind"),
            "library": messages.of_span("scope"),
            "status": messages.of_span("status"),
            "is_trace_traffic": map_values(self.text("topic"), is_traffic, pa.bool_()),
            "has_id": messages.given_id.is_valid(),
            "linked": pa.array(messages.linked),
            "unnamed": pa.array(messages.unnamed),
            **{name: self.text(name) for name in FACT_FIELDS},
        }
