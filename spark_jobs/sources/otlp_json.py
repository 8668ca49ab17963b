"""Read a block of ordinary OTLP/JSON messages as Arrow columns, without a Python step per span.

The columns equal those of ``bridge.otlp.spans``, which reads any block that the two might read differently.
Arrow's parser refuses undeclared types; the bytes and the parsed columns are checked for the rest.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from bridge.otlp.span_count import count_written_ids
from bridge.otlp.spans import SCALARS, SNAKE_NAME, json_scalar
from bridge.otlp.values import KINDS, STATUSES, attribute_text, enum_name, long_or_none
from spark_jobs.columns import (
    DIGITS,
    HEX,
    LOWER_HEX,
    Column,
    coalesce,
    fields_of,
    has_repeats,
    is_made_of,
    is_utf8,
    json_arrays,
    map_values,
    null_where_empty,
    null_where_zeros,
    offsets_of,
    parents_of,
    pc,
)
from spark_jobs.sources.span_batches import DeclinedError, SpanColumns

_HEAD_BYTES: Final = 64 << 10
# A null in place of a message can end the process in the parser; under these names null is not the same as absent.
_NULL: Final = re.compile(
    rb'\}\s*null|"(?:scopeSpans|instrumentationLibrarySpans|resourceMetrics|resourceLogs)"\s*:\s*null'
)
_NO_NUMBER: Final = re.compile(rb"[:\[,]\s*-?(?:Inf|NaN)\s*[,\]}]")  # which the parser takes for one
_NAME: Final = re.compile(rb'"(\w+)"\s*:')
_SNAKE_NAME: Final = re.compile(SNAKE_NAME.encode())


def read_json(lines: list[bytes]) -> SpanColumns | None:
    """Return the spans of ``lines``, each one message; ``None`` when not all is of the ordinary kind.

    The columns have as many span ids as the text, so the parser has lost no span.
    """
    block = b"\n".join(lines)
    are_objects = all(line.startswith(b"{") and line.endswith(b"}") for line in lines)
    if not are_objects or not is_utf8(block) or _has(block, b"null", _NULL):
        return None
    try:
        resources = _read(block)
        if resources is None or len(resources) != len(lines) or resources.null_count:
            return None
        columns, ids = _columns(resources)
    except (DeclinedError, pa.ArrowInvalid):
        return None
    return columns if ids == count_written_ids(block) else None


def _has(block: bytes, word: bytes, form: re.Pattern[bytes]) -> bool:
    """Return whether ``form`` is found; ``word``, a part of it, is looked for first: that is ten times as fast."""
    return word in block and form.search(block) is not None


def _read(block: bytes) -> Column | None:
    """Return the resources of each message; ``None`` where something is not of the types of its first occurrence.

    The parser makes a null of each field that an object may have and has not. Thus the fields in the head of the block
    are tried first, and no others.
    """
    head = block[:_HEAD_BYTES]
    names = frozenset((b"resourceSpans", *_NAME.findall(head)))
    for part, only in ((head, names), (block, None)):
        if _SNAKE_NAME.search(part):
            return None
        is_lenient = only is None or b"doubleValue" in only  # other numbers are integers
        if is_lenient and (_has(block, b"Inf", _NO_NUMBER) or _has(block, b"-NaN", _NO_NUMBER)):
            return None
        if (found := _parse(block, shape_of(part), only)) is not None:
            return found
    return None


def _parse(block: bytes, shape: Any, only: frozenset[bytes] | None) -> Column | None:
    """Return the resources of each message; names not in ``only`` are refused, by ``None`` unknown ones are ignored."""
    source: Any = pa.BufferReader(block)
    try:
        table = arrow_json.read_json(
            source,
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(shape if only is None else _fields_named(only, shape))),
                unexpected_field_behavior="ignore" if only is None else "error",
            ),
        )
    except pa.ArrowInvalid:
        return None
    return _widen(table.column("resourceSpans").combine_chunks(), shape.field("resourceSpans").type)


def _widen(column: Column, kind: Any) -> Column:
    """Return ``column`` with the fields of ``kind`` that it lacks, as nulls; pyarrow before 19 cannot cast it so."""
    if column.type == kind:
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, _widen(column.values, kind.value_type), mask=mask)
    held = {one.name: column.field(at) for at, one in enumerate(column.type)}
    fields = [_widen(held[one.name], one.type) if one.name in held else pa.nulls(len(column), one.type) for one in kind]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)


def _columns(listed: Column) -> tuple[SpanColumns, int]:
    """Return the spans, and how many span ids they and their links have."""
    resources = _objects(listed)
    parts = _objects(resources["scopeSpans"])
    spans = _objects(parts["spans"])
    links = spans["links"]
    part_of, resource_of = parents_of(parts["spans"]), parents_of(resources["scopeSpans"])
    of_resource = resource_of[part_of]
    service = _services(fields_of(resources["resource"])["attributes"])
    scope = null_where_empty(fields_of(parts["scope"])["name"])
    linked, linked_ids = _links(links)
    columns = {
        "trace_id": _id(spans["traceId"]),
        "span_id": _id(spans["spanId"]),
        "parent_span_id": null_where_zeros(_id(spans["parentSpanId"])),
        "name": pc.fill_null(spans["name"], ""),
        "kind": _enum(spans["kind"], KINDS, "SPAN_KIND_"),
        "start_ns": _time(spans["startTimeUnixNano"]),
        "end_ns": _time(spans["endTimeUnixNano"]),
        "status": _enum(fields_of(spans["status"])["code"], STATUSES, "STATUS_CODE_"),
        "service": service.take(pa.array(of_resource)),
        "scope": scope.take(pa.array(part_of)),
        "flags": _long(spans["flags"]),
        "attributes": _map(spans["attributes"]),
        "links": linked,
        "dropped_attributes": _long(spans["droppedAttributesCount"]),
        "dropped_links": _long(spans["droppedLinksCount"]),
    }
    ids = len(spans["spanId"]) - spans["spanId"].null_count + linked_ids
    messages = parents_of(listed)[of_resource]
    return SpanColumns(columns, messages, len(messages)), ids


def _objects(lists: Column) -> dict[str, Column]:
    items = lists.flatten()
    if items.null_count:
        raise DeclinedError
    return fields_of(items)


def _links(lists: Column) -> tuple[Column, int]:
    links = _objects(lists)
    columns = {
        "trace_id": _id(links["traceId"]),
        "span_id": _id(links["spanId"]),
        "flags": _long(links["flags"]),
        "attributes": _map(links["attributes"]),
    }
    made = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    return pa.ListArray.from_arrays(offsets_of(lists), made), len(made) - links["spanId"].null_count


def _id(ids: Column) -> Column:
    if not is_made_of(ids, LOWER_HEX):
        if not is_made_of(ids, HEX) or pc.any(pc.equal(pc.bit_wise_and(pc.binary_length(ids), 1), 1)).as_py():
            raise DeclinedError
        ids = pc.ascii_lower(ids)
    return null_where_empty(ids)


def _enum(values: Column, names: tuple[str, ...], prefix: str) -> Column:
    found = map_values(values, partial(enum_name, names=names, prefix=prefix), pa.string())
    return pc.fill_null(found, names[0])


def _long(values: Column) -> Column:
    numbers = map_values(values, long_or_none, pa.int64()) if pa.types.is_string(values.type) else values
    return pc.fill_null(numbers, 0)


def _time(values: Column) -> Column:
    """Return the times as integers; decline a block with zero, which may have been ``-0``, or empty text."""
    if pa.types.is_string(values.type):
        if not is_made_of(values, DIGITS) or pc.min(pc.binary_length(values)).as_py() == 0:
            raise DeclinedError
        return pc.fill_null(values.cast(pa.int64()), 0)
    if pc.any(pc.equal(values, 0)).as_py():
        raise DeclinedError
    return pc.fill_null(values, 0)


def _services(attributes: Column) -> Column:
    keys, texts = _pairs(attributes)
    held = np.flatnonzero(np.asarray(pc.equal(keys, "service.name")))
    place = np.full(len(attributes), -1)
    place[parents_of(attributes)[held]] = held
    return texts.take(pa.array(place, mask=place < 0))


def _map(lists: Column) -> Column:
    return pa.MapArray.from_arrays(offsets_of(lists), *_pairs(lists))


def _pairs(lists: Column) -> tuple[Column, Column]:
    pairs = _objects(lists)
    keys = pairs["key"]
    if keys.null_count or has_repeats(parents_of(lists), keys):
        raise DeclinedError
    return keys, _texts(fields_of(pairs["value"]))


def _texts(values: dict[str, Column]) -> Column:
    """Return values as text: of scalars the first that is there, arrays before them."""
    known = [_scalar(name, values[name]) for name in SCALARS if values[name].null_count < len(values[name])]
    texts = coalesce(*known) if known else pa.nulls(len(values[SCALARS[0]]), pa.string())
    arrays = values["arrayValue"]
    if pa.types.is_null(arrays.type) or arrays.null_count == len(arrays):
        return texts
    is_array = arrays.is_valid()
    lists = fields_of(arrays.filter(is_array))["values"]
    return pc.replace_with_mask(texts, is_array, json_arrays(offsets_of(lists), _texts(fields_of(lists.flatten()))))


def _scalar(name: str, values: Column) -> Column:
    if name == "stringValue":
        return values
    if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string())
    return map_values(values, lambda value: attribute_text(json_scalar(name, value)), pa.string())


_TIMES: Final = ("startTimeUnixNano", "endTimeUnixNano")
_COUNTS: Final = ("droppedAttributesCount", "droppedLinksCount", "droppedEventsCount")
_LEAVES: Final[dict[str, Any]] = {
    **dict.fromkeys((*_TIMES, "timeUnixNano"), pa.string()),
    **dict.fromkeys(("kind", "code", "flags", *_COUNTS), pa.int64()),
    "intValue": pa.string(),
    "doubleValue": pa.float64(),
}
"""How a leaf is written when it is written as most exporters do, which is how the JSON of protobuf has it."""
_OTHER_TYPE: Final[dict[Any, Any]] = {pa.string(): pa.int64(), pa.int64(): pa.string(), pa.float64(): pa.string()}
_FIRST: Final = {name: re.compile(rf'"{name}"\s*:\s*("|[-0-9])'.encode()) for name in _LEAVES}


def shape_of(block: bytes) -> Any:
    """Return the types of a block of messages: of each leaf that which its first occurrence has."""
    return _shape(frozenset(name for name, first in _FIRST.items() if _is_other(name, first.search(block))))


def _is_other(name: str, found: re.Match[bytes] | None) -> bool:
    return found is not None and (found[1] == b'"') != pa.types.is_string(_LEAVES[name])


@lru_cache
def _shape(others: frozenset[str]) -> Any:
    """Return the types of a message in which the leaves ``others`` are written the other way."""
    leaf = {name: _OTHER_TYPE[usual] if name in others else usual for name, usual in _LEAVES.items()}
    dropped = {"droppedAttributesCount": leaf["droppedAttributesCount"]}
    attributes = {"attributes": _list_of({"key": pa.string(), "value": _value(leaf)}), **dropped}
    part = {
        "scope": pa.struct({"name": pa.string(), "version": pa.string(), **attributes}),
        "spans": _list_of(_span(leaf, attributes)),
        "schemaUrl": pa.string(),
        **_nothing("instrumentationLibrary"),
    }
    resource = {
        "resource": pa.struct(attributes),
        "scopeSpans": _list_of(part),
        "schemaUrl": pa.string(),
        **_nothing("instrumentationLibrarySpans"),
    }
    bare = ("scopeSpans", "instrumentationLibrarySpans")
    message = {"resourceSpans": _list_of(resource), **_nothing("result", *bare, "resourceMetrics", "resourceLogs")}
    return pa.struct(message)


def _fields_named(names: frozenset[bytes], kind: Any) -> Any:
    """Return a type without the fields of other names."""
    if pa.types.is_list(kind):
        return pa.list_(_fields_named(names, kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct({one.name: _fields_named(names, one.type) for one in kind if one.name.encode() in names})
    return kind


def _span(leaf: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    texts = dict.fromkeys(("traceId", "spanId", "traceState"), pa.string())
    place = {**texts, "flags": leaf["flags"], **attributes}
    return {
        **place,
        **dict.fromkeys(("parentSpanId", "name"), pa.string()),
        **{name: leaf[name] for name in ("kind", *_TIMES, *_COUNTS)},
        "status": pa.struct({"code": leaf["code"], "message": pa.string()}),
        "links": _list_of(place),
        # not read, but odd ones make a span odd
        "events": _list_of({"timeUnixNano": leaf["timeUnixNano"], "name": pa.string(), **attributes}),
    }


def _value(leaf: dict[str, Any]) -> Any:
    scalars = {
        **dict.fromkeys(("stringValue", "bytesValue"), pa.string()),
        "boolValue": pa.bool_(),
        **{name: leaf[name] for name in ("intValue", "doubleValue")},
        **_nothing("arrayvalue", "kvlistValue", "kvlistvalue"),
    }
    array = {"values": _list_of({**scalars, **_nothing("arrayValue")})}
    return pa.struct({**scalars, "arrayValue": pa.struct(array)})


def _list_of(fields: dict[str, Any]) -> Any:
    return pa.list_(pa.struct(fields))


def _nothing(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, pa.null())
