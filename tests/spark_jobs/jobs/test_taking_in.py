"""What a stream takes in of topics: each message once, in however many rounds it came."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from confluent_kafka.cimpl import Producer

from bridge.embedded.cluster import EmbeddedKafka
from otel_mqtrace._errors import PeerError
from spark_jobs.jobs.intake import Books, Intake
from spark_jobs.jobs.new_messages import new_ranges
from spark_jobs.jobs.normalise import NormalisedSide, normalise_native, normalise_otlp
from spark_jobs.jobs.options import ReconcileOptions, silent
from spark_jobs.jobs.taking_in import TakingIn
from spark_jobs.sources.kafka.address import TopicAddress

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
MINE = "my-traces"


@pytest.fixture(scope="module")
def kafka():
    """A trace topic of a name of its own, and spans among which are the sends of trace messages to it."""
    with EmbeddedKafka() as running:
        running.create_topic(MINE, 2)
        running.create_topic("spans", 1)
        yield running


def send(kafka, topic, values):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % 2 if topic == MINE else 0, timestamp=1_795_262_480_000)
    assert producer.flush(30) == 0


def said(events):
    return Counter(repr(row.asDict(recursive=True)) for row in events.collect())


@pytest.mark.spark
def test_messages_of_topics_are_taken_in_once_in_however_many_rounds(spark, kafka, tmp_path):
    """Spans of a first round, records of a second one that show which topic is a trace topic: as read in one go."""
    bodies = [base64.b64decode(json.loads(line)["body_base64"]) for line in (DUAL / "native.jsonl").open()]
    spans = [
        line.replace(b"RMQ_SYS_TRACE_TOPIC", MINE.encode()) for line in (DUAL / "otlp.jsonl").read_bytes().splitlines()
    ]
    native, otlp = (f"kafka://{kafka.bootstrap_servers}/{topic}" for topic in (MINE, "spans"))
    options = ReconcileOptions(native=(native,), otlp=(otlp,), out=tmp_path, native_writer="rocketmq-4.9.8")
    taking = TakingIn(options, files_per_batch=1, progress=silent)
    send(kafka, "spans", spans)
    rounds = [taking.take_in(spark)]
    send(kafka, MINE, bodies)
    rounds += [taking.take_in(spark), taking.take_in(spark)]
    assert rounds == [1, 1, 0]
    in_rounds = taking.intake.sides(spark)

    how = taking.how()
    one_native = normalise_native(spark, [native], tmp_path / "once", options=how)
    how = replace(how, trace_topics=one_native.trace_topics)
    at_once = one_native, normalise_otlp(spark, [otlp], tmp_path / "once", options=how)
    told = [said(side.events) for side in at_once]
    assert [said(side.events) for side in in_rounds] == told
    elsewhere = {"events": None, "malformed": None, "files": None, "scoped_topics": ()}
    for taken, read in zip(in_rounds, at_once, strict=True):
        held = tuple(one for one in read.offsets if one.first < one.end)
        assert replace(taken, **elsewhere) == replace(read, **elsewhere, offsets=held)
    batches = sorted((tmp_path / "stream" / "events").glob("batch=*"))
    kept = [shutil.copytree(batch, tmp_path / batch.name) for batch in batches]
    taking.intake.compact(spark, most_batches=1)
    for batch, copy in zip(batches, kept, strict=True):
        assert not batch.exists()
        copy.rename(batch)  # as when it was killed before they were removed
    (joined,) = taking.intake.names()
    assert joined.startswith("joined-")
    again = taking.intake.sides(spark)
    assert [said(side.events) for side in again] == told
    books = [[replace(side, **elsewhere) for side in sides] for sides in (in_rounds, again)]
    assert books[0] == books[1]
    assert taking.take_in(spark) == 0
    assert "TRACE_TRAFFIC" in {row["scope"] for row in in_rounds[1].events.select("scope").collect()}


def test_batches_can_be_joined_as_often_as_a_stream_goes_on(tmp_path):
    """The name of what was joined gets no longer, and none comes back; batches without rows ask for no Spark."""
    intake = Intake(tmp_path)
    names = []
    for number in range(60):
        intake.incoming(f"0c8d41aa-{number:09d}")
        intake.take_in(f"0c8d41aa-{number:09d}", {})
        intake.compact(None, most_batches=1)
        names += intake.names()
    assert names[0] == "0c8d41aa-000000000"
    assert len({*names}) == len(names)
    assert {len(name) for name in names[1:]} == {len(names[1])}
    assert [path.name for path in tmp_path.iterdir()] == [f"batch={names[-1]}"]


def test_the_books_of_a_batch_hold_whatever_a_side_tells():
    """Nothing a reader learns to count is forgotten between its batch and the judge."""
    found_on_disk = {"events", "malformed", "files", "scoped_topics"}
    told = {field.name for field in fields(NormalisedSide)} - found_on_disk
    assert {field.name for field in fields(Books)} == told | {"sizes"}


def test_a_topic_that_was_made_anew_is_told_instead_of_passed_over(kafka):
    """Offsets that end before those read already cannot be the same topic's."""
    kafka.create_topic("anew", 1)
    send(kafka, "anew", [b"1", b"2"])
    address = TopicAddress(kafka.bootstrap_servers, "anew")
    (held,) = new_ranges([address], {}, [])
    assert (held.first, held.end) == (0, 2)
    assert new_ranges([address], {}, [held]) == ()
    with pytest.raises(PeerError, match="made anew"):
        new_ranges([address], {}, [replace(held, end=3)])
