"""The native trace format: THE table of record types, versions and fields; a new RocketMQ release is a row here.

A record is its type name and its fields joined by U+0001 and **terminated** by U+0002; the wire has no escaping, length
or version (``TraceDataEncoder.java``, ``TraceConstants.java`` of apache/rocketmq). Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import AccessChannel, MessageType, TraceBean, TraceContext, TraceType

FIELD_SEPARATOR: Final = "\x01"
RECORD_TERMINATOR: Final = "\x02"
NULL_TEXT: Final = "null"
"""What Java's ``StringBuilder`` makes of a null reference; indistinguishable from the word itself."""
RECORD_START: Final = re.compile(f"(?:{'|'.join(kind.value for kind in TraceType)}){FIELD_SEPARATOR}".encode())
"""The beginning of any record's bytes."""
REPLACEMENT: Final = "_"
"""What a separator inside a value is written as by our encoder (RocketMQ's writes the separator and breaks)."""
ABSENT_TEXTS: Final = frozenset({"", NULL_TEXT, "dKey"})
"""Texts for an absent value: Go leaves it empty, Java writes ``null``, C++ writes ``dKey`` for no keys."""


def absent(text: str | None) -> bool:
    """Return whether a decoded text most likely means "no value".

    The decoder keeps the words as they are on the wire, because a key may really be the word ``null``: a caller that
    wants the meaning instead of the text calls this.
    """
    return text is None or text in ABSENT_TEXTS


class FieldKind(Enum):
    """How the text of a field is read and written."""

    TEXT = "text"
    LONG = "long"
    INT = "int"
    BOOL = "bool"
    MESSAGE_TYPE = "message type ordinal"
    CONTEXT_CODE = "context code ordinal"
    TRANSACTION_STATE = "transaction state name"


FIELDS: Final[dict[str, FieldKind]] = {
    "timestamp_ms": FieldKind.LONG,
    "region_id": FieldKind.TEXT,
    "group_name": FieldKind.TEXT,
    "request_id": FieldKind.TEXT,
    "topic": FieldKind.TEXT,
    "msg_id": FieldKind.TEXT,
    "tags": FieldKind.TEXT,
    "keys": FieldKind.TEXT,
    "store_host": FieldKind.TEXT,
    "client_host": FieldKind.TEXT,
    "body_length": FieldKind.INT,
    "cost_ms": FieldKind.INT,
    "retry_times": FieldKind.INT,
    "msg_type": FieldKind.MESSAGE_TYPE,
    "offset_msg_id": FieldKind.TEXT,
    "success": FieldKind.BOOL,
    "context_code": FieldKind.CONTEXT_CODE,
    "exactly_once_status": FieldKind.INT,
    "transaction_id": FieldKind.TEXT,
    "transaction_state": FieldKind.TRANSACTION_STATE,
    "from_transaction_check": FieldKind.BOOL,
}
"""Every field that ever was on the wire, under the name it has in our model and in the JSON of a record."""

BEAN_FIELDS: Final = frozenset(TraceBean._fields) & FIELDS.keys()
"""The fields that belong to one message; the others belong to the hook call (``exactly_once_status`` to neither)."""

_MODEL: Final = BEAN_FIELDS.union(TraceContext._fields)
KEPT_FIELDS: Final = tuple(name for name in FIELDS if name in _MODEL)
"""The fields that the model has a place for: all but ``exactly_once_status``, on which no two readers agree."""

FIRST_BEAN_ONLY: Final = frozenset({TraceType.PUB, TraceType.END_TRANSACTION, TraceType.RECALL})
"""Types whose context is one record, that of its first bean: several messages need several contexts."""


