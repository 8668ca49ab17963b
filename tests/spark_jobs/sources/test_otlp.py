"""What an executor does with files and messages: the fast way as long as it can, the counts kept, in one task."""

import json

import pyarrow as pa
import pytest
import zstandard
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from bridge.otlp.detect import Layout, Side
from spark_jobs.schemas import InputCounts
from spark_jobs.sources import otlp
from spark_jobs.sources.files import SourceFile, SourceSet, source_files
from spark_jobs.sources.otlp_json import read_json
from spark_jobs.sources.splits import Line

SPAN = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "s", "kind": 4, "startTimeUnixNano": "5"}
ODD = {**SPAN, "name": "odd", "status": "OK"}


def message(*spans):
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def block_rows(*texts):
    lines = [Line("p", number, text) for number, text in enumerate(texts, start=1)]
    return rows(otlp.block_batches(lines, otlp.read_json_block, otlp.line_items, InputCounts()))


@pytest.mark.parametrize("line", [b"null", b"{} null", b"{}null{}", b" null {}", b"{", b"", b"[]", b"{}\x00"])
def test_line_that_could_crash_the_parser_is_declined(line):
    """Arrow's parser does not survive a null in place of an object."""
    assert read_json([line, message(SPAN)]) is None
    assert read_json([message(SPAN), line]) is None


@pytest.mark.parametrize("blank", [b" ", b"\t", b"\r", b"\x0b", b"\x0c", b"\xef\xbb\xbf"])
def test_blank_of_python_only_makes_a_line_bad(blank):
    read = block_rows(blank + message(SPAN), message(SPAN))
    is_blank = blank not in {b"\x0b", b"\x0c"}
    assert [row["line"] for row in read if row["bad"]] == ([] if is_blank else [1])
    assert [row["line"] for row in read if not row["bad"]] == [1, 2]


@pytest.mark.parametrize("word", ["Inf", "-Inf", "-NaN"])
@pytest.mark.parametrize(
    "field", [{"a": "word"}, {"events": [{"attributes": [{"key": "k", "value": {"doubleValue": "word"}}]}]}]
)
def test_word_that_only_arrow_reads_as_a_number_is_declined(word, field):
    written = message({**SPAN, **field})
    assert read_json([written.replace(b"word", word.encode())]) is not None
    assert read_json([written.replace(b'"word"', word.encode())]) is None
    assert read_json([written.replace(b'"word"', b"Infinity")]) is not None


def framed(*messages):
    frames = [zstandard.compress(each) for each in messages]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


GOOD = [message({**SPAN, "name": str(number)}) for number in range(1, 41)]
IN_GOOD = [(number, str(number)) for number in range(1, 41)]
ODD_LINES = [message(SPAN, ODD), b'{"no": "OTLP"}', message(SPAN) + message(SPAN), b"", message(SPAN)]
LINES = b"\n".join([*GOOD, *ODD_LINES, message(SPAN)[:60]])
IN_LINES = [*IN_GOOD, (41, "s"), (41, "not a span"), (42, "not OTLP traces"), (43, "s"), (43, "s"), (45, "s")]
BAD_FRAMES = [b"no JSON", b'{"no": "OTLP"}', message(SPAN) + message(SPAN), message(SPAN)[:60] + message(SPAN)]
FRAMES = framed(*GOOD, message(SPAN, ODD), *BAD_FRAMES, b"\n" + message(SPAN), message(SPAN))[:-9]
IN_FRAMES = [*IN_GOOD, (41, "s"), (41, "not a span"), *((at, "not OTLP traces") for at in range(42, 46)), (46, "s")]


@pytest.mark.parametrize(
    ("layout", "content", "expected"),
    [
        (Layout.JSON_LINES, LINES, IN_LINES),
        (Layout.JSON_LINES_ZSTD, zstandard.compress(LINES), IN_LINES),
        (Layout.JSON_ZSTD_FRAMED, FRAMES, IN_FRAMES),
    ],
)
def test_damaged_file_is_read_in_blocks_as_message_by_message(monkeypatch, tmp_path, layout, content, expected):
    monkeypatch.setattr(otlp, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(otlp, "_MOST_BYTES", 16_000)
    path = tmp_path / "traces"
    path.write_bytes(content)
    files = otlp.plan_spans([SourceFile(path, layout)], parallelism=1)
    counts = InputCounts()
    read = rows(otlp.split_batches(files.tasks[0], counts))
    assert [(row["line"], row["bad"]["reason"] if row["bad"] else row["name"]) for row in read] == expected
    assert {row["path"] for row in read} == {str(path)}
    assert (counts.expected, counts.tails + files.truncated_tails) == (len(expected), 1)


def test_file_that_changed_is_detected_again(tmp_path):
    path = tmp_path / "traces"
    plain = message(SPAN)
    for content, layouts in ((b"", ()), (plain, ("json-lines",)), (framed(plain), ("json-zstd-framed",))):
        path.write_bytes(content)
        assert SourceSet(source_files([str(path)], Side.OTLP)).layouts == layouts


def test_messages_of_a_topic_are_counted_one_by_one():
    data = TracesData()
    span = data.resource_spans.add().scope_spans.add().spans.add(name="proto", span_id=b"\xcd" * 8)
    span.attributes.add(key="a").value.array_value.values.add(string_value="x")
    span.links.add(trace_id=b"\xab" * 16, flags=1).attributes.add(key="b").value.int_value = 7
    values = [message(SPAN), message(SPAN, ODD), data.SerializeToString(), None, b"neither", b"", message(SPAN), b"{"]
    asked = pa.RecordBatch.from_pydict({"path": [f"t-0@{at}" for at in range(len(values))], "value": values})
    counts = InputCounts()
    read = rows(otlp.message_batches([asked], counts))
    assert [(row["path"][-1], row["name"], (row["bad"] or {}).get("reason")) for row in read] == [
        ("0", "s", None),
        ("1", "s", None),
        ("1", None, "not a span"),
        ("2", "proto", None),
        ("3", None, "no value (a tombstone)"),
        ("4", None, "not OTLP traces"),
        ("6", "s", None),
        ("7", None, "not OTLP traces"),
    ]
    assert read[3]["attributes"] == [("a", '["x"]')]
    assert read[3]["links"] == [{"trace_id": "ab" * 16, "span_id": None, "flags": 1, "attributes": [("b", "7")]}]
    assert (counts.expected, counts.tails) == (8, 0)


def test_bad_span_names_the_messages_of_its_attributes_and_links():
    own, ipv6 = "C000020262BB60E53B936993952C0000", "FE80000000000000021122FFFE334455" + "1F4018B4AAC2" * 2
    ids = [[{"key": "messaging.message.id", "value": {"stringValue": text}}] for text in (own.lower(), ipv6)]
    bad = {**SPAN, "startTimeUnixNano": "soon", "attributes": ids[0], "links": [{"attributes": ids[1]}]}
    (row,) = block_rows(message(bad))
    assert row["bad"] == {"field": "start_ns", "reason": "not a number", "text": "soon", "mentions": [own, ipv6]}
