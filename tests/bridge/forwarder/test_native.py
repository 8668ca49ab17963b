"""Spans to native records: whole runs of `forward --native`, into a landing and onto a topic, and what is refused."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from bridge.forwarder.files_source import SpanFilesSource
from bridge.forwarder.kafka_source import KafkaTraceSource
from bridge.forwarder.native_delivery import open_native
from bridge.forwarder.run import ForwardOptions, run
from otel_mqtrace._errors import UnreadableInputError, UsageError
from otel_mqtrace.exporters.packing import TraceMessage
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.landings import landed_bodies, landed_lines, records_of
from tests.support.topics import put_messages

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
RECORDS = {"Pub": 120, "SubBefore": 222, "SubAfter": 222}


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "in"
    directory.mkdir()
    shutil.copy(DUAL / "otlp.jsonl", directory)
    return directory


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def _forward(source, native, capsys):
    options = ForwardOptions(source=str(source), native=str(native), once=True, landing_format="jsonl")
    assert run(options, as_json=True) == 0
    return json.loads(capsys.readouterr().out)


def _reader(source, tmp_path):
    return SpanFilesSource(source, group="g", state=tmp_path / "state")


def _drained(reader):
    return [message for batch in reader.drain() for message in batch]


def _new_lines(source, tmp_path):
    with _reader(source, tmp_path) as reader:
        lines = [message.body for message in _drained(reader)]
        reader.commit()
    return lines


def _kinds(bodies):
    return Counter(record.trace_type.value for record in records_of(bodies) for _ in record.beans)


def test_spans_of_the_java_agent_become_a_landing_once(source, tmp_path, capsys):
    os.utime(source / "otlp.jsonl", (1_700_000_000, 1_700_000_000))
    counts = _forward(source, tmp_path / "out", capsys)
    assert (counts["spans"], counts["records"]) == (288, sum(RECORDS.values()))
    assert counts["without_record"] == {"TRACE_TRAFFIC": 15, "BATCH_PARENT": 2}
    assert counts["refused"] == {}
    assert _kinds(landed_bodies(tmp_path / "out")) == RECORDS
    assert {line["arrival_ms"] for line in landed_lines(tmp_path / "out")} == {1_700_000_000_000}
    again = _forward(source, tmp_path / "out", capsys)
    assert (again["spans"], again["records"]) == (0, 0)


def test_growing_and_rotated_file_is_read_once(source, tmp_path):
    """A Collector appends, cuts off in the middle of a line for a while, and renames; files may begin without spans."""
    file, empty = source / "traces.json", b'{"resourceSpans":[]}\n'
    lines = (source / "otlp.jsonl").rename(file).read_bytes().splitlines(keepends=True)
    new = partial(_new_lines, source, tmp_path)
    file.write_bytes(empty + lines[0] + lines[1][:100])
    assert new() == lines[:1]
    file.write_bytes(empty + lines[0] + lines[1])
    assert new() == lines[1:2]
    file.rename(source / "traces-2026.json")
    file.write_bytes(empty + lines[2])
    assert new() == lines[2:3]
    assert new() == []
    file.rename(source / "traces.json.1")  # which is read after the file that replaces it
    file.write_bytes(empty + lines[3] + lines[4])
    shutil.copy(source / "traces-2026.json", source / "traces-copy.json")
    assert new() == lines[3:5]
    file.write_bytes(empty + lines[3] + lines[0])  # another one that begins as the last one did
    assert new() == [lines[3], lines[0]]
    assert new() == []
    file.write_bytes(lines[4] + lines[1] + lines[2])
    assert new() == [lines[4], lines[1], lines[2]]
    file.write_bytes(lines[4] + lines[0])  # a shorter one
    assert new() == [lines[4], lines[0]]


def test_files_that_are_renamed_while_a_pass_reads_are_read_once(source, tmp_path):
    lines = (source / "otlp.jsonl").read_bytes().splitlines(keepends=True)
    for name, line in zip(("otlp.jsonl", "second.jsonl"), lines, strict=False):
        (source / name).write_bytes(line)
    assert _new_lines(source, tmp_path) == lines[:2]
    with (source / "otlp.jsonl").open("ab") as file:
        file.write(lines[2])
    reader = _reader(source, tmp_path)
    drained = reader.drain()
    assert [message.body for message in next(drained)] == lines[2:3]
    (source / "second.jsonl").rename(source / "third.jsonl")
    (source / "otlp.jsonl").rename(source / "second.jsonl")
    assert not any(drained)
    reader.commit()
    assert _drained(_reader(source, tmp_path)) == []


def test_file_that_is_being_copied_is_read_once(source, tmp_path):
    """As logrotate's ``copytruncate`` does; a file that begins as another one is read whole."""
    file, copy = source / "otlp.jsonl", source / "otlp.jsonl.1"
    lines, new = file.read_bytes().splitlines(keepends=True), partial(_new_lines, source, tmp_path)
    file.write_bytes(b"".join(lines[:4]))
    assert new() == lines[:4]
    copy.write_bytes(b"".join(lines[:2]) + lines[2][:100])
    assert new() == []
    file.write_bytes(lines[4])
    assert new() == lines[4:5]
    copy.write_bytes(b"".join(lines[:4]))
    assert new() == []
    (source / "other.jsonl").write_bytes(lines[0] + lines[4])
    assert new() == [lines[0], lines[4]]
    for name in ("otlp.jsonl", "otlp.jsonl.2"):  # replaced, and copied before it was read
        (source / name).write_bytes(lines[3] + lines[1] + lines[2])
        assert (new() != []) == (name == "otlp.jsonl")
    for name in ("otlp.jsonl", "otlp.jsonl.0"):
        (source / name).write_bytes(lines[3] + lines[0])
    assert new() == [lines[3], lines[0]]


