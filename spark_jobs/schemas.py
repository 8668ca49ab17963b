"""The Arrow schemas of the tables passed between stages, and their shared values.

Times are epoch milliseconds (``*_ms``) unless the name has nanoseconds. Null means absent, never a default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_TEXT: Final[Any] = pa.string()
_LONG: Final[Any] = pa.int64()
_INT: Final[Any] = pa.int32()
_BOOL: Final[Any] = pa.bool_()
_TEXTS: Final[Any] = pa.list_(pa.string())

BAD: Final[Any] = pa.struct({"field": _TEXT, "reason": _TEXT, "text": _TEXT, "mentions": _TEXTS})
"""Why a row is not a body, span or event (null on every good row): at most 200 characters of the offending text, and
the message ids still readable in it.
"""

BODY: Final = pa.schema(
    {
        "source": _TEXT,  # the trace topic
        "arrival_ms": _LONG,
        "path": _TEXT,  # the file it was read from
        "line": _LONG,  # its ordinal in that file, for evidence
        "is_joined": pa.bool_(),  # on the same line as the body before it
        "body": pa.binary(),
        "bad": BAD,
    }
)
"""What a native source yields: the bodies of trace messages as they were landed, and the lines that hold none."""

_ATTRIBUTES: Final[Any] = pa.map_(_TEXT, _TEXT)
_SPAN_PLACE: Final[Any] = pa.struct({"trace_id": _TEXT, "span_id": _TEXT})
_LINK: Final[Any] = pa.struct({"trace_id": _TEXT, "span_id": _TEXT, "flags": _LONG, "attributes": _ATTRIBUTES})
SPAN: Final = pa.schema(
    {
        "trace_id": _TEXT,  # lower hex
        "span_id": _TEXT,
        "parent_span_id": _TEXT,  # null at a root
        "name": _TEXT,
        "kind": _TEXT,  # PRODUCER, CONSUMER, CLIENT, SERVER, INTERNAL, UNSPECIFIED
        "start_ns": _LONG,
        "end_ns": _LONG,
        "status": _TEXT,  # UNSET, OK, ERROR
        "service": _TEXT,
        "scope": _TEXT,
        "flags": _LONG,
        "attributes": _ATTRIBUTES,  # scalars as text; arrays as JSON text
        "links": pa.list_(_LINK),
        "dropped_attributes": _LONG,
        "dropped_links": _LONG,
        "path": _TEXT,
        "line": _LONG,
        "raw_hash": _LONG,  # null until normalised
        "bad": BAD,
    }
)
"""What an OTLP source yields: spans, whatever file layout or convention they came in, and what holds none."""

SIDE_FIELDS: Final[dict[str, Any]] = {
    "offset_msg_id": _TEXT,
    "topic": _TEXT,
    "group_name": _TEXT,
    "attempt_id": _TEXT,  # RocketMQ's requestId
    "retry_times": _INT,
    "region_id": _TEXT,
    "tags": _TEXT,
    "keys": _TEXTS,  # a set: sorted, distinct; null when absent
    "store_host": _TEXT,
    "client_host": _TEXT,
    "body_length": _INT,
    "msg_type": _TEXT,
    "start_ms": _LONG,
    "end_ms": _LONG,
    "cost_ms": _LONG,
    "success": _BOOL,
    "context_code": _TEXT,
    "transaction_id": _TEXT,
    "transaction_state": _TEXT,
    "from_transaction_check": _BOOL,
    "trace_id": _TEXT,
    "span_id": _TEXT,
    "parent_span_id": _TEXT,
    "service": _TEXT,
    "batch_size": _INT,  # messages in the same call
    "dropped_attributes": _LONG,
    "arrival_ms": _LONG,
    "path": _TEXT,
    "line": _LONG,
    "record_index": _INT,  # on its line or in its message, or of its link in its span
    "writer": _TEXT,  # mqtrace, rocketmq, java-agent-old, java-agent-new, other
    "raw_hash": _LONG,
    "id_source": _TEXT,  # own, or header: found in a captured property; null on native
    "sent_sampled": _BOOL,  # from the flags of a delivery's link to its send; null where the writer sets none
    "first_seen_run": _INT,  # carried over from an earlier run: the one that first saw it open; null when read now
    "left_as": _TEXT,  # carried over: the reason the last run that judged it left it with, else its status
}
"""The fields of an event on one side: the evidence kept in a verdict."""

COMPARED_FIELDS: Final = (
    *("topic", "group_name", "offset_msg_id", "tags", "keys", "store_host", "client_host", "region_id"),
    *("body_length", "msg_type", "retry_times", "start_ms", "end_ms", "cost_ms", "success", "context_code"),
    *("transaction_id", "transaction_state", "from_transaction_check"),
)
"""The fields that get a verdict of their own, in report order."""
TIMED_FIELDS: Final = ("start_ms", "end_ms", "cost_ms")
"""The fields that are compared with a tolerance."""

MENTION: Final = "mention"
"""The ``kind`` of a row for a malformed record of this side that names this message."""

EVENT: Final = pa.schema(
    {
        "side": _TEXT,  # native, otlp
        "kind": _TEXT,  # publish, consume, transaction_end, recall
        "half": _TEXT,  # whole, before, after (native consume only)
        "msg_id": _TEXT,  # upper-cased when it is hex; null when absent
        "scope": _TEXT,  # null: in scope; else why it is not (TRACE_TRAFFIC, NOT_MESSAGING, POLL, BATCH_PARENT, ...)
        "links": pa.list_(_SPAN_PLACE),  # spans this one points at: the message's own link, else all; null on native
        **SIDE_FIELDS,
    }
)
"""One record or span about one message (batch ids and links exploded): what both sides are mapped to."""

NORMALISED: Final = EVENT.append(pa.field("bad", BAD))
"""The rows read of one side: each is an event or has the reason why not, so the input is parsed once."""

READ_EVENT: Final = NORMALISED.append(pa.field("extra", _LONG))
"""What the normalisers yield: ``NORMALISED``, and whether a row stands for no record of its own (1)."""


@dataclass(slots=True)
class InputCounts:
    """What the readers of one task have counted in their input, apart from the parsers.

    ``expected`` are spans or records, and 1 for each piece that holds none; ``tails`` are files cut off in a message.
    """

    expected: int = 0
    tails: int = 0


_SIDE: Final[Any] = pa.struct(SIDE_FIELDS)

VERDICT: Final = pa.schema(
    {
        "kind": _TEXT,
        "msg_id": _TEXT,
        "topic": _TEXT,
        "group": _TEXT,
        "attempt_id": _TEXT,
        "retry_times": _INT,
        "status": _TEXT,  # Status
        "reason": _TEXT,  # Reason; null where the status needs none
        "reason_detail": _TEXT,
        "key_level": _INT,  # 1 exact .. 3 weak; null on one-sided keys
        "timing": _TEXT,
        "event_ms": _LONG,  # the start, from either side
        "native_count": _INT,  # copies of the event on that side, 0 when absent
        "otlp_count": _INT,
        "duplicates": _TEXT,  # null, exact, equivalent, conflicting
        "native_records": _INT,  # for the balance: every record that became this key, halves included
        "native_exact_duplicates": _INT,
        "native_other_duplicates": _INT,
        "half_merged": _INT,  # of both sides
        "otlp_records": _INT,
        "otlp_exact_duplicates": _INT,
        "otlp_other_duplicates": _INT,
        "queue_ms": _LONG,  # consume: from the end of the first send to the start of this delivery
        "end_to_end_ms": _LONG,  # consume: from the start of the first send to the end of this delivery
        "field_verdicts": pa.map_(_TEXT, _TEXT),  # null on one-sided rows
        "native": _SIDE,  # null when the side is absent
        "otlp": _SIDE,
        "lifecycle": _TEXT,  # Lifecycle: of keys that are open, or were when an earlier run ended; null on all others
        "first_seen_run": _INT,  # the run of this history that first reported it open
    }
)
"""The answer: one row per canonical key, with both sides' own words beside it."""


