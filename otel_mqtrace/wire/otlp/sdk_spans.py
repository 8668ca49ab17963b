"""OTLP bytes of OpenTelemetry SDK spans, of any library: attributes that repeat are encoded once.

The messages equal those of ``opentelemetry.exporter.otlp.proto.common``, which takes about ten times as long for a span
of 22 attributes. Two differences: a lone surrogate becomes a question mark instead of an error, and a span that cannot
be encoded is left out and reported instead of failing its batch.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace.wire.otlp.protobuf import (
    FIXED32,
    FIXED64,
    TEXT_VALUE,
    VARINT,
    BoundedCache,
    attribute,
    attribute_heads,
    delimited,
    tag,
    text_bytes,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_logger: Final = logging.getLogger(__name__)

TRACE_ID: Final = tag(1) + varint(16)
SPAN_ID: Final = tag(2) + varint(8)
PARENT_ID: Final = tag(4) + varint(8)
pack_times: Final = Struct("<BQBQ").pack
START, END = tag(7, FIXED64)[0], tag(8, FIXED64)[0]
_DROPPED_ATTRIBUTES, _DROPPED_EVENTS, _DROPPED_LINKS = tag(10, VARINT), tag(12, VARINT), tag(14, VARINT)
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
_SPAN: Final = tag(2)
_RESOURCE_SPANS: Final = tag(1)
_SCOPE_SPANS: Final = tag(2)
_MAX_CACHED_VALUES: Final = 512
_MAX_CACHED_LENGTH: Final = 256
_MAX_REFILLS: Final = 2
_MAX_IDENTITIES: Final = 64


class EncodedRequest(NamedTuple):
    """One ``ExportTraceServiceRequest``: its bytes, and by position the spans that could not be encoded."""

    body: bytes
    errors: dict[int, Exception]


# -- attributes ----------------------------------------------------------------------------------------------------
class _TextValues(dict[str, bytes]):
    """The attribute of one name by its text. Names with few repeated values, such as ids, are not cached."""

    def __init__(self, field: int, name: str) -> None:
        super().__init__()
        self._heads = attribute_heads(field, name, TEXT_VALUE)
        self._refills = 0

    def __missing__(self, text: str) -> bytes:
        value = text.encode("utf-8", "replace")
        encoded = self._heads[len(value)] + value
        if self._refills < _MAX_REFILLS and len(text) <= _MAX_CACHED_LENGTH:
            if len(self) >= _MAX_CACHED_VALUES:
                self.clear()
                self._refills += 1
            else:
                self[text] = encoded
        return encoded


class _Attributes:
    """Encodes attributes into one field number: 9 of a span, 4 of a link, 3 of an event, 1 of a resource."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._texts = BoundedCache[str, _TextValues](lambda name: _TextValues(field, name))
        self._numbers = BoundedCache[str, BoundedCache[int, bytes]](
            lambda name: BoundedCache(lambda number: attribute(field, name, number))
        )
        self._flags = BoundedCache[tuple[str, bool], bytes](lambda pair: attribute(field, *pair))

    def encode(self, attributes: Mapping[str, object]) -> list[bytes]:
        """Return each attribute; as in OpenTelemetry's encoder, one that OTLP cannot encode is logged and left out."""
        texts, numbers, flags = self._texts, self._numbers, self._flags
        encoded = []
        for name, value in attributes.items():
            kind = type(value)
            try:
                if kind is str:
                    encoded.append(texts[name][value])  # type: ignore[index]  # a text, by its type
                elif kind is int:
                    encoded.append(numbers[name][value])  # type: ignore[index]  # a number, by its type
                elif kind is bool:
                    encoded.append(flags[name, value])  # type: ignore[index]  # a flag, by its type
                else:
                    encoded.append(attribute(self._field, name, value))
            except (TypeError, ValueError) as error:
                _logger.error("Failed to encode key %s: %s", name, error)  # noqa: TRY400 - the message suffices
        return encoded