@dataclass(frozen=True, slots=True)
class Form:
    """One arrangement of fields. ``count`` includes the type name at index 0, as the notes on the format count."""

    fields: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of fields on the wire, the type name included."""
        return len(self.fields) + 1


_PUB = ("timestamp_ms", "region_id", "group_name", "topic", "msg_id", "tags", "keys", "store_host", "body_length")
_PUB_12 = (*_PUB, "cost_ms", "msg_type")
_PUB_14 = (*_PUB_12, "offset_msg_id", "success")
_SUB_BEFORE = ("timestamp_ms", "region_id", "group_name", "request_id", "msg_id", "retry_times", "keys")
_SUB_AFTER_6 = ("request_id", "msg_id", "cost_ms", "success", "keys")
_SUB_AFTER_7 = (*_SUB_AFTER_6, "context_code")
_END_TRANSACTION = (
    *("timestamp_ms", "region_id", "group_name", "topic", "msg_id", "tags", "keys", "store_host", "msg_type"),
    *("transaction_id", "transaction_state", "from_transaction_check"),
)

CLOUD_SUB_AFTER: Final = Form(_SUB_AFTER_7)
"""What the CLOUD channel leaves of a ``SubAfter`` wherever it makes a difference: see ``CloudSubAfter``."""

FORMS: Final[dict[TraceType, tuple[Form, ...]]] = {
    TraceType.PUB: (
        Form(_PUB_12),
        Form((*_PUB_12, "success")),
        Form(_PUB_14),  # every release but 4.8.0
        Form((*_PUB_14, "client_host")),  # 4.8.0, Go, Rust
    ),
    TraceType.SUB_BEFORE: (
        Form(_SUB_BEFORE),
        Form((*_SUB_BEFORE, "client_host")),  # 4.8.0, Go
    ),
    TraceType.SUB_AFTER: (
        Form(_SUB_AFTER_6),  # C++
        Form(_SUB_AFTER_7),  # 4.4.0-4.7.1, 4.9.1, and every CLOUD since 4.9.5/5.1.4
        Form((*_SUB_AFTER_7, "exactly_once_status")),  # the ONS ancestor
        Form((*_SUB_AFTER_7, "timestamp_ms", "group_name")),
    ),
    TraceType.END_TRANSACTION: (Form(_END_TRANSACTION),),
    TraceType.RECALL: (Form(("timestamp_ms", "region_id", "group_name", "topic", "msg_id", "success")),),
}
"""The forms of each type, shortest first: a reader takes the longest one that the record fills."""


def form_for(trace_type: TraceType, count: int, filled: int | None = None) -> Form | None:
    """Return the longest form of ``trace_type`` that a record with ``count`` fields fills, or ``None``.

    ``count`` includes the type name; ``filled`` (default ``count``) is the same number without the empty fields at the
    end. Those may stand for empty texts, never for numbers: a CLOUD ``SubAfter`` of seven fields and an empty one is
    not the form whose eighth field is a number (Java's ``String.split`` drops such fields before it counts).
    """
    filled = count if filled is None else filled
    fitting = [
        form
        for form in FORMS[trace_type]
        if form.count <= count and all(FIELDS[name] is FieldKind.TEXT for name in form.fields[max(filled - 1, 0) :])
    ]
    return fitting[-1] if fitting else None


_MAP_A = (*(MessageType.NORMAL, MessageType.TRANS_HALF, MessageType.TRANS_COMMIT, MessageType.DELAY), MessageType.ORDER)
_MAP_B = (*(MessageType.NORMAL, MessageType.ORDER, MessageType.TRANS_HALF, MessageType.TRANS_COMMIT), MessageType.DELAY)
MESSAGE_TYPE_MAPS: Final[dict[str, tuple[MessageType, ...]]] = {"a": _MAP_A, "b": _MAP_B}
"""Ordinal → type. Map B is 5.0.0 and 5.1.0 only (apache/rocketmq#6157); the wire does not distinguish them."""


def check_message_type_map(name: str) -> None:
    """Raise ``UsageError`` unless there is a map of that name."""
    if name not in MESSAGE_TYPE_MAPS:
        raise UsageError(f"unknown message type map {name!r}; choose one of {', '.join(MESSAGE_TYPE_MAPS)}")


class CloudSubAfter(Enum):
    """What the CLOUD access channel makes of a ``SubAfter``."""

    SAME = "as LOCAL"
    GLUED = f"{CLOUD_SUB_AFTER.count} fields, a separator, no terminator: glued to what follows (apache/rocketmq#8429)"
    TRAILING = f"{CLOUD_SUB_AFTER.count} fields and an empty one"


Release: TypeAlias = tuple[int, ...]


def parse_release(text: str) -> Release:
    """Return a release for comparison with others: ``(5, 3, 1)`` of ``5.3.1``."""
    return tuple(map(int, text.split(".")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCounts:
    """How many fields a writer's records have, by type; counts include the type name."""

    name: str
    releases: str
    pub: int = 14
    sub_before: int = 8
    sub_after: int = 9
    end_transaction: int | None = None
    recall: int | None = None
    cloud_sub_after: CloudSubAfter = CloudSubAfter.SAME

    def count(self, trace_type: TraceType) -> int | None:
        """Number of fields it writes for a type (over LOCAL), or ``None`` when it never writes the type."""
        count: int | None = getattr(self, trace_type.name.lower())  # the fields have the names of the types
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(FieldCounts):
    """One generation of Java writers, named by the first release that wrote it."""

    end_transaction: int | None = 13
    message_type_map: str = "a"
    splits_keys: bool = True

    @property
    def first_and_last(self) -> tuple[Release, Release]:
        """The first and the last release that writes it."""
        first, _, last = self.releases.partition("-")
        return parse_release(first), parse_release(last or first)

    @property
    def message_types(self) -> tuple[MessageType, ...]:
        """The types of this generation, by ordinal: ``Order_Msg`` came with 5.0 and a 4.x reader throws on it."""
        known = MESSAGE_TYPE_MAPS[self.message_type_map]
        return tuple(kind for kind in known if kind is not MessageType.ORDER) if self.name.startswith("4.") else known

    def form(self, trace_type: TraceType, access_channel: AccessChannel = AccessChannel.LOCAL) -> Form | None:
        """Return the form this dialect writes, or ``None`` when it never writes the type."""
        count = self.count(trace_type)
        if count is None:
            return None
        if self.cloud_quirk(trace_type, access_channel) is not CloudSubAfter.SAME:
            return CLOUD_SUB_AFTER
        return next(form for form in FORMS[trace_type] if form.count == count)

    def cloud_quirk(self, trace_type: TraceType, access_channel: AccessChannel) -> CloudSubAfter:
        """Return what the channel makes of the type: only a ``SubAfter`` over CLOUD is ever anything but ``SAME``."""
        if trace_type is TraceType.SUB_AFTER and access_channel is AccessChannel.CLOUD:
            return self.cloud_sub_after
        return CloudSubAfter.SAME


_ROWS = (
    Dialect(name="4.4.0", releases="4.4.0-4.7.1", sub_after=7, end_transaction=None, splits_keys=False),
    Dialect(name="4.8.0", releases="4.8.0", pub=15, sub_before=9, end_transaction=None, splits_keys=False),
    Dialect(name="4.9.0", releases="4.9.0", splits_keys=False),
    Dialect(name="4.9.1", releases="4.9.1", sub_after=7, splits_keys=False),
    Dialect(name="4.9.2", releases="4.9.2", splits_keys=False),
    Dialect(name="4.9.3", releases="4.9.3-4.9.4"),
    Dialect(name="4.9.5", releases="4.9.5-4.9.8", cloud_sub_after=CloudSubAfter.GLUED),
    Dialect(name="5.0.0", releases="5.0.0-5.1.0", message_type_map="b"),
    Dialect(name="5.1.1", releases="5.1.1-5.1.3"),
    Dialect(name="5.1.4", releases="5.1.4-5.3.0", cloud_sub_after=CloudSubAfter.GLUED),
    Dialect(name="5.3.1", releases="5.3.1", cloud_sub_after=CloudSubAfter.TRAILING),
    Dialect(name="5.3.2", releases="5.3.2-5.4.0", cloud_sub_after=CloudSubAfter.TRAILING, recall=7),
    Dialect(name="5.5.0", releases="5.5.0", cloud_sub_after=CloudSubAfter.TRAILING, recall=7),
)
DIALECTS: Final[dict[str, Dialect]] = {row.name: row for row in _ROWS}
DEFAULT_DIALECT: Final = "5.5.0"
