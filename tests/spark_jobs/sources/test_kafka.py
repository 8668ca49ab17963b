"""Topics of a Kafka are sources like files: the same records and spans, each with its place, and offsets for the counts."""

import base64
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.cimpl import Producer

from bridge.otlp.detect import Side
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.testing.embedded import EmbeddedKafka
from spark_jobs.inspect import Inventory, inspect_sources
from spark_jobs.jobs.reading import ReadOptions
from spark_jobs.jobs.writers import find_writers
from spark_jobs.policy.profiles import AUTO
from spark_jobs.sources import kafka as kafka_source
from spark_jobs.sources.files import find_inputs
from tests.support.native_vectors import json_lines
from tests.support.reading import events_of, malformed_of, native_side, otlp_side, rows_in
from tests.support.topics import put_messages

VECTORS = Path(__file__).parents[2] / "vectors"
NATIVE = VECTORS / "dual" / "scenarios-5.3.3-old" / "native.jsonl"
SPANS = VECTORS / "otlp" / "layouts" / "traces.jsonl"
ORIGIN = {"path", "line", "partition", "offset", "arrival_ms"}


@pytest.fixture(scope="module")
def kafka():
    """A trace topic of three partitions and an OTLP topic of two, as their writers fill them, with junk in between."""
    with EmbeddedKafka() as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
        for topic, partitions in (("traces", 3), ("spans", 2), ("empty", 4)):
            running.create_topic(topic, partitions)
        for at, line in enumerate(json_lines(NATIVE)):
            body, keys = base64.b64decode(line["body_base64"]), line.get("keys")
            headers = [("KEYS", keys.encode())] if keys else []
            producer.produce("traces", body, partition=at % 3, headers=headers, timestamp=line["store_ms"])
        producer.produce("traces", None, key=b"tombstone", partition=0)
        producer.produce("traces", b"\x00no record", partition=1)
        for name in ("otlp_spans.kafka-proto.jsonl", "otlp_spans_json.kafka-json.jsonl"):
            for at, line in enumerate(json_lines(VECTORS / "otlp" / "kafka" / name)):
                producer.produce("spans", base64.b64decode(line["value_b64"]), partition=at % 2)
        producer.produce("spans", b'{"resourceSpans":[{"scopeS', partition=0)
        producer.produce("spans", b"Pub\x011700000000000\x01region\x02", partition=1)
        producer.produce("spans", None, key=b"tombstone", partition=1)
        producer.produce("foreign", b"order 7")
        assert producer.flush(30) == 0
        yield running


def source_of(kafka, topic):
    return f"kafka://{kafka.bootstrap_servers}/{topic}"


def content_of(side, *but):
    return Counter(
        repr({name: value for name, value in row.items() if name not in {*ORIGIN, *but}}) for row in events_of(side)
    )


def test_trace_topic_is_read_like_its_landing(kafka, tmp_path):
    source = source_of(kafka, "traces")
    from_file = native_side(tmp_path / "file", str(NATIVE))
    side = native_side(tmp_path / "kafka", source, source_of(kafka, "empty"))
    assert content_of(side) == content_of(from_file)
    assert side.records_read == from_file.records_read + 2
    assert side.records_read + side.exploded == len(rows_in(side.files))
    assert (side.sources[0], side.layouts) == (source, ("kafka",))
    assert side.trace_topics == ("traces",)
    ends = {one.partition: one.end for one in side.offsets if one.address.topic == "traces"}
    bad = {row["path"]: row["reason"] for row in malformed_of(side)}
    assert bad[f"traces-0@{ends[0] - 1}"] == "no body (a tombstone)"
    assert bad[f"traces-1@{ends[1] - 1}"] == "unknown record type"
    assert sum(ends.values()) == len(json_lines(NATIVE)) + 2
    assert [one.end for one in side.offsets if one.address.topic == "empty"] == [0, 0, 0, 0]
    assert side.offsets_without_message == 0
    arrivals = [{row["arrival_ms"] for row in events_of(read)} for read in (side, from_file)]
    assert arrivals[0] == arrivals[1]


def test_topic_of_both_encodings_holds_the_spans_that_were_sent(kafka, tmp_path):
    side = otlp_side(tmp_path / "kafka", source_of(kafka, "spans"))
    once = content_of(otlp_side(tmp_path / "file", str(SPANS)), "raw_hash")
    assert content_of(side, "raw_hash") == Counter({event: 2 * count for event, count in once.items()})
    assert side.records_read == 2 * 209 + 3
    ends = {one.partition: one.end for one in side.offsets}
    bad = {row["path"]: row["reason"] for row in malformed_of(side)}
    assert bad == {
        f"spans-0@{ends[0] - 1}": "not OTLP traces",
        f"spans-1@{ends[1] - 2}": "not OTLP traces",
        f"spans-1@{ends[1] - 1}": "no value (a tombstone)",
    }


def test_small_file_and_small_topic_are_both_read(kafka, tmp_path):
    """What the task writes of the one does not take the place of what it wrote of the other."""
    kafka.create_topic("small", partitions=1)
    put_messages(kafka.bootstrap_servers, "small", *SPANS.read_bytes().splitlines())
    once = otlp_side(tmp_path / "file", str(SPANS))
    twice = otlp_side(tmp_path / "both", str(SPANS), source_of(kafka, "small"))
    assert len(events_of(twice)) == 2 * len(events_of(once))
    assert twice.records_read == 2 * once.records_read


