"""This module knows how encoded contexts share trace messages: by source topic and region, within bounds, none refused.

RocketMQ groups the same way (``AsyncTraceDispatcher`` of apache/rocketmq), but tests its size after adding and counts
characters where the broker counts bytes, so that a full batch is refused whole (apache/rocketmq#4507, and again since
5.3.1). Here bytes are checked before adding, and what does not fit is split. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from otel_mqtrace._errors import EncodeError
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.records.span import NativeRecord
from otel_mqtrace.spans.stats import ENCODE_ERROR, TOO_LARGE
from otel_mqtrace.wire.native.layout import FIRST_BEAN_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_mqtrace.model import TraceBean, TraceContext
    from otel_mqtrace.wire.native import EncodedContext

__all__ = ["MAX_KEYS_BYTES", "Encode", "Packed", "TraceMessage", "pack"]

MAX_KEYS_BYTES: Final = 22_767
"""Bound of the ``KEYS`` text: RocketMQ's own of 5.1.1-5.3.0. Its brokers refuse properties of 32 767 bytes and more
(apache/rocketmq#6579); the rest is for the other headers."""


class Encode(Protocol):
    """``otel_mqtrace.wire.native.encode_context``, or something that wraps it."""

    def __call__(self, trace_ctx: TraceContext, dialect: str) -> EncodedContext:
        """Return the records and the key set of one context."""
        ...


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """One message for the trace topic: concatenated records of one source topic and region.

    ``keys`` is the ``KEYS`` header; ``origins`` are the positions, in what was packed, of the contexts inside.
    """

    topic: str | None
    region_id: str | None
    value: bytes
    keys: str
    origins: frozenset[int]
    contexts: int


@dataclass(slots=True)
class Packed:
    """What became of the contexts given to :func:`pack`.

    ``refused`` maps the position of a context that is not, or not completely, in ``messages`` to the reason:
    ``too_large`` or ``encode_error``; ``first_error`` is the encoder's first complaint. ``replaced`` counts separator
    characters written as ``_``; ``keys_left_out`` counts keys that found no room beside their own record.
    """

    messages: list[TraceMessage] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    replaced: int = 0
    keys_left_out: int = 0
    first_error: str | None = None

    @property
    def reasons(self) -> Counter[str]:
        """How many contexts were refused, by reason."""
        return Counter(self.refused.values())


def pack(
    contexts: Iterable[tuple[int, TraceContext | NativeRecord]],
    *,
    encode: Encode,
    dialect: str,
    max_message_bytes: int,
    max_keys_bytes: int = MAX_KEYS_BYTES,
) -> Packed:
    """Encode ``contexts``, each with its position, into as few trace messages as the bounds allow.

    Order is kept within a source topic and region. A context that is too large alone is split by its messages; one
    message that is too large alone, or that cannot be encoded, is refused under its reason, and its neighbours stay.
    """
    packed = Packed()
    filling: dict[tuple[str | None, str | None], _Filling] = {}
    for origin, trace_ctx in contexts:
        if isinstance(trace_ctx, NativeRecord):
            _add_record(origin, trace_ctx, filling, packed, max_message_bytes, max_keys_bytes)
            continue
        for part, encoded in _encoded(origin, trace_ctx, encode, dialect, max_message_bytes, packed):
            group = (part.beans[0].topic if part.beans else None, part.region_id)
            keys = _bounded_keys(part, encoded.keys, max_keys_bytes, packed)
            current = filling.setdefault(group, _Filling())
            if current.would_exceed(encoded.body, keys, max_message_bytes, max_keys_bytes):
                packed.messages.append(current.message(*group))
                current = filling[group] = _Filling()
            current.add(origin, encoded.body, keys)
            packed.replaced += encoded.replaced
    packed.messages += [last.message(*group) for group, last in filling.items()]
    return packed


def _add_record(  # noqa: PLR0913, PLR0917 - one step of `pack`
    origin: int,
    record: NativeRecord,
    filling: dict[tuple[str | None, str | None], _Filling],
    packed: Packed,
    max_message_bytes: int,
    max_keys_bytes: int,
) -> None:
    """Add a record that is encoded already; its one key is a message id, which fits any bound."""
    body = record.body
    if len(body) > max_message_bytes:
        packed.refused[origin] = TOO_LARGE
        return
    group, keys = record[:2], record.keys
    current = filling.get(group)
    if current is None:
        current = filling[group] = _Filling()
    new = keys - current.keys
    new_bytes = sum(map(len, new)) + len(new)  # all of them are ASCII
    too_many_keys = new and current.keys_bytes + new_bytes > max_keys_bytes
    if current.bodies and (too_many_keys or current.body_bytes + len(body) > max_message_bytes):
        packed.messages.append(current.message(*group))
        current = filling[group] = _Filling()
        new, new_bytes = keys, sum(map(len, keys)) + len(keys)
    current.bodies.append(body)
    current.body_bytes += len(body)
    current.keys |= new
    current.keys_bytes += new_bytes
    current.origins.add(origin)


@dataclass(slots=True)
class _Filling:
    bodies: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    keys: set[str] = field(default_factory=set)
    keys_bytes: int = 0
    origins: set[int] = field(default_factory=set)

    def would_exceed(self, body: bytes, keys: frozenset[str], max_message_bytes: int, max_keys_bytes: int) -> bool:
        if keys <= self.keys:
            return self.body_bytes + len(body) > max_message_bytes
        grown_keys_bytes = self.keys_bytes + sum(map(_key_bytes, keys - self.keys))
        return self.body_bytes + len(body) > max_message_bytes or grown_keys_bytes > max_keys_bytes

    def add(self, origin: int, body: bytes, keys: frozenset[str]) -> None:
        self.bodies.append(body)
        self.body_bytes += len(body)
        new = keys - self.keys
        if new:
            self.keys_bytes += sum(map(_key_bytes, new))
            self.keys |= new
        self.origins.add(origin)

    def message(self, topic: str | None, region_id: str | None) -> TraceMessage:
        return TraceMessage(
            topic=topic,
            region_id=region_id,
            value=b"".join(self.bodies),
            keys=KEY_SEPARATOR.join(sorted(self.keys)),
            origins=frozenset(self.origins),
            contexts=len(self.bodies),
        )


def _encoded(  # noqa: PLR0913, PLR0917 - one loop of `pack`, named
    origin: int, trace_ctx: TraceContext, encode: Encode, dialect: str, max_message_bytes: int, packed: Packed
) -> Iterator[tuple[TraceContext, EncodedContext]]:
    """Yield the pieces of one context that may travel: whole if it fits, else one per message."""
    pieces = _pieces(trace_ctx)
    while pieces:
        piece = pieces.pop(0)
        try:
            encoded = encode(piece, dialect)
        except EncodeError as error:
            packed.first_error = packed.first_error or str(error)
            # One bad message must not take the others of its call along.
            pieces[:0] = _split(piece)
            if len(piece.beans) <= 1:
                packed.refused[origin] = ENCODE_ERROR
            continue
        if len(encoded.body) > max_message_bytes:
            pieces[:0] = _split(piece)
            if len(piece.beans) <= 1:
                packed.refused[origin] = TOO_LARGE
        elif encoded.body:
            yield piece, encoded


def _pieces(trace_ctx: TraceContext) -> list[TraceContext]:
    """Return ``trace_ctx`` as contexts that the wire can say and that have one source topic each."""
    if trace_ctx.trace_type in FIRST_BEAN_ONLY:
        return _split(trace_ctx) or [trace_ctx]
    by_topic: dict[str | None, list[TraceBean]] = {}
    for bean in trace_ctx.beans:
        by_topic.setdefault(bean.topic, []).append(bean)
    if len(by_topic) <= 1:
        return [trace_ctx]
    return [replace(trace_ctx, beans=tuple(beans)) for beans in by_topic.values()]


def _split(trace_ctx: TraceContext) -> list[TraceContext]:
    return [replace(trace_ctx, beans=(bean,)) for bean in trace_ctx.beans] if len(trace_ctx.beans) > 1 else []


def _bounded_keys(trace_ctx: TraceContext, keys: frozenset[str], bound: int, packed: Packed) -> frozenset[str]:
    """Return the keys of one piece that fit into ``bound`` bytes; message ids come first, they are what is searched."""
    if sum(map(_key_bytes, keys)) <= bound:
        return keys
    ids = {bean.msg_id for bean in trace_ctx.beans}
    kept: set[str] = set()
    room = bound
    for key in sorted(keys, key=lambda key: (key not in ids, _key_bytes(key), key)):
        room -= _key_bytes(key)
        if room < 0:
            break
        kept.add(key)
    packed.keys_left_out += len(keys) - len(kept)
    return frozenset(kept)


def _key_bytes(key: str) -> int:
    return (len(key) if key.isascii() else len(key.encode("utf-8", "replace"))) + len(KEY_SEPARATOR)
