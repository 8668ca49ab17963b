"""Pair one-sided events that lack part of their key, and find the context of each key in its message's other events.

Events pair by message, group and nearest start. At least one of the two lacks a distinguishing field; different
``retry_times`` and sends to different topics never pair; names are compared without a namespace. ``level`` is 2 where
the group (or the transaction's state) agrees, 3 where only the message does. Pairs are made in the order of level,
nearest starts within the tolerance, and order of events; ties by start, hash and identity.

One id may have a hundred thousand events: a timeline is cut into blocks of a thousand at its longest pauses. Without a
pause the two events on either side of a cut may miss each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_jobs.columns import encode, find_groups, join_codes, mark, repeat_rows, take_rows
from spark_jobs.judging.columns import (
    LATEST,
    NullableInts,
    bare_names,
    coalesce_rows,
    is_equal,
    is_near,
    least_per_group,
    least_text_per_group,
    maximum,
    number_in_runs,
    rank_texts,
)
from spark_jobs.judging.identity import (
    CONSUME,
    END,
    IDENTITY_COLUMNS,
    KEY_COLUMNS,
    KINDS,
    MENTIONED,
    PUBLISH,
    RECALL,
    message_key,
    name_identities,
)
from spark_jobs.judging.merge import OTLP

if TYPE_CHECKING:
    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.merge import Input, Merged

_EXACT, _STRONG, _WEAK = 1, 2, 3
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
    level = _key_level(given, merged.take(line.group), natives, spans)
    natives, spans, level = (each[level > 0] for each in (natives, spans, level))
    order = _best_first(line, natives, spans, level, tolerance_ms)
    chosen = order[_choose(natives[order], spans[order], len(line.group))]
    return Pairs(line.group[natives[chosen]], line.group[spans[chosen]], level[chosen])


def _groups_concerned(merged: Merged) -> Ints:
    on_native, on_otlp = merged.on_native, merged.on_otlp
    alone = (on_native ^ on_otlp) & (merged.kind != MENTIONED)
    of_message = merged.message * len(KINDS) + merged.kind
    both = np.intersect1d(of_message[alone & on_native], of_message[alone & on_otlp])
    return np.flatnonzero(alone & np.isin(of_message, both)) if len(both) else np.empty(0, np.int64)


def _lay_out(given: Input, merged: Merged, groups: Ints) -> _Timeline:
    alone = merged.take(groups)
    is_otlp, start = alone.on_otlp, alone.start.coalesce(alone.end).filled(LATEST)
    hashes = NullableInts.of(_column(given, alone, "raw_hash")).filled(0)
    of_message = alone.message * len(KINDS) + alone.kind
    order = np.lexsort((rank_texts(_name_identities(given, alone)), hashes, start, of_message))
    groups, start, is_otlp, of_message = groups[order], start[order], is_otlp[order], of_message[order]
    begins = np.arange(len(groups)) - number_in_runs(of_message)
    so_far: Ints = np.cumsum(is_otlp)
    seen = so_far - (so_far - is_otlp)[begins]
    block = _cut_blocks(start, begins)
    order = np.lexsort((np.arange(len(block)), is_otlp, block))
    block, is_otlp = block[order], is_otlp[order]
    return _Timeline(
        group=groups[order],
        start=NullableInts(start[order], np.ones(len(order), bool)),
        is_otlp=is_otlp,
        block=block,
        place=number_in_runs(block * 2 + is_otlp),
        seen=seen[order],
    )


def _name_identities(given: Input, alone: Merged) -> Column:
    rows = alone.any_row
    columns = {name: take_rows(given.events[name], rows) for name in (*KEY_COLUMNS, *IDENTITY_COLUMNS)}
    return name_identities(columns, message_key(columns), alone.kind, given.is_native[rows])


def _cut_blocks(start: Ints, begins: Ints) -> Ints:
    """Return the number of each event's block; a timeline of ``BLOCK`` events or fewer is one block."""
    rows = np.arange(len(start))
    places = rows - begins
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
    """Return every native event with every span of its block that is near by place or by time.

    Spans of a block are numbered from its first one. Near are those within ``_REACH`` of ``place``, the event's own
    number among the native events, or of ``beside``, how many spans of the block come before it.
    """
    blocks = int(line.block[-1]) + 1
    spans = np.flatnonzero(line.is_otlp)
    first_span, span_count = np.zeros(blocks, np.int64), np.bincount(line.block[spans], minlength=blocks)
    at_first = spans[line.place[spans] == 0]
    first_span[line.block[at_first]] = at_first
    natives = np.flatnonzero(~line.is_otlp & (span_count[line.block] > 0))
    block, place = line.block[natives], line.place[natives]
    beside = line.seen[natives] - line.seen[first_span[block]] + 1
    last = span_count[block] - 1
    low = np.clip(np.minimum(place, beside) - _REACH, 0, None)
    high = np.minimum(np.maximum(place, beside) + _REACH, last)
    of_native, at = repeat_rows(np.maximum(high - low + 1, 0))
    at += low[of_native]
    in_reach = (np.abs(at - place[of_native]) <= _REACH) | (np.abs(at - beside[of_native]) <= _REACH)
    of_native, at = of_native[in_reach], at[in_reach]
    return natives[of_native], first_span[block[of_native]] + at


