"""What a stream takes in of topics: each message once, in however many rounds it came."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.cimpl import Producer

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from spark_jobs.jobs.engines import open_engine
from spark_jobs.jobs.ingest import Ingest, find_new_ranges
from spark_jobs.jobs.intake import Intake, survey_again
from spark_jobs.jobs.options import ReconcileOptions, silent
from spark_jobs.jobs.reading import read_native, read_otlp
from spark_jobs.sources.kafka import TopicAddress
from tests.support.plain_engine import PlainEngine
from tests.support.reading import rows_in

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


def rows_of(sides):
    """Return the rows of both sides, without the scope, which judging and surveying find again."""
    return [Counter(repr({**row, "scope": None}) for row in rows_in(side.files)) for side in sides]


def books_of(sides):
    return [replace(side, files=()) for side in sides]


@pytest.mark.spark
def test_messages_of_topics_are_taken_in_once_in_however_many_rounds(spark, kafka, tmp_path):
    """Spans of a first round, records of a second one that show which topic is a trace topic: as read in one go."""
    bodies = [base64.b64decode(json.loads(line)["body_base64"]) for line in (DUAL / "native.jsonl").open()]
    spans = [
        line.replace(b"RMQ_SYS_TRACE_TOPIC", MINE.encode()) for line in (DUAL / "otlp.jsonl").read_bytes().splitlines()
    ]
    native, otlp = (f"kafka://{kafka.bootstrap_servers}/{topic}" for topic in (MINE, "spans"))
    options = ReconcileOptions(native=(native,), otlp=(otlp,), out=tmp_path, native_writer="rocketmq-4.9.8")
    ingest, engine = Ingest(options, files_per_batch=1, progress=silent), PlainEngine()

    def take_in():
        with open_engine("spark", lambda: spark, clock=SystemClock()) as on_spark:
            return ingest.take_in(on_spark, spark)

    def taken():
        native_side, span_side = ingest.intake.sides()
        return native_side, survey_again(engine, span_side, native_side.trace_topics)

    send(kafka, "spans", spans)
    rounds = [take_in()]
    send(kafka, MINE, bodies)
    rounds += [take_in(), take_in()]
    assert rounds == [1, 1, 0]
    in_rounds = taken()

    how = ingest.how()
    one_native = read_native(engine, [native], str(tmp_path / "once-native"), options=how)
    how = replace(how, trace_topics=one_native.trace_topics)
    at_once = one_native, read_otlp(engine, [otlp], str(tmp_path / "once-otlp"), options=how)
    assert rows_of(in_rounds) == rows_of(at_once)
    held = [replace(side, offsets=tuple(one for one in side.offsets if one.first < one.end)) for side in at_once]
    assert [sorted(map(repr, side.survey.rows)) for side in in_rounds] == [
        sorted(map(repr, side.survey.rows)) for side in at_once
    ]
    without = [[replace(side, survey=at_once[0].survey) for side in books_of(sides)] for sides in (in_rounds, held)]
    assert without[0] == without[1]
    assert "TRACE_TRAFFIC" in {row.scope for row in in_rounds[1].survey.rows}

    batches = sorted((tmp_path / "stream" / "events").glob("batch=*"))
    kept = [shutil.copytree(batch, tmp_path / batch.name) for batch in batches]
    whole = rows_of(in_rounds)
    ingest.intake.compact(most_batches=1)
    for batch, copy in zip(batches, kept, strict=True):
        assert not batch.exists()
        copy.rename(batch)  # as when it was killed before they were removed
    (joined,) = ingest.intake.names()
    assert joined.startswith("joined-")
    again = taken()
    assert rows_of(again) == whole
    assert books_of(again) == books_of(in_rounds)
    assert take_in() == 0


def test_batches_can_be_joined_as_often_as_a_stream_goes_on(tmp_path):
    """The name of what was joined gets no longer, and none comes back; batches without rows ask for no Spark."""
    intake = Intake(tmp_path)
    names = []
    for number in range(60):
        intake.incoming(f"0c8d41aa-{number:09d}")
        intake.take_in(f"0c8d41aa-{number:09d}", {})
        intake.compact(most_batches=1)
        names += intake.names()
    assert names[0] == "0c8d41aa-000000000"
    assert len({*names}) == len(names)
    assert {len(name) for name in names[1:]} == {len(names[1])}
    assert [path.name for path in tmp_path.iterdir()] == [f"batch={names[-1]}"]


def test_a_topic_that_was_made_anew_is_told_instead_of_passed_over(kafka):
    """Offsets that end before those read already cannot be the same topic's."""
    kafka.create_topic("anew", 1)
    send(kafka, "anew", [b"1", b"2"])
    address = TopicAddress(kafka.bootstrap_servers, "anew")
    (held,) = find_new_ranges([address], {}, [])
    assert (held.first, held.end) == (0, 2)
    assert find_new_ranges([address], {}, [held]) == ()
    with pytest.raises(PeerError, match="made anew"):
        find_new_ranges([address], {}, [replace(held, end=3)])
