"""Messages in protobuf are read as columns as they are read span by span."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status, TracesData

from bridge.otlp.containers import Message
from bridge.otlp.spans import parse_message, spans_of
from spark_jobs.schemas import SPAN, InputCounts
from spark_jobs.sources.otlp import item_batches
from spark_jobs.sources.otlp_protobuf import read_protobuf
from spark_jobs.sources.span_batches import span_row

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = st.sampled_from(["service.name", "a", "b", ""])
scalars = st.one_of(
    st.builds(AnyValue),
    st.builds(AnyValue, string_value=texts),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, int_value=st.integers(-(2**63), 2**63 - 1)),
    st.builds(AnyValue, double_value=st.floats()),
    st.builds(AnyValue, bytes_value=st.binary(max_size=4)),
)


def nested(values):
    """Arrays and maps of ``values``."""
    pair_lists = st.dictionaries(keys, values, max_size=3).map(
        lambda items: [KeyValue(key=key, value=value) for key, value in items.items()]
    )
    arrays = st.builds(ArrayValue, values=st.lists(values, max_size=3))
    maps = st.builds(KeyValueList, values=pair_lists)
    return st.builds(AnyValue, array_value=arrays) | st.builds(AnyValue, kvlist_value=maps)


pairs = st.lists(st.builds(KeyValue, key=keys, value=st.recursive(scalars, nested, max_leaves=4)), max_size=4)
ids = st.sampled_from([b"", b"\xab" * 16, b"\xcd" * 8, bytes(8), b"x"])
times = st.sampled_from([0, 5, 2**63, 2**64 - 1])
numbers = st.integers(0, 2**32 - 1)
links = st.builds(Span.Link, trace_id=ids, span_id=ids, flags=numbers, attributes=pairs)
spans = st.builds(
    Span,
    **dict.fromkeys(("trace_id", "span_id", "parent_span_id"), ids),
    **dict.fromkeys(("start_time_unix_nano", "end_time_unix_nano"), times),
    **dict.fromkeys(("flags", "dropped_attributes_count", "dropped_links_count"), numbers),
    name=texts,
    kind=st.sampled_from([0, 4, 5, 9, -1]),
    attributes=pairs,
    links=st.lists(links, max_size=2),
    status=st.none() | st.builds(Status, code=st.sampled_from([0, 1, 2, 7])),
)


@st.composite
def messages(draw):
    """One message, some of its spans under their name of before 2022."""
    data = TracesData()
    for resource_attributes in draw(st.lists(pairs, max_size=2)):
        one = ResourceSpans(resource=Resource(attributes=resource_attributes))
        for scope_spans in draw(st.lists(st.lists(spans, max_size=3), max_size=2)):
            one.scope_spans.add(spans=scope_spans, scope=InstrumentationScope(name=draw(texts)))
        packed = one.SerializeToString()
        old = packed.replace(b"\x12", b"\xc2\x3e", 1) if draw(st.booleans()) else packed
        data.resource_spans.append(ResourceSpans.FromString(old if parse(old) else packed))
    return data.SerializeToString()


def parse(resource):
    """Return whether bytes are still ResourceSpans: the byte that was changed may have been another one."""
    return parse_message(b"\x0a" + varint(len(resource)) + resource) is not None


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def rows_of(payloads):
    counts = InputCounts()
    items = [("p", None, Message(1, parse_message(payload), payload)) for payload in payloads]
    return [row for batch in item_batches(items, counts) for row in batch.to_pylist()], counts.expected


def one_by_one(payloads):
    rows = [{**span_row(span), "path": "p"} for payload in payloads for span in spans_of(parse_message(payload))]
    return pa.RecordBatch.from_pylist(rows, schema=SPAN).to_pylist()


@settings(max_examples=40)
@given(st.lists(messages(), max_size=3))
def test_spans_in_columns_are_the_spans_one_by_one(payloads):
    assert read_protobuf(payloads) is not None
    rows, expected = rows_of(payloads)
    assert repr(rows) == repr(one_by_one(payloads))
    assert expected == len(rows)


odd_fields = st.binary(max_size=6) | st.sampled_from(
    [
        b"\x08\x05",  # a number where an id stands
        b"\x12\x01\xab",  # the span id once more
        b"\x7a\x02\x18\x01",  # a status, or a second one
        b"\x7a\x02\x18\x01\x7a\x02\x12\x00",
        b"\xd3\x06\xd4\x06",  # a group
        b"\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # kind -1
        b"\x50\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a count of more than 32 bits
        b"\xaa\x06\x01x",  # a field of number 101
        b"\xfa\xff\xff\xff\x0f\x00",  # one of the highest number
        b"\x4a\x06\x12\x02\x10\x01\x0a\x00",  # an attribute, its value first
        b"\x4a\x08\x0a\x01a\x12\x03\x10\x80\x01",
        b"\x4a\x09\x0a\x01a\x12\x04\x2a\x02\x0a\x00",
        b"\x4a\x0b\x0a\x01a\x12\x06\x2a\x02\x0a\x00\x10\x01",  # a value twice
        b"\x4a\x07\x0a\x01a\x12\x00\x12\x00",
        b"\x6a\x04\x22\x02\x0a\x00",
    ]
)


@settings(max_examples=40)
@given(st.lists(st.tuples(spans, st.lists(odd_fields, max_size=3)), min_size=1, max_size=3))
def test_unusual_fields_are_read_as_one_by_one(parts):
    packed = [span.SerializeToString() + b"".join(more) for span, more in parts]
    scope = b"".join(b"\x12" + varint(len(one)) + one for one in packed)
    resource = b"\x12" + varint(len(scope)) + scope
    payload = b"\x0a" + varint(len(resource)) + resource
    if parse_message(payload) is None:
        return
    rows, expected = rows_of([payload])
    assert repr(rows) == repr(one_by_one([payload]))
    assert expected == len(rows) == len(packed)
