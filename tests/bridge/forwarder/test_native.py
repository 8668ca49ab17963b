"""Spans to native records: whole runs of `forward --native`, into a landing and onto a topic, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import pytest
from confluent_kafka.cimpl import Producer

from bridge.forwarder.run import ForwardOptions, run
from bridge.forwarder.sources.files import SpanFilesSource
from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace._errors import UsageError
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body
from tests.support.landings import landed_lines

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
RECORDS = {"Pub": 120, "SubBefore": 222, "SubAfter": 222}


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def _forward(source, native, capsys, **options):
    code = run(ForwardOptions(source=str(source), native=str(native), once=True, **options), as_json=True)
    assert code == 0
    return json.loads(capsys.readouterr().out)


def _kinds(bodies):
    counted = {}
    for body in bodies:
        decoded = decode_body(body)
        assert not decoded.errors
        for context in decoded.contexts:
            counted[context.trace_type.value] = counted.get(context.trace_type.value, 0) + len(context.beans)
    return counted


def test_spans_of_the_java_agent_become_a_landing_once(tmp_path, capsys):
    source = tmp_path / "in"
    source.mkdir()
    shutil.copy(DUAL / "otlp.jsonl", source)
    os.utime(source / "otlp.jsonl", (1_700_000_000, 1_700_000_000))
    counts = _forward(source, tmp_path / "out", capsys, landing_format="jsonl")
    assert (counts["spans"], counts["records"]) == (288, sum(RECORDS.values()))
    assert counts["without_record"] == {"TRACE_TRAFFIC": 15, "BATCH_PARENT": 2}
    assert counts["refused"] == {}
    assert _kinds(base64.b64decode(line["body_base64"]) for line in landed_lines(tmp_path / "out")) == RECORDS
    assert {line["arrival_ms"] for line in landed_lines(tmp_path / "out")} == {1_700_000_000_000}
    again = _forward(source, tmp_path / "out", capsys, landing_format="jsonl")
    assert (again["spans"], again["records"]) == (0, 0)


def test_a_file_that_grows_and_is_rotated_is_read_once(tmp_path):
    """A Collector appends, cuts off in the middle of a line for a while, and renames."""
    lines = (DUAL / "otlp.jsonl").read_bytes().splitlines(keepends=True)
    source, state = tmp_path / "in", tmp_path / "state"
    source.mkdir()
    file = source / "traces.json"

    def new():
        with SpanFilesSource(source, group="g", state=state) as reader:
            bodies = [message.body.strip() for batch in reader.drain() for message in batch]
            reader.commit()
        return bodies

    file.write_bytes(lines[0] + lines[1][:100])
    assert new() == [lines[0].strip()]
    file.write_bytes(lines[0] + lines[1])
    assert new() == [lines[1].strip()]
    file.rename(source / "traces-2026.json")
    file.write_bytes(lines[2])
    assert new() == [lines[2].strip()]
    assert new() == []


def test_what_was_not_committed_is_read_again(tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy(DUAL / "otlp.jsonl", tmp_path / "in")
    reader = SpanFilesSource(tmp_path / "in", group="g", state=tmp_path / "state")
    first = [message.body for batch in reader.drain() for message in batch]
    again = SpanFilesSource(tmp_path / "in", group="g", state=tmp_path / "state")
    assert [message.body for batch in again.drain() for message in batch] == first


def test_a_commit_between_two_batches_of_a_file_repeats_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    line = (DUAL / "otlp.jsonl").read_bytes().splitlines()[0]
    lines = [line + b" " * number for number in range(250)]
    (tmp_path / "in" / "spans.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with SpanFilesSource(tmp_path / "in", group="g", state=tmp_path / "state") as reader:
        drained = reader.drain()
        first = next(drained)
        reader.commit()
        drained.close()
    again = SpanFilesSource(tmp_path / "in", group="g", state=tmp_path / "state")
    rest = [message for batch in again.drain() for message in batch]
    assert [message.offset for message in (*first, *rest)] == list(range(250))


def test_a_collector_s_topic_becomes_a_trace_topic(capsys):
    """Kafka to Kafka, in protobuf; a message that is not OTLP is counted and takes nothing along."""
    with EmbeddedKafka() as kafka:
        kafka.create_topic("otlp_spans", 1)
        kafka.create_topic("RMQ_SYS_TRACE_TOPIC", 1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for line in (DUAL / "otlp.jsonl").read_bytes().splitlines():
            producer.produce("otlp_spans", value=line)
        producer.produce("otlp_spans", value=b"no span at all")
        assert producer.flush(20) == 0
        source, native = (
            f"kafka://{kafka.bootstrap_servers}/{topic}" for topic in ("otlp_spans", "RMQ_SYS_TRACE_TOPIC")
        )
        counts = _forward(source, native, capsys)
        assert (counts["records"], counts["unreadable"]) == (sum(RECORDS.values()), 1)
        assert _forward(source, native, capsys)["records"] == 0
        with KafkaTraceSource(kafka.bootstrap_servers, "RMQ_SYS_TRACE_TOPIC", group="reader") as written:
            messages = [message for batch in written.drain() for message in batch]
        assert _kinds(message.body for message in messages) == RECORDS
        assert all(message.keys for message in messages)


def test_a_broker_that_does_not_take_the_records_leaves_the_spans_uncommitted(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    shutil.copy(DUAL / "otlp.jsonl", tmp_path / "in")
    options = ForwardOptions(
        source=str(tmp_path / "in"), native="kafka://127.0.0.1:1/T", once=True, timeout_ms=1_500, landing_format="jsonl"
    )
    assert run(options) == 2
    assert "did not take" in capsys.readouterr().err
    assert _forward(tmp_path / "in", tmp_path / "out", capsys, landing_format="jsonl")["records"] == sum(
        RECORDS.values()
    )


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"landing": Path("landing")}, "run them apart"),
        ({"otlp_endpoint": "http://127.0.0.1:4318"}, "run them apart"),
        ({"source": "rocketmq://127.0.0.1:9876/T"}, "of a Collector"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, hint):
    with pytest.raises(UsageError, match=hint):
        run(ForwardOptions(**{"source": "spans", "native": "out", **options}))


def test_a_landing_given_for_spans_is_refused_by_name(tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy(DUAL / "native.jsonl", tmp_path / "in")
    with pytest.raises(UsageError, match="native trace bodies"):
        run(
            ForwardOptions(source=str(tmp_path / "in"), native=str(tmp_path / "out"), once=True, landing_format="jsonl")
        )


def test_a_target_inside_its_source_is_refused(tmp_path):
    with pytest.raises(UsageError, match="overlap"):
        run(ForwardOptions(source=str(tmp_path), native=str(tmp_path / "out"), once=True))


@pytest.mark.parametrize("form", ["in/otlp.jsonl", "in/*.jsonl", "files:in", "file://{}/in"])
def test_a_source_may_be_a_file_a_glob_or_a_directory(form, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    shutil.copy(DUAL / "otlp.jsonl", tmp_path / "in")
    source = form.format(tmp_path)
    assert _forward(source, "out", capsys, landing_format="jsonl")["records"] == sum(RECORDS.values())
    assert _forward(source, "out", capsys, landing_format="jsonl")["records"] == 0