def test_file_that_begins_as_one_that_was_overwritten_is_read(source, tmp_path):
    file = source / "otlp.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    assert _new_lines(source, tmp_path) == lines
    file.write_bytes(b"\x1f\x8b")
    (source / "other.jsonl").write_bytes(lines[0])
    with _reader(source, tmp_path) as reader:
        assert [message.body for message in _drained(reader)] == lines[:1]
        assert (reader.bad_bodies, reader.first_bad.partition(":")[0]) == (1, "otlp.jsonl")


def test_file_without_spans_is_counted_once_unless_there_are_native_bodies_only(source, tmp_path):
    (source / "README.txt").write_text("hello", encoding="utf-8")
    (source / "body.jsonl").write_text('{"body_base64": ""}\n', encoding="utf-8")
    with _reader(source, tmp_path) as reader:
        assert _drained(reader)
        assert _drained(reader) == []
        assert reader.bad_bodies == 2
        assert reader.first_bad.startswith("README.txt: cannot detect the format of ")
    (source / "otlp.jsonl").unlink()
    with pytest.raises(UsageError, match="holds native trace bodies"):
        _drained(_reader(source, tmp_path))
    (source / "body.jsonl").unlink()
    assert _drained(_reader(source, tmp_path)) == []
    with pytest.raises(UnreadableInputError, match="cannot detect the format"):
        _drained(_reader(source / "README.txt", tmp_path))


def test_bad_line_of_a_growing_file_is_counted_once_and_a_cut_one_until_it_is_whole(source, tmp_path):
    lines = (source / "otlp.jsonl").read_bytes().splitlines(keepends=True)
    (source / "otlp.jsonl").write_bytes(b"damaged\n" + lines[0])
    with _reader(source, tmp_path) as reader:
        assert [message.offset for message in _drained(reader)] == [1]
        for piece, offsets, cut in (lines[1][:100], [], {"otlp.jsonl": 3}), (lines[1][100:], [2], {}):
            with (source / "otlp.jsonl").open("ab") as file:
                file.write(piece)
            assert ([message.offset for message in _drained(reader)], reader.cut_files) == (offsets, cut)
        assert (reader.bad_bodies, reader.first_bad) == (1, "otlp.jsonl:1: not OTLP traces")


def test_commit_between_two_batches_of_a_file_repeats_nothing(source, tmp_path):
    line = (source / "otlp.jsonl").read_bytes().splitlines()[0]
    (source / "otlp.jsonl").write_bytes(b"".join(line + b" " * number + b"\n" for number in range(250)))
    with _reader(source, tmp_path) as reader:
        drained = reader.drain()
        first = next(drained)
        reader.commit()
        drained.close()
    assert [message.offset for message in (*first, *_drained(_reader(source, tmp_path)))] == list(range(250))


