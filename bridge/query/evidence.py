"""Collect the records of the wanted messages: their content and position, and bad pieces beside them.

A record read twice (a trace message that was sent, forwarded or landed again) is one sighting, ``seen`` twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_mqtrace.wire.native import decode_body, explode
from otel_mqtrace.wire.native.dialects import writers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bridge.codec.files import Reading
    from bridge.query.criteria import Query
    from otel_mqtrace.landing import LandedMessage
    from otel_mqtrace.model import TraceBean, TraceContext
    from otel_mqtrace.wire.native import DecodedBody


MOST_BAD: Final = 1_000
"""Bad records that are kept: a body of nothing else must not fill the memory. All are counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was read: trace topic, partition and offset of its trace message, index of the record in it.

    ``partition`` and ``offset`` are ``None`` for messages that no broker numbered.
    """

    source: str
    partition: int | None
    offset: int | None
    arrival_ms: int
    record_index: int

    @property
    def rank(self) -> tuple[str, int, int, int, int]:
        """A total order, which places without numbers share, too."""
        numbers = (-1 if self.partition is None else self.partition, -1 if self.offset is None else self.offset)
        return (self.source, *numbers, self.arrival_ms, self.record_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One record of one message: ``places`` are the different ones it was read at, in order, ``seen`` is how often.

    ``dialect`` is the newest known writer of such a record, ``written_by`` are all of them. ``of_batch`` is how many
    messages a batch's ``Pub`` is for.
    """

    trace_ctx: TraceContext
    dialect: str | None
    places: tuple[Place, ...]
    seen: int = 1
    of_batch: int = 1
    written_by: tuple[str, ...] = ()

    @property
    def bean(self) -> TraceBean:
        """The one message of the record."""
        return self.trace_ctx.beans[0]


@dataclass(frozen=True, slots=True)
class BadSighting:
    """A piece of a trace message that is not a record; it may belong to the message, as its neighbours do.

    ``names_message``: its kept text contains the wanted text.
    """

    place: Place
    field_name: str | None
    reason: str
    text: str
    names_message: bool

    @property
    def rank(self) -> tuple[object, ...]:
        """A total order."""
        return (self.place.rank, self.reason, self.text)


@dataclass(slots=True)
class Evidence:
    """All that was found: records by message id, the first bad pieces by rank, and how many of those there were."""

    by_msg_id: dict[str, list[Sighting]] = field(default_factory=dict)
    bad: dict[tuple[object, ...], BadSighting] = field(default_factory=dict)
    bad_records: int = 0


def gather(messages: Iterable[LandedMessage], query: Query, how: Reading) -> Evidence:
    """Decode ``messages``, in any order, and return their records of the messages that ``query`` selects."""
    found = Evidence()
    folded: dict[tuple[str, TraceContext], Sighting] = {}
    for message in messages:
        decoded = decode_body(message.body, msg_type_map=how.msg_type_map, charset=how.charset)
        for sighting in _sightings(message, decoded, query):
            key = (sighting.bean.msg_id or "", sighting.trace_ctx)
            folded[key] = _folded(folded.get(key), sighting)
        found.bad_records += len(decoded.errors)
        for error in decoded.errors[: MOST_BAD - len(found.bad)]:
            names = any(text in error.text for text in query.texts)
            bad = BadSighting(_place(message, error.record_index), error.field, error.reason, error.text, names)
            found.bad[bad.rank] = bad
    for (msg_id, _), sighting in folded.items():
        found.by_msg_id.setdefault(msg_id, []).append(sighting)
    return found


def _sightings(message: LandedMessage, decoded: DecodedBody, query: Query) -> Iterator[Sighting]:
    for index, dialect, trace_ctx, messages, writers in _exploded(decoded):
        if query.means(trace_ctx.beans[0]):
            yield Sighting(
                trace_ctx=trace_ctx,
                dialect=dialect,
                places=(_place(message, index),),
                of_batch=messages,
                written_by=writers,
            )


def records_of(message: LandedMessage, how: Reading) -> Iterator[tuple[int, str | None, TraceContext, int]]:
    """Yield each record of one message: its index, dialect, context of one bean, and how many messages it is for."""
    decoded = decode_body(message.body, msg_type_map=how.msg_type_map, charset=how.charset)
    return ((index, dialect, trace_ctx, messages) for index, dialect, trace_ctx, messages, _ in _exploded(decoded))


def _exploded(decoded: DecodedBody) -> Iterator[tuple[int, str | None, TraceContext, int, tuple[str, ...]]]:
    columns = (decoded.record_indexes, decoded.dialects, decoded.shapes, decoded.contexts)
    for index, dialect, shape, whole in zip(*columns, strict=True):
        pieces = explode(whole)
        for trace_ctx in pieces:
            yield index, dialect, trace_ctx, len(pieces), writers_of(shape, dialect)


def _folded(known: Sighting | None, new: Sighting) -> Sighting:
    if known is None:
        return new
    places = {place.rank: place for place in (*known.places, *new.places)}
    return Sighting(
        trace_ctx=known.trace_ctx,
        dialect=max(known.dialect or "", new.dialect or "") or None,
        places=tuple(places[rank] for rank in sorted(places)),
        seen=known.seen + new.seen,
        of_batch=max(known.of_batch, new.of_batch),
        written_by=max(known.written_by, new.written_by),
    )


def _place(message: LandedMessage, record_index: int) -> Place:
    return Place(message.source, message.partition, message.offset, message.arrival_ms, record_index)
