"""What a query looks for, which trace messages can hold it, and the records found.

A record holds the message id and the keys verbatim, so a search for their bytes in the body finds every record, also
the single id of a batch, whose ids are joined in one field, and ids that a bounded or cut ``KEYS`` header left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from bridge.page.wording import visible
from otel_mqtrace._errors import UsageError
from otel_mqtrace.message_id import ID_SHAPE
from otel_mqtrace.model import KEY_SEPARATOR, is_same_name, strip_prefixes
from otel_mqtrace.wire.native import explode
from otel_mqtrace.wire.native.decode import BATCH_SEPARATOR, is_cuttable
from otel_mqtrace.wire.native.dialects import is_by_go, writers_of
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, RECORD_TERMINATOR, REPLACEMENT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from bridge.codec.files import BodyDecoder
    from otel_mqtrace.landing import LandedMessage
    from otel_mqtrace.model import TraceBean, TraceContext
    from otel_mqtrace.wire.native import DecodedBody

_AS_WRITTEN = str.maketrans({FIELD_SEPARATOR: REPLACEMENT, RECORD_TERMINATOR: REPLACEMENT})
_WORD: Final = re.compile(f"[^{BATCH_SEPARATOR}{KEY_SEPARATOR}]+")
_PREFIX_MARK: Final = "*"
_UNDECODED: Final = re.compile("[\udc80-\udcff]")  # stands for a byte that the locale cannot decode
_MOST_NEEDLES: Final = 200
"""Texts that are searched for one by one; with more of them, decoding every body takes less time."""


class OutcomeFilter(str, Enum):
    """How the last send attempt, or a group's last delivery, ended; ``retried``: there was more than one."""

    OK = "ok"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    UNKNOWN = "unknown"
    RETRIED = "retried"


@dataclass(frozen=True, slots=True)
class Query:
    """What a message must have; all that is given must hold, and any of ``msg_ids`` will do.

    ``prefix`` is the beginning of a message id. ``topic``, ``group`` and ``outcome`` must hold for one row of the list:
    for the sends of one producer group, or the deliveries to one consumer group. ``texts`` is what to search for, as
    given and as our encoder writes it: the ids, the prefix, the key, the bare topic or group, the first given.
    """

    msg_ids: frozenset[str] = frozenset()
    key: str | None = None
    prefix: str | None = None
    topic: str | None = None
    group: str | None = None
    outcome: OutcomeFilter | None = None
    texts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = (None if name is None else strip_prefixes(name) for name in (self.topic, self.group))
        first = next((text for text in (self.prefix, self.key, *names) if text is not None), "")
        texts = self.msg_ids or frozenset({first})
        object.__setattr__(self, "texts", texts | {_encode_text(text) for text in texts})

    @property
    def is_indexed(self) -> bool:
        """Return whether a broker's index can find it: whole ids and whole keys only."""
        return bool(self.msg_ids) or (self.key is not None and self.prefix is None)

    @property
    def needs_story(self) -> bool:
        """Return whether a criterion needs all records of a message, beyond the searched text."""
        ids_or_key = bool(self.msg_ids) or self.key is not None  # one search finds both
        given = [ids_or_key, *(text is not None for text in (self.prefix, self.topic, self.group))]
        return sum(given) > 1 or self.outcome is not None

    def matches_text(self, trace_ctx: TraceContext) -> bool:
        """Return whether a record of one message has the text that a query without an index searches for."""
        bean = trace_ctx.beans[0]
        if self.prefix is not None:
            return (bean.msg_id or "").startswith((self.prefix, _encode_text(self.prefix)))
        if self.topic is not None:
            return is_wanted(self.topic, bean.topic)
        return is_wanted(self.group, trace_ctx.group_name)

    def selects(self, bean: TraceBean) -> bool:
        """Return whether the query selects a message of a record: by unique id, offset id, or key."""
        if not self.msg_ids:
            return self.has_key(bean)
        return bean.msg_id in self.texts or (bean.offset_msg_id or "") in self.texts

    def has_key(self, bean: TraceBean) -> bool:
        """Return whether the record carries the key; 4.x clients write all keys of a message as one."""
        if self.key is None or bean.keys is None:
            return False
        key = _encode_text(self.key)
        return bean.keys in {key, self.key} or key in bean.keys.split(KEY_SEPARATOR)


def _encode_text(text: str) -> str:
    """Return ``text`` as the encoder writes it: without separators, in valid UTF-8."""
    return text.translate(_AS_WRITTEN).encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1024)
def is_wanted(name: str | None, written: str | None) -> bool:
    """Return whether a record's topic or group is the wanted one, if any; either may lack its namespace."""
    return name is None or (written is not None and is_same_name(_encode_text(name), _encode_text(written)))


