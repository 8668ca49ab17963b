"""Messages in protobuf read into columns say what their spans say one by one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from bridge.otlp.containers import Message
from bridge.otlp.spans import parse_message, spans_of
from spark_jobs.sources.packed_spans import KnownAttributes
from spark_jobs.sources.proto_columns import proto_batches
from spark_jobs.sources.read_batches import SPANS, Books
from spark_jobs.sources.span_rows import item_batches, span_row

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

    def array(items):
        value = AnyValue()
        value.array_value.values.extend(items)
        return value

    def mapping(items):
        value = AnyValue()
        value.kvlist_value.values.extend(KeyValue(key=key, value=item) for key, item in items.items())
        return value

    return st.lists(values, max_size=3).map(array) | st.dictionaries(keys, values, max_size=3).map(mapping)


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
)


@st.composite
def messages(draw):
    """One message, some of its spans under their name of before 2022."""
    data = TracesData()
    for resource_attributes in draw(st.lists(pairs, max_size=2)):
        one = ResourceSpans()
        one.resource.attributes.extend(resource_attributes)
        for found in draw(st.lists(st.lists(spans, max_size=3), max_size=2)):
            part = ScopeSpans(spans=found)
            part.scope.name = draw(texts)
            for span in part.spans:
                span.status.code = draw(st.sampled_from([0, 1, 2, 7]))
            one.scope_spans.append(part)
        packed = one.SerializeToString()
        old = packed.replace(b"\x12", b"\xc2\x3e", 1) if draw(st.booleans()) else packed
        data.resource_spans.append(ResourceSpans.FromString(old if parse(old) else packed))
    return data.SerializeToString()


def parse(resource):
    """Return whether bytes are still ResourceSpans: the byte that was changed may have been another one."""
    return parse_message(b"\x0a" + varint(len(resource)) + resource) is not None


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


@settings(deadline=None)
@given(st.lists(messages(), max_size=3))
def test_spans_in_columns_are_the_spans_one_by_one(payloads):
    """Values of every kind, keys that are there twice, times that no column holds, links and old names."""
    expected = [span_row(span) for payload in payloads for span in spans_of(parse_message(payload))]
    found = [row for batch in proto_batches(("p", None, payload) for payload in payloads) for row in batch.to_pylist()]
    placed = [{**row, "path": "p"} for row in expected]
    assert repr(found) == repr(pa.RecordBatch.from_pylist(placed, schema=SPANS).to_pylist())
    items = [("p", None, Message(1, parse_message(payload), payload)) for payload in payloads]
    books = Books()
    assert repr([row for batch in item_batches(items, books) for row in batch.to_pylist()]) == repr(found)
    assert books.due == len(found)


def test_attributes_are_remembered_up_to_a_limit():
    """Whatever a producer writes, neither many nor long ones fill the memory."""
    known = KnownAttributes()
    packed = [KeyValue(key=str(at), value=AnyValue(int_value=at)).SerializeToString() for at in range(20_000)]
    assert known.texts(packed) == {str(at): str(at) for at in range(20_000)}
    assert len(known) < 20_000
    known.clear()
    assert known.texts([KeyValue(key="k" * 300).SerializeToString()]) == {"k" * 300: None}
    assert not known
