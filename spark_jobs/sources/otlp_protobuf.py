"""Read a block of OTLP protobuf messages as Arrow columns."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from bridge.otlp.proto_spans import OLD_SCOPE_SPANS, proto_value
from bridge.otlp.span_count import count_proto_spans
from bridge.otlp.values import KINDS, LONG_MAX, STATUSES, attribute_text
from spark_jobs.columns import (
    binary_bytes,
    has_repeats,
    null_where_empty,
    null_where_zeros,
    offsets_from,
    slice_bytes,
    take_rows,
)
from spark_jobs.sources.span_batches import LINK, DeclinedError, SpanColumns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from spark_jobs.columns import Column

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_MOST_FIELDS: Final = 1 << 10
_MOST_TAG: Final = 1 << 12
"""A block with more fields in one message, or with a field of a higher number, is left to the other reader."""


def _tags(kind: int, *numbers: int) -> tuple[int, ...]:
    return tuple(number << 3 | kind for number in numbers)


# Field numbers of trace.proto and common.proto.
_TRACE_ID, _SPAN_ID, _PARENT_ID, _NAME, _ATTRIBUTES, _LINKS, _STATUS = _tags(_LENGTH, 1, 2, 4, 5, 9, 13, 15)
_KIND, _DROPPED_ATTRIBUTES, _DROPPED_LINKS = _tags(_VARINT, 6, 10, 14)
_START, _END = _tags(_FIXED64, 7, 8)
_LINK_FLAGS, _FLAGS = _tags(_FIXED32, 6, 16)
(_LINK_ATTRIBUTES,) = _tags(_LENGTH, 4)
(_STATUS_CODE,) = _tags(_VARINT, 3)

_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "<u2")
_LOW_7: Final = 0x7F
_LOW_32: Final = (1 << 32) - 1


def read_protobuf(payloads: Sequence[bytes]) -> SpanColumns | None:
    """Return the spans of messages that protobuf can parse; ``None`` when not all is of the ordinary kind.

    The fields of all spans are walked at once, a field of each at a step. Protobuf reads an attribute once for all
    that have the same bytes.
    """
    spans: list[bytes] = []
    parts: list[tuple[int, str | None, str | None, int]] = []
    for number, payload in enumerate(payloads):
        for resource in _TRACES_DATA.FromString(payload).resource_spans:
            service = _service(resource.resource.attributes)
            for part in (*resource.scope_spans, *resource.old_scope_spans):
                spans += part.spans
                parts.append((number, service, part.scope.name or None, len(part.spans)))
    try:
        columns = _span_columns(_join(spans))
    except DeclinedError:
        return None
    numbers, services, scopes, counts = zip(*parts, strict=True) if parts else ((), (), (), ())
    part_of: NDArray[np.int64] = np.repeat(np.arange(len(parts)), counts)
    columns["service"] = take_rows(pa.array(services, pa.string()), part_of)
    columns["scope"] = take_rows(pa.array(scopes, pa.string()), part_of)
    return SpanColumns(columns, np.array(numbers, np.int64)[part_of], sum(map(count_proto_spans, payloads)))


def _service(attributes: Any) -> str | None:
    named = [pair for pair in attributes if pair.key == "service.name"]
    return attribute_text(proto_value(named[-1].value)) if named else None


class _Slices(NamedTuple):
    """Parts of ``data``, from ``begin`` to ``end``, in ascending order, each of a row of something."""

    data: NDArray[np.uint8]
    rows: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    def column(self, kind: Any) -> Column:
        """Return the bytes as a column."""
        if not len(self.begin):
            return pa.array([], kind)
        bounds = np.stack([self.begin, self.end], axis=1).ravel()  # what lies between two of them is a value as well
        return take_rows(slice_bytes(kind, bounds, self.data), np.arange(0, len(bounds), 2))


def _join(messages: Sequence[bytes]) -> _Slices:
    bounds = np.zeros(len(messages) + 1, np.int64)
    np.cumsum([len(one) for one in messages], out=bounds[1:])
    data = np.frombuffer(b"".join([*messages, bytes(8)]), np.uint8)  # a look behind the last one stays inside
    return _Slices(data, np.arange(len(messages)), bounds[:-1], bounds[1:])


def _varints(data: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers that begin at some places, and where each ends."""
    byte = data[at]
    values, behind, more = byte.astype(np.int64), at + 1, np.flatnonzero(byte > _LOW_7)
    values[more] &= _LOW_7
    shift = 7
    while len(more):
        byte = data[behind[more]]
        values[more] |= (byte.astype(np.int64) & _LOW_7) << shift
        behind[more] += 1
        more, shift = more[byte > _LOW_7], shift + 7
    return values, behind


