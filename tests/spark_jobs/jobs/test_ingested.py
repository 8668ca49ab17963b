"""What a stream has taken in: batches that are there whole or not at all, and are joined as they grow in number."""

import os
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from bridge.storage.paths import list_files
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.jobs.ingested import Batch, Ingested, survey_again
from spark_jobs.jobs.reading import EventSide
from spark_jobs.judging.facts import survey
from spark_jobs.schemas import NORMALISED
from spark_jobs.sources.kafka import PartitionRange, topic_address
from tests.support.events import publish
from tests.support.reading import PlainEngine

SPANS = topic_address("broker:9092", "spans")


def side(**changes):
    """One side as a reader tells of it; ``take`` adds its files."""
    plain = {"records_read": 2, "exploded": 1, "sources": ("a.jsonl",), "layouts": ("landing",), "last_event_ms": 7}
    return EventSide(**plain | changes)


def span_range(first, end, partition=0):
    return PartitionRange(address=SPANS, partition=partition, first=first, end=end)


def rows_of(paths):
    return [row["msg_id"] for path in paths for row in parquet.read_table(path).to_pylist()]


def take(ingested, rows, given=None, *, of="native"):
    """Commit a batch with a file for each of the rows, and return its name."""
    name = ingested.make_batch("files")
    directory = ingested.place(name) / of
    directory.mkdir()
    for number, row in enumerate(rows):
        event = publish(of, row) if isinstance(row, str) else row
        table = pa.Table.from_pylist([{**event, "bad": None}], schema=NORMALISED)
        parquet.write_table(table, directory / f"part-{number:05d}.parquet")
    read = replace(given or side(), files=tuple(list_files(str(directory))))
    ingested.commit(name, Batch({of: read}, {f"{name}.jsonl": 10}))
    return name


def directories(root):
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_batch_counts_once_it_is_committed_and_its_files_are_on_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_ino))
    ingested = Ingested(tmp_path)
    assert ingested.total() == Batch({"native": EventSide(), "otlp": EventSide()})
    ingested.make_batch("files")
    assert not ingested.batches()
    name = take(ingested, "AB")
    files = tuple(list_files(str(tmp_path / f"batch={name}" / "native")))
    assert {(tmp_path / each).stat().st_ino for each in files} <= set(flushed[:-2])  # before the list and its directory
    for each in (ingested, Ingested(tmp_path)):  # the run that committed it, and the next one
        assert each.batches() == {name: Batch({"native": side(files=files)}, {f"{name}.jsonl": 10})}
    assert directories(tmp_path) > {f"batch={name}"}
    ingested.remove_unlisted()
    assert directories(tmp_path) == {f"batch={name}"}


def test_batches_are_found_where_their_directory_was_moved_to(tmp_path):
    take(Ingested(tmp_path / "before"), "AB")
    (tmp_path / "before").rename(tmp_path / "after")
    assert rows_of(Ingested(tmp_path / "after").total().sides["native"].files) == ["A", "B"]


def test_joined_batches_hold_the_same_rows_in_few_files(tmp_path):
    ingested = Ingested(tmp_path)
    counts = {"records_read": 2, "exploded": 1, "truncated_tails": 3, "offsets_without_message": 4, "by_place": 5}
    for number in range(6):
        given = side(**counts, last_event_ms=number, trace_topics=("mine",))
        take(ingested, [f"{number}{name}" for name in "ABCD"], given)
    take(ingested, "S", side(sources=("s.jsonl",)), of="otlp")
    before = ingested.total()
    rows = rows_of(before.sides["native"].files)
    ingested.compact(most_batches=6)
    (joined,) = ingested.batches()
    read = ingested.total()
    assert len(read.sides["native"].files) == 8
    assert rows_of(read.sides["native"].files) == rows
    sums = {name: 6 * number for name, number in counts.items()}
    assert replace(read.sides["native"], files=()) == side(**sums, last_event_ms=5, trace_topics=("mine",))
    assert read.sides["otlp"].sources == ("s.jsonl",)
    assert read.sizes == before.sizes
    assert directories(tmp_path) == {f"batch={joined}"}


def test_batches_never_get_an_earlier_name(tmp_path):
    ingested = Ingested(tmp_path)
    names = []
    for _ in range(60):
        failed = ingested.make_batch("files")  # its tasks may still write there
        names += [failed, take(ingested, "A")]
        ingested.compact(most_batches=2)
        assert len(ingested.batches()) <= 2 + 3
    assert len({*names}) == len(names)
    ingested.remove_unlisted()
    assert directories(tmp_path) == {f"batch={name}" for name in ingested.batches()}


def test_sources_of_dropped_batches_count_as_read(tmp_path):
    ingested = Ingested(tmp_path)

    def sources():
        return {source for read in ingested.total_read().values() for source in read.sources}

    names = [
        take(ingested, "A", side(sources=(f"{day}",), last_event_ms=day, offsets=(span_range(day, day + 1),)))
        for day in range(8)
    ]
    junk = take(ingested, "A", side(sources=("junk",), last_event_ms=10**15))
    assert (ingested.dropped_until_ms(), ingested.dropped_until_ms(2)) == (None, 1)
    ingested.drop_older(2)
    assert ingested.dropped_until_ms() == Ingested(tmp_path).dropped_until_ms() == 1
    assert list(ingested.batches()) == [*names[2:], junk]
    assert directories(tmp_path) == {f"batch={name}" for name in ingested.batches()}
    assert sources() == {*"01234567", "junk"}
    assert ingested.total_read()["native"].offsets == (span_range(0, 8),)
    assert ingested.total().sides["native"].records_read == 14
    assert [ingested.dropped_until_ms(keep_ms) for keep_ms in (2, 0)] == [2, 4]
    ingested.forget_files({"1", "2"})
    assert sources() == {*"1234567", "junk"}
    ingested.drop_older(0)
    assert list(ingested.batches()) == [*names[5:], junk]
    assert ingested.dropped_until_ms() == 4
    assert sources() == {*"1234567", "junk"}


@pytest.mark.parametrize("text", ["", "[1]", "[" * 9_999, '{"a": 2}', '{"a": {"sides": {"native": {}}, "sizes": {}}}'])
def test_list_of_batches_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "batches.json").write_text(text)
    with pytest.raises(UnreadableInputError, match=r"read: (Expecting|its content is not) .* to read everything again"):
        Ingested(tmp_path).batches()


def test_spans_are_surveyed_again_for_trace_topics_of_a_later_batch(tmp_path):
    """An earlier batch took the sends to a trace topic for the application's."""
    ingested = Ingested(tmp_path)
    sends = publish("otlp", "A"), publish("otlp", "B", topic="mine")
    rows = pa.Table.from_pylist([{**row, "bad": None} for row in sends], schema=NORMALISED)
    take(ingested, sends, side(survey=survey(rows)), of="otlp")
    take(ingested, "C", side(trace_topics=("mine",)))
    native, otlp = ingested.total().sides.values()
    again = survey_again(PlainEngine(), otlp, native.trace_topics)
    assert {scope: row.rows for (_, _, scope), row in otlp.survey.rows.items()} == {None: 2}
    assert {scope: row.rows for (_, _, scope), row in again.survey.rows.items()} == {None: 1, "TRACE_TRAFFIC": 1}
    assert survey_again(PlainEngine(), otlp, ()) is otlp
