"""What OpenTelemetry's span limits took from a span.

The SDK drops the oldest attributes and links of a full span and cuts long texts; the span does not show where.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.attributes import BoundedAttributes

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.spans.mapping import MESSAGE_ATTRIBUTES, OPERATIONS, RECORD_ATTRIBUTES, kept_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.util.types import AttributeValue

ATTRIBUTES: Final = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
LENGTH: Final = "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"
LINKS: Final = "OTEL_SPAN_LINK_COUNT_LIMIT"
LINK_ATTRIBUTES: Final = "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"

_RECORDED: Final = frozenset({operation.name for operation in OPERATIONS.values()})
_STARTED: Final = frozenset({OPERATIONS[TraceType.SUB_BEFORE].name})
_WHOLE_ID: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_WORDS: Final = frozenset(
    {
        *(operation.trace_type for operation in OPERATIONS.values()),
        *(each.value for each in MessageType),
        *(each.name for each in TransactionState),
        *(each.name for each in ContextCode),
    }
)
"""Texts of a fixed vocabulary: none is the beginning of another one."""


def limits_hit(span: ReadableSpan) -> tuple[str, ...]:
    """Return the limits, by OpenTelemetry's variable, that took something of ``span``'s trace record; mostly none.

    A text exactly as long as the limit counts as cut unless it is known to be whole.
    """
    attributes = span.attributes or {}
    messages = _of_messages(span)
    hit: list[str] = []
    # The oldest go first, and what a record is read from stands on its span from the start. What the SDK dropped of a
    # span that is not full had no proper name.
    if span.dropped_attributes and len(attributes) == _bound(span, "maxlen"):
        hit.append(ATTRIBUTES)
    if any(map(_count_dropped, messages)):
        hit.append(LINK_ATTRIBUTES)
    if span.dropped_links and (messages or semconv.MESSAGING_MESSAGE_ID not in attributes):
        hit.append(LINKS)
    if _bound(span, "max_value_len") is not None and any(
        is_cut(text, span) for text in _bounded_texts((attributes, *messages))
    ):
        hit.append(LENGTH)
    return tuple(hit)


def is_cut(text: str | None, span: ReadableSpan) -> bool:
    """Return whether ``text``, a value of ``span`` or its links, may be the beginning of a longer one."""
    if text is None or len(text) != _bound(span, "max_value_len") or text in _WORDS:
        return False
    return _WHOLE_ID.fullmatch(text) is None and text not in span.name.split(" ")  # a name is never cut


def has_lost_type(span: ReadableSpan) -> bool:
    """Return whether ``span`` was made here to be a record, and has lost its trace type."""
    words = span.name.split(" ")
    verbs = _RECORDED if span.end_time is not None else _STARTED
    if words[0] not in verbs and words[-1] not in verbs:  # last in the old names
        return False
    scope = span.instrumentation_scope
    is_ours = scope is not None and scope.name == semconv.SCOPE
    return bool(span.dropped_attributes and is_ours and semconv.MQTRACE_TRACE_TYPE not in (span.attributes or {}))


def keep_limits(span: ReadableSpan, attributes: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
    """Return ``attributes``, a copy of the span's, such that a new span with them has the same limits and losses."""
    length = _bound(span, "max_value_len")
    if length is None and not span.dropped_attributes:
        return attributes
    copied = BoundedAttributes(_bound(span, "maxlen"), attributes, max_value_len=length)
    copied.dropped = span.dropped_attributes
    return copied


def _bound(span: ReadableSpan, name: str) -> int | None:
    """Return how many attributes ``span`` keeps, or how long a text; the SDK has no public name for either."""
    bound = getattr(kept_attributes(span), name, None)
    return bound if isinstance(bound, int) else None


def _of_messages(span: ReadableSpan) -> list[Mapping[str, object]]:
    """Return the attributes of the links that stand for messages, or did before the SDK took them."""
    of_links = (link.attributes for link in span.links if link.attributes is not None)
    return [each for each in of_links if _count_dropped(each) or not MESSAGE_ATTRIBUTES.isdisjoint(each)]


def _count_dropped(attributes: Mapping[str, object]) -> int:
    return attributes.dropped if isinstance(attributes, BoundedAttributes) else 0


def _bounded_texts(mappings: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for attributes in mappings:
        for name in RECORD_ATTRIBUTES.intersection(attributes):
            value = attributes[name]
            if isinstance(value, str):
                yield value
            elif isinstance(value, Sequence):
                yield from (each for each in value if isinstance(each, str))
