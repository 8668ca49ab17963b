"""Read a span as native trace contexts: what RocketMQ's own hooks would have written for the same call.

``roles`` has the attribute names and decides the span's role, as for the reconciliation. Fields that the
span lacks stay ``None``, except the message type of a send: the wire cannot encode an unknown one, so it is
``Normal_Msg``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
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
from bridge.otlp.values import attribute_text, group_of_thread, long_or_none, offset_in_id
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.model import (
    KEY_SEPARATOR,
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    TransactionState,
    strip_namespace,
)
from otel_mqtrace.spans.mapping import compute_cost_ms
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bridge.otlp.values import Span


_TYPES: Final = {"publish": TraceType.PUB, "transaction_end": TraceType.END_TRANSACTION, "recall": TraceType.RECALL}
_OURS: Final = "mqtrace"
_KAFKA: Final = "kafka"


class SpanContexts(NamedTuple):
    """The contexts of one span, one message each, or why there are none.

    ``scope`` names the reason: ``POLL``, ``SETTLE``, ``BATCH_PARENT``, ``TRACE_TRAFFIC`` or ``NOT_MESSAGING``.
    """

    contexts: tuple[TraceContext, ...]
    scope: str | None


def contexts_of(span: Span, trace_topics: Collection[str] = ()) -> SpanContexts:
    """Return the contexts of ``span`` (``values.Span``, not a bad one), in the order of its messages.

    ``trace_topics`` add to RocketMQ's own names of trace topics.
    A delivery gives a ``SubBefore`` and a ``SubAfter`` for each message. Another instrumentation's delivery has no
    request id; its span id stands in, because readers join the two records by it.
    """
    own, links = span["attributes"], [link["attributes"] for link in span["links"]]
    naming = [link for link in links if any(_Fields(link).raw(name) is not None for name in NAMING_FIELDS)]
    unnamed = bool(links) and not naming
    given = _Fields(own).text("msg_id")
    ids = [None] if given is None else given.split(",")
    if len(ids) == 1 and naming:  # a message for each link, whose attributes win, else for each id
        is_ours = _Fields(own).raw("trace_type") is not None  # then the others are the application's
        of_links = [_Fields(link, own) for link in (naming if is_ours else links)]
        messages = [_Message(span, each, each.text("msg_id"), len(of_links)) for each in of_links]
    else:
        messages = [_Message(span, _Fields(own), each, len(ids)) for each in ids]
    found: list[TraceContext] = []
    scope = None
    for message in messages:
        role = role_of(message.facts(trace_topics, unnamed=unnamed, has_id=given is not None))
        if role is not None and role.scope is None:
            found += message.contexts(role)
        else:
            scope = None if role is None else role.scope
    return SpanContexts(tuple(found), scope)


class _Fields:
    """The fields of a message under the names of ``ALIASES``, each from the first of ``places`` that has it."""

    def __init__(self, *places: Mapping[str, Any]) -> None:
        self._places = places

    def raw(self, field: str) -> Any:
        alias = ALIASES[field]
        for attributes in self._places:
            for name in alias.names:
                if (value := attributes.get(name)) is not None:
                    return value
            for name in alias.arrays:
                values = _array_or_same(attributes.get(name))
                if isinstance(values, (list, tuple)) and values:
                    return values[0]
        return None

    def text(self, field: str) -> str | None:
        return attribute_text(self.raw(field))

    def present(self, field: str) -> str | None:
        return _present(self.text(field))

    def whole(self, field: str) -> int | None:
        return long_or_none(self.text(field))

    def keys(self) -> str | None:
        for attributes in self._places:
            for name in ALIASES["keys"].arrays:
                keys = _array_or_same(attributes.get(name))
                if isinstance(keys, (list, tuple)) and keys:
                    return _present(KEY_SEPARATOR.join(attribute_text(key) or "" for key in keys))
                if isinstance(keys, str):
                    return _present(keys)
        return None


def _array_or_same(value: Any) -> Any:
    """Return the array that a text of JSON stands for, as a Jaeger with Badger returns it; any other value as it is."""
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _present(text: str | None) -> str | None:
    return None if text in ABSENT_TEXTS else text


@dataclass(frozen=True, slots=True)
class _Message:
    """One message of a span that is about ``together`` of them, and the id that it is given there."""

    span: Span
    fields: _Fields
    given_id: str | None
    together: int

    def facts(self, trace_topics: Collection[str], *, unnamed: bool, has_id: bool) -> SpanFacts:
        """Return what decides the role of the span."""
        topic = self.fields.text("topic") or ""
        is_named = topic in TRACE_TOPIC_NAMES or topic in trace_topics
        return SpanFacts(
            is_span=True,
            span_kind=self.span["kind"],
            library=self.span["scope"],
            status=self.span["status"],
            is_trace_traffic=is_named or topic.startswith(TRACE_TOPIC_PREFIX),
            has_id=has_id,
            linked=bool(self.span["links"]),
            unnamed=unnamed,
            **{name: self.fields.text(name) for name in FACT_FIELDS},
        )

    def contexts(self, role: EventRole) -> list[TraceContext]:
        """Return the records' contexts: two of a delivery, one of anything else."""
        bean = self._bean(role)
        common: dict[str, Any] = {
            "region_id": self.fields.present("region_id"),
            "group_name": self._group(role),
            "request_id": self.fields.present("attempt_id"),
            "beans": (bean,),
        }
        start_ms, end_ms = (self.span[edge] // NS_PER_MS or None for edge in ("start_ns", "end_ns"))
        if role.kind != "consume":
            trace_type = _TYPES[role.kind or ""]
            return [TraceContext(trace_type=trace_type, timestamp_ms=start_ms, **common, **self._end(role))]
        if common["request_id"] is None and role.writer != _OURS and self.span["span_id"] is not None:
            common["request_id"] = self.span["span_id"].upper()
        halves = []
        if role.half != "after":
            halves.append(TraceContext(trace_type=TraceType.SUB_BEFORE, timestamp_ms=start_ms, **common))
        if role.half != "before":
            after = self._end(role)
            halves.append(TraceContext(trace_type=TraceType.SUB_AFTER, timestamp_ms=end_ms, **common, **after))
        return halves

    def _end(self, role: EventRole) -> dict[str, Any]:
        took = self.fields.whole("cost_ms")
        start_ns, end_ns = self.span["start_ns"], self.span["end_ns"]
        if took is None and start_ns and end_ns:
            took = compute_cost_ms(start_ns, end_ns, self.fields.whole("batch_count") or self.together)
        code = ContextCode.__members__.get(role.context_code or "")
        return {"cost_ms": took, "success": role.success, "context_code": code}

    def _bean(self, role: EventRole) -> TraceBean:
        place = self._place()
        own_id = None if self._dotted_place() is not None else _present(self.given_id)
        return TraceBean(
            topic=self._strip_namespace(self.fields.present("topic")),
            msg_id=own_id or place,
            offset_msg_id=place,
            tags=self.fields.present("tags"),
            keys=self.fields.keys(),
            store_host=self.fields.present("store_host"),
            client_host=self.fields.present("client_host"),
            retry_times=self.fields.whole("retry_times"),
            body_length=self.fields.whole("body_length"),
            msg_type=_MESSAGE_TYPES.get(role.msg_type or "", MessageType.NORMAL if role.kind == "publish" else None),
            transaction_id=self.fields.present("transaction_id"),
            transaction_state=TransactionState.__members__.get(self.fields.present("transaction_state") or ""),
            from_transaction_check=role.from_transaction_check,
        )

    def _group(self, role: EventRole) -> str | None:
        """Return the group; old names of the Java agent have it in the name of the listener's thread only."""
        group = self.fields.present("group_name")
        if group is None and role.kind == "consume":
            group = group_of_thread(self.fields.text("thread_name") or "")
        return self._strip_namespace(group)

    def _strip_namespace(self, name: str | None) -> str | None:
        """Return a topic or group without its namespace; a group of Kafka may have a % in its name."""
        is_of_kafka = self.fields.text("system") == _KAFKA
        return name if name is None or is_of_kafka else strip_namespace(name)

    def _place(self) -> str | None:
        """Return the physical id that the writer gives, else where the message lies on its Kafka topic."""
        given = self.fields.present("offset_msg_id")
        if given is not None:
            return given
        topic, partition = self.fields.text("topic"), self.fields.whole("partition")
        offset = self.fields.whole("kafka_offset")
        if topic is not None and partition is not None and offset is not None and partition >= 0 and offset >= 0:
            return f"{topic}-{partition}@{offset}"
        return self._dotted_place()

    def _dotted_place(self) -> str | None:
        return offset_in_id(self.given_id, self.fields.text("topic")) if self.fields.text("system") == _KAFKA else None


_MESSAGE_TYPES: Final = {each.value: each for each in MessageType}
