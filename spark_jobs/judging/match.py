"""Pair one-sided events that lack part of their key, and find the context of each key in its message's other events.

Events pair by message, group and nearest start. At least one of the two lacks a distinguishing field; different
``retry_times`` and sends to different topics never pair. ``level`` is 2 where the group (or the transaction's state)
agrees, 3 where only the message does. Pairs are made in the order of level, nearest starts within the tolerance, and
order of events; ties by start, hash and identity.

One id may have a hundred thousand events: a timeline is cut into blocks of a thousand at its longest pauses. Without a
pause the two events on either side of a cut may miss each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import as_rows, encode, find_groups, index_rows, join_codes, take_rows
from spark_jobs.judging.columns import (
    LATEST,
    NullableInts,
    coalesce_rows,
    equals,
    greatest,
    is_near,
    least_per_group,
    rank_words,
)
from spark_jobs.judging.identity import (
    CONSUME,
    IDENTITY_COLUMNS,
    KEY_COLUMNS,
    KINDS,
    MENTIONED,
    PUBLISH,
    message_key,
    name_identities,
)
from spark_jobs.judging.merge import COUNTS, OTLP
from spark_jobs.schemas import SIDE_FIELDS, bare
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Codes, Column, Ints, Mask
    from spark_jobs.judging.merge import Input, Merged

EXACT: Final = 1
_STRONG, _WEAK = 2, 3
BLOCK: Final = 1024
"""So many one-sided events of one message and kind are compared at least; at most five times as many."""
_REACH: Final = 32
"""How far an event looks for a partner, in places before and after its own and before and after its own time."""
_PAUSES_MS: Final = (60_000, 1_000, 50, 0)
"""Where a timeline may be cut, the best first: before a pause longer than this."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Groups of ``Merged`` that belong together: ``native[i]`` with ``otlp[i]`` at ``level[i]`` (2 or 3)."""

    native: Ints
    otlp: Ints
    level: Ints


