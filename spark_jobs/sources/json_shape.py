"""This module knows the shape of OTLP/JSON as exporters write it, for a parser that must be told of every leaf.

Producers write the same leaf as a number or as a text; a file keeps to one of them, so the first that a block holds
decides. A name under which something may also stand (snake_case, the names of before 2022, values of kinds that are
rare) is given the type of nothing: the parser refuses a block in which anything but null stands there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

__all__ = ["shape_of"]

_TIMES: Final = ("startTimeUnixNano", "endTimeUnixNano")
_COUNTS: Final = ("droppedAttributesCount", "droppedLinksCount")
_LEAVES: Final[dict[str, Any]] = {
    **dict.fromkeys(_TIMES, pa.string()),
    **dict.fromkeys(("kind", "code", "flags", *_COUNTS), pa.int64()),
    "intValue": pa.string(),
    "doubleValue": pa.float64(),
}
"""How a leaf is written when it is written as most exporters do, which is how the JSON of protobuf has it."""
_OTHER_TYPE: Final[dict[Any, Any]] = {pa.string(): pa.int64(), pa.int64(): pa.string(), pa.float64(): pa.string()}
_FIRST: Final = {name: re.compile(rf'"{name}"\s*:\s*("|[-0-9])'.encode()) for name in _LEAVES}


def shape_of(block: bytes) -> pa.Schema:
    """Return the types of a block of messages: of each leaf that which its first occurrence has."""
    return _shape(frozenset(name for name, first in _FIRST.items() if _is_other(name, first.search(block))))


def _is_other(name: str, found: re.Match[bytes] | None) -> bool:
    return found is not None and (found[1] == b'"') != pa.types.is_string(_LEAVES[name])


@lru_cache
def _shape(others: frozenset[str]) -> pa.Schema:
    """Return the types of a message in which the leaves ``others`` are written the other way."""
    leaf = {name: _OTHER_TYPE[usual] if name in others else usual for name, usual in _LEAVES.items()}
    attributes = _list_of({"key": pa.string(), "value": _value(leaf)})
    part = {
        "scope": _object({"name": pa.string()}),
        "spans": _list_of(_span(leaf, attributes)),
        **_nothing("instrumentationLibrary"),
    }
    resource = {
        "resource": _object({"attributes": attributes}),
        "scopeSpans": _list_of(part),
        **_nothing("scope_spans", "instrumentationLibrarySpans"),
    }
    bare = ("resource_spans", "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
    message = {"resourceSpans": _list_of(resource), **_nothing("result", *bare, "resourceMetrics", "resourceLogs")}
    return pa.schema(message)


def _span(leaf: dict[str, Any], attributes: Any) -> dict[str, Any]:
    ids = {**dict.fromkeys(("traceId", "spanId"), pa.string()), **_nothing("trace_id", "span_id")}
    return {
        **ids,
        **dict.fromkeys(("parentSpanId", "name"), pa.string()),
        **{name: leaf[name] for name in ("kind", "flags", *_TIMES, *_COUNTS)},
        "status": _object({"code": leaf["code"]}),
        "attributes": attributes,
        "links": _list_of({**ids, "flags": leaf["flags"], "attributes": attributes}),
        "events": _list_of({"attributes": attributes}),  # read by nobody, but odd ones make a span odd
        **_nothing("parent_span_id", "start_time_unix_nano", "end_time_unix_nano"),
        **_nothing("dropped_attributes_count", "dropped_links_count"),
    }


def _value(leaf: dict[str, Any]) -> Any:
    scalars = {
        **dict.fromkeys(("stringValue", "bytesValue"), pa.string()),
        "boolValue": pa.bool_(),
        **{name: leaf[name] for name in ("intValue", "doubleValue")},
        **_nothing("arrayvalue", "kvlistValue", "kvlistvalue"),
    }
    array = {"values": _list_of({**scalars, **_nothing("arrayValue")})}
    return _object({**scalars, "arrayValue": _object(array)})


def _list_of(fields: dict[str, Any]) -> Any:
    return pa.list_(pa.struct(fields))


def _object(fields: dict[str, Any]) -> Any:
    return pa.struct(fields)


def _nothing(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, pa.null())
