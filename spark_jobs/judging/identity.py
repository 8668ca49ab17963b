"""Identify the event of a record: the key of its message, and the identity below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import encode, find_groups, is_known, join_codes, take_rows
from spark_jobs.judging.columns import bare_names, is_equal, least_text_per_group
from spark_jobs.schemas import MENTION
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column, Ints, Mask

KINDS: Final = (*(kind.value for kind in Kind), MENTION, None)
"""The kinds of rows by their codes; the last stands for any other text."""
PUBLISH: Final = KINDS.index(Kind.PUBLISH.value)
CONSUME: Final = KINDS.index(Kind.CONSUME.value)
MENTIONED: Final = KINDS.index(MENTION)
END: Final = KINDS.index(Kind.TRANSACTION_END.value)
RECALL: Final = KINDS.index(Kind.RECALL.value)


KEY_COLUMNS: Final = ("msg_id", "span_id", "path", "line", "record_index")
"""The columns of ``EVENT`` that ``message_key`` reads."""


def encode_kinds(kinds: Column) -> Ints:
    """Return the place of each row's kind in ``KINDS``."""
    codes = encode(kinds)
    known = [KINDS.index(word) if word in KINDS else len(KINDS) - 1 for word in codes.words]
    return np.array([*known, len(KINDS) - 1], np.int32)[codes.values]


def message_key(events: Mapping[str, Column]) -> Column:
    """Return the text that all rows of one message share: its id, else something of the row's own.

    ``events`` are ``KEY_COLUMNS`` of ``EVENT``.
    """
    keys = events["msg_id"]
    if not keys.null_count:
        return keys
    span = pc.binary_join_element_wise("span:", events["span_id"], "")
    place = pc.binary_join_element_wise(
        events["path"].cast(pa.string()),
        events["line"].cast(pa.string()),
        events["record_index"].cast(pa.string()),
        ":",
        null_handling="skip",
    )
    return pc.coalesce(keys, span, pc.binary_join_element_wise("row:", place, ""))


def fill_groups(events: Mapping[str, Column], keys: Column, kinds: Ints, is_native: Mask) -> Column:
    """Return ``group_name``; a row without one (cloud SubAfter) gets the least name with its request id."""
    groups, attempts = events["group_name"], events["attempt_id"]
    lacking = ~is_known(groups) & is_known(attempts)
    if not lacking.any():
        return groups
    of_key, of_attempt = encode(keys), encode(attempts)
    parts = ((of_key.values, of_key.room), (is_native.astype(np.int64), 2), (kinds, len(KINDS)))
    calls, call_of = find_groups(join_codes(*parts, (of_attempt.values, of_attempt.room)))
    found = least_text_per_group(call_of, len(calls), groups).take(call_of[lacking])
    return pc.replace_with_mask(groups.cast(pa.string()), pa.array(lacking), found)


def has_full_key(events: Mapping[str, Column], kinds: Ints) -> Mask:
    """Return which rows hold every field that distinguishes the events of their message."""
    published = (kinds == PUBLISH) & is_known(events["offset_msg_id"])
    full: Mask = published | ((kinds == CONSUME) & is_known(events["group_name"]) & is_known(events["attempt_id"]))
    return full


IDENTITY_COLUMNS: Final = (
    *("side", "writer", "offset_msg_id", "start_ms", "group_name", "attempt_id", "transaction_id", "transaction_state"),
    *("from_transaction_check", "topic", "trace_id", "span_id", "raw_hash"),
)
"""The columns of ``EVENT`` that distinguish the events of one message."""


def identify(events: Mapping[str, Column], keys: Column, kinds: Ints, is_native: Mask) -> Ints:
    """Return a number that is equal on both sides for one event of one message.

    publish: the offset id, else the start. consume: group and attempt. transaction_end: transaction, state, check and
    start (a broker may check, and so end, one transaction again and again). recall: topic and start (a second recall of
    one message is another event). Topics and groups count without prefixes. Rows of writers that record none of this
    are only like themselves: pairing is for them.
    """
    found, size = np.full(len(kinds), -1, np.int32), 0
    for mask, fields in _find_cases(events, kinds, is_native).values():
        rows = np.flatnonzero(mask)
        coded = [encode(_make_comparable(events, field)) for field in fields]
        examples, like = find_groups(join_codes(*((one.values[rows], one.room) for one in coded)))
        found[rows] = like + size
        size += len(examples)
    rest = np.flatnonzero(found < 0)
    if len(rest):
        columns = {name: take_rows(events[name], rest) for name in IDENTITY_COLUMNS}
        found[rest] = encode(_join_own(columns, take_rows(keys, rest))).values + size
    return found


def name_identities(events: Mapping[str, Column], keys: Column, kinds: Ints, is_native: Mask) -> Column:
    """Return a text for each number of ``identify``, whose order does not depend on that of the rows."""
    cases = _find_cases(events, kinds, is_native)
    rest = ~np.logical_or.reduce([np.zeros(len(kinds), bool), *(mask for mask, _ in cases.values())])
    found = _join_own(events, keys) if rest.any() else pa.nulls(len(kinds), pa.string())
    for name, (mask, fields) in cases.items():
        texts = [_make_comparable(events, field).cast(pa.string()).fill_null("") for field in fields]
        found = pc.if_else(pa.array(mask), pc.binary_join_element_wise(name, *texts, "/"), found)
    return found


def _find_cases(events: Mapping[str, Column], kinds: Ints, is_native: Mask) -> dict[str, tuple[Mask, tuple[str, ...]]]:
    """Return which rows have an identity of each kind, and the columns that it is made of."""
    shares_start = is_native | is_equal(events["writer"], "mqtrace")
    has_offset = is_known(events["offset_msg_id"])
    cases: dict[str, tuple[Mask, tuple[str, ...]]] = {
        "offset": ((kinds == PUBLISH) & has_offset, ("offset_msg_id",)),
        "start": ((kinds == PUBLISH) & ~has_offset & shares_start, ("start_ms",)),
        "attempt": ((kinds == CONSUME) & is_known(events["attempt_id"]), ("group_name", "attempt_id")),
        "end": (
            (kinds == END) & shares_start,
            ("transaction_id", "transaction_state", "from_transaction_check", "start_ms"),
        ),
        "recall": ((kinds == RECALL) & shares_start, ("topic", "start_ms")),
        "mention": (kinds == MENTIONED, ("side",)),
    }
    return {name: case for name, case in cases.items() if case[0].any()}


def _make_comparable(events: Mapping[str, Column], field: str) -> Column:
    column = events[field]
    if field in {"group_name", "topic"} and any("%" in name for name in encode(column).words):
        column = bare_names(column)
    is_text = column.null_count and pa.types.is_string(getattr(column.type, "value_type", column.type))
    return column.cast(pa.string()).fill_null("") if is_text else column


def _join_own(events: Mapping[str, Column], keys: Column) -> Column:
    """Return what only a record and its copies have."""
    span = pc.binary_join_element_wise(events["trace_id"], events["span_id"], "")
    itself = pc.coalesce(span, events["raw_hash"].cast(pa.string()), keys)
    return pc.binary_join_element_wise("own", events["side"].cast(pa.string()), itself, "/")
