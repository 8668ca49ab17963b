"""Context of a key from its message's other events: topic, first send, damaged records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import encode, index_rows, take_rows
from spark_jobs.judging.columns import NullableInts, coalesce_rows, equals, greatest, least_per_group, rank_words
from spark_jobs.judging.identity import MENTIONED, PUBLISH
from spark_jobs.judging.match import EXACT
from spark_jobs.judging.merge import COUNTS, OTLP
from spark_jobs.schemas import SIDE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.match import Pairs
    from spark_jobs.judging.merge import Input, Merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """One row per canonical key: its groups of ``Merged`` (-1 for an absent side) and its message's context.

    ``level`` is 1 where both sides met at their full identity, 2 or 3 where they were paired, 0 on one-sided keys.
    ``sent_topic`` is the row of ``topics`` with the topic of the message's send.
    """

    native: Ints
    otlp: Ints
    level: Ints
    message: Ints
    kind: Ints
    counts: Mapping[str, Ints]
    has_before: Mask
    has_after: Mask
    is_conflicting: Mask
    is_equivalent: Mask
    sent: NullableInts
    sent_end: NullableInts
    sent_in_batch: Mask
    native_damaged: Mask
    otlp_damaged: Mask
    sent_topic: Ints
    topics: Column

    def __len__(self) -> int:
        return len(self.kind)


def find_keys(given: Input, merged: Merged, pairs: Pairs) -> Keys:
    """Return the keys of a bucket; rows that only mention a message are none."""
    native, otlp, level = _sides(merged, pairs)
    one = np.where(native >= 0, native, otlp)
    message, kind = merged.message[one], merged.kind[one]
    context = _find_message_context(given, merged, native, otlp)

    def flag(of_group: Mask) -> Mask:
        return (of_group[native] & (native >= 0)) | (of_group[otlp] & (otlp >= 0))

    def total(of_group: Ints) -> Ints:
        return np.where(native >= 0, of_group[native], 0) + np.where((otlp >= 0) & (otlp != native), of_group[otlp], 0)

    return Keys(
        native=native,
        otlp=otlp,
        level=level,
        message=message,
        kind=kind,
        counts={name: total(merged.counts[name]) for name in COUNTS},
        has_before=flag(merged.records[:, 0] > 0),
        has_after=flag(merged.records[:, 1] > 0),
        is_conflicting=flag(merged.is_conflicting),
        is_equivalent=flag(merged.is_equivalent),
        sent=context.sent.take(message),
        sent_end=context.sent_end.take(message),
        sent_in_batch=context.sent_in_batch[message],
        native_damaged=context.native_damaged[message],
        otlp_damaged=context.otlp_damaged[message],
        sent_topic=context.topic[message],
        topics=context.topics,
    )


def _sides(merged: Merged, pairs: Pairs) -> tuple[Ints, Ints, Ints]:
    """Return native group, span group and level of each key: what met, what was paired, what stayed alone."""
    groups = np.arange(len(merged.kind), dtype=np.int32)
    on_native, on_otlp = np.asarray((merged.rows[:, :OTLP] >= 0).any(axis=1)), merged.rows[:, OTLP] >= 0
    partner, level = np.where(on_otlp, groups, -1), np.where(on_native & on_otlp, EXACT, 0).astype(np.int32)
    partner[pairs.native], level[pairs.native] = pairs.otlp, pairs.level
    is_key = np.ones(len(groups), bool)
    is_key[np.flatnonzero(merged.kind == MENTIONED)] = False
    is_key[pairs.otlp] = False
    kept = groups[is_key]
    return np.where(on_native[kept], kept, -1), partner[kept], level[kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MessageContext:
    """The context of each message of a bucket, by its code."""

    sent: NullableInts
    sent_end: NullableInts
    sent_in_batch: Mask
    native_damaged: Mask
    otlp_damaged: Mask
    topic: Ints
    topics: Column


def _find_message_context(given: Input, merged: Merged, native: Ints, otlp: Ints) -> _MessageContext:
    one = np.where(native >= 0, native, otlp)
    sends = merged.kind[one] == PUBLISH
    native, otlp, message = native[sends], otlp[sends], merged.message[one[sends]]
    starts = merged.native_start.take(native).coalesce(merged.otlp_start.take(otlp))
    ends = merged.native_end.take(native).coalesce(merged.otlp_end.take(otlp))
    topics = encode(_field(given, merged, native, otlp, "topic"))
    ranks = rank_words(topics.words)[topics.values]
    topic = least_per_group(message, given.messages, NullableInts(ranks, ranks >= 0))
    in_batch = np.zeros(given.messages, bool)
    in_batch[message[_is_of_batch(given, merged, native, otlp)]] = True
    damaged: dict[str, Mask] = {}
    for side, on_side in (("native", merged.rows[:, OTLP] < 0), ("otlp", merged.rows[:, OTLP] >= 0)):
        damaged[f"{side}_damaged"] = np.zeros(given.messages, bool)
        damaged[f"{side}_damaged"][merged.message[(merged.kind == MENTIONED) & on_side]] = True
    return _MessageContext(
        sent=least_per_group(message, given.messages, starts),
        sent_end=least_per_group(message, given.messages, ends),
        sent_in_batch=in_batch,
        topic=topic.filled(-1),
        topics=pa.array([*sorted(topics.words)], pa.string()),
        **damaged,
    )


def _field(given: Input, merged: Merged, native: Ints, otlp: Ints, name: str) -> Column:
    return coalesce_rows(given.events[name], [*merged.native_rows(native), merged.otlp_rows(otlp)])


def _is_of_batch(given: Input, merged: Merged, native: Ints, otlp: Ints) -> Mask:
    """Return which sends are of a batch: by their size, or because the span is a ``create`` span, which has none."""
    sizes = given.events["batch_size"]
    spans = merged.otlp_rows(otlp)
    of_native = NullableInts.of(coalesce_rows(sizes, merged.native_rows(native)))
    of_span = NullableInts.of(take_rows(sizes, spans))
    is_created = equals(take_rows(given.events["writer"], spans), "java-agent-new") & ~of_span.known
    return greatest(of_native, of_span).exceeds(1) | is_created


def fill_topics(topics: Column, keys: Keys, chosen: slice) -> Column:
    """Return the topics of the chosen keys; one that names none has its send's (native deliveries carry no topic)."""
    if not topics.null_count or not len(keys.topics):
        return topics
    return pc.coalesce(topics, take_rows(keys.topics, keys.sent_topic[chosen]))


