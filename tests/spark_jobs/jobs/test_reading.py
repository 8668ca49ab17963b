"""One side read by the tasks of an engine: its files, its counts, and that both survive being written down."""

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bridge.otlp.detect import Side
from spark_jobs.jobs import reading
from spark_jobs.jobs.reading import EventSide, read_side, write_events
from spark_jobs.normalise.spans import event_batches
from spark_jobs.schemas import NORMALISED
from spark_jobs.sources import splits
from spark_jobs.sources.files import SourceSet
from spark_jobs.sources.kafka import MESSAGE, PartitionRange, topic_address
from tests.spark_jobs.normalise.made_spans import BAD_ROW, batch, events, span
from tests.support.reading import PlainEngine, events_of, malformed_of, native_side, otlp_side, rows_in

VECTORS = Path(__file__).parents[2] / "vectors"
NATIVE = VECTORS / "dual" / "scenarios-5.3.3-old" / "native.jsonl"
SPANS = VECTORS / "otlp" / "layouts" / "traces.jsonl"


def test_task_has_a_file_of_its_own_and_earlier_files_are_removed(tmp_path, monkeypatch):
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "files-00099.parquet").write_bytes(b"of a run that was killed")
    once = native_side(tmp_path, NATIVE)
    rows = rows_in(once.files)
    assert [Path(file).name for file in once.files] == ["files-00000.parquet"]
    monkeypatch.setattr(splits, "UNCUT_BYTES", 0)
    monkeypatch.setattr(splits, "_LEAST_TASK_BYTES", 10_000)
    cut = native_side(tmp_path, NATIVE)
    assert len(cut.files) > 2
    assert {Path(file) for file in cut.files} == set((tmp_path / "native").iterdir())
    unplaced = [sorted(repr({**row, "line": None}) for row in some) for some in (rows, rows_in(cut.files))]
    assert unplaced[0] == unplaced[1]
    assert (cut.records_read, cut.exploded, cut.trace_topics) == (once.records_read, once.exploded, once.trace_topics)


def test_counts_of_both_sides_balance_and_name_the_end_of_the_data(tmp_path):
    native, spans = native_side(tmp_path, NATIVE), otlp_side(tmp_path, SPANS)
    for side in (native, spans):
        counts = sum(row.rows for row in side.survey.rows.values()), sum(side.survey.malformed.values())
        assert (len(events_of(side)), len(malformed_of(side))) == counts
        assert side.records_read + side.exploded == sum(counts)
        times = [row[name] for row in events_of(side) for name in ("start_ms", "end_ms") if row[name] is not None]
        assert side.last_event_ms == max(times)
    assert native.trace_topics
    assert (spans.trace_topics, spans.sources, spans.layouts) == ((), (str(SPANS),), ("json-lines",))


@pytest.mark.parametrize(("read", "source"), [(native_side, NATIVE), (otlp_side, SPANS)])
def test_side_is_read_back_unchanged_from_json(tmp_path, read, source):
    side = read(tmp_path, source)
    one = PartitionRange(address=topic_address("h:1,i:2", "t"), partition=3, first=5, end=9)
    for each in (side, EventSide(offsets=(one,), files=("a", "b")), EventSide()):
        assert EventSide.from_plain(json.loads(json.dumps(each.to_plain()))) == each


class ConnectedEngine(PlainEngine):
    """An engine with frames: each is a list of partitions, which are lists of batches."""

    name = "spark"

    def map_frame(self, function, frame):
        return [function(iter(batches)) for batches in frame]


def message(offset, value):
    return {"topic": "t", "partition": 0, "offset": offset, "arrival_ms": 5, "keys": None, "value": value}


def test_topic_is_read_by_the_connector_where_there_is_one(tmp_path, monkeypatch):
    body = base64.b64decode(json.loads(NATIVE.read_text(encoding="utf-8").splitlines()[0])["body_base64"])
    address, other = (topic_address("h:1", name) for name in ("t", "other"))
    ranges = tuple(PartitionRange(address=one, partition=0, first=0, end=9) for one in (address, other))
    batches = [
        [],
        [pa.RecordBatch.from_pylist([message(0, body), message(1, None)], schema=MESSAGE)],
        [pa.RecordBatch.from_pylist([message(at, body)], schema=MESSAGE) for at in (5, 6)],
    ]
    asked = []

    def frame(some, given, *, tasks):
        asked.append((some, given, tasks))
        return batches if some[0].address == address else None

    def by_client(one, given):
        assert one.address == other
        yield pa.RecordBatch.from_pylist([{**message(0, body), "topic": "other"}], schema=MESSAGE)

    monkeypatch.setattr(reading, "message_frame", frame)
    monkeypatch.setattr(reading, "message_batches", by_client)
    inputs = SourceSet(topics={one.address: (one,) for one in ranges})
    side = read_side(ConnectedEngine(), Side.NATIVE, inputs, str(tmp_path / "native"))
    assert [some for some, _, _ in asked] == [[ranges[0]], [ranges[1]]]
    assert [Path(file).name for file in side.files] == [
        "connector-000-00000-00000000000000000000.parquet",
        "connector-000-00000-00000000000000000005.parquet",
        "topics-00000.parquet",
    ]
    assert {row["path"] for row in events_of(side)} == {"t-0@0", "t-0@5", "t-0@6", "other-0@0"}
    assert [row["reason"] for row in malformed_of(side)] == ["no body (a tombstone)"]
    assert (side.offsets, side.offsets_without_message) == (ranges, 18 - 5)
    assert side.trace_topics == ("other", "t")


MS = 1_000_000
ID = "messaging.message.id"
OF_KAFKA = {"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.kafka.offset": "7"}
OF_KAFKA |= {"messaging.destination.name": "t", "messaging.destination.partition.id": "0"}


def written(directory, *batches):
    return write_events(str(directory / "files-00000.parquet"), event_batches(batches))


def test_file_holds_every_event_in_order_and_the_answer_counts_them(tmp_path):
    rows = [
        span(OF_KAFKA),
        BAD_ROW,
        span({ID: "b,c,d"}, start_ns=9_000 * MS, end_ns=0),
        span({ID: "a"}, end_ns=8_000 * MS),
    ]
    files = written(tmp_path, batch(*rows[:3]), batch(*rows[3:]))
    (file,) = tmp_path.iterdir()
    assert files.files == (str(file),)
    expected = [{name: event[name] for name in NORMALISED.names} for event in events(*rows)]
    assert parquet.read_table(file).to_pylist() == expected
    assert (sum(row.rows for row in files.survey.rows.values()), files.survey.malformed) == (5, {"otlp": 1})
    assert (files.exploded, files.by_place, files.last_event_ms) == (2, 1, 9_000)


@pytest.mark.parametrize("rows", [1, 40_000])
def test_task_that_fails_leaves_no_file(tmp_path, rows):
    def broken():
        yield from event_batches([batch(*[span({ID: "a"})] * rows)])
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_events(str(tmp_path / "files-00000.parquet"), broken())
    assert not list(tmp_path.iterdir())


def test_task_that_is_run_again_writes_its_file_again(tmp_path):
    answers = [written(tmp_path, batch(span({ID: "a"}))) for _ in range(2)]
    assert answers[0] == answers[1]
    assert [file.name for file in tmp_path.iterdir()] == ["files-00000.parquet"]
