"""Blocks of OTLP/JSON read as columns equal the messages read one by one, or are declined."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.schemas import InputCounts
from spark_jobs.sources import otlp
from spark_jobs.sources.otlp import block_batches, line_items, read_json_block
from spark_jobs.sources.otlp_json import read_json
from spark_jobs.sources.span_batches import row_batches
from spark_jobs.sources.splits import Line

VECTORS = Path(__file__).parents[2] / "vectors"
LONG = 2**63 - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["", "a", '"', "\\", "null"])
keys = st.sampled_from(["service.name", "messaging.system", "a", "b", "c", "", "\u00e9", 'q"'])
hexes = st.sampled_from(["ab" * 16, "AB" * 16, "cd" * 8, "Cd" * 8, "", "0" * 16])


@st.composite
def exports(draw):
    """Some messages as one exporter writes them: each leaf a number or a text throughout."""
    writes_text = {name: draw(st.booleans()) for name in ("time", "int", "kind", "code", "flags", "count", "double")}

    def number(name, value):
        return str(value) if writes_text[name] else value

    ints = st.integers(-LONG - 1, LONG).map(lambda value: number("int", value))
    doubles = st.floats() if writes_text["double"] else st.floats(allow_nan=False, allow_infinity=False)
    scalars = st.one_of(
        st.builds(lambda value: {"stringValue": value}, texts),
        st.builds(lambda value: {"boolValue": value}, st.booleans()),
        st.builds(lambda value: {"intValue": value}, ints),
        st.builds(lambda value: {"doubleValue": number("double", value)}, doubles),
        st.builds(lambda value: {"bytesValue": value}, st.sampled_from(["", "AP8B", "AA==", "-", "A"])),
        st.just({}),
    )
    arrays = st.builds(lambda values: {"arrayValue": {"values": values}}, st.lists(scalars, max_size=3))
    values = scalars | arrays | st.just({"arrayValue": {}})
    pairs = st.lists(st.builds(lambda key, value: {"key": key, "value": value}, keys, values), max_size=5)
    attributes = pairs.map(lambda some_pairs: list({pair["key"]: pair for pair in some_pairs}.values()))
    times = st.integers(1, LONG).map(lambda value: number("time", value))
    flags = st.integers(0, 2**32 - 1).map(lambda value: number("flags", value))
    counts = st.integers(0, 9).map(lambda value: number("count", value))
    kinds = ["SPAN_KIND_PRODUCER", "CONSUMER", "no kind"] if writes_text["kind"] else [0, 4, 5, 9, -1]
    codes = ["STATUS_CODE_ERROR", "OK"] if writes_text["code"] else [0, 1, 2, 3]
    link = st.fixed_dictionaries(
        {"spanId": hexes}, optional={"traceId": hexes, "flags": flags, "attributes": attributes}
    )
    event = st.fixed_dictionaries({}, optional={"name": texts, "timeUnixNano": times, "attributes": attributes})
    span = st.fixed_dictionaries(
        {"spanId": hexes, "attributes": attributes},
        optional={
            "traceId": hexes,
            "parentSpanId": hexes,
            "name": texts,
            "kind": st.sampled_from(kinds),
            "startTimeUnixNano": times,
            "endTimeUnixNano": times,
            "flags": flags,
            "droppedAttributesCount": counts,
            "droppedLinksCount": counts,
            "traceState": texts,
            "status": st.fixed_dictionaries({}, optional={"code": st.sampled_from(codes), "message": texts}),
            "links": st.lists(link, max_size=2),
            "events": st.lists(event, max_size=2),
        },
    )
    scope = st.fixed_dictionaries({}, optional={"name": texts, "version": texts, "attributes": attributes})
    part = st.fixed_dictionaries({}, optional={"scope": scope, "spans": st.lists(span, max_size=3), "schemaUrl": texts})
    resource = st.fixed_dictionaries({}, optional={"attributes": attributes})
    resources = st.fixed_dictionaries({}, optional={"resource": resource, "scopeSpans": st.lists(part, max_size=2)})
    message = st.fixed_dictionaries({"resourceSpans": st.lists(resources, max_size=2)})
    return draw(st.lists(message, min_size=1, max_size=4))


OTHER_NAMES = {
    "resourceSpans": ["resource_spans", "scopeSpans", "resourceMetrics", "result"],
    "scopeSpans": ["scope_spans", "instrumentationLibrarySpans"],
    "scope": ["instrumentationLibrary"],
    "spanId": ["span_id"],
    "traceId": ["trace_id"],
    "parentSpanId": ["parent_span_id"],
    "startTimeUnixNano": ["start_time_unix_nano"],
    "droppedLinksCount": ["dropped_links_count"],
    "stringValue": ["string_value", "kvlistValue", "intValue", "boolValue", "doubleValue", "bytesValue", "arrayvalue"],
}
ODD_VALUES = (
    *(None, True, 0, -0.0, 1.5, -1, 7, 2**63, 2**64, 10**400),
    *("", "x", " 5", "+5", "007", "0x1F", "-0", "1_0", "\u0665"),
    *("18446744073709551616", "qqqqqqqqqqqqqqqqqqqqqg==", "AAAAAAAAAAA=", "ABC", [], [None], [171] * 16, ["x"], {}),
    *({"spanId": "ab"}, {"values": [{"key": "a", "value": {"arrayValue": {"values": [None, {}]}}}]}, [{"x": None}]),
    *(float("nan"), float("inf"), "NaN", {"name": 5}, {"attributes": {}}, {"arrayValue": {"values": [{}]}}),
)


def places(value):
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    yield from ((value, at) for at, _ in items)
    for _, item in items:
        yield from places(item)


@st.composite
def odd_lines(draw):
    """Lines of messages in which some things are not as exporters write them, down to the bytes."""
    messages = deepcopy(draw(exports()))
    for _ in range(draw(st.integers(0, 2))):
        holder, at = draw(st.sampled_from([*places(messages)]))
        if isinstance(holder, dict) and draw(st.booleans()):
            other = draw(st.sampled_from(OTHER_NAMES.get(at, ["other"])))
            holder[other] = holder[at] if draw(st.booleans()) else deepcopy(draw(st.sampled_from(ODD_VALUES)))
            if draw(st.booleans()):
                del holder[at]
        else:
            holder[at] = deepcopy(draw(st.sampled_from(ODD_VALUES)))
    lines = [json.dumps(message, ensure_ascii=draw(st.booleans())).encode() for message in messages]
    for _ in range(draw(st.integers(0, 1))):
        at = draw(st.integers(0, len(lines) - 1))
        cut = draw(st.integers(0, len(lines[at])))
        end = draw(st.sampled_from([cut, cut + 1, cut + 9]))
        junk = draw(st.sampled_from(JUNK))
        lines[at] = lines[at][:cut] + junk + lines[at][end:]
    return [line.replace(b"\n", b" ") for line in lines]


JUNK = (
    *(b"", b" ", b"\r", b"\t", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *rb"\ud800 \udc00 \ud83d\ude00 \u0000 null {} [] , } Inf -NaN Infinity -0 1e400 /**/".split(),
    *b'{"resourceSpans":[]} "spanId":null, "spanId":"ab", "scopeSpans":null, "resourceLogs":null, "a":1,"a":2,'.split(),
)


def read_lines(texts):
    return [Line("p", number, text) for number, text in enumerate(texts, start=1) if text.strip()]


def read(batches, counts):
    rows = [repr(row) for batch in batches for row in batch.to_pylist()]
    return rows, counts.expected, counts.tails


def by_columns(texts):
    counts = InputCounts()
    return read(block_batches(read_lines(texts), read_json_block, line_items, counts), counts)


def one_by_one(texts):
    counts = InputCounts()
    items = ((line, item) for line in read_lines(texts) for item in line_items(line))
    rows = (row for line, item in items for row in otlp._rows(line.path, line.number, item, counts))
    return read(row_batches(rows), counts)


@settings(max_examples=40)
@given(exports())
def test_output_of_exporters_is_read_as_equal_columns(messages):
    texts = [json.dumps(message).encode() for message in messages]
    assert read_json(texts) is not None
    assert by_columns(texts) == one_by_one(texts)


@pytest.mark.parametrize(
    "name", ["otlp/layouts/traces.jsonl", "otlp/odd/traces.jsonl", "dual/app-4.9.8-dup/otlp.jsonl"]
)
def test_recorded_lines_are_read_as_one_by_one(name):
    texts = (VECTORS / name).read_bytes().splitlines()
    assert by_columns(texts) == one_by_one(texts)


@settings(max_examples=40)
@given(odd_lines())
def test_malformed_lines_are_read_as_one_by_one(texts):
    assert by_columns(texts) == one_by_one(texts)
