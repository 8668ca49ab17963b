"""Several messages handled together: their record, and the native records and OTLP bytes derived from it."""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.records.handled import outcome_attributes
from otel_mqtrace.records.message import DESCRIBING, MAX_COST_MS, read_origins
from otel_mqtrace.records.span import LOCAL_PARENT, NativeRecord, WritableRecordSpan, context_of
from otel_mqtrace.spans.mapping import compute_cost_ms
from otel_mqtrace.wire.otlp.protobuf import (
    TEXT_VALUE,
    BoundedCache,
    attribute,
    attribute_heads,
    number_attribute,
    tag,
    varint,
)
from otel_mqtrace.wire.otlp.sdk_spans import LINK_FLAGS, SPAN_ID, TRACE_ID, encode_attributes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.records.handled import MessageRow
    from otel_mqtrace.records.plan import Place, Plan


BatchHeaders = list["Sequence[tuple[str, Any]] | None"]
"""The headers of each message."""
Sends = tuple["Sequence[Any]", "Sequence[Any]"]
"""Unique id (absent: empty) and ``traceparent`` of each message."""
_LINK_ATTRIBUTE: Final = 4
_MAX_KEY_BYTES: Final = 16_384  # of one body: below the bound of a trace message's KEYS
_UNUSUAL: Final = DESCRIBING | {semconv.HEADER_DELAY, "tracestate", "baggage"}
_MSG_ID: Final = attribute_heads(_LINK_ATTRIBUTE, semconv.MESSAGING_MESSAGE_ID, TEXT_VALUE)
_OFFSET_ID: Final = attribute_heads(_LINK_ATTRIBUTE, semconv.MQTRACE_OFFSET_MSG_ID, TEXT_VALUE)
_KEY: Final = attribute_heads(_LINK_ATTRIBUTE, semconv.MESSAGING_KAFKA_MESSAGE_KEY, TEXT_VALUE)
_offset: Final = number_attribute(_LINK_ATTRIBUTE, semconv.MESSAGING_KAFKA_OFFSET)
_NUMBERS: Final = {
    name: number_attribute(_LINK_ATTRIBUTE, name)
    for name in (semconv.MQTRACE_STORE_TIME, semconv.MESSAGING_MESSAGE_BODY_SIZE)
}
_LINK: Final[BoundedCache[int, bytes]] = BoundedCache(lambda length: tag(13) + varint(length))
_NO_ORIGIN: Final = bytes(16), bytes(8)
_NONE: Final = type(None)
_name_of: Final = itemgetter(0)
_PLACEHOLDER: Final = "\0"


class HandledBatch(NamedTuple):
    """Messages of one topic from the call that returned them until the application is done with them.

    ``ids`` are trace id and span id, 24 bytes; ``origin`` those of the send of a message that came alone, its parent.
    ``shared`` keeps what its start, its end and every exporter share. ``headers`` are empty where ``sends`` holds what
    counts of them: they are most of a batch's memory, and of what the garbage collector walks through.
    """

    plan: Plan
    ids: bytes
    flags: int
    start_ns: int
    rows: Sequence[MessageRow]
    headers: BatchHeaders
    sends: Sends | None
    shared: dict[str, Any]
    origin: bytes | None = None
    origin_flags: int = 0

    @property
    def parent(self) -> SpanContext | None:
        """The send's span context."""
        return None if self.origin is None else context_of(self.origin, self.origin_flags, remote=True)

    @property
    def trace_state(self) -> None:
        """None: a message that carries one is handled as a span."""

    @property
    def carried(self) -> BatchHeaders:
        """The headers of each message that its span is made from."""
        if self.sends is None:
            return self.headers
        names = semconv.HEADER_UNIQ_KEY, "traceparent"
        return [list(zip(names, values, strict=True)) for values in zip(*self.sends, strict=True)]

    @property
    def request_id(self) -> str:
        """The request id, drawn at the first use."""
        known: str | None = self.shared.get("request_id")
        if known is None:
            known = self.shared.setdefault("request_id", self.plan.new_id())
        return known

    @property
    def columns(self) -> _Columns | None:
        """What native records and links need of all messages; ``None`` where one has a field that neither holds."""
        if "columns" not in self.shared:
            self.shared["columns"] = _make_columns(self)
        columns: _Columns | None = self.shared["columns"]
        return columns


class _Columns(NamedTuple):
    """The messages of a batch field by field; ``origins`` are trace id and span id of their sends.

    ``is_plain``: every message id fits into a native record and its keys.
    """

    partitions: Sequence[int]
    offsets: Sequence[int]
    stored_ms: Sequence[int | None]
    lengths: Sequence[int | None]
    keys: Sequence[bytes | None]
    msg_ids: list[str]
    different_ids: Collection[str]
    origins: list[tuple[bytes, bytes] | None]
    is_plain: bool


