"""Follow messages over their legs: the topic and the sender of each leg, and how each message ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from otel_mqtrace.model import MessageType, TransactionState
from spark_jobs.columns import as_rows, encode, find_groups, is_known, is_true, join_codes
from spark_jobs.judging.columns import NullableInts
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.columns import Codes, Column, Ints, Mask

FATES: Final = (
    "consumed",
    "failed",
    "rolled_back",
    "uncommitted",
    "recalled",
    "reply",
    "unidentified",
    "pending",
    "delayed",
    "never_consumed",
)
"""How a sent message ended, the first that applies; only of ``never_consumed`` is a delivery missing."""
ORIGINS: Final = ("published", "unidentified", "unjudged", "never_published")
"""Whether the send of a delivered message is known, the first that applies."""

NUMBERS: Final = ("event_ms", "retry_times", "busy_ms", "queue_ms")
COUNTS: Final = (
    *("legs", "messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "open", "native", "otlp"),
    *(f"fate_{name}" for name in FATES),
    *(f"origin_{name}" for name in ORIGINS[1:]),
)
"""What is counted on every edge; all of it adds up over edges."""

_REPLY_TOPIC: Final = "_REPLY_TOPIC"  # RocketMQ appends it to the cluster's name
_PUBLISH, _CONSUME = Kind.PUBLISH.value, Kind.CONSUME.value
_WORDS: Final = ("kind", "via", "namespace", "bare_topic", "group", "service")
_LAST: Final = np.iinfo(np.int64).max


class End(NamedTuple):
    """The names that legs have in common.

    ``party`` is the producer (its service, else its group) or the consumer group (else its service). ``folded`` is the
    topic of a leg over a retry or dead-letter topic whose message's own topic is not known.
    """

    kind: str
    via: str | None
    namespace: str | None
    bare_topic: str | None
    group: str | None
    service: str | None
    party: str | None

    @property
    def folded(self) -> str | None:
        """The name of a retry or dead-letter topic without its namespace."""
        return None if self.via is None or self.bare_topic is None else f"%{self.via}%{self.bare_topic}"


class Journeys(NamedTuple):
    """The sends and deliveries inside the window.

    ``legs`` has the integers ``end``, ``pair``, ``topic`` and ``sender``, -1 for none, which number the other four; the
    flags ``COUNTS``; and ``NUMBERS`` as in ``LEG``. A retry or dead-letter topic is folded into the topic that its
    message was sent to. The sender is the party that sent the message.
    """

    legs: pa.Table
    ends: list[End]
    pairs: list[tuple[str, str | None]]  # kind and party
    topics: list[str]
    parties: list[str]


def follow(
    legs: pa.Table, owned: Mapping[tuple[str, str], str], *, opening_ms: int | None, horizon_ms: int | None
) -> Journeys:
    """Return the journeys of messages, from all ``legs`` of each.

    Deliveries before ``opening_ms`` may be of messages sent before the data begins; what was sent or delivered after
    ``horizon_ms`` may still be completed; ``None``: none is judged.
    """
    given = _Given(legs, owned)
    messages = _Messages(given)
    rows = np.flatnonzero(given.is_publish | given.is_consume)
    message, end = given.message[rows], given.end[rows]
    topic = np.where(given.is_via[rows], messages.topic[message], given.bare_topics[end])
    topic = np.where(topic == _LAST, given.folded[end], topic)
    is_first = _is_first(given, rows, topic)
    is_publish = given.is_publish[rows]
    fate, origin = np.full(len(rows), -1), np.full(len(rows), -1)
    sends, deliveries = np.flatnonzero(is_first & is_publish), np.flatnonzero(is_first & ~is_publish)
    is_reply = np.array([name.endswith(_REPLY_TOPIC) for name in given.topics] + [False])
    fate[sends] = _find_fates(given, messages, rows[sends], is_reply[topic[sends]], horizon_ms)
    origin[deliveries] = _find_origins(given, messages, rows[deliveries], opening_ms, horizon_ms)
    inside = np.flatnonzero(given.inside[rows])
    sender = messages.sender[message[inside]]
    pairs = list(dict.fromkeys((one.kind, one.party) for one in given.ends))
    pair_of = np.array([pairs.index((one.kind, one.party)) for one in given.ends], np.int64)
    ends = {
        "end": end[inside],
        "pair": pair_of[end[inside]],
        "topic": topic[inside],
        "sender": np.where(sender == _LAST, -1, sender),
    }
    flags = _count_flags(given, rows[inside], is_first[inside])
    flags |= {f"fate_{name}": fate[inside] == place for place, name in enumerate(FATES)}
    flags |= {f"origin_{name}": origin[inside] == place for place, name in enumerate(ORIGINS)}
    numbers: Any = legs.select(NUMBERS).take(as_rows(rows[inside]))
    columns = {
        **{name: pa.array(of) for name, of in ends.items()},
        **{name: pa.array(flags[name]) for name in COUNTS},
        **{name: numbers[name] for name in NUMBERS},
    }
    return Journeys(pa.table(columns), given.ends, pairs, given.topics, given.parties)


def _count_flags(given: _Given, rows: Ints, is_first: Mask) -> dict[str, Mask]:
    """Return what is counted of each leg; one whose message was sent or delivered there before is ``again``."""
    found: dict[str, Mask] = {
        "legs": np.ones(len(rows), bool),
        "messages": is_first,
        "failures": (given.has_outcome & ~given.is_accepted)[rows],
        "outcome_unknown": ~given.has_outcome[rows],
        "again": (~is_first & given.identified[rows]) | (given.retries[rows] > 0),
        "open": given.is_open[rows],
        "native": given.on_native[rows],
        "otlp": given.on_otlp[rows],
    }
    via = np.array([end.via for end in given.ends], object)
    return found | {f"via_{word.lower()}": (via == word)[given.end[rows]] for word in ("RETRY", "DLQ")}


class _Given:
    """The columns of legs as arrays; what is only about words is found once per distinct combination of them."""

    def __init__(self, legs: pa.Table, owned: Mapping[tuple[str, str], str]) -> None:
        columns: dict[str, Any] = {name: legs[name].combine_chunks() for name in legs.column_names}
        coded = [encode(columns[name]) for name in _WORDS]
        examples, self.end = find_groups(join_codes(*((one.values, one.room) for one in coded)))
        words = zip(*(one.at(examples) for one in coded), strict=True)
        self.ends = [_make_end(some, owned) for some in words]
        self.topics = _distinct(name for end in self.ends for name in (end.bare_topic, end.folded))
        self.parties = _distinct(end.party for end in self.ends)
        self.bare_topics = _places((end.bare_topic for end in self.ends), self.topics)
        self.folded = _places((end.folded for end in self.ends), self.topics)
        self.party = _places((end.party for end in self.ends), self.parties)
        self.is_publish = self._where(lambda end: end.kind == _PUBLISH)
        self.is_consume = self._where(lambda end: end.kind == _CONSUME)
        self.is_recall = self._where(lambda end: end.kind == Kind.RECALL.value)
        self.is_via = self._where(lambda end: end.via is not None)
        self.message, self.messages = _encode_messages(columns["message"])
        self.identified, self.inside = is_true(columns["identified"]), is_true(columns["inside"])
        self.event = NullableInts.of(columns["event_ms"])
        self.retries = NullableInts.of(columns["retry_times"]).filled(0)
        self.has_outcome = is_known(columns["success"])
        self.is_accepted = ~self.has_outcome | is_true(columns["success"])
        self.is_open = is_known(columns["finished"]) & ~is_true(columns["finished"])
        self.on_native, self.on_otlp = is_true(columns["on_native"]), is_true(columns["on_otlp"])
        self.types, self.states = (encode(columns[name]) for name in ("msg_type", "transaction_state"))

    def _where(self, holds: Any) -> Mask:
        found: Mask = np.array([holds(end) for end in self.ends], bool)[self.end]
        return found


def _make_end(words: Sequence[Any], owned: Mapping[tuple[str, str], str]) -> End:
    kind, via, namespace, bare_topic, group, service = words
    service = owned.get((kind, group)) if service is None else service
    best, other = (service, group) if kind == _PUBLISH else (group, service)
    return End(kind, via, namespace, bare_topic, group, service, other if best is None else best)


def _distinct(names: Iterable[str | None]) -> list[str]:
    return sorted({name for name in names if name is not None})


def _places(names: Iterable[str | None], among: list[str]) -> Ints:
    """Return the place of each name, -1 for none."""
    places: dict[str | None, int] = {name: at for at, name in enumerate(among)}
    return np.array([places.get(name, -1) for name in names], np.int64)


def _encode_messages(texts: Column) -> tuple[Ints, int]:
    """Return a number of each message, and how many there are; ``encode`` would make every text in Python."""
    coded = texts.dictionary_encode()
    return np.asarray(coded.indices.cast(pa.int64())), len(coded.dictionary)


class _Messages:
    """Facts from all legs of a message; arrays by message."""

    def __init__(self, given: _Given) -> None:
        self._given = given
        direct = given.is_publish & ~given.is_via
        self.topic = self._least(direct, given.bare_topics)
        self.sender = self._least(direct, given.party)
        self.is_published = self._any(given.is_publish)
        self.is_accepted = self._any(given.is_publish & given.is_accepted)
        self.is_consumed = self._any(given.is_consume)
        self.is_recalled = self._any(given.is_recall)
        self.is_half = self._any(_matches(given.types, MessageType.TRANS_HALF.value))
        self.is_delayed = self._any(_matches(given.types, MessageType.DELAY.value))
        self.is_committed = self._any(_matches(given.states, TransactionState.COMMIT_MESSAGE.value))
        self.is_rolled_back = self._any(_matches(given.states, TransactionState.ROLLBACK_MESSAGE.value))

    def _any(self, holds: Mask) -> Mask:
        found = np.zeros(self._given.messages, bool)
        found[self._given.message[holds]] = True
        return found

    def _least(self, holds: Mask, of_end: Ints) -> Ints:
        """Return the least known place among the legs of each message; ``_LAST`` for none."""
        found = np.full(self._given.messages, _LAST)
        rows = np.flatnonzero(holds & (of_end >= 0)[self._given.end])
        np.minimum.at(found, self._given.message[rows], of_end[self._given.end[rows]])
        return found


def _matches(codes: Codes, word: str) -> Mask:
    found: Mask = np.array([one == word for one in codes.words] + [False])[codes.values]
    return found


def _is_first(given: _Given, rows: Ints, topic: Ints) -> Mask:
    """Return which legs represent their message: the best, earliest one in the window of each topic and party."""
    whose, is_publish = given.party[given.end[rows]], given.is_publish[rows]
    parts = ((given.message[rows], given.messages), (is_publish.astype(np.int64), 2))
    names = ((whose + 1, len(given.parties) + 1), (topic + 1, len(given.topics) + 1))
    examples, group = find_groups(join_codes(*parts, *names))
    is_first = np.zeros(len(rows), bool)
    is_first[examples] = True
    several = np.flatnonzero((np.bincount(group, minlength=len(examples)) > 1)[group])
    if len(several):
        chosen, groups = rows[several], group[several]
        event = given.event.filled(_LAST)[chosen]
        order = np.lexsort((given.retries[chosen], event, given.is_via[chosen], ~given.inside[chosen], groups))
        ranked = groups[order]
        is_first[several] = False
        is_first[several[order[np.r_[True, ranked[1:] != ranked[:-1]]]]] = True
    return is_first & ~(is_publish & given.is_via[rows])


def _find_fates(given: _Given, messages: _Messages, rows: Ints, is_reply: Mask, horizon_ms: int | None) -> Ints:
    """Return the place in ``FATES`` of each of these first sends."""
    message = given.message[rows]
    is_open = ~messages.is_committed[message]
    holds = {
        "consumed": messages.is_consumed[message],
        "failed": ~messages.is_accepted[message],
        "rolled_back": messages.is_rolled_back[message] & is_open,
        "uncommitted": messages.is_half[message] & is_open,
        "recalled": messages.is_recalled[message],
        "reply": is_reply,
        "unidentified": ~given.identified[rows],
        "pending": ~_is_before(given, rows, horizon_ms),
        "delayed": messages.is_delayed[message],
    }
    return np.select([holds[name] for name in FATES[:-1]], list(range(len(holds))), len(holds))


def _find_origins(
    given: _Given, messages: _Messages, rows: Ints, opening_ms: int | None, horizon_ms: int | None
) -> Ints:
    """Return the place in ``ORIGINS`` of each of these first deliveries."""
    event = given.event.take(rows)
    is_after = event.known & (event.values >= opening_ms) if opening_ms is not None else np.zeros(len(rows), bool)
    holds = {
        "published": messages.is_published[given.message[rows]],
        "unidentified": ~given.identified[rows],
        "unjudged": ~is_after | ~_is_before(given, rows, horizon_ms),
    }
    return np.select([holds[name] for name in ORIGINS[:-1]], list(range(len(holds))), len(holds))


def _is_before(given: _Given, rows: Ints, horizon_ms: int | None) -> Mask:
    if horizon_ms is None:
        return np.zeros(len(rows), bool)
    event = given.event.take(rows)
    return event.known & (event.values <= horizon_ms)
