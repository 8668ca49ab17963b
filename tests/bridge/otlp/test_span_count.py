"""Spans are counted by the bytes of a message, so that a span which a parser drops is missed."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from bridge.otlp.containers import Message, read_messages
from bridge.otlp.detect import Layout
from bridge.otlp.span_count import count_proto_spans, count_written_ids
from bridge.otlp.spans import count_expected_spans, parse_message, spans_of
from tests.support.reading import otlp_side, rows_in

SPAN = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "s", "kind": 4}
LINKED = {**SPAN, "links": [{"traceId": "ab" * 16, "spanId": "01" * 8}, {"traceId": "ab" * 16, "spanId": ""}]}
IN_TEXTS = {**SPAN, "name": '{"spanId":"x"}', "attributes": [{"key": "spanId", "value": {"stringValue": '"spanId":'}}]}
WITHOUT = {"name": "no id", "links": [{"traceId": "ab" * 16}]}
NULL_ID = {**SPAN, "spanId": None}
ODD = {**LINKED, "status": "OK"}


def request(*spans, parts="scopeSpans"):
    return {"resourceSpans": [{parts: [{"spans": list(spans)}]}]}


LINES = (
    json.dumps(request(SPAN, LINKED, IN_TEXTS, WITHOUT, NULL_ID)),
    json.dumps(request(SPAN, ODD, 7, LINKED)),
    json.dumps(request(SPAN, LINKED), separators=(" , ", " : ")),
    json.dumps(request(SPAN, parts="instrumentationLibrarySpans")),
    json.dumps(request(SPAN, ODD, parts="instrumentationLibrarySpans")),
    json.dumps(request(SPAN)["resourceSpans"]),
    json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"spanId": "ab" * 8}]}]}]}),
    json.dumps(request(LINKED))[:90] + "{ " + json.dumps(request(SPAN))[1:],
    "{}",
    json.dumps(request(SPAN)).replace("spanId", r"\u0073panId"),
)


@pytest.mark.parametrize(("line", "rows"), list(zip(LINES, (5, 4, 2, 1, 2, 1, 0, 2, 0, 1), strict=True)))
def test_expected_spans_of_a_line_equal_the_spans_read(tmp_path, line, rows):
    """Ids in texts, on links, escaped, missing or of other signals do not change the count."""
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    items = list(read_messages(path, Layout.JSON_LINES, parse=parse_message))
    due = sum(count_expected_spans(item.payload, item.content) if isinstance(item, Message) else 1 for item in items)
    read = sum(len(list(spans_of(item.content))) if isinstance(item, Message) else 1 for item in items)
    assert due == read == rows


def twice(span):
    """Return JSON with a name twice: every parser keeps one of the two lists and says nothing."""
    return f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{json.dumps(SPAN)}],"spans":[{json.dumps(span)}]}}]}}]}}'


@pytest.mark.parametrize(("lines", "missed"), [(LINES, {0}), ((LINES[0], twice(LINKED)), {1, 3})])
def test_count_of_a_file_shows_a_span_that_the_parser_drops(tmp_path, lines, missed):
    """Which of the two lists is kept is the parser's choice."""
    (tmp_path / "spans.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    side = otlp_side(tmp_path, tmp_path / "spans.jsonl")
    assert side.records_read + side.exploded - len(rows_in(side.files)) in missed


def test_spans_under_their_protobuf_name_of_before_2022_are_read_and_counted():
    one = ResourceSpans()
    one.scope_spans.add().spans.add(name="old")
    old = one.SerializeToString().replace(b"\x12", b"\xc2\x3e", 1)
    payload = b"\x0a" + bytes([len(old)]) + old
    content = parse_message(payload)
    assert content is not None
    assert [span["name"] for span in spans_of(content)] == ["old"]
    assert count_expected_spans(payload, content) == 1
    assert parse_message(b"\x0a\x05\xc2\x3e\x02\x12\x7f") is None
    assert count_written_ids(json.dumps(request(SPAN)).encode()) == 1


@pytest.mark.parametrize("body", [b"Pub\x011\x02", b"\x50\x01", b"plain text"])
def test_bytes_that_protobuf_reads_as_unknown_fields_are_no_traces(body):
    """A native body on the spans' topic must be bad, not empty."""
    assert parse_message(body) is None


@example(shape=[[[b"a"]]], junk=b"\x50\x01\x51" + bytes(8) + b"\x55" + bytes(4))  # field 10: varint, 64, 32 bits
@given(st.lists(st.lists(st.lists(st.binary(max_size=9), max_size=3), max_size=3), max_size=3), st.binary(max_size=12))
def test_spans_counted_by_bytes_equal_the_spans_parsed(shape, junk):
    data = TracesData()
    for parts in shape:
        resource = data.resource_spans.add(schema_url="u")
        for spans in parts:
            scope = resource.scope_spans.add(schema_url="v")
            for name in spans:
                scope.spans.add(trace_id=name, start_time_unix_nano=7, flags=3)
    payload = data.SerializeToString()
    assert count_proto_spans(payload) == sum(len(spans) for parts in shape for spans in parts)
    try:
        parsed = TracesData.FromString(payload + junk)
    except Exception:  # noqa: BLE001  (the library's own error class)
        return
    assert count_proto_spans(payload + junk) == sum(len(s.spans) for r in parsed.resource_spans for s in r.scope_spans)