_NO_PAIRS: Final = Pairs(*(np.empty(0, np.int64) for _ in range(3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timeline:
    """One-sided events, sorted by block, then side (native first), then time. ``place`` counts within block and side.

    ``seen`` is how many spans of the message's timeline stand up to an event.
    """

    group: Ints
    start: NullableInts
    is_otlp: Mask
    block: Ints
    place: Ints
    seen: Ints


def match_partial_keys(given: Input, merged: Merged, tolerance_ms: int) -> Pairs:
    """Return the pairs made among one-sided events; starts within ``tolerance_ms`` belong together first."""
    concerned = _groups_concerned(merged)
    if not len(concerned):
        return _NO_PAIRS
    line = _lay_out(given, merged, concerned)
    natives, spans = _candidates(line)
    level = _key_level(_Features.of(given, merged, line.group), natives, spans)
    natives, spans, level = (each[level > 0] for each in (natives, spans, level))
    order = _best_first(line, natives, spans, level, tolerance_ms)
    chosen = order[_choose(natives[order], spans[order], len(line.group))]
    return Pairs(line.group[natives[chosen]], line.group[spans[chosen]], level[chosen])


def _groups_concerned(merged: Merged) -> Ints:
    has_native, has_otlp = (merged.rows[:, :OTLP] >= 0).any(axis=1), merged.rows[:, OTLP] >= 0
    alone = (has_native ^ has_otlp) & (merged.kind != MENTIONED)
    of_message = merged.message * len(KINDS) + merged.kind
    both = np.intersect1d(of_message[alone & has_native], of_message[alone & has_otlp])
    return np.flatnonzero(alone & np.isin(of_message, both)) if len(both) else np.empty(0, np.int64)


def _lay_out(given: Input, merged: Merged, groups: Ints) -> _Timeline:
    is_otlp = merged.rows[groups, OTLP] >= 0
    known = (merged.native_start, merged.native_end, merged.otlp_start, merged.otlp_end)
    starts = known[0]
    for other in known[1:]:
        starts = starts.coalesce(other)
    start = starts.take(groups).filled(LATEST)
    identities = _name_identities(given, merged, groups)
    hashes = NullableInts.of(_column(given, merged, groups, "raw_hash")).filled(0)
    of_message = merged.message[groups] * len(KINDS) + merged.kind[groups]
    order = np.lexsort((rank_words(identities.words)[identities.values], hashes, start, of_message))
    groups, start, is_otlp, of_message = groups[order], start[order], is_otlp[order], of_message[order]
    begins = _run_begins(of_message)
    so_far = np.cumsum(is_otlp)
    seen = so_far - (so_far - is_otlp)[begins]
    block = _cut_blocks(start, begins)
    order = np.lexsort((np.arange(len(block)), is_otlp, block))
    block, is_otlp = block[order], is_otlp[order]
    return _Timeline(
        group=groups[order],
        start=NullableInts(start[order], np.ones(len(order), bool)),
        is_otlp=is_otlp,
        block=block,
        place=np.arange(len(block)) - _run_begins(block * 2 + is_otlp),
        seen=seen[order],
    )


def _name_identities(given: Input, merged: Merged, groups: Ints) -> Codes:
    rows = merged.any_row[groups]
    columns = {name: take_rows(given.events[name], rows) for name in (*KEY_COLUMNS, *IDENTITY_COLUMNS)}
    return encode(name_identities(columns, message_key(columns), merged.kind[groups], given.is_native[rows]))


def _run_begins(codes: Ints) -> Ints:
    rows = np.arange(len(codes))
    is_first = np.r_[True, codes[1:] != codes[:-1]]
    return np.maximum.accumulate(np.where(is_first, rows, 0))


def _cut_blocks(start: Ints, begins: Ints) -> Ints:
    """Return the number of each event's block; a timeline of ``BLOCK`` events or fewer is one block."""
    rows = np.arange(len(start))
    places = rows - begins
    if places.max() < BLOCK:
        return find_groups(begins)[1]
    times = NullableInts(start, np.ones(len(start), bool))
    pause = times - times.take(np.maximum(rows - 1, 0))
    cuts = [np.zeros(len(start), np.int64)]
    for longest_ms in _PAUSES_MS:
        is_cut = (rows == begins) | ~pause.known | (pause.values > longest_ms)
        cuts.append(np.maximum.accumulate(np.where(is_cut, rows, begins)) - begins)
    cuts.append(places)
    steps = [(after - before) // BLOCK for before, after in pairwise(cuts)]
    return find_groups(join_codes((begins, len(begins)), *((step, int(step.max()) + 1) for step in steps)))[1]


def _candidates(line: _Timeline) -> tuple[Ints, Ints]:
    """Return every native event with every span of its block that is near by place or by time."""
    blocks = int(line.block[-1]) + 1
    spans = np.flatnonzero(line.is_otlp)
    first_span, span_count = np.full(blocks, -1, np.int64), np.bincount(line.block[spans], minlength=blocks)
    at_first = spans[line.place[spans] == 0]
    first_span[line.block[at_first]] = at_first
    natives = np.flatnonzero(~line.is_otlp & (span_count[line.block] > 0))
    block, place = line.block[natives], line.place[natives]
    beside = line.seen[natives] - line.seen[first_span[block]] + 1
    last = span_count[block] - 1
    low = np.clip(np.minimum(place, beside) - _REACH, 0, None)
    high = np.minimum(np.maximum(place, beside) + _REACH, last)
    sizes = np.maximum(high - low + 1, 0)
    of_native = np.repeat(np.arange(len(natives)), sizes)
    at = np.arange(len(of_native)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + low[of_native]
    in_reach = (np.abs(at - place[of_native]) <= _REACH) | (np.abs(at - beside[of_native]) <= _REACH)
    of_native, at = of_native[in_reach], at[in_reach]
    return natives[of_native], first_span[block[of_native]] + at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Features:
    """What decides whether two one-sided events agree, per event of a timeline."""

    kind: Ints
    is_full: Mask
    group_name: Codes
    state: Ints
    check: Ints
    retry_times: NullableInts
    topic: Codes

    @classmethod
    def of(cls, given: Input, merged: Merged, groups: Ints) -> _Features:
        def column(name: str) -> Column:
            return _column(given, merged, groups, name)

        topics = encode(column("topic"))
        bare_topics = pa.array([bare(word) for word in topics.words] + [None], pa.string())
        return cls(
            kind=merged.kind[groups],
            is_full=merged.is_full[groups],
            group_name=encode(column("group_name")),
            state=encode(column("transaction_state")).values,
            check=encode(column("from_transaction_check")).values,
            retry_times=NullableInts.of(column("retry_times")),
            topic=encode(bare_topics.take(as_rows(topics.values))),
        )


def _column(given: Input, merged: Merged, groups: Ints, name: str) -> Column:
    return coalesce_rows(given.events[name], [*merged.native_rows(groups), merged.otlp_rows(groups)])


def _key_level(event: _Features, natives: Ints, spans: Ints) -> Ints:
    """Return how strongly two one-sided events of one message and kind agree; 0 if they do not pair."""
    kind = event.kind[natives]
    groups = event.group_name.values
    no_group = groups == event.group_name.room - 1
    lacks_group = no_group[natives] | no_group[spans]
    same_group = (groups[natives] == groups[spans]) & ~lacks_group
    same_state = (event.state[natives] == event.state[spans]) & (event.check[natives] == event.check[spans])
    level = np.select(
        [
            kind == PUBLISH,
            kind == CONSUME,
            kind == KINDS.index(Kind.TRANSACTION_END.value),
            kind == KINDS.index(Kind.RECALL.value),
        ],
        [
            np.where(same_group, _STRONG, _WEAK),
            np.where(same_group, _STRONG, np.where(lacks_group, _WEAK, 0)),
            np.where(same_state, _STRONG, _WEAK),
            np.full(len(kind), _STRONG),
        ],
        0,
    )
    is_distinct = event.is_full[natives] & event.is_full[spans]
    return np.where(is_distinct | _is_retried(event, natives, spans) | _is_elsewhere(event, natives, spans), 0, level)


def _is_retried(event: _Features, natives: Ints, spans: Ints) -> Mask:
    one, other = event.retry_times.take(natives), event.retry_times.take(spans)
    retried: Mask = one.known & other.known & (one.values != other.values)
    return retried


def _is_elsewhere(event: _Features, natives: Ints, spans: Ints) -> Mask:
    one, other = event.topic.values[natives], event.topic.values[spans]
    unknown = event.topic.room - 1
    elsewhere: Mask = (event.kind[natives] == PUBLISH) & (one != unknown) & (other != unknown) & (one != other)
    return elsewhere


def _best_first(line: _Timeline, natives: Ints, spans: Ints, level: Ints, tolerance_ms: int) -> Ints:
    starts = line.start.take(natives), line.start.take(spans)
    near = is_near(*starts, tolerance_ms)
    apart_ms = np.where(near, np.abs((starts[0] - starts[1]).values), 0)
    return np.lexsort((line.place[spans], line.place[natives], apart_ms, ~near, level, line.block[natives]))


def _choose(natives: Ints, spans: Ints, events: int) -> Ints:
    """Return which candidates are made, each whose two events are free when its turn comes.

    Candidates are given best first. All that are the best left for both of their events are made at once, again and
    again: that chooses the same ones as going through the list.
    """
    left, made = np.arange(len(natives)), []
    while len(left):
        best_of_native, best_of_span = np.full(events, LATEST), np.full(events, LATEST)
        np.minimum.at(best_of_native, natives[left], left)
        np.minimum.at(best_of_span, spans[left], left)
        is_best = (best_of_native[natives[left]] == left) & (best_of_span[spans[left]] == left)
        made.append(left[is_best])
        used = np.zeros(events, bool)
        used[natives[made[-1]]] = True
        used[spans[made[-1]]] = True
        left = left[~(used[natives[left]] | used[spans[left]])]
    return np.concatenate(made) if made else np.empty(0, np.int64)


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
        native_damaged=_find_damaged(given, merged, merged.rows[:, OTLP] < 0)[message],
        otlp_damaged=_find_damaged(given, merged, merged.rows[:, OTLP] >= 0)[message],
        **_find_sends(given, merged, native, otlp, message),
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


def _find_damaged(given: Input, merged: Merged, on_side: Mask) -> Mask:
    """Return which messages of the bucket a malformed record of one side names."""
    found = np.zeros(given.messages, bool)
    found[merged.message[(merged.kind == MENTIONED) & on_side]] = True
    return found


def _find_sends(given: Input, merged: Merged, native: Ints, otlp: Ints, message_of: Ints) -> dict[str, Any]:
    """Return what ``Keys`` has of the sends of each key's message."""
    sends = merged.kind[np.where(native >= 0, native, otlp)] == PUBLISH
    native, otlp, message = native[sends], otlp[sends], message_of[sends]
    starts = merged.native_start.take(native).coalesce(merged.otlp_start.take(otlp))
    ends = merged.native_end.take(native).coalesce(merged.otlp_end.take(otlp))
    topics = encode(_field(given, merged, native, otlp, "topic"))
    ranks = rank_words(topics.words)[topics.values]
    topic = least_per_group(message, given.messages, NullableInts(ranks, ranks >= 0))
    in_batch = np.zeros(given.messages, bool)
    in_batch[message[_is_of_batch(given, merged, native, otlp)]] = True
    return {
        "sent": least_per_group(message, given.messages, starts).take(message_of),
        "sent_end": least_per_group(message, given.messages, ends).take(message_of),
        "sent_in_batch": in_batch[message_of],
        "sent_topic": topic.filled(-1)[message_of],
        "topics": pa.array([*sorted(topics.words)], pa.string()),
    }


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
    if not topics.null_count:
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