_of_span: Final = _Attributes(9)
_of_link: Final = _Attributes(4)
_of_event: Final = _Attributes(3)
_of_resource: Final = _Attributes(1)
_of_scope: Final = _Attributes(3)


def encode_attributes(attributes: Mapping[str, object]) -> bytes:
    """Return ``attributes`` as fields of a ``Span``."""
    return b"".join(_of_span.encode(attributes))


def encode_links(links: Iterable[Any]) -> bytes:
    """Return ``links`` as fields of a ``Span``."""
    return b"".join([delimited(13, _encode_link(each)) for each in links])


def _unwrap(attributes: Any) -> Mapping[str, object]:
    """Return the dict inside the SDK's bounded mapping, which locks for every item; else ``attributes``."""
    return getattr(attributes, "_dict", attributes) or {}


# -- spans ---------------------------------------------------------------------------------------------------------
_NAMES: Final = BoundedCache[str, bytes](lambda name: delimited(5, text_bytes(name)))
_KINDS: Final = BoundedCache[Any, bytes](lambda kind: tag(6, VARINT) + varint(kind.value + 1))
_FLAGS: Final = {
    is_remote: (_HAS_IS_REMOTE | (_IS_REMOTE if is_remote else 0)).to_bytes(4, "little") for is_remote in (False, True)
}
SPAN_FLAGS: Final = {is_remote: tag(16, FIXED32) + flags for is_remote, flags in _FLAGS.items()}
LINK_FLAGS: Final = {is_remote: tag(6, FIXED32) + flags for is_remote, flags in _FLAGS.items()}


def _read_attributes(span: Any) -> Mapping[str, object]:
    return _unwrap(span.attributes)


def _encode_span(span: Any, attributes: Mapping[str, object]) -> bytes:
    """Return the OTLP ``Span`` of an ended or started SDK span, or of anything that reads like one."""
    context, parent = span.context, span.parent
    parts = [TRACE_ID, context.trace_id.to_bytes(16, "big"), SPAN_ID, context.span_id.to_bytes(8, "big")]
    if context.trace_state:
        parts.append(delimited(3, text_bytes(context.trace_state.to_header())))
    if parent is not None:
        parts += (PARENT_ID, parent.span_id.to_bytes(8, "big"))
    parts += (_NAMES[span.name], _KINDS[span.kind], pack_times(START, span.start_time or 0, END, span.end_time or 0))
    parts += _of_span.encode(attributes)
    if span.dropped_attributes:
        parts += (_DROPPED_ATTRIBUTES, varint(span.dropped_attributes))
    parts += [delimited(11, _encode_event(each)) for each in span.events]
    if span.dropped_events:
        parts += (_DROPPED_EVENTS, varint(span.dropped_events))
    parts += [delimited(13, _encode_link(each)) for each in span.links]
    if span.dropped_links:
        parts += (_DROPPED_LINKS, varint(span.dropped_links))
    parts += (delimited(15, _encode_status(span.status)), SPAN_FLAGS[parent is not None and bool(parent.is_remote)])
    return b"".join(parts)


def _encode_status(status: Any) -> bytes:
    code = status.status_code.value
    text = delimited(2, text_bytes(status.description)) if status.description else b""
    return text + tag(3, VARINT) + varint(code) if code else text


def _encode_event(event: Any) -> bytes:
    parts = [tag(1, FIXED64), (event.timestamp or 0).to_bytes(8, "little"), delimited(2, text_bytes(event.name))]
    parts += _of_event.encode(_unwrap(event.attributes))
    if event.dropped_attributes:
        parts += (tag(4, VARINT), varint(event.dropped_attributes))
    return b"".join(parts)


def _encode_link(link: Any) -> bytes:
    context = link.context
    parts = [TRACE_ID, context.trace_id.to_bytes(16, "big"), SPAN_ID, context.span_id.to_bytes(8, "big")]
    parts += _of_link.encode(_unwrap(link.attributes))
    if link.dropped_attributes:
        parts += (tag(5, VARINT), varint(link.dropped_attributes))
    parts.append(LINK_FLAGS[bool(context.is_remote)])
    return b"".join(parts)


