"""Read a span as native trace contexts: what RocketMQ's own hooks would have written for the same call.

``roles`` has the attribute names and decides the span's role, as for the reconciliation. Fields that the
span lacks stay ``None``, except the message type of a send: the wire cannot encode an unknown one, so it is
``Normal_Msg``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.otlp.roles import (
    ALIASES,
    FACT_FIELDS,
    NAMING_FIELDS,
    TRACE_TOPIC_NAMES,
    TRACE_TOPIC_PREFIX,
    EventRole,
    SpanFacts,
    role_of,
)
from bridge.otlp.values import attribute_text, long_or_none, offset_in_id
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.model import (
    KEY_SEPARATOR,
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    TransactionState,
)
from otel_mqtrace.spans.mapping import cost_ms
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.otlp.values import Span


_TYPES: Final = {
    "publish": TraceType.PUB,
    "transaction_end": TraceType.END_TRANSACTION,
    "recall": TraceType.RECALL,
}
_THREAD_OF_GROUP: Final = re.compile(r"ConsumeMessageThread_(.+)_[0-9]+")
_OURS: Final = "mqtrace"
_KAFKA: Final = "kafka"


class SpanContexts(NamedTuple):
    """The contexts of one span, one message each, or why there are none.

    ``scope`` names the reason: ``POLL``, ``SETTLE``, ``BATCH_PARENT``, ``TRACE_TRAFFIC`` or ``NOT_MESSAGING``.
    """

    contexts: tuple[TraceContext, ...]
    scope: str | None


def contexts_of(span: Span) -> SpanContexts:
    """Return the contexts of ``span`` (``values.Span``, not a bad one), in the order of its messages.

    A delivery gives a ``SubBefore`` and a ``SubAfter`` for each message. Another instrumentation's delivery has no
    request id; its span id stands in, because readers join the two records by it.
    """
    own = span["attributes"]
    messages = _messages(span)
    found: list[TraceContext] = []
    scope = None
    for places, given_id in messages:
        message = _Message(span, places, given_id, len(messages))
        role = role_of(message.facts(unnamed=_is_unnamed(span), has_id=_text("msg_id", (own,)) is not None))
        if role is None or role.scope is not None or role.kind is None:
            scope = None if role is None else role.scope
        else:
            found += message.contexts(role)
    return SpanContexts(tuple(found), scope)


_Places = tuple["Mapping[str, Any]", ...]
"""Attributes that may have a field: those of the message's link before those of the span."""


def _messages(span: Span) -> list[tuple[_Places, str | None]]:
    """Return the messages of a span: one per link that names one, else one per id, else one."""
    own = span["attributes"]
    given = _text("msg_id", (own,))
    ids = [None] if given is None else given.split(",")
    if len(ids) == 1 and span["links"] and not _is_unnamed(span):
        places = [(link["attributes"], own) for link in span["links"]]
        return [(each, _text("msg_id", each)) for each in places]
    return [((own,), each) for each in ids]


def _is_unnamed(span: Span) -> bool:
    links = [(link["attributes"],) for link in span["links"]]
    return bool(links) and not any(_raw(field, link) is not None for link in links for field in NAMING_FIELDS)


