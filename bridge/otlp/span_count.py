"""Count the spans of a message by its bytes, independently of the parser that reads them.

A protobuf message is walked at wire level. JSON cannot be counted without parsing it, but a span or link cannot lose
its ``spanId``: as many of these names as stand in the text must be in what was parsed. Only a span without any
``spanId`` could be dropped by a JSON parser unseen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


_ID_NAME: Final = re.compile(rb'"span(?:Id|_id)"\s*:(?!\s*null)')
"""What gives an object of OTLP/JSON a span id. A quote inside a text is escaped, so no text can look like it."""
_CONTINUED: Final = 0x80
_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)
_RESOURCE_SPANS: Final = frozenset({1})  # of TracesData and of ExportTraceServiceRequest
_SCOPE_SPANS: Final = frozenset({2, 1000})  # of ResourceSpans; 1000 was instrumentation_library_spans
_SPANS: Final = frozenset({2})  # of ScopeSpans and of InstrumentationLibrarySpans


def count_proto_spans(payload: bytes) -> int:
    """Return how many spans a protobuf ``TracesData`` holds.

    Raises:
        ValueError: it is not protobuf.
    """
    return sum(
        1
        for resource in _fields(payload, 0, len(payload), _RESOURCE_SPANS)
        for scope in _fields(payload, *resource, _SCOPE_SPANS)
        for _ in _fields(payload, *scope, _SPANS)
    )


def count_written_ids(payload: bytes) -> int:
    """Return how many objects of a JSON message have a span id, by its text."""
    return len(_ID_NAME.findall(payload))


def count_ids(value: Any) -> int:
    """Return how many objects have a span id in JSON that was parsed."""
    if isinstance(value, list):
        return sum(map(count_ids, value))
    if not isinstance(value, Mapping):
        return 0
    held = (item for item in value.values() if isinstance(item, (list, Mapping)))
    return (value.get("spanId") is not None) + sum(map(count_ids, held))


def _fields(data: bytes, at: int, end: int, wanted: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each wanted field of the message in ``data[at:end]``."""
    depth = 0
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            size, at = _varint(data, at, end)
            if number in wanted and not depth:
                yield at, at + size
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        elif kind in {_GROUP, _END_GROUP}:
            depth += 1 if kind == _GROUP else -1
        else:
            raise ValueError("no protobuf")
    if at != end or depth:
        raise ValueError("no protobuf")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and (first := data[at]) < _CONTINUED:
        return first, at + 1
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & ~_CONTINUED) << shift
        if byte < _CONTINUED:
            return value, at
        shift += 7
    raise ValueError("no protobuf")