# -- requests ------------------------------------------------------------------------------------------------------
class _ByIdentity:
    """Encoded resources or scopes by identity: the SDK's own hash of a resource is a ``json.dumps``."""

    def __init__(self, encode: Callable[[Any], tuple[bytes, bytes]]) -> None:
        self._encode = encode
        self._known: dict[int, tuple[object, tuple[bytes, bytes]]] = {}

    def __getitem__(self, subject: object) -> tuple[bytes, bytes]:
        known = self._known.get(id(subject))
        if known is not None:
            return known[1]
        if len(self._known) >= _MAX_IDENTITIES:
            self._known = {}
        encoded = self._encode(subject)
        self._known[id(subject)] = (subject, encoded)  # the reference keeps the id from being used again
        return encoded


def _encode_resource(resource: Any) -> tuple[bytes, bytes]:
    return delimited(1, b"".join(_of_resource.encode(_unwrap(resource.attributes)))), _encode_schema_url(resource)


def _encode_scope(scope: Any) -> tuple[bytes, bytes]:
    if scope is None:
        return delimited(1, b""), b""
    parts = [delimited(1, text_bytes(scope.name)), delimited(2, text_bytes(scope.version or ""))]
    parts += _of_scope.encode(_unwrap(scope.attributes))
    return delimited(1, b"".join(parts)), _encode_schema_url(scope)


def _encode_schema_url(subject: Any) -> bytes:
    return delimited(3, text_bytes(subject.schema_url)) if subject.schema_url else b""


_resources: Final = _ByIdentity(_encode_resource)
_scopes: Final = _ByIdentity(_encode_scope)


def encode_spans(
    spans: Iterable[Any], read_attributes: Callable[[Any], Mapping[str, object]] = _read_attributes
) -> EncodedRequest:
    """Return the request that exports ``spans``, grouped by resource and scope in order of appearance.

    A span with a method ``to_otlp`` may return its message itself, in pieces. ``read_attributes`` returns the
    attributes of any other as a plain mapping, where the caller has a cheap way.
    """
    groups: dict[tuple[bytes, bytes], dict[tuple[bytes, bytes], list[bytes]]] = {}
    known: dict[Any, list[bytes]] = {}
    held: list[Any] = []  # a span may make its scope when it is read: no id may be used again meanwhile
    errors: dict[int, Exception] = {}
    for position, span in enumerate(spans):
        try:
            write = getattr(span, "to_otlp", None)
            pieces = None if write is None else write()
            if pieces is None:
                body = _encode_span(span, read_attributes(span))
                resource, scope = span.resource, span.instrumentation_scope
                held.append((resource, scope))
                origin: Any = id(resource), id(scope)
            else:
                body = b"".join(pieces)
                origin = span.record.plan  # they all have the tracer's
            into = known.get(origin)
            if into is None:
                same_resource = groups.setdefault(_resources[span.resource], {})
                into = known[origin] = same_resource.setdefault(_scopes[span.instrumentation_scope], [])
        except Exception as error:  # noqa: BLE001 - one impossible span must not take its batch along
            errors[position] = error
            continue
        into += (_SPAN, varint(len(body)), body)
    return EncodedRequest(
        b"".join([part for group in groups.items() for part in _encode_resource_spans(*group)]), errors
    )


def _encode_resource_spans(
    resource: tuple[bytes, bytes], by_scope: Mapping[tuple[bytes, bytes], list[bytes]]
) -> Iterable[bytes]:
    parts = [resource[0]]
    for (scope, scope_schema), spans in by_scope.items():
        size = len(scope) + sum(map(len, spans)) + len(scope_schema)
        parts += (_SCOPE_SPANS, varint(size), scope, *spans, scope_schema)
    parts.append(resource[1])
    return (_RESOURCE_SPANS, varint(sum(map(len, parts))), *parts)
