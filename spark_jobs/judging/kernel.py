"""Judge the events of one bucket of messages: identify, merge, pair, add context, compare, decide."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_jobs.columns import encode
from spark_jobs.judging.columns import is_equal, single_arrays
from spark_jobs.judging.identity import encode_kinds, fill_groups, identify, message_key
from spark_jobs.judging.match import describe_messages, join_pairs, match_partial_keys
from spark_jobs.judging.merge import Input, merge_records
from spark_jobs.judging.verdict_rows import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from spark_jobs.columns import Column, Ints
    from spark_jobs.judging.merge import Merged
    from spark_jobs.judging.plan import Plan


KEYS_PER_SLICE: Final = 25_000
"""So many verdicts are laid out at a time: wide rows of two sides take about a kilobyte each."""


@dataclass(frozen=True, slots=True)
class JudgedSlice:
    """The verdicts on some events of a bucket.

    Attributes:
        verdicts: ``VERDICT``, ``lifecycle`` null, one row per canonical key.
        events: ``EVENT``: the rows given, a missing ``group_name`` filled in from the other half.
        verdict_of: for each of ``events`` the row of its verdict; -1 where that is not among ``verdicts``.
    """

    verdicts: pa.Table
    events: pa.Table
    verdict_of: Ints


def judge_slices(
    events: pa.Table, plan: Plan, *, columns: Mapping[str, Column] | None = None, keys_per_slice: int = KEYS_PER_SLICE
) -> Iterator[JudgedSlice]:
    """Yield the verdicts on a bucket some keys at a time, so that memory does not grow with its largest message.

    Args:
        events: columns of ``EVENT``: all rows in scope, and not malformed, of each message; a row of kind ``MENTION``
            stands for a malformed record that names its message.
        plan: the run's policy and the facts of its input.
        columns: those of ``events``, each one array, if present.
        keys_per_slice: about so many verdicts are yielded at a time.
    """
    given, groups = _prepare(single_arrays(events) if columns is None else columns)
    events = events.set_column(events.column_names.index("group_name"), "group_name", groups)
    keys, key_of_row = _find_keys(given, plan)
    messages = describe_messages(given, keys)
    slices = max(round(len(keys) / keys_per_slice), 1)
    size = max(-(-len(keys) // slices), 1)
    for begin in range(0, max(len(keys), 1), size):
        end = min(begin + size, len(keys))
        verdict_of = np.where((key_of_row >= begin) & (key_of_row < end), key_of_row - begin, -1)
        some = keys.take(np.arange(begin, end))
        # No name for the verdicts: it would keep them while the next ones are laid out.
        yield JudgedSlice(lay_out(given, some, messages, plan), events, verdict_of)


def _find_keys(given: Input, plan: Plan) -> tuple[Merged, Ints]:
    """Return the canonical keys, and of each row the number of its key, -1 for a mention."""
    merged, event_of_row = merge_records(given)
    keys, key_of_event = join_pairs(merged, match_partial_keys(given, merged, plan.pairing_ms))
    return keys, key_of_event[event_of_row]


def _prepare(columns: Mapping[str, Column]) -> tuple[Input, Column]:
    """Return the rows of a bucket with the codes that everything later is grouped by, and their groups as filled."""
    keys, kinds, is_native = message_key(columns), encode_kinds(columns["kind"]), is_equal(columns["side"], "native")
    groups = fill_groups(columns, keys, kinds, is_native)
    events = ChainMap({"group_name": groups}, columns)  # type: ignore[arg-type]  # nothing is written to it
    messages = encode(keys)
    return Input(
        events=events,
        message_of=messages.values.astype(np.int32),
        messages=messages.room,
        kinds=kinds,
        is_native=is_native,
        identity_of=identify(events, keys, kinds, is_native),
    ), groups
