"""This module knows the messages of OTLP as far as spans are read from them, with every attribute left in its bytes.

Attributes are most of a span and most of them are alike: the bytes of one are looked up, and taken apart only where
they are new. The field numbers are those of ``trace.proto``; bytes that are a message there are plain bytes here.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from bridge.otlp.proto_spans import OLD_SCOPE_SPANS, proto_value
from bridge.otlp.texts import attribute_text

__all__ = ["KnownAttributes", "packed_resource_spans"]

_PACKAGE: Final = "otel_mqtrace.packed"
_MANY: Final = "*"
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Status": {"code": (3, "int32")},
    "Link": {"trace_id": (1, "bytes"), "span_id": (2, "bytes"), "attributes": (4, "bytes*"), "flags": (6, "fixed32")},
    "Span": {
        "trace_id": (1, "bytes"),
        "span_id": (2, "bytes"),
        "parent_span_id": (4, "bytes"),
        "name": (5, "string"),
        "kind": (6, "int32"),
        "start_time_unix_nano": (7, "fixed64"),
        "end_time_unix_nano": (8, "fixed64"),
        "attributes": (9, "bytes*"),
        "dropped_attributes_count": (10, "uint32"),
        "links": (13, "Link*"),
        "dropped_links_count": (14, "uint32"),
        "status": (15, "Status"),
        "flags": (16, "fixed32"),
    },
    "Scope": {"name": (1, "string")},
    "ScopeSpans": {"scope": (1, "Scope"), "spans": (2, "Span*")},
    "Resource": {"attributes": (1, "bytes*")},
    "ResourceSpans": {
        "resource": (1, "Resource"),
        "scope_spans": (2, "ScopeSpans*"),
        "old_scope_spans": (OLD_SCOPE_SPANS, "ScopeSpans*"),
    },
    "TracesData": {"resource_spans": (1, "ResourceSpans*")},
}


def _traces_data() -> Any:
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            message.field.append(_field(field, number, kind.removesuffix(_MANY), is_many=kind.endswith(_MANY)))
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.TracesData"))


def _field(name: str, number: int, kind: str, *, is_many: bool) -> FieldDescriptorProto:
    field = FieldDescriptorProto(name=name, number=number)
    field.label = FieldDescriptorProto.LABEL_REPEATED if is_many else FieldDescriptorProto.LABEL_OPTIONAL
    if kind in _MESSAGES:
        field.type_name = f".{_PACKAGE}.{kind}"
    else:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return field


_TRACES_DATA: Final = _traces_data()


def packed_resource_spans(payload: bytes) -> list[Any]:
    """Return the ResourceSpans of a message that ``parse_proto`` takes for one."""
    return list(_TRACES_DATA.FromString(payload).resource_spans)


class KnownAttributes(dict[bytes, tuple[str, "str | None"]]):
    """Key and text of an attribute by its bytes; those not known yet are read."""

    _MOST: Final = 1 << 14
    _LONGEST_BYTES: Final = 256

    def __missing__(self, packed: bytes) -> tuple[str, str | None]:
        pair = KeyValue.FromString(packed)
        told = pair.key, pair.value.string_value or attribute_text(proto_value(pair.value))
        if len(packed) <= self._LONGEST_BYTES:
            if len(self) >= self._MOST:
                self.clear()
            self[packed] = told
        return told

    def texts(self, attributes: Any) -> dict[str, str | None]:
        """Return attributes as ``schemas.SPAN`` holds them; of a key that is there twice the last."""
        return dict(map(self.__getitem__, attributes))