def test_topic_is_inspected_like_a_file(kafka):
    traces, spans, foreign, empty = (Inventory() for _ in range(4))
    inventories = {"traces": traces, "spans": spans, "foreign": foreign, "empty": empty}
    shown = {name: [*inspect_sources([source_of(kafka, name)], each)] for name, each in inventories.items()}
    assert len(shown["traces"]) == 271 + 4  # the tombstone, too
    assert (traces.side, traces.layout, traces.items, traces.malformed) == ("native", "kafka", 271, 4)
    assert (spans.side, spans.items, spans.malformed) == ("otlp", 2 * 209, 3)
    assert {split.path.partition("@")[0] for split in spans.bad} == {"spans-0", "spans-1"}
    assert (foreign.side, foreign.malformed) == ("unknown", 1)
    assert (empty.side, empty.items, empty.malformed) == ("empty", 0, 0)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"profile": "java-agent"}, "native writer rocketmq: sends with offset ids"),
        ({"native_writer": "rocketmq"}, "profile mqtrace: spans of scope otel_mqtrace"),
    ],
)
def test_writers_are_detected_from_the_beginning_of_the_topics(kafka, named, reason):
    topics = ((Side.NATIVE, "traces"), (Side.OTLP, "spans"))
    inputs = (find_inputs(side, [source_of(kafka, topic)], {}) for side, topic in topics)
    (why,) = find_writers(*inputs, ReadOptions(), **{"profile": AUTO, "native_writer": AUTO, **named}).reasons.values()
    assert why.startswith(reason)
    assert f" in {source_of(kafka, '')}" in why


def test_address_differs_from_files_and_hides_its_password():
    files, topics = kafka_source.split_topics(["a.jsonl", "kafka://h:1,i:2/t.x", "kafka://h:1,i:2/t.x", "b/*.jsonl"])
    assert (files, topics) == (("a.jsonl", "b/*.jsonl"), (kafka_source.topic_address("h:1,i:2", "t.x"),))
    for src in ("kafka://h:1", "kafka://h:1/", "kafka://h:1/a/b", "kafka://u:secret@h:1/t", "kafka:///t"):
        with pytest.raises(UsageError, match="is not a topic: write kafka://") as error:
            kafka_source.split_topics([src])
        assert "secret" not in str(error.value)
        assert ("password" in str(error.value)) is ("@" in src)
    assert "secret" not in repr(ReadOptions(client_config={"sasl.password": "secret"}))


def test_ranges_of_a_topic_join_up():
    address = kafka_source.topic_address("h:1", "t")
    one = kafka_source.PartitionRange(address=address, partition=0, first=3, end=20)
    whole = [one, replace(one, partition=1, end=3)]
    for size in (1, 7, 17, 100):
        covered = [at for one in kafka_source.cut_ranges(whole, offsets=size) for at in range(one.first, one.end)]
        assert covered == list(range(3, 20))


def test_range_is_read_to_its_end(kafka):
    """A retry reads the same offsets, though more has been written since."""
    address = kafka_source.topic_address(kafka.bootstrap_servers, "traces")
    (whole, *_) = kafka_source.topic_ranges(address, {})
    part = kafka_source.PartitionRange(address=address, partition=whole.partition, first=2, end=5)
    assert [row["offset"] for row in kafka_source.messages_in(part, {})] == [2, 3, 4]
    assert len(list(kafka_source.messages_in(whole, {}))) == whole.end


def test_offsets_removed_by_retention_are_skipped(kafka):
    """A range whose offsets are all gone ends; the mock keeps five megabytes of a partition."""
    kafka.create_topic("trimmed")
    put_messages(kafka.bootstrap_servers, "trimmed", *[b"x" * 900_000] * 12)
    (held,) = kafka_source.topic_ranges(kafka_source.topic_address(kafka.bootstrap_servers, "trimmed"), {})
    assert held.first > 0
    gone = kafka_source.PartitionRange(address=held.address, partition=0, first=0, end=held.first)
    assert list(kafka_source.messages_in(gone, {})) == []
    asked_too_early = kafka_source.PartitionRange(address=held.address, partition=0, first=0, end=held.end)
    assert [row["offset"] for row in kafka_source.messages_in(asked_too_early, {})] == list(range(held.first, held.end))


def test_unreachable_broker_is_one_line_within_the_timeout(tmp_path):
    address = kafka_source.topic_address("127.0.0.1:1", "t")
    with pytest.raises(PeerError, match=r"kafka://127.0.0.1:1/t does not answer: .*--client-config"):
        kafka_source.topic_ranges(address, {}, timeout_ms=300)
    silent = kafka_source.PartitionRange(address=address, partition=0, first=0, end=5)
    with pytest.raises(PeerError, match=r"t \[0\] has been silent at offset 0|cannot be read"):
        list(kafka_source.messages_in(silent, {}, timeout_ms=300))
    with pytest.raises(UsageError, match=r"the client of kafka://h:1/t cannot be built") as error:
        kafka_source.topic_ranges(kafka_source.topic_address("h:1", "t"), {"sasl.password": "secret", "no.such": "x"})
    assert "secret" not in str(error.value)


# -- Spark's own Kafka connector is a Java client: properties are translated for it, or it is not used
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PLAIN_LOGIN = f'{PLAIN_MODULE} required username="u" password="p\\"w";'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"client.id": "c"}, {"client.id": "c"}),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": 'p"w'},
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LOGIN},
        ),
        ({"ssl.ca.location": "/ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}),
        ({"sasl.mechanism": "OAUTHBEARER"}, None),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, None),
        ({"ssl.key.location": "/key.pem"}, None),
    ],
)
def test_client_properties_are_translated_for_the_java_client(given, expected):
    """What cannot be said in Java's words is never left out in silence."""
    assert kafka_source.java_properties(given) == expected
