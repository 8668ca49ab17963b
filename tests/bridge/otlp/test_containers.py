"""Every layout a Collector writes is detected by its bytes, and read message by message with damage kept local."""

import base64
import codecs
import itertools
import json
import struct
import time
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from google.protobuf.json_format import MessageToJson
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from pyarrow import parquet

from bridge.otlp import containers
from bridge.otlp.containers import Bad, Message, Tail, read_messages
from bridge.otlp.detect import Layout, Side, detect_layout
from bridge.otlp.spans import parse_message, spans_of
from bridge.otlp.values import attribute_text
from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.schemas import InputCounts
from spark_jobs.sources.files import SourceFile, source_files
from spark_jobs.sources.otlp import plan_spans, split_batches
from spark_jobs.sources.splits import split_file

OTLP = Path(__file__).parents[2] / "vectors" / "otlp"
DUAL = OTLP.parent / "dual"


def read(path, layout=None):
    items = list(read_messages(path, layout or detect_layout(path), parse=parse_message))
    spans = [span for item in items if isinstance(item, Message) for span in spans_of(item.content)]
    return spans, [item for item in items if isinstance(item, Bad)], [item for item in items if isinstance(item, Tail)]


@pytest.fixture
def written(tmp_path):
    """Write bytes, a text, or a document as JSON into a file, and return its path."""

    def write(content, **options):
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content, **options)
        path = tmp_path / "x"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


LAYOUTS = {
    "layouts/traces.jsonl": Layout.JSON_LINES,
    "layouts/traces.json.zst.framed": Layout.JSON_ZSTD_FRAMED,
    "layouts/traces.pb.framed": Layout.PROTO_FRAMED,
    "layouts/traces.pb.zst.framed": Layout.PROTO_ZSTD_FRAMED,
    "native-zstd/native.jsonl.zst": Layout.JSON_LINES_ZSTD,
    "native-zstd/native.pb.framed.zst": Layout.PROTO_FRAMED_ZSTD,
    "kafka/otlp_spans.kafka-proto.jsonl": Layout.KAFKA_DUMP,
    "kafka/otlp_spans_json.kafka-json.jsonl": Layout.KAFKA_DUMP,
}


def typed(value):
    ((kind, content),) = value.items()
    if kind == "array":
        return [typed(item) for item in content]
    return {"int": int, "double": float, "bytes_hex": bytes.fromhex}.get(kind, lambda same: same)(content)


@pytest.mark.parametrize("pack", [bytes, zstandard.compress])
@pytest.mark.parametrize(
    ("last", "found"),
    [("{one}{one}", (3, 0, 0)), ("{one}{torn}", (2, 0, 1)), ("{torn}{one}", (2, 1, 0)), ("{torn}{torn}", (1, 0, 1))],
)
def test_last_line_is_read_up_to_its_last_whole_object(pack, last, found, written, tmp_path):
    one = json.dumps(request(SPAN))
    path = written(pack(f"{one}\n{last.format(one=one, torn=one[:60])}".encode()))
    assert tuple(map(len, read(path))) == found
    plan, counts = plan_spans([SourceFile(path, detect_layout(path))], parallelism=1), InputCounts()
    rows = [row["bad"] is None for batch in split_batches(plan.tasks[0], counts) for row in batch.to_pylist()]
    assert (rows.count(True), rows.count(False), plan.truncated_tails + counts.tails) == found


@pytest.mark.parametrize(("name", "layout"), LAYOUTS.items())
def test_layout_is_detected_and_holds_the_spans_that_were_sent(name, layout):
    path = OTLP / name
    assert detect_layout(path) is layout
    spans, bad, tails = read(path)
    written = json.loads((OTLP / "layouts" / "truth.json").read_text(encoding="utf-8"))
    truth = {(one["trace_id"], one["span_id"]): one for one in written}
    assert (len(spans), bad, tails) == (209, [], [])
    for span in spans:
        sent = truth.pop((span["trace_id"], span["span_id"]))
        assert (span["name"], span["kind"], span["status"]) == (sent["name"], sent["kind"], sent["status"]["code"])
        times = [str(span[name]) for name in ("start_ns", "end_ns")]
        assert times == [sent[f"{name}_time_unix_nano"] for name in ("start", "end")]
        assert (span["parent_span_id"] or "") == sent["parent_span_id"]
        assert span["service"] == sent["resource"]["service.name"]["string"]
        assert span["attributes"] == {key: typed(value) for key, value in sent["attributes"].items()}
        assert [(link["trace_id"], link["span_id"]) for link in span["links"]] == [
            (link["trace_id"], link["span_id"]) for link in sent["links"]
        ]
    assert truth == {}


