"""Spans to trace messages: grouped by source topic and region, within bounds, no batch refused whole.

RocketMQ groups the same way (``AsyncTraceDispatcher`` of apache/rocketmq), but tests its size after adding and counts
characters where the broker counts bytes, so that a full batch is refused whole (apache/rocketmq#4507, and again since
5.3.1). Here bytes are checked before adding, and what does not fit is split. No clock, no I/O.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.spans.limits import has_lost_type, is_cut, limits_hit
from otel_mqtrace.spans.loss_ledger import count_messages
from otel_mqtrace.spans.mapping import raw_attribute, readable_span, trace_context_of
from otel_mqtrace.spans.queue import ENCODE_ERROR, EXPORT_FAILED, TOO_LARGE, TRUNCATED, ExportOutcome
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.native.dialects import dialect_named
from otel_mqtrace.wire.native.layout import FIRST_BEAN_ONLY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.records.span import NativeRecord
    from otel_mqtrace.wire.native import EncodedContext

_logger = logging.getLogger(__name__)
MAX_KEYS_BYTES: Final = 22_767
"""Bound of the ``KEYS`` text: RocketMQ's own of 5.1.1-5.3.0. Its brokers refuse properties of 32 767 bytes and more
(apache/rocketmq#6579); the rest is for the other headers."""
_TOO_LOW: Final = (
    "mqtrace: native traces are incomplete: the span limit %s (by that variable, a more general one, or SpanLimits) is "
    "too low: raise it to OpenTelemetry's default or unset it (logged once; counted as %s in stats())"
)


Encode = Callable[["TraceContext", str], "EncodedContext"]
"""Context, dialect → its records and keys: ``otel_mqtrace.wire.native.encode_context``, or something that wraps it."""


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """One message for the trace topic: concatenated records of one source topic and region.

    ``keys`` is the ``KEYS`` header; ``origins`` are the positions, in what was packed, of the contexts inside: of one
    that was split a position for each of its messages.
    """

    value: bytes
    keys: str
    origins: tuple[int, ...]


@dataclass(slots=True)
class Packed:
    """The messages of some contexts, and what is not in them.

    ``refused`` maps the position of a context that is not, or not completely, in ``messages`` to the reason;
    ``missing`` counts those of its messages that are not, where some may be. ``first_error`` is the encoder's first
    error. ``replaced`` counts separator characters written as ``_``; ``keys_left_out`` counts keys that found no room
    beside their own record.
    """

    messages: list[TraceMessage] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    missing: Counter[int] = field(default_factory=Counter)
    replaced: int = 0
    keys_left_out: int = 0
    first_error: str | None = None


# -- contexts to messages ----------------------------------------------------------------------------------------------
_Group = tuple["str | None", "str | None"]
"""Topic and region."""
_Entry = tuple[int, bytes, "Collection[str]"]
"""Position of a context, its records, and the different keys they are found by."""


class Packing:
    """Packs contexts, each with its position, into as few trace messages as the bounds allow.

    One message for each source topic and region is filled at a time, in order. A context that is too large alone is
    split by its messages; one message that is too large alone, or that cannot be encoded, is refused under its reason,
    and its neighbours stay.
    """

    def __init__(
        self, encode: Encode, dialect: str, max_message_bytes: int, max_keys_bytes: int = MAX_KEYS_BYTES
    ) -> None:
        self.packed = Packed()
        self._encode = encode
        self._dialect = dialect
        self._max_message_bytes = max_message_bytes
        self._max_keys_bytes = max_keys_bytes
        self.groups: defaultdict[_Group, list[_Entry]] = defaultdict(list)
        """What was added since the last :meth:`finish_messages`; no entry is too large for a message."""

    def add_context(self, origin: int, trace_ctx: TraceContext) -> None:
        """Encode and add a context: whole if it fits, else message by message."""
        packed, pieces = self.packed, _split_by_topic(trace_ctx)
        while pieces:
            piece = pieces.pop(0)
            try:
                encoded = self._encode(piece, self._dialect)
            except Exception as error:  # noqa: BLE001 - EncodeError, or what an impossible value raises
                packed.first_error = packed.first_error or str(error)
                reason = ENCODE_ERROR
            else:
                if len(encoded.body) <= self._max_message_bytes:
                    if encoded.body:
                        packed.replaced += encoded.replaced
                        group = (piece.beans[0].topic if piece.beans else None, piece.region_id)
                        self.groups[group].append((origin, encoded.body, self._bound_keys(piece, encoded.keys)))
                    continue
                reason = TOO_LARGE
            pieces[:0] = _split_by_message(piece)  # one bad message must not take the others of its call along
            if len(piece.beans) <= 1:
                packed.refused[origin] = reason
                packed.missing[origin] += 1

    def finish_messages(self) -> None:
        """Make messages of what was added: one for each topic and region where it has room."""
        for entries in self.groups.values():
            self.packed.messages += self._fill_messages(entries)
        self.groups.clear()

    def _fill_messages(self, entries: Sequence[_Entry]) -> Iterator[TraceMessage]:
        """Yield messages of ``entries`` in their order, each filled until the next has no room; mostly it is one."""
        # in their order: ids of one producer ascend, so that sorting them takes a tenth
        keys = dict.fromkeys(chain.from_iterable([own_keys for _, _, own_keys in entries]))
        body_bytes, keys_bytes = sum([len(body) for _, body, _ in entries]), _count_key_bytes(keys)
        if body_bytes <= self._max_message_bytes and keys_bytes <= self._max_keys_bytes:
            yield _make_message(entries, keys)
            return
        first = body_bytes = keys_bytes = 0
        keys = {}
        for position, (_, body, own_keys) in enumerate(entries):
            new_bytes = _count_key_bytes([key for key in own_keys if key not in keys])
            if position > first and (
                body_bytes + len(body) > self._max_message_bytes
                or (new_bytes and keys_bytes + new_bytes > self._max_keys_bytes)
            ):
                yield _make_message(entries[first:position], keys)
                first, body_bytes, keys_bytes, keys = position, 0, 0, {}
                new_bytes = _count_key_bytes(own_keys)
            body_bytes += len(body)
            keys_bytes += new_bytes
            keys |= dict.fromkeys(own_keys)
        yield _make_message(entries[first:], keys)

    def _bound_keys(self, trace_ctx: TraceContext, keys: frozenset[str]) -> frozenset[str]:
        """Return the keys of one piece that fit the bound; message ids come first, they are what is searched."""
        bound = self._max_keys_bytes
        if _count_key_bytes(keys) <= bound:
            return keys
        ids = {bean.msg_id for bean in trace_ctx.beans}
        kept: set[str] = set()
        for key in sorted(keys, key=lambda key: (key not in ids, _count_key_bytes((key,)), key)):
            bound -= _count_key_bytes((key,))
            if bound < 0:
                break
            kept.add(key)
        self.packed.keys_left_out += len(keys) - len(kept)
        return frozenset(kept)


def _make_message(entries: Sequence[_Entry], keys: Iterable[str]) -> TraceMessage:
    return TraceMessage(
        value=b"".join([body for _, body, _ in entries]),
        keys=KEY_SEPARATOR.join(sorted(keys)),
        origins=tuple([origin for origin, _, _ in entries]),
    )


def _split_by_topic(trace_ctx: TraceContext) -> list[TraceContext]:
    """Return ``trace_ctx``, or its messages where a record has one only or they are of several source topics."""
    is_whole = trace_ctx.trace_type not in FIRST_BEAN_ONLY and len({bean.topic for bean in trace_ctx.beans}) <= 1
    return [trace_ctx] if is_whole else _split_by_message(trace_ctx) or [trace_ctx]


def _split_by_message(trace_ctx: TraceContext) -> list[TraceContext]:
    return [trace_ctx._replace(beans=(bean,)) for bean in trace_ctx.beans] if len(trace_ctx.beans) > 1 else []


def _count_key_bytes(keys: Collection[str]) -> int:
    text = "".join(keys)
    return len(text if text.isascii() else text.encode("utf-8", "replace")) + len(KEY_SEPARATOR) * len(keys)


# -- spans to messages -------------------------------------------------------------------------------------------------
def has_record(span: ReadableSpan) -> bool:
    """Return whether ``span``, as far as it has come, is a record: an ended one of any trace type, a started ``Sub``.

    A span whose type was taken by span limits is one too: it will be counted.
    """
    trace_type = raw_attribute(span, semconv.MQTRACE_TRACE_TYPE)  # on the application's thread
    if trace_type is None:
        return has_lost_type(span)
    return span.end_time is not None or trace_type == semconv.TRACE_TYPE_SUB


@dataclass(slots=True)
class PackingCounts:
    """Totals of one exporter since this process began; ``body_bytes`` counts encoded values, delivered or not."""

    spans: int = 0
    messages: int = 0
    undelivered_messages: int = 0
    body_bytes: int = 0
    replaced: int = 0
    keys_left_out: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Return the totals by name; ``refused`` by reason."""
        return asdict(self) | {"refused": dict(self.refused)}


class SpanPacker:
    """Turns batches of spans into trace messages and counts the outcome of each span."""

    def __init__(self, *, encode: Encode, dialect: str, max_message_bytes: int, region_id: str | None) -> None:
        self._encode = encode
        self._writes_records = encode is encode_context
        self._dialect = dialect_named(dialect).name
        self._max_message_bytes = max_message_bytes
        self._region_id = region_id
        self.counts = PackingCounts()
        self._logged: set[str] = set()

    def pack_batches(self, batches: Sequence[Sequence[ReadableSpan]]) -> Packed:
        """Return the trace messages of each of ``batches``, numbered throughout; spans without a record are skipped."""
        packing = Packing(self._encode, self._dialect, self._max_message_bytes)
        unmapped: dict[int, str] = {}
        groups, missing = packing.groups, packing.packed.missing
        origin, dialect, max_bytes = 0, self._dialect, self._max_message_bytes
        for batch in batches:
            for span in batch:
                try:
                    write = getattr(span, "to_native", None) if self._writes_records else None
                    record: NativeRecord | None = None if write is None else write(dialect)
                    if record is not None and len(record[1]) <= max_bytes:
                        group, body, keys = record
                        groups[group].append((origin, body, keys))
                    elif (trace_ctx := self._map_span(origin, readable_span(span), unmapped, missing)) is not None:
                        packing.add_context(origin, trace_ctx)
                except Exception:  # noqa: BLE001 - a span with impossible attributes must not take its batch along
                    unmapped[origin] = ENCODE_ERROR
                origin += 1
            packing.finish_messages()
        for position, reason in unmapped.items():
            packing.packed.refused.setdefault(position, reason)
        return packing.packed

    def settle(self, spans: int, packed: Packed, undelivered: Iterable[TraceMessage]) -> ExportOutcome:
        """Count and return the outcome of so many spans; one fails if a message with its records is undelivered."""
        lost = list(undelivered)
        failed = Counter(chain.from_iterable(message.origins for message in lost))
        pieces = Counter(chain.from_iterable(message.origins for message in packed.messages)) if lost else failed
        refused = {origin: reason for origin, reason in packed.refused.items() if origin not in failed}
        self.counts.spans += spans
        self.counts.messages += len(packed.messages)
        self.counts.undelivered_messages += len(lost)
        self.counts.body_bytes += sum(len(message.value) for message in packed.messages)
        self.counts.replaced += packed.replaced
        self.counts.keys_left_out += packed.keys_left_out
        self.counts.refused.update(packed.refused.values())
        missing = {origin: packed.missing[origin] for origin in refused if origin in packed.missing}
        missing |= {each: count + packed.missing[each] for each, count in failed.items() if count < pieces[each]}
        return ExportOutcome.of(spans, dict.fromkeys(failed, EXPORT_FAILED) | refused, missing)

    def after_fork(self) -> None:
        """Count from zero in a child."""
        self.counts = PackingCounts()
        self._logged = set()

    def _map_span(
        self, origin: int, span: ReadableSpan, unmapped: dict[int, str], missing: Counter[int]
    ) -> TraceContext | None:
        """Return the record of ``span``, ``None`` where it has none.

        Of one that is not whole, ``unmapped`` gets the reason and ``missing`` how many messages are not in it.
        """
        trace_ctx = trace_context_of(span)
        if not getattr(span, "is_untouched", False) and (hit := limits_hit(span)):  # a record meets no limit
            unmapped[origin] = TRUNCATED
            for limit in set(hit) - self._logged:
                self._logged.add(limit)
                _logger.warning(_TOO_LOW, limit, TRUNCATED)
            trace_ctx = trace_ctx and _drop_cut_names(trace_ctx, span)
            missing[origin] = max(0, count_messages(span) - len(trace_ctx.beans if trace_ctx else ()))
        if trace_ctx is None or not trace_ctx.beans:
            return None
        is_missing = trace_ctx.region_id is None and self._region_id is not None
        return trace_ctx._replace(region_id=self._region_id) if is_missing else trace_ctx


def _drop_cut_names(trace_ctx: TraceContext, span: ReadableSpan) -> TraceContext:
    """Return ``trace_ctx`` without messages whose topic or id is cut: under a wrong name a record misleads."""
    whole = [
        bean
        for bean in trace_ctx.beans
        if bean.topic and bean.msg_id and not (is_cut(bean.topic, span) or is_cut(bean.msg_id, span))
    ]
    return trace_ctx._replace(beans=tuple(whole))