def test_topic_of_a_collector_becomes_a_trace_topic(capsys):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("otlp_spans", 1)
        kafka.create_topic("traces", 1)
        lines = (DUAL / "otlp.jsonl").read_bytes().replace(b"RMQ_SYS_TRACE_TOPIC", b"traces").splitlines()
        put_messages(kafka.bootstrap_servers, "otlp_spans", *lines, b"no span at all")
        source, native = (f"kafka://{kafka.bootstrap_servers}/{topic}" for topic in ("otlp_spans", "traces"))
        counts = _forward(source, native, capsys)
        assert (counts["records"], counts["unreadable"]) == (sum(RECORDS.values()), 1)
        assert _forward(source, native, capsys)["records"] == 0
        with KafkaTraceSource(kafka.bootstrap_servers, "traces", group="reader") as written:
            messages = [message for batch in written.drain() for message in batch]
        assert _kinds(message.body for message in messages) == RECORDS
        assert all(message.keys for message in messages)


def test_broker_that_takes_no_records_leaves_the_spans_uncommitted(source, tmp_path, capsys):
    options = ForwardOptions(source=str(source), native="kafka://127.0.0.1:1/T", once=True, timeout_ms=1_500)
    assert run(options) == 2
    err = capsys.readouterr().err
    assert "did not take" in err
    assert "name another one in --native)" in err
    assert _forward(source, tmp_path / "out", capsys)["records"] == sum(RECORDS.values())


def test_summary_names_what_was_not_forwarded_with_the_first_place_and_the_fix(source, tmp_path, capsys):
    file = source / "otlp.jsonl"
    first, second, *_ = file.read_bytes().splitlines(keepends=True)
    size = b'"attributes":[{"key":"messaging.message.body.size","value":{"intValue":"4294967296"}},'
    before, start, behind = first.partition(b'"name":"send orders_d498dup"')
    refused = before + start + behind.replace(b'"attributes":[', size, 1)
    marked = first.replace(b'"stringValue":"TagC"', b'"stringValue":"Tag\\u0002"', 1)
    bad_span = b'{"resourceSpans":[{"scopeSpans":[{"spans":["none"]}]}]}\n'
    file.write_bytes(refused + marked + bad_span + b"none\n" + second[:100])
    assert run(ForwardOptions(source=str(source), native=str(tmp_path / "out"), once=True)) == 0
    assert capsys.readouterr().out.partition("TRACE_TRAFFIC; ")[2] == (
        "1 record refused: encode_error; first: otlp.jsonl:1: body_length: 4294967296 does not fit the 32 bits of "
        "the format: correct the span's attribute where it is set, or give another --dialect; 1 span that could not "
        "be read; first: otlp.jsonl:3: not a span; 1 separator character written as _; 1 piece of input without OTLP "
        "traces; first: otlp.jsonl:4: not OTLP traces; 1 file cut inside a message; first: otlp.jsonl:5: run again when it is complete\n"
    )


def test_target_of_an_interrupted_delivery_is_closed_at_once():
    properties = {"target": "kafka://127.0.0.1:1/T", "dialect": "5.5.0", "landing_format": "", "client_config": {}}
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    started_s = time.monotonic()
    # a timer set before pytest.raises() could go off before it
    with pytest.raises(KeyboardInterrupt), open_native(**properties, timeout_ms=300_000) as write:  # noqa: PT012
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        write([TraceMessage(b"", "", ())], 0)
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started_s < 100


@pytest.mark.parametrize("native", ["kafka://127.0.0.1:1/T", "rocketmq://127.0.0.1:1/T", "out"])
def test_unknown_dialect_is_refused_without_a_warning(native, source, monkeypatch, caplog):
    monkeypatch.setattr("otel_mqtrace.config._warned", set())
    with pytest.raises(UsageError, match=r"no release 6\.6\.6 of RocketMQ is known"):
        run(ForwardOptions(source=str(source), native=native, dialect="6.6.6", once=True))
    assert caplog.records == []