@pytest.mark.parametrize(("pack", "first"), [(bytes, codecs.BOM_UTF8 + b"\n"), (zstandard.compress, b"")])
def test_byte_order_mark_before_a_line_is_no_bad_piece(pack, first, written):
    """Two marked files were joined, perhaps behind a line of a mark alone; the second one's first is two messages."""
    once, *_ = read(OTLP / "layouts/traces.jsonl")
    marked = codecs.BOM_UTF8 + (OTLP / "layouts/traces.jsonl").read_bytes()
    spans, bad, tails = read(written(pack(first + marked + marked.replace(b"\n", b"", 1))))
    assert (spans, bad, tails) == (once * 2, [], [])


def test_edge_values_are_read_alike_in_both_encodings():
    """Unknown kinds, zero times, missing ids, duplicate keys, maps in arrays: JSON and protobuf say the same."""
    in_json, in_proto = (read(OTLP / "odd" / name)[0] for name in ("traces.jsonl", "traces.pb.framed"))
    for one, other in zip(in_json, in_proto, strict=True):
        assert repr({**one, "flags": 0}) == repr({**other, "flags": 0})
    bare = read(OTLP / "odd" / "request1.pb")[0] + read(OTLP / "odd" / "request2.pb")[0]
    assert [span["name"] for span in bare] == [span["name"] for span in in_proto]


def test_time_beyond_the_year_2262_is_read_alike_in_both_encodings(written):
    """The Go SDK writes the zero of its clock so."""
    zero_of_go_ns = 11_651_379_494_838_206_464
    message = TracesData()
    message.resource_spans.add().scope_spans.add().spans.add(name="s", end_time_unix_nano=zero_of_go_ns)
    for content in (MessageToJson(message), message.SerializeToString()):
        ((span,), bad, tails) = read(written(content))
        assert (span["bad"], span["end_ns"], bad, tails) == (None, zero_of_go_ns, [], [])


SPAN = {"traceId": "AB" * 16, "spanId": "CD" * 8, "parentSpanId": "0" * 16, "name": "s", "kind": "SPAN_KIND_PRODUCER"}
SPAN |= {"startTimeUnixNano": 5, "endTimeUnixNano": "7", "status": {"code": "STATUS_CODE_ERROR"}}
IDS = {name: bytes.fromhex(SPAN[name]) for name in ("traceId", "spanId")}
IN_BASE64 = {**SPAN, **{name: base64.b64encode(data).decode() for name, data in IDS.items()}}
SNAKE = {"trace_id": "ab" * 16, "span_id": "cd" * 8, "name": "s", "kind": 4, "status": {"code": 2}}
SNAKE |= {"start_time_unix_nano": "5", "end_time_unix_nano": "7"}
OLD = {"instrumentationLibrarySpans": [{"instrumentationLibrary": {"name": "lib"}, "spans": [SPAN]}]}


def request(span):
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "lib"}, "spans": [span]}]}]}