def _column(given: Input, merged: Merged, name: str) -> Column:
    return coalesce_rows(given.events[name], [*merged.native_rows(), *merged.span_rows()])


def _key_level(given: Input, alone: Merged, natives: Ints, spans: Ints) -> Ints:
    """Return how strongly two one-sided events of one message and kind agree; 0 if they do not pair."""

    def compare(column: Column) -> tuple[Mask, Mask]:
        """Return where both events have a value, and where the two values, or their absence, are equal."""
        codes = encode(column)
        one, other = codes.values[natives], codes.values[spans]
        return np.maximum(one, other) < codes.room - 1, one == other

    kind = alone.kind[natives]
    have_group, same_group = compare(bare_names(_column(given, alone, "group_name")))
    have_retries, same_retries = compare(_column(given, alone, "retry_times"))
    have_topic, same_topic = compare(bare_names(_column(given, alone, "topic")))
    same_state = compare(_column(given, alone, "transaction_state"))[1]
    same_state &= compare(_column(given, alone, "from_transaction_check"))[1]
    of_group = np.where(have_group & same_group, _STRONG, _WEAK)
    level = np.select(
        [kind == PUBLISH, kind == CONSUME, kind == END, kind == RECALL],
        [
            of_group,
            np.where(have_group & ~same_group, 0, of_group),
            np.where(same_state, _STRONG, _WEAK),
            np.full(len(kind), _STRONG),
        ],
        0,
    )
    are_apart = alone.is_full[natives] & alone.is_full[spans]
    are_apart |= have_retries & ~same_retries
    are_apart |= (kind == PUBLISH) & have_topic & ~same_topic
    return np.where(are_apart, 0, level)


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
        used = mark(events, natives[made[-1]]) | mark(events, spans[made[-1]])
        left = left[~(used[natives[left]] | used[spans[left]])]
    return np.concatenate(made) if made else np.empty(0, np.int64)


def join_pairs(merged: Merged, pairs: Pairs) -> tuple[Merged, Ints]:
    """Return the canonical keys: what met, what was paired, what stayed alone; and of each event its key, else -1."""
    spans = np.arange(len(merged))
    spans[pairs.native] = pairs.otlp
    is_key = np.asarray(merged.kind != MENTIONED)
    is_key[pairs.otlp] = False
    kept = np.flatnonzero(is_key)
    key_of = np.full(len(merged), -1, np.int32)
    key_of[kept] = np.arange(len(kept))
    key_of[pairs.otlp] = key_of[pairs.native]
    keys = merged.take(kept, spans[kept])
    keys.level[keys.on_native & keys.on_otlp] = _EXACT
    keys.level[key_of[pairs.native]] = pairs.level
    return keys, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContexts:
    """The context of each message: its first send, and whether a malformed record of either side names it."""

    sent: NullableInts
    sent_end: NullableInts
    sent_in_batch: Mask
    topic: Column
    native_damaged: Mask
    otlp_damaged: Mask


def describe_messages(given: Input, keys: Merged) -> MessageContexts:
    """Return the context of the messages of a bucket."""
    sends = keys.take(np.flatnonzero(keys.kind == PUBLISH))
    mentioned = given.kinds == MENTIONED
    return MessageContexts(
        sent=least_per_group(sends.message, given.messages, sends.start),
        sent_end=least_per_group(sends.message, given.messages, sends.end),
        sent_in_batch=mark(given.messages, sends.message[_is_of_batch(given, sends)]),
        topic=least_text_per_group(sends.message, given.messages, _column(given, sends, "topic")),
        native_damaged=mark(given.messages, given.message_of[mentioned & given.is_native]),
        otlp_damaged=mark(given.messages, given.message_of[mentioned & ~given.is_native]),
    )


def _is_of_batch(given: Input, sends: Merged) -> Mask:
    """Return which sends are of a batch: by their size, or because the span is a ``create`` span, which has none."""
    sizes, spans = given.events["batch_size"], sends.rows[:, OTLP]
    of_native = NullableInts.of(coalesce_rows(sizes, sends.native_rows()))
    of_span = NullableInts.of(take_rows(sizes, spans))
    is_created = is_equal(take_rows(given.events["writer"], spans), "java-agent-new") & ~of_span.known
    return maximum(of_native, of_span).exceeds(1) | is_created
