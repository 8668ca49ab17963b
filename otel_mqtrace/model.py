"""RocketMQ's message-trace vocabulary: one operation and the messages it touched.

Names and meanings follow ``org.apache.rocketmq.client.trace`` (``TraceContext``, ``TraceBean``, ``TraceType``,
``MessageType``, ``LocalTransactionState``, ``ConsumeReturnType``). Absent values are ``None``, never a default taken
from the machine that happens to read them. Standard library only: executors, fuzzers and notebooks import this.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from typing import Final, NamedTuple

KEY_SEPARATOR: Final = " "
"""Between the keys of a message, in its ``keys`` and in the ``KEYS`` property (``MessageConst.KEY_SEPARATOR``)."""
_RESOURCE: Final = re.compile("(?:%(RETRY|DLQ)%)?(?:([^%]+)%)?")


class ResourceName(NamedTuple):
    """A topic's or group's name in RocketMQ: ``%RETRY%namespace%bare``; ``via`` is ``RETRY``, ``DLQ`` or ``None``."""

    via: str | None
    namespace: str | None
    bare: str


def parse_name(name: str) -> ResourceName:
    """Return the parts of the name of a topic or group; ``bare`` is empty where nothing follows the namespace."""
    return ResourceName(*_RESOURCE.split(name, maxsplit=1)[1:])  # it matches at the start, if only nothing


def is_same_name(one: str, other: str) -> bool:
    """Return whether two names can be of one topic or group: some writers leave the namespace out."""
    left, right = parse_name(one), parse_name(other)
    namespaces = {left.namespace, right.namespace} - {None}
    return (left.via, left.bare) == (right.via, right.bare) and len(namespaces) <= 1


def strip_namespace(name: str) -> str:
    """Return a topic or group as RocketMQ's trace hooks write it (``NamespaceUtil.withoutNamespace``)."""
    via, _, bare = parse_name(name)
    return f"%{via}%{bare}" if via else bare


def strip_prefixes(name: str) -> str:
    """Return a topic or group as names are compared: writers treat namespaces and retry prefixes differently."""
    return parse_name(name).bare


class _Hashed(Enum):
    """An enumeration whose members hash by identity: ``Enum`` hashes the name, in Python code, at each lookup."""

    __hash__ = object.__hash__


class TraceType(_Hashed):
    """What a trace record reports; the value is the text on the wire (``TraceType.name()``)."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(_Hashed):
    """RocketMQ's ``MessageType``; the wire carries an ordinal whose meaning depends on the writer's version."""

    NORMAL = "Normal_Msg"
    TRANS_HALF = "Trans_Msg_Half"
    TRANS_COMMIT = "Trans_msg_Commit"
    DELAY = "Delay_Msg"
    ORDER = "Order_Msg"


class ContextCode(IntEnum):
    """``ConsumeReturnType``: how a listener call ended; the value is the ordinal on the wire."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


class TransactionState(_Hashed):
    """``LocalTransactionState``; ``UNKNOW`` is RocketMQ's own spelling."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"


class AccessChannel(_Hashed):
    """Where a RocketMQ client believes it runs; decides two trailing fields of ``SubAfter``."""

    LOCAL = "LOCAL"
    CLOUD = "CLOUD"


class TraceBean(NamedTuple):
    """One message as the hook saw it. Times are epoch milliseconds, lengths are bytes, ``keys`` is space-separated."""

    topic: str | None = None
    msg_id: str | None = None
    offset_msg_id: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    client_host: str | None = None
    store_time_ms: int | None = None
    retry_times: int | None = None
    body_length: int | None = None
    msg_type: MessageType | None = None
    transaction_id: str | None = None
    transaction_state: TransactionState | None = None
    from_transaction_check: bool | None = None


class TraceContext(NamedTuple):
    """One hook call: a send, one half of a listener call, the end of a transaction or a recall.

    ``timestamp_ms`` is epoch milliseconds: the start of a ``PUB`` or ``SUB_BEFORE``, the **end** of a ``SUB_AFTER``.
    ``cost_ms`` of a ``SUB_AFTER`` is the elapsed time divided by the number of messages, as RocketMQ writes it.
    ``request_id`` joins the two halves of one listener call.
    """

    trace_type: TraceType
    timestamp_ms: int | None = None
    region_id: str | None = None
    region_name: str | None = None
    group_name: str | None = None
    request_id: str | None = None
    cost_ms: int | None = None
    success: bool | None = None
    context_code: ContextCode | None = None
    access_channel: AccessChannel | None = None
    beans: tuple[TraceBean, ...] = ()