class _Message:
    """One message of a span and the attributes that may have its fields."""

    def __init__(self, span: Span, places: _Places, given_id: str | None, together: int) -> None:
        self._span, self._places, self._given_id, self._together = span, places, given_id, together

    def facts(self, *, unnamed: bool, has_id: bool) -> SpanFacts:
        """Return what decides the role of the span."""
        topic = self._text("topic") or ""
        return SpanFacts(
            is_span=True,
            span_kind=self._span["kind"],
            library=self._span["scope"],
            status=self._span["status"],
            is_trace_traffic=topic in TRACE_TOPIC_NAMES or topic.startswith(TRACE_TOPIC_PREFIX),
            has_id=has_id,
            linked=bool(self._span["links"]),
            unnamed=unnamed,
            **{name: _text(name, self._places) for name in FACT_FIELDS},
        )

    def contexts(self, role: EventRole) -> list[TraceContext]:
        """Return the records' contexts: two of a delivery, one of anything else."""
        bean = self._bean(role)
        common: dict[str, Any] = {
            "region_id": self._present("region_id"),
            "group_name": self._group(role),
            "request_id": self._present("attempt_id"),
            "beans": (bean,),
        }
        start_ms, end_ms = (self._span[edge] // NS_PER_MS or None for edge in ("start_ns", "end_ns"))
        if role.kind != "consume":
            return [
                TraceContext(trace_type=_TYPES[role.kind or ""], timestamp_ms=start_ms, **common, **self._end(role))
            ]
        if common["request_id"] is None and role.writer != _OURS and self._span["span_id"] is not None:
            common["request_id"] = self._span["span_id"].upper()
        halves = []
        if role.half != "after":
            halves.append(TraceContext(trace_type=TraceType.SUB_BEFORE, timestamp_ms=start_ms, **common))
        if role.half != "before":
            after = self._end(role)
            halves.append(TraceContext(trace_type=TraceType.SUB_AFTER, timestamp_ms=end_ms, **common, **after))
        return halves

    def _end(self, role: EventRole) -> dict[str, Any]:
        took = self._whole("cost_ms")
        if took is None and self._span["start_ns"] and self._span["end_ns"]:
            took = cost_ms(self._span["start_ns"], self._span["end_ns"], self._whole("batch_count") or self._together)
        code = role.context_code
        return {
            "cost_ms": took,
            "success": role.success,
            "context_code": ContextCode.__members__.get(code or ""),
        }

    def _bean(self, role: EventRole) -> TraceBean:
        place = self._place()
        own_id = None if self._dotted_place() is not None else _present(self._given_id)
        return TraceBean(
            topic=self._present("topic"),
            msg_id=own_id or place,
            offset_msg_id=place,
            tags=self._present("tags"),
            keys=self._keys(),
            store_host=self._present("store_host"),
            client_host=self._present("client_host"),
            retry_times=self._whole("retry_times"),
            body_length=self._whole("body_length"),
            msg_type=_MESSAGE_TYPES.get(role.msg_type or "", MessageType.NORMAL if role.kind == "publish" else None),
            transaction_id=self._present("transaction_id"),
            transaction_state=TransactionState.__members__.get(self._present("transaction_state") or ""),
            from_transaction_check=role.from_transaction_check,
        )

    def _group(self, role: EventRole) -> str | None:
        """Return the group; old names of the Java agent have it in the name of the listener's thread only."""
        group = self._present("group_name")
        if group is None and role.kind == "consume":
            thread = _THREAD_OF_GROUP.fullmatch(self._text("thread_name") or "")
            return thread and thread[1]
        return group

    def _keys(self) -> str | None:
        for attributes in self._places:
            for name in ALIASES["keys"].arrays:
                keys = attributes.get(name)
                if isinstance(keys, (list, tuple)) and keys:
                    return _present(KEY_SEPARATOR.join(attribute_text(key) or "" for key in keys))
                if isinstance(keys, str):
                    return _present(keys)
        return None

    def _place(self) -> str | None:
        """Return the physical id that the writer gives, else where the message lies on its Kafka topic."""
        given = self._present("offset_msg_id")
        if given is not None:
            return given
        partition, offset = self._whole("partition"), self._whole("kafka_offset")
        if partition is not None and offset is not None and partition >= 0 and offset >= 0:
            return f"{self._text('topic')}-{partition}@{offset}"
        return self._dotted_place()

    def _dotted_place(self) -> str | None:
        return offset_in_id(self._given_id, self._text("topic")) if self._text("system") == _KAFKA else None

    def _text(self, field: str) -> str | None:
        return _text(field, self._places)

    def _present(self, field: str) -> str | None:
        return _present(_text(field, self._places))

    def _whole(self, field: str) -> int | None:
        return long_or_none(_text(field, self._places))


_MESSAGE_TYPES: Final = {each.value: each for each in MessageType}


def _raw(field: str, places: _Places) -> Any:
    alias = ALIASES[field]
    for attributes in places:
        for name in alias.names:
            if (value := attributes.get(name)) is not None:
                return value
        for name in alias.arrays:
            values = attributes.get(name)
            if isinstance(values, (list, tuple)) and values:
                return values[0]
    return None


def _text(field: str, places: _Places) -> str | None:
    return attribute_text(_raw(field, places))


def _present(text: str | None) -> str | None:
    return None if text in ABSENT_TEXTS else text