@pytest.mark.parametrize(
    "document",
    [
        *map(request, (SPAN, IN_BASE64, {**SPAN, **{name: [*data] for name, data in IDS.items()}, "kind": 4})),
        {"resource_spans": [{"scope_spans": [{"scope": {"name": "lib"}, "spans": [SNAKE]}]}]},
        {"resourceSpans": [OLD]},
        *(request(SPAN)["resourceSpans"], {"result": request(SPAN)}, [request(SPAN)]),
    ],
    ids=["plain", "base64", "bytes", "snake", "old", "array", "result", "list"],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_variant_of_a_producer_is_read(written, document, indent):
    (span,), bad, tails = read(written(document, indent=indent))
    assert (bad, tails) == ([], [])
    assert (span["trace_id"], span["span_id"], span["parent_span_id"]) == ("ab" * 16, "cd" * 8, None)
    assert (span["kind"], span["status"], span["scope"]) == ("PRODUCER", "ERROR", "lib")
    assert (span["start_ns"], span["end_ns"]) == (5, 7)


@pytest.mark.parametrize("name", ["layouts/traces.pb.framed", "odd/request1.pb"])
@pytest.mark.parametrize("indent", [None, 2])
def test_names_in_snake_case_are_read_at_every_level(written, name, indent):
    data = (OTLP / name).read_bytes()
    message = TracesData.FromString(
        data if name.endswith("request1.pb") else data[4 : 4 + int.from_bytes(data[:4], "big")]
    )
    snake = repr(read(written(MessageToJson(message, indent=indent, preserving_proto_field_name=True))))
    assert snake == repr(read(written(MessageToJson(message, indent=indent))))  # NaN among them


@pytest.mark.parametrize("name_before", ["s", "s" * 100_000], ids=["near the head", "far behind it"])
def test_values_in_snake_case_among_usual_lines_are_kept(written, name_before):
    attributes = [{"key": "a", "value": {"string_value": "x"}}, {"key": "b", "value": {"int_value": "7"}}]
    lines = [request({**SPAN, "name": name_before}), request({**SPAN, "attributes": attributes})]
    path = written("".join(f"{json.dumps(line)}\n" for line in lines))
    batches = split_batches(split_file(SourceFile(path, Layout.JSON_LINES)), InputCounts())
    _, span = [row for batch in batches for row in batch.to_pylist()]
    assert dict(span["attributes"]) == {"a": "x", "b": "7"}


def test_long_text_in_snake_case_is_read_in_linear_time(written):
    path = written(request({**SPAN, "name": "_a" * 30_000}))
    began_s = time.process_time()
    assert len(read(path)[0]) == 1
    assert list(split_batches(split_file(SourceFile(path, Layout.JSON_LINES)), InputCounts()))
    assert time.process_time() - began_s < 5


def test_named_file_of_another_side_is_refused(tmp_path):
    run = DUAL / "app-4.9.8-dup"
    assert {file.path.name for file in source_files([str(run)], Side.OTLP)} == {"otlp.jsonl", "otlp.pb.framed"}
    assert [file.path.name for file in source_files([str(run)], Side.NATIVE)] == ["native.jsonl"]
    (tmp_path / "notes.txt").write_text("nothing of the kind", encoding="utf-8")
    for src in (tmp_path, tmp_path / "notes.txt", tmp_path / "*.txt"):
        with pytest.raises(UnreadableInputError, match="cannot detect the format"):
            source_files([str(src)], Side.OTLP)
    with pytest.raises(UsageError):
        source_files([str(tmp_path / "*.json")], Side.OTLP)
    (tmp_path / "native.jsonl").write_bytes((run / "native.jsonl").read_bytes())
    for src in (tmp_path / "native.jsonl", tmp_path / "native.*"):
        with pytest.raises(UnreadableInputError, match="not otlp; are --native and --otlp swapped"):
            source_files([str(src)], Side.OTLP)


@given(st.binary(max_size=400))
def test_frame_reader_reads_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("wild") / "f"
    path.write_bytes(struct.pack(">I", len(data)) + data + data)
    for layout in (Layout.PROTO_FRAMED, Layout.JSON_LINES, Layout.JSON, Layout.PROTO, Layout.KAFKA_DUMP):
        assert len(read(path, layout)[2]) <= 1


def test_frame_of_more_than_16_mib_is_a_frame(tmp_path):
    message, path = TracesData(), tmp_path / "f"
    message.resource_spans.add().scope_spans.add().spans.add(name="x" * (16 << 20))
    content = message.SerializeToString()
    path.write_bytes(struct.pack(">I", len(content)) + content)
    assert (detect_layout(path), len(read(path)[0])) == (Layout.PROTO_FRAMED, 1)


DEEP = {"stringValue": "x"}
for _ in range(250):
    DEEP = {"arrayValue": {"values": [DEEP]}}
ODD = {
    "a status that is a text": {**SPAN, "status": "OK"},
    "attributes that are an object": {**SPAN, "attributes": {"a": 1}},
    "an attribute that is a text": {**SPAN, "attributes": ["a"]},
    "links that are a number": {**SPAN, "links": 7},
    "a value nested 250 times": {**SPAN, "attributes": [{"key": "a", "value": DEEP}]},
    "a time that is a list": {**SPAN, "startTimeUnixNano": [1]},
    "a time that is a fraction": {**SPAN, "endTimeUnixNano": 1.5},
    "a number": 7,
    "nothing": None,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_malformed_span_is_bad_alone(written, odd):
    document = request(SPAN)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"] = [SPAN, odd, SPAN]
    spans, bad, tails = read(written(document))
    assert ([span["bad"] is None for span in spans], bad, tails) == ([True, False, True], [], [])


@pytest.mark.parametrize("level", ["resource", "scope", "scopeSpans", "resourceSpans"])
def test_malformed_level_above_the_spans_loses_no_other(written, level):
    document = request(SPAN)
    good = document["resourceSpans"][0]
    odd = {
        "resource": {**good, "resource": "x"},
        "scope": {"scopeSpans": [{"scope": "x", "spans": [SPAN]}]},
        "scopeSpans": {"scopeSpans": ["x"]},
        "resourceSpans": "x",
    }[level]
    one, other = read(written({"resourceSpans": [odd, good]}))[0]
    assert other["bad"] is None
    assert (one["bad"] is None) == (level in {"resource", "scope"})


def test_lone_surrogate_and_huge_number_are_written_on(written):
    """A lone surrogate becomes a question mark, a real pair and an escaped backslash stay; no number raises."""
    texts = ["\\ud800", "\\ud83d\\ude00", "\\\\ud800", "\\udc00\\ud800"]
    values = [
        *(f'{{"stringValue":"{text}"}}' for text in texts),
        '{"intValue":1e999}',
        '{"intValue":' + "9" * 5000 + "}",
    ]
    pairs = ",".join(f'{{"key":"{at}","value":{value}}}' for at, value in enumerate(values))
    spans = f'{{"name":"\\ud800","attributes":[{pairs}],"kind":{"9" * 5000}}}'
    path = written(f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans}]}}]}}]}}\n')
    (span,), bad, _ = read(path)
    assert bad == []
    assert span["name"] == "?"
    assert [span["attributes"][str(at)] for at in range(4)] == ["?", "😀", "\\ud800", "??"]
    (batch,) = split_batches(split_file(SourceFile(path, Layout.JSON_LINES)), InputCounts())
    assert batch.num_rows == 1