def _fields(messages: _Slices) -> Mapping[int, _Slices]:
    """Return by tag the payloads (row in ``messages``, bytes or a number's place) of parsed messages' fields."""
    found: defaultdict[int, list[_Slices]] = defaultdict(list)
    data, rows = messages.data, np.flatnonzero(messages.begin < messages.end)
    at = messages.begin[rows]
    for _ in range(_MOST_FIELDS):
        if not len(rows):
            break
        tags, at = _varints(data, at)
        behind = np.empty_like(at)
        for tag in _distinct(tags):
            chosen = np.flatnonzero(tags == tag)
            begin, end = _payloads(data, tag & 7, at[chosen])
            found[tag].append(_Slices(data, rows[chosen], begin, end))
            behind[chosen] = end
        is_left = behind < messages.end[rows]
        rows, at = rows[is_left], behind[is_left]
    if len(rows):
        raise DeclinedError
    return {tag: _in_order(parts) for tag, parts in found.items()}


def _distinct(tags: NDArray[np.int64]) -> list[int]:
    if tags.max() >= _MOST_TAG:
        raise DeclinedError
    return np.flatnonzero(np.bincount(tags)).tolist()


def _payloads(data: NDArray[np.uint8], kind: int, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if kind == _VARINT:
        return at, _varints(data, at)[1]
    if kind == _LENGTH:
        sizes, begin = _varints(data, at)
        return begin, begin + sizes
    if kind not in _SIZES:  # a group
        raise DeclinedError
    return at, at + _SIZES[kind]


def _in_order(parts: list[_Slices]) -> _Slices:
    if len(parts) == 1:
        return parts[0]
    rows, begin, end = (np.concatenate([part[at] for part in parts]) for at in (1, 2, 3))
    order = np.argsort(begin, kind="stable")
    return _Slices(parts[0].data, rows[order], begin[order], end[order])


class _Messages:
    """Messages of one type, and what their fields hold; of a field that may not be repeated the last one counts."""

    def __init__(self, messages: _Slices) -> None:
        self._messages, self._fields = messages, _fields(messages)

    def all(self, tag: int) -> _Slices:
        """Return the payloads of a field, in order."""
        nothing = np.zeros(0, np.int64)
        return self._fields.get(tag, _Slices(self._messages.data, nothing, nothing, nothing))

    def last(self, tag: int) -> _Slices:
        """Return of each message the payload of a field, an empty one where it has none."""
        found, begin = self.all(tag), self._messages.begin.copy()
        end = begin.copy()
        begin[found.rows], end[found.rows] = found.begin, found.end
        return _Slices(found.data, np.arange(len(begin)), begin, end)

    def text(self, tag: int) -> Column:
        return self.last(tag).column(pa.string())

    def hex_id(self, tag: int) -> Column:
        """Return bytes as hexadecimal text, null where there are none."""
        data, bounds = binary_bytes(self.last(tag).column(pa.binary()))
        return null_where_empty(slice_bytes(pa.string(), 2 * bounds, _HEX[np.frombuffer(data, np.uint8)]))

    def number(self, tag: int) -> NDArray[np.int64]:
        """Return numbers, 0 where there is none."""
        found, kind = self.all(tag), tag & 7
        numbers: NDArray[Any] = np.zeros(len(self._messages.begin), np.uint64)
        if kind == _VARINT:
            numbers[found.rows] = _varints(found.data, found.begin)[0].view(np.uint64) & _LOW_32  # all have 32 bits
        else:
            raw = found.data[found.begin[:, None] + np.arange(_SIZES[kind])]
            numbers[found.rows] = raw.view(f"<u{_SIZES[kind]}")[:, 0]
        return np.asarray(np.minimum(numbers, LONG_MAX).astype(np.int64))

    def only(self, tag: int) -> tuple[_Messages, NDArray[np.int64]]:
        """Return a message inside each message that has one, and the rows of these; two would have to be merged."""
        found = self.all(tag)
        if len(found.rows) > len(np.unique(found.rows)):
            raise DeclinedError
        return _Messages(found), found.rows

    def attributes(self, tag: int) -> Column:
        """Return attributes as maps of texts; of a key that is there twice the last value, where the first stands."""
        found = self.all(tag)
        keys, values = _pairs(found)
        rows = found.rows
        if has_repeats(rows, keys):
            pairs = rows * len(keys.dictionary) + keys.indices.to_numpy()
            first = np.unique(pairs, return_index=True)[1]
            last = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
            order = np.argsort(first)
            rows, keys, values = rows[first[order]], take_rows(keys, first[order]), take_rows(values, last[order])
        return pa.MapArray.from_arrays(self.offsets(rows), keys.dictionary_decode(), values)

    def offsets(self, rows: NDArray[np.int64]) -> Column:
        """Return where the items of each message begin, ``rows`` being those of the items."""
        return offsets_from(np.bincount(rows, minlength=len(self._messages.begin)))


def _span_columns(messages: _Slices) -> dict[str, Column]:
    spans = _Messages(messages)
    status, with_status = spans.only(_STATUS)
    codes = np.zeros(len(messages.begin), np.int64)
    codes[with_status] = status.number(_STATUS_CODE)
    links = spans.all(_LINKS)
    return {
        "trace_id": spans.hex_id(_TRACE_ID),
        "span_id": spans.hex_id(_SPAN_ID),
        "parent_span_id": null_where_zeros(spans.hex_id(_PARENT_ID)),
        "name": spans.text(_NAME),
        "kind": _name_numbers(spans.number(_KIND), KINDS),
        "start_ns": pa.array(spans.number(_START)),
        "end_ns": pa.array(spans.number(_END)),
        "status": _name_numbers(codes, STATUSES),
        "flags": pa.array(spans.number(_FLAGS)),
        "attributes": spans.attributes(_ATTRIBUTES),
        "links": pa.ListArray.from_arrays(spans.offsets(links.rows), _links(_Messages(links))),
        "dropped_attributes": pa.array(spans.number(_DROPPED_ATTRIBUTES)),
        "dropped_links": pa.array(spans.number(_DROPPED_LINKS)),
    }


def _links(links: _Messages) -> Column:
    columns = [
        links.hex_id(_TRACE_ID),
        links.hex_id(_SPAN_ID),
        pa.array(links.number(_LINK_FLAGS)),
        links.attributes(_LINK_ATTRIBUTES),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(LINK))


def _name_numbers(numbers: NDArray[np.int64], names: Sequence[str]) -> Column:
    return take_rows(pa.array(names, pa.string()), np.where(numbers < len(names), numbers, 0))


def _pairs(attributes: _Slices) -> tuple[Column, Column]:
    """Return the keys of attributes, dictionary-encoded, and their values as text; each distinct one is parsed once."""
    coded = attributes.column(pa.binary()).dictionary_encode()
    packed = _ITEMS(items=coded.dictionary.to_pylist()).SerializeToString()
    keys: list[str] = []
    texts: list[str | None] = []
    for pair in common_pb2.KeyValueList.FromString(packed).values:
        keys.append(pair.key)
        texts.append(attribute_text(proto_value(pair.value)))
    of_each = coded.indices
    return pa.array(keys, pa.string()).dictionary_encode().take(of_each), pa.array(texts, pa.string()).take(of_each)


def _message_classes() -> tuple[Any, Any]:
    """Return TracesData as far as it is needed to find spans, which are plain bytes in it, and a list of bytes."""
    package = "otel_mqtrace.packed"
    file = FileDescriptorProto(name="otel_mqtrace/packed.proto", package=package, syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in (common_pb2, resource_pb2))
    scope, resource = (one.DESCRIPTOR.full_name for one in (common_pb2.InstrumentationScope, resource_pb2.Resource))
    scope_spans, resource_spans = f"{package}.ScopeSpans", f"{package}.ResourceSpans"
    messages: dict[str, list[tuple[str, int, str | None]]] = {
        "ScopeSpans": [("scope", 1, scope), ("spans", 2, None)],
        "ResourceSpans": [
            ("resource", 1, resource),
            ("scope_spans", 2, scope_spans),
            ("old_scope_spans", OLD_SCOPE_SPANS, scope_spans),
        ],
        "TracesData": [("resource_spans", 1, resource_spans)],
        "Items": [("items", 1, None)],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label = FieldDescriptorProto.LABEL_REPEATED if field.endswith("s") else None
            kind_of = {"type_name": f".{kind}"} if kind else {"type": FieldDescriptorProto.TYPE_BYTES}
            message.field.add(name=field, number=number, label=label or FieldDescriptorProto.LABEL_OPTIONAL, **kind_of)
    Default().Add(file)
    traces_data, items = (Default().FindMessageTypeByName(f"{package}.{name}") for name in ("TracesData", "Items"))
    return GetMessageClass(traces_data), GetMessageClass(items)


_TRACES_DATA, _ITEMS = _message_classes()