_CARRIED: Final = frozenset({"first_seen_run", "left_as"})


class Sides:
    """Both sides of the keys in ``chosen``; a field is null where its side is absent."""

    def __init__(self, given: Input, merged: Merged, keys: Keys, chosen: slice) -> None:
        self._events = given.events
        self._folded = merged
        self._native = keys.native[chosen]
        self._otlp = keys.otlp[chosen]
        self._native_rows = merged.native_rows(self._native)
        self._first_native, self._span = index_rows(self._native_rows[0]), index_rows(merged.otlp_rows(self._otlp))
        self._known: dict[tuple[str, str], Column] = {}
        self.kind = keys.kind[chosen]
        self.on_native = self._native >= 0
        self.on_otlp = self._otlp >= 0

    def __len__(self) -> int:
        return len(self.kind)

    def native(self, name: str) -> Column:
        """Return a field of the native side: the start of the first half, the outcome of the second."""
        if ("native", name) not in self._known:
            self._known["native", name] = self._read_native(name).cast(SIDE_FIELDS[name])
        return self._known["native", name]

    def otlp(self, name: str) -> Column:
        """Return a field of the span."""
        if ("otlp", name) not in self._known:
            found = self._read_carried("otlp", name) if name in _CARRIED else take_rows(self._events[name], self._span)
            self._known["otlp", name] = found.cast(SIDE_FIELDS[name])
        return self._known["otlp", name]

    def _read_native(self, name: str) -> Column:
        if name == "start_ms":
            return self._folded.native_start.take(self._native).to_arrow()
        if name == "end_ms":
            return self._folded.native_end.take(self._native).to_arrow()
        if name == "arrival_ms":
            parts = (NullableInts.of(take_rows(self._events[name], rows)) for rows in self._native_rows)
            return greatest(*parts).to_arrow()
        if name in _CARRIED:
            return self._read_carried("native", name)
        return coalesce_rows(self._events[name], self._native_rows, self._first_native)

    def _read_carried(self, side: str, name: str) -> Column:
        groups = self._native if side == "native" else self._otlp
        if name == "first_seen_run":
            return self._folded.first_seen[side].take(groups).to_arrow()
        ranks = self._folded.left_as[side].take(groups).filled(-1)
        return take_rows(pa.array(self._folded.left_words, pa.string()), ranks)