@pytest.mark.parametrize("layout", [Layout.PROTO_FRAMED_ZSTD, Layout.JSON_LINES_ZSTD])
def test_spans_in_zstd_that_name_body_base64_are_no_native_file(written, layout):
    message = TracesData()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    span.attributes.add(key="body_base64").value.string_value = '{"body_base64": ""}'
    data = message.SerializeToString()
    spans = struct.pack(">I", len(data)) + data
    if layout is Layout.JSON_LINES_ZSTD:
        spans = MessageToJson(message).encode()
    assert detect_layout(written(zstandard.compress(spans))) is layout


@pytest.mark.parametrize("layout", [Layout.JSON_LINES, Layout.JSON, Layout.KAFKA_DUMP])
def test_endless_nesting_is_bad(written, layout):
    path = written(b"[" * 10_000 + b"\n")
    with pytest.raises(UnreadableInputError):
        detect_layout(path)
    spans, bad, tails = read(path, layout)
    assert (spans, len(bad) + len(tails)) == ([], 1)


def test_line_over_many_chunks_is_read(written, monkeypatch):
    monkeypatch.setattr(containers, "_CHUNK_BYTES", 1 << 10)
    long = {**SPAN, "name": "x" * (1 << 20)}
    lines = json.dumps(request(long)) + "\n" + json.dumps(request(SPAN))
    spans, bad, tails = read(written(zstandard.compress(lines.encode())))
    assert (len(spans), bad, tails) == (2, [], [])


def test_json_on_one_line_is_lines_only_when_the_line_itself_is_a_message(written):
    long = {**SPAN, "name": "x" * 300_000}
    torn = json.dumps(request(SPAN))[:60]
    cases = {
        json.dumps({"result": request(SPAN)}): (Layout.JSON, 1, 0),
        json.dumps([request(SPAN), request(SPAN)]): (Layout.JSON, 2, 0),
        json.dumps({"result": request(long)}): (Layout.JSON, 1, 0),
        json.dumps([request(long), request(SPAN)]): (Layout.JSON, 2, 0),
        json.dumps(request(SPAN)): (Layout.JSON_LINES, 1, 0),
        json.dumps(request(long)): (Layout.JSON_LINES, 1, 0),
        json.dumps(request(SPAN)["resourceSpans"]): (Layout.JSON_LINES, 1, 0),
        torn + json.dumps(request(SPAN)): (Layout.JSON_LINES, 1, 1),
        json.dumps(request(SPAN), indent=1): (Layout.JSON, 1, 0),
    }
    for text, expected in cases.items():
        path = written(text + "\n")
        spans, bad, _ = read(path)
        assert (detect_layout(path), len(spans), len(bad)) == expected