def parse_query(
    msg_id: str | None,
    key: str | None = None,
    *,
    topic: str | None = None,
    group: str | None = None,
    outcome: OutcomeFilter | None = None,
) -> Query:
    """Return the query of the options; ``C0000202*`` is a prefix, and the joined ids of a batch mean each message.

    Raises:
        UsageError: an option is empty or not UTF-8.
    """
    msg_id = None if msg_id is None else msg_id.strip()
    texts = {"--msg-id": msg_id, "--key": key, "--topic": topic, "--group": group}
    empty = next((option for option, text in texts.items() if text is not None and not text), None)
    if empty:
        raise UsageError(f"{empty} is empty: give the text that the message carries")
    for option, text in texts.items():
        if text and _UNDECODED.search(text):
            raise UsageError(f"{option} {visible(text)} is not UTF-8: use a UTF-8 terminal and locale (LC_ALL=C.UTF-8)")
    if msg_id is not None and msg_id.endswith(_PREFIX_MARK):
        prefix = msg_id.removesuffix(_PREFIX_MARK)
        return Query(prefix=prefix, key=key, topic=topic, group=group, outcome=outcome)
    ids = frozenset() if msg_id is None else frozenset({msg_id, *filter(None, msg_id.split(BATCH_SEPARATOR))})
    ids |= {each.upper() for each in ids if ID_SHAPE.fullmatch(each)}  # as RocketMQ's clients write them
    return Query(ids, key, topic=topic, group=group, outcome=outcome)


def needles_of(texts: Collection[str], charset: str) -> list[bytes]:
    """Return ``texts`` as :func:`may_mention` wants them, in UTF-8 and in the ``charset`` of the bodies.

    Where there are very many, or ASCII is other bytes in ``charset``, it is one that every body holds.
    """
    if len(texts) > _MOST_NEEDLES or not is_cuttable(charset):
        return [b""]
    return [text.encode(each, "replace") for each in dict.fromkeys(("utf-8", charset)) for text in texts]


def may_mention(message: LandedMessage, needles: Collection[bytes]) -> bool:
    """Return whether a trace message may contain one of ``needles``, in its body or its keys.

    The keys are UTF-8 also where the body is not: RocketMQ 4.x writes it in the platform's charset.
    """
    if any(needle in message.body for needle in needles):
        return True
    keys = (message.keys or "").encode("utf-8", "replace")
    return any(needle in keys for needle in needles)


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

    ``names`` are the wanted texts that are a field of the whole piece, or one of several ids or keys in a field.
    """

    place: Place
    field_name: str | None
    reason: str
    text: str
    names: frozenset[str]

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


def gather(messages: Iterable[LandedMessage], query: Query, decoder: BodyDecoder) -> Evidence:
    """Decode ``messages``, in any order, and return their records of the messages that ``query`` selects."""
    found = Evidence()
    merged: dict[tuple[str, TraceContext], Sighting] = {}
    for message in messages:
        decoded = decoder.decode(message.body)
        for sighting in _sightings(message, decoded, query):
            key = (sighting.bean.msg_id or "", sighting.trace_ctx)
            merged[key] = _merge(merged.get(key), sighting)
        found.bad_records += len(decoded.errors)
        kept = {error.record_index: error for error in decoded.errors[: MOST_BAD - len(found.bad)]}
        for index, fields in enumerate(decoder.fields_of(message.body) if kept else ()):
            if (error := kept.get(index)) is None:
                continue
            names = query.texts.intersection(chain(fields, chain.from_iterable(map(_WORD.findall, fields))))
            bad = BadSighting(_place(message, error.record_index), error.field, error.reason, error.text, names)
            found.bad[bad.rank] = bad
    for (msg_id, _), sighting in merged.items():
        found.by_msg_id.setdefault(msg_id, []).append(sighting)
    return found


def _sightings(message: LandedMessage, decoded: DecodedBody, query: Query) -> Iterator[Sighting]:
    columns = (decoded.record_indexes, decoded.dialects, decoded.shapes, decoded.contexts)
    for index, dialect, shape, whole in zip(*columns, strict=True):
        pieces = explode(whole)
        for trace_ctx in pieces:
            if query.selects(trace_ctx.beans[0]):
                yield Sighting(
                    trace_ctx=trace_ctx,
                    dialect=dialect,
                    places=(_place(message, index),),
                    of_batch=len(pieces),
                    written_by=writers_of(shape, dialect, by_go=is_by_go(trace_ctx)),
                )


def _merge(known: Sighting | None, new: Sighting) -> Sighting:
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