def read_uniform(headers: BatchHeaders, retry_header: str) -> Sends | None:
    """Read messages whose headers have the same names in the same order, as one producer's do, and nothing unusual.

    Return ``None`` for other messages.
    """
    names, count = [name for name, _ in headers[0] or ()], len(headers)
    of_all = [each or () for each in headers]
    if len(names) != len(set(names)) or set(map(len, of_all)) != {len(names)}:
        return None
    pairs = dict(zip(names, zip(*of_all, strict=True), strict=True))
    is_uniform = all(list(map(_name_of, each)).count(name) == count for name, each in pairs.items())
    if not is_uniform or not _UNUSUAL.isdisjoint(names) or retry_header in names:
        return None
    unique_ids = [b"" if value is None else value for _, value in pairs.get(semconv.HEADER_UNIQ_KEY, ())]
    traceparents = [value for _, value in pairs.get("traceparent", ())]
    return unique_ids or [b""] * count, traceparents or [None] * count


def _read_mixed(headers: BatchHeaders, retry_header: str) -> Sends | None:
    """Read any messages; ``None`` where one has a header that neither native records nor links hold.

    A header without a value is absent: an earlier one of the name counts.
    """
    by_name = [{name: value for name, value in each or () if value is not None} for each in headers]
    names = set().union(*by_name)
    if not _UNUSUAL.isdisjoint(names) or retry_header in names:
        return None
    return [each.get(semconv.HEADER_UNIQ_KEY, b"") for each in by_name], [each.get("traceparent") for each in by_name]


def _make_columns(batch: HandledBatch) -> _Columns | None:
    plan, rows = batch.plan, batch.rows
    sends = batch.sends or _read_mixed(batch.headers, plan.retry_header)
    if sends is None:
        return None
    unique_ids, traceparents = sends
    partitions, offsets, stored_ms, lengths, keys = zip(*rows, strict=True)
    is_raw = set(map(type, unique_ids)) == {bytes} and set(map(type, traceparents)) <= {bytes, _NONE}
    origins = read_origins(traceparents) if is_raw else None
    if origins is None:
        return None
    msg_ids = b"\n".join(unique_ids).decode("utf-8", "replace").split("\n")
    if len(msg_ids) != len(rows):  # there is such a character in one
        msg_ids = [each.decode("utf-8", "replace") for each in unique_ids]
    if "" in msg_ids:  # a message without an id is named by its place
        msg_ids = [each or f"{plan.topic}-{row[0]}@{row[1]}" for each, row in zip(msg_ids, rows, strict=True)]
    all_ids = "".join(msg_ids)
    is_plain = all_ids.isascii() and all_ids.isprintable()
    return _Columns(partitions, offsets, stored_ms, lengths, keys, msg_ids, dict.fromkeys(msg_ids), origins, is_plain)


class BatchSpan(WritableRecordSpan):
    """The process span of several messages, started (``end_ns`` is ``None``) or ended with success."""

    record: HandledBatch

    def raw_attribute(self, name: str) -> Any:
        """Return an attribute that all messages of the plan have, or their number."""
        if name == semconv.MESSAGING_BATCH_MESSAGE_COUNT:
            return len(self.record.rows)
        return super().raw_attribute(name)

    @property
    def _attributes_and_links(self) -> tuple[dict[str, Any], Sequence[Any]]:
        known = self.__dict__.get("_made")
        if known is None or known[0] != self.end_ns:
            known = self.__dict__["_made"] = self.end_ns, self.record.plan.make_batch(self)
        made: tuple[dict[str, Any], Sequence[Any]] = known[1]
        return made

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes, with the outcome where it has ended."""
        return self._attributes_and_links[0].copy()

    def make_links(self) -> Sequence[Any]:
        """Return a link for each message."""
        return self._attributes_and_links[1]

    @property
    def outcome(self) -> dict[str, Any]:
        """The attributes of its end; none of one that is open."""
        return outcome_attributes(self.record.start_ns, self.end_ns, len(self.record.rows))

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return the ``SubBefore`` or ``SubAfter`` of every message; ``None`` where one must be encoded as a whole."""
        record, end_ns = self.record, self.end_ns
        columns = record.columns if self.is_untouched else None
        if columns is None or not columns.is_plain:
            return None
        different_ids, plan = columns.different_ids, record.plan
        place = plan.place_of(record.rows[0][0])  # no field of these records differs from place to place
        template = place.templates[dialect, end_ns is not None]
        cost = 0 if end_ns is None else compute_cost_ms(record.start_ns, end_ns, len(record.rows))
        if template is None or not 0 <= cost < MAX_COST_MS or sum(map(len, different_ids)) > _MAX_KEY_BYTES:
            return None
        text, pick = template
        stamp_ms = (record.start_ns if end_ns is None else end_ns) // NS_PER_MS
        filled = text % pick((stamp_ms, _PLACEHOLDER, record.request_id, cost))
        pieces = filled.split(_PLACEHOLDER)
        if len(pieces) != 2:  # noqa: PLR2004 - a field beside the message id differs from message to message
            return None
        head, tail = pieces
        body = f"{head}{(tail + head).join(columns.msg_ids)}{tail}"
        return plan.group, body.encode(), different_ids

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        record = self.record
        if self.end_ns is None or not self.is_untouched:
            return None
        columns, rows, plan = record.columns, record.rows, record.plan
        if columns is None or rows[0][:2] == rows[-1][:2]:  # one message shares nothing
            return None
        places = {partition: plan.place_of(partition) for partition in set(columns.partitions)}
        shared, own = _share(columns, places)
        attributes = {
            **shared,
            **plan.constants,
            semconv.MESSAGING_BATCH_MESSAGE_COUNT: len(rows),
            semconv.MQTRACE_REQUEST_ID: record.request_id,
            **self.outcome,
        }
        heads = {partition: place.offset_id.encode("utf-8", "replace") for partition, place in places.items()}
        return [*self.otlp_head(None), encode_attributes(attributes), *_encode_links(columns, heads, own), LOCAL_PARENT]