def test_parquet_file_is_a_landing_only_with_bodies_in_it(tmp_path):
    """Foreign parquet is passed over beside a landing and refused by name; one cut short is never passed over."""
    parquet.write_table(pa.table({"body": [b"x"], "source": ["T"]}), tmp_path / "part-1.parquet")
    parquet.write_table(pa.table({"msg_id": ["x"]}), tmp_path / "verdicts.parquet")
    assert [file.path.name for file in source_files([str(tmp_path)], Side.NATIVE)] == ["part-1.parquet"]
    with pytest.raises(UnreadableInputError, match="without a column 'body'"):
        source_files([str(tmp_path / "verdicts.parquet")], Side.NATIVE)
    (tmp_path / "part-2.parquet").write_bytes((tmp_path / "part-1.parquet").read_bytes()[:-9])
    with pytest.raises(UnreadableInputError, match=r"part-2\.parquet: not a readable Parquet file \(.*move it away"):
        source_files([str(tmp_path)], Side.NATIVE)


def test_bad_text_in_whole_zstd_frames_is_bad_piece_by_piece(written):
    good = b'{"resourceSpans": []}'
    frames = map(zstandard.compress, [good, b'{"resourceSpans": [ bad', b"nothing", good])
    path = written(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))
    messages = list(read_messages(path, Layout.JSON_ZSTD_FRAMED, parse=parse_message))
    assert [type(item) for item in messages] == [Message, Bad, Bad, Message]
    assert [item.sample for item in messages[1:3]] == [b'{"resourceSpans": [ bad', b"nothing"]
    assert detect_layout(path) is Layout.JSON_ZSTD_FRAMED


@pytest.mark.parametrize(("packed_bytes", "damage", "whole"), [(None, b"garbage after", 100), (12, b"\xff" * 40, 0)])
def test_text_before_damaged_zstd_is_read(written, packed_bytes, damage, whole):
    path = written(zstandard.compress(b'{"resourceSpans": []}\n' * 100)[:packed_bytes] + damage)
    messages = list(read_messages(path, Layout.JSON_LINES_ZSTD, parse=parse_message))
    assert [type(item) for item in messages] == [Message] * whole + [Bad]
    assert detect_layout(path).side is Side.OTLP


@pytest.mark.parametrize("name", ["layouts/traces.jsonl", "kafka/otlp_spans_json.kafka-json.jsonl"])
def test_rest_of_a_line_that_comes_while_it_is_read_is_no_bad_line(name, written):
    line = (OTLP / name).read_bytes().splitlines(keepends=True)[0]
    path = written(line[:-20])
    items = read_messages(path, LAYOUTS[name], parse=parse_message)
    assert isinstance(next(items), Tail)
    with path.open("ab") as file:
        file.write(line[-20:])
    assert list(items) == []


def test_zstd_cut_off_anywhere_but_behind_a_frame_has_a_tail(written):
    """A frame of which nothing can be unpacked counts as cut off, too."""
    line = b'{"resourceSpans": []}' + b" " * 1_000 + b"\n"
    packer = zstandard.ZstdCompressor(write_checksum=True)
    frames = [packer.compress(line), b"\x50\x2a\x4d\x18\x03\0\0\0abc", zstandard.compress(line)]
    whole, ends = b"".join(frames), set(itertools.accumulate(map(len, frames)))
    for size in range(len(frames[0]), len(whole) + 1):
        _, bad, tails = read(written(whole[:size]), Layout.JSON_LINES_ZSTD)
        assert (bad, len(tails)) == ([], size not in ends)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("a", "a"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (b"a", "YQ=="),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (["a", 1, [True]], '["a","1","[\\"true\\"]"]'),
        ({"a": 1.0, "b": {"c": None}}, '{"a":"1.0","b":"{\\"c\\":null}"}'),
    ],
)
def test_attribute_of_any_kind_has_one_text(value, text):
    assert attribute_text(value) == text