# 32 hexadecimal digits, or 56 from a host that has IPv6 addresses only (MessageClientIDSetter); 34 by gRPC clients
_MESSAGE_ID: Final = re.compile(r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{56}|[0-9A-Fa-f]{34}|[0-9A-Fa-f]{32})(?![0-9A-Fa-f])")
_SAMPLE_CHARACTERS: Final = 200


def mentioned_in(text: str) -> list[str]:
    """Return the message ids readable in ``text``: distinct, upper case, in order of appearance."""
    return list(dict.fromkeys(found.upper() for found in _MESSAGE_ID.findall(text)))


def bad_piece(field: str | None, reason: str, text: str, *, within: str | None = None) -> dict[str, Any]:
    """Return ``BAD``: the field at fault, why, the offending text, and the messages named ``within`` it or more."""
    mentions = mentioned_in(text if within is None else within)
    return {"field": field, "reason": reason, "text": text[:_SAMPLE_CHARACTERS], "mentions": mentions}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDrop:
    """``count`` messages or spans that ``side`` (``native`` or ``otlp``) lost by ``cause``, and what is known of them.

    ``None`` is unknown. ``process`` is the process id modulo 65536 as four hex digits, as message ids hold it. A bucket
    is ``[bucket_start_ms, bucket_start_ms + bucket_ms)`` in epoch milliseconds; without one the whole run is meant.
    ``of_start``: only the record of a delivery's start was lost; that of its end is counted by itself. ``before``: what
    a counter had counted when it was first read, since whenever it began; how it grew from there is counted by itself.
    """

    side: str
    component: str
    cause: str
    count: int
    service: str | None = None
    instance: str | None = None
    group: str | None = None
    process: str | None = None
    bucket_start_ms: int | None = None
    bucket_ms: int | None = None
    of_start: bool = False
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRead:
    """The content of the ledgers: the losses (rows and increments), and ``own`` metrics left out.

    ``again``: losses left out because a Collector had counted them further down its pipeline; ``unusable``: readings
    of loss counters that are not counts.
    """

    files: tuple[str, ...] = ()
    drops: tuple[CountedDrop, ...] = ()
    own: int = 0
    again: int = 0
    unusable: int = 0