def _share(columns: _Columns, places: Mapping[int, Place]) -> tuple[dict[str, Any], list[tuple[str, Sequence[Any]]]]:
    """Return the attributes that are equal for all messages, and the other ones, message by message."""
    partitions, lengths = columns.partitions, columns.lengths
    of_each = [places[each] for each in partitions] if len(places) > 1 else list(places.values())
    has_tombstone = None in lengths
    fields: tuple[tuple[str, Sequence[Any]], ...] = (
        (semconv.MESSAGING_DESTINATION_PARTITION_ID, list(map(str, partitions if len(places) > 1 else places))),
        (semconv.MQTRACE_STORE_HOST, [each.store_host for each in of_each]),
        (semconv.MQTRACE_STORE_TIME, columns.stored_ms),
        (semconv.MESSAGING_MESSAGE_BODY_SIZE, [each or 0 for each in lengths] if has_tombstone else lengths),
        (
            semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
            [True if each is None else None for each in lengths] if has_tombstone else (None,),
        ),
        (semconv.MESSAGING_KAFKA_CLUSTER_ID, [each.cluster_id for each in of_each]),
    )
    shared: dict[str, Any] = {}
    own = []
    for name, values in fields:
        first = values[0]
        if values.count(first) < len(values):
            own.append((name, values))
        elif first is not None:
            shared[name] = first
    return shared, own


def _encode_links(
    columns: _Columns, heads: Mapping[int, bytes], own: Sequence[tuple[str, Sequence[Any]]]
) -> list[bytes]:
    """Return each message as a link of a ``Span``, with its ids and what it does not share with the others.

    ``heads`` are what stands before the offset in the offset id of a message, by its partition.
    """
    partitions, offsets, keys = columns.partitions, columns.offsets, columns.keys
    trace_ids, span_ids = zip(*[each or _NO_ORIGIN for each in columns.origins], strict=True)
    messages = [each.encode("utf-8", "replace") for each in columns.msg_ids]
    places = [b"%b%d" % (heads[partition], offset) for partition, offset in zip(partitions, offsets, strict=True)]
    parts: tuple[Iterable[bytes], ...] = (
        repeat(TRACE_ID),
        trace_ids,
        repeat(SPAN_ID),
        span_ids,
        map(_MSG_ID.__getitem__, map(len, messages)),
        messages,
        map(_offset, offsets),
        map(_OFFSET_ID.__getitem__, map(len, places)),
        places,
        repeat(b"") if keys.count(None) == len(keys) else map(_encode_key, keys),
        *(_encode_each(name, values) for name, values in own),
        [LINK_FLAGS[origin is not None] for origin in columns.origins],
    )
    links = list(map(b"".join, zip(*parts)))  # noqa: B905 - some repeat without end
    return list(chain.from_iterable(zip(map(_LINK.__getitem__, map(len, links)), links, strict=True)))


def _encode_key(key: bytes | None) -> bytes:
    """Return the key's attribute; no bytes for a missing key, or one that is not text as the conventions demand."""
    if key is None:
        return b""
    try:
        key.decode()
    except UnicodeDecodeError:
        return b""
    return _KEY[len(key)] + key


def _encode_each(name: str, values: Sequence[Any]) -> list[bytes]:
    """Return one attribute of every message; empty bytes where it has none."""
    write = _NUMBERS.get(name) or partial(attribute, _LINK_ATTRIBUTE, name)
    known = {value: b"" if value is None else write(value) for value in set(values)}
    return [known[value] for value in values]
