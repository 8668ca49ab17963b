"""This module knows OTLP/JSON of the ordinary kind as Arrow columns: a block of messages at once, no step per span.

It is the fast way to what ``json_spans`` says, and never another answer: a block that holds anything of which the two
could think differently is declined as a whole, for whoever asked to have it read there. The parser itself refuses what
is not of the ordinary ``json_shape``; the rest is looked for in the bytes and in the parsed columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

from bridge.otlp.json_spans import json_scalar
from bridge.otlp.plain_span import KINDS, STATUSES, enum_name, long_or_none
from bridge.otlp.texts import attribute_text, json_text
from bridge.otlp.witness import written_ids
from spark_jobs.distinct import each
from spark_jobs.sources.arrow_values import (
    DIGITS,
    HEX,
    JSON_PLAIN,
    LOWER_HEX,
    Array,
    fields_of,
    has_repeats,
    is_made_of,
    lists_of,
    maps_of,
    offsets_of,
    parents_of,
    pc,
)
from spark_jobs.sources.json_shape import shape_of

__all__ = ["JsonColumns", "json_columns"]

_HEAD_BYTES: Final = 64 << 10
_SCALARS: Final = ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue")
# A null in place of a message can end the process in the parser; under these names null is not the same as absent.
_NULL: Final = re.compile(
    rb'\}\s*null|"(?:scopeSpans|scope_spans|instrumentationLibrarySpans|resourceMetrics|resourceLogs)"\s*:\s*null'
)
_NO_NUMBER: Final = re.compile(rb"[:\[,]\s*-?(?:Inf|NaN)\s*[,\]}]")  # which the parser takes for one
# What is rare is looked for first, as a plain word: that is ten times as fast.
_REFUSED: Final = (
    (re.compile(b"null"), _NULL),
    (re.compile(b"Inf"), _NO_NUMBER),
    (re.compile(b"-NaN"), _NO_NUMBER),
)


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """The spans of a block: columns of ``READ_SPAN`` but for their place, and which message each one stands in."""

    columns: dict[str, Array]
    messages: npt.NDArray[np.int64]
    ids: int


class _DeclinedError(Exception):
    """The block holds something that is not read here."""


def json_columns(lines: list[bytes]) -> JsonColumns | None:
    """Return the spans of ``lines``, each one message; ``None`` when not all is of the ordinary kind.

    No span was lost by the parser in what is returned: it has as many span ids as the text (``witness``).
    """
    block = b"\n".join(lines)
    if not _is_plain(lines, block):
        return None
    head = shape_of(block[:_HEAD_BYTES])
    found = _read(block, head, len(lines))
    if found is None and (whole := shape_of(block)) != head:
        found = _read(block, whole, len(lines))
    return found if found is not None and found.ids == written_ids(block) else None


def _is_plain(lines: list[bytes], block: bytes) -> bool:
    """Return whether each line is one object if as many objects as lines are found, and all of it text."""
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        return False
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return not any(word.search(block) and refused.search(block) for word, refused in _REFUSED)


def _read(block: bytes, shape: pa.Schema, messages: int) -> JsonColumns | None:
    source: Any = pa.BufferReader(block)
    try:
        table = arrow_json.read_json(
            source,
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=shape, unexpected_field_behavior="ignore"),
        )
        resources = table.column("resourceSpans").combine_chunks()
        if len(resources) != messages or resources.null_count:
            return None
        return _columns(resources)
    except (_DeclinedError, pa.ArrowInvalid):
        return None


def _columns(listed: Array) -> JsonColumns:
    resources = _objects(listed)
    parts = _objects(resources["scopeSpans"])
    spans = _objects(parts["spans"])
    links = spans["links"]
    part_of, resource_of = parents_of(parts["spans"]), parents_of(resources["scopeSpans"])
    of_resource = resource_of[part_of]
    service = _services(fields_of(resources["resource"])["attributes"])
    scope = _without_empty(fields_of(parts["scope"])["name"])
    linked, linked_ids = _links(links)
    columns = {
        "trace_id": _id(spans["traceId"]),
        "span_id": _id(spans["spanId"]),
        "parent_span_id": _without_zeros(_id(spans["parentSpanId"])),
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
    return JsonColumns(columns, parents_of(listed)[of_resource], ids)


def _objects(lists: Array) -> dict[str, Array]:
    """Return the fields of all objects in ``lists``; null is no object."""
    items = lists.flatten()
    if items.null_count:
        raise _DeclinedError
    return fields_of(items)


def _links(lists: Array) -> tuple[Array, int]:
    """Return links as ``READ_SPAN`` has them, and how many have a span id."""
    links = _objects(lists)
    columns = {
        "trace_id": _id(links["traceId"]),
        "span_id": _id(links["spanId"]),
        "flags": _long(links["flags"]),
        "attributes": _map(links["attributes"]),
    }
    made = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    return lists_of(offsets_of(lists), made), len(made) - links["spanId"].null_count


def _id(ids: Array) -> Array:
    if not is_made_of(ids, LOWER_HEX):
        if not is_made_of(ids, HEX) or pc.any(pc.equal(pc.bit_wise_and(pc.binary_length(ids), 1), 1)).as_py():
            raise _DeclinedError
        ids = pc.ascii_lower(ids)
    return _without_empty(ids)


def _without_empty(texts: Array) -> Array:
    return _null_where(texts, pc.equal(pc.binary_length(texts), 0))


def _without_zeros(ids: Array) -> Array:
    return _null_where(ids, pc.equal(pc.binary_length(pc.ascii_ltrim(ids, "0")), 0))


def _null_where(texts: Array, empty: Array) -> Array:
    return pc.if_else(empty, None, texts) if pc.any(empty).as_py() else texts


def _enum(values: Array, names: tuple[str, ...], prefix: str) -> Array:
    found = each(values, partial(enum_name, names=names, prefix=prefix), pa.string())
    return pc.fill_null(found, names[0])


def _long(values: Array) -> Array:
    numbers = each(values, long_or_none, pa.int64()) if pa.types.is_string(values.type) else values
    return pc.fill_null(numbers, 0)


def _time(values: Array) -> Array:
    """Numbers in texts; a zero may have been ``-0``, which is no time, and a text of nothing is none."""
    if pa.types.is_string(values.type):
        if not is_made_of(values, DIGITS) or pc.min(pc.binary_length(values)).as_py() == 0:
            raise _DeclinedError
        return pc.fill_null(values.cast(pa.int64()), 0)
    if pc.any(pc.equal(values, 0)).as_py():
        raise _DeclinedError
    return pc.fill_null(values, 0)


def _services(attributes: Array) -> Array:
    keys, texts = _pairs(attributes)
    held = np.flatnonzero(np.asarray(pc.equal(keys, "service.name")))
    place = np.full(len(attributes), -1)
    place[parents_of(attributes)[held]] = held
    return texts.take(pa.array(place, mask=place < 0))


def _map(lists: Array) -> Array:
    return maps_of(offsets_of(lists), *_pairs(lists))


def _pairs(lists: Array) -> tuple[Array, Array]:
    pairs = _objects(lists)
    keys = pairs["key"]
    if keys.null_count or has_repeats(parents_of(lists), keys):
        raise _DeclinedError
    return keys, _texts(fields_of(pairs["value"]))


def _texts(values: dict[str, Array]) -> Array:
    """Return values as text: of scalars the first that is there, arrays before them."""
    known = [_scalar(name, values[name]) for name in _SCALARS if values[name].null_count < len(values[name])]
    texts = pc.coalesce(*known) if known else pa.nulls(len(values[_SCALARS[0]]), pa.string())
    arrays = values["arrayValue"]
    if pa.types.is_null(arrays.type) or arrays.null_count == len(arrays):
        return texts
    is_array = arrays.is_valid()
    return pc.replace_with_mask(texts, is_array, _arrays(fields_of(arrays.filter(is_array))["values"]))


def _scalar(name: str, values: Array) -> Array:
    if name == "stringValue":
        return values
    if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string())
    return each(values, partial(_scalar_text, name), pa.string())


def _scalar_text(name: str, value: Any) -> str | None:
    return attribute_text(json_scalar(name, value))


def _arrays(lists: Array) -> Array:
    """Return arrays of scalars as JSON arrays of texts."""
    items = _texts(fields_of(lists.flatten()))
    quoted = _enclosed('"', items, '"') if is_made_of(items, JSON_PLAIN) else each(items, json_text, pa.string())
    texts = lists_of(offsets_of(lists), pc.fill_null(quoted, "null"))
    return _enclosed("[", pc.binary_join(texts, ","), "]")


def _enclosed(before: str, texts: Array, behind: str) -> Array:
    return pc.binary_join_element_wise(before, texts, behind, "")
