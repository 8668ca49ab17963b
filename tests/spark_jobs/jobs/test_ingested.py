"""What a stream has taken in: batches that are there whole or not at all, and are joined as they grow in number."""

import shutil
from dataclasses import fields, replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from bridge.storage import list_files
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.jobs.ingested import Ingested, survey_again
from spark_jobs.jobs.reading import EventSide
from spark_jobs.judging.facts import Survey, Surveyed, survey
from spark_jobs.schemas import NORMALISED
from spark_jobs.sources.kafka import PartitionRange, topic_address
from tests.support.events import publish
from tests.support.reading import PlainEngine

SPANS = topic_address("broker:9092", "spans")


def side(**changes):
    """One side as a reader tells of it; what its files were called there does not matter."""
    given = {"records_read": 2, "exploded": 1, "sources": ("a.jsonl",), "layouts": ("landing",), "last_event_ms": 7}
    return EventSide(**{"files": (".incoming-b/native/part.parquet",), **given, **changes})


def span_range(first, end, partition=0):
    return PartitionRange(address=SPANS, partition=partition, first=first, end=end)


def rows_of(paths):
    return [row["msg_id"] for path in paths for row in parquet.read_table(path).to_pylist()]


def take(ingested, name, msg_ids, given=None, *, of="native"):
    directory = ingested.incoming(name) / of
    directory.mkdir()
    for number, msg_id in enumerate(msg_ids):
        rows = pa.Table.from_pylist([{**publish(of, msg_id), "bad": None}], schema=NORMALISED)
        parquet.write_table(rows, directory / f"part-{number:05d}.parquet")
    ingested.commit(name, {of: given or side()}, sizes={"a.jsonl": 10})


def test_batch_counts_once_it_is_committed(tmp_path):
    ingested = Ingested(tmp_path)
    assert ingested.sides() == (EventSide(), EventSide())
    ingested.incoming("b-1")
    assert ingested.names() == ()
    take(ingested, "b-1", "AB")
    assert ingested.names() == ("b-1",)
    files = tuple(list_files(str(tmp_path / "batch=b-1" / "native")))
    assert ingested.batches() == {"b-1": {"native": side(files=files)}}
    assert ingested.sizes() == {"a.jsonl": 10}


def test_batch_committed_again_replaces_itself(tmp_path):
    ingested = Ingested(tmp_path)
    take(ingested, "b-1", "AB")
    take(ingested, "b-1", "C")
    assert rows_of(list_files(str(tmp_path / "batch=b-1" / "native"))) == ["C"]


def test_offsets_of_several_batches_are_one_range_a_partition(tmp_path):
    ingested = Ingested(tmp_path)
    take(ingested, "b-1", "A", side(offsets=(span_range(0, 5), span_range(2, 3, partition=1))))
    take(ingested, "b-2", "B", side(offsets=(span_range(5, 9),)))
    assert ingested.offsets() == {"native": (span_range(0, 9), span_range(2, 3, partition=1)), "otlp": ()}


def test_joined_batches_hold_the_same_rows_in_few_files(tmp_path):
    ingested = Ingested(tmp_path)
    for number in range(6):
        take(ingested, f"b-{number}", [f"{number}{name}" for name in "ABCD"], side(last_event_ms=number))
    take(ingested, "b-6", "S", side(sources=("s.jsonl",)), of="otlp")
    before = rows_of(sorted(map(str, tmp_path.glob("batch=*/native/*.parquet"))))
    copies = [shutil.copytree(batch, tmp_path / f"copy-{batch.name}") for batch in tmp_path.glob("batch=*")]
    ingested.compact(most_batches=6)
    (joined,) = ingested.names()
    files = list_files(str(tmp_path / f"batch={joined}" / "native"))
    assert len(files) == 8
    assert rows_of(files) == before
    read = ingested.batches()[joined]
    assert (read["native"].records_read, read["native"].last_event_ms) == (12, 5)
    assert read["otlp"].sources == ("s.jsonl",)
    assert ingested.sizes() == {"a.jsonl": 10}
    for copy in copies:  # as when it was killed before they were removed
        copy.rename(tmp_path / copy.name.removeprefix("copy-"))
    ingested.incoming("b-7")
    (tmp_path / "batch=b-8" / "native").mkdir(parents=True)
    assert ingested.names() == (joined,)
    ingested.remove_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == [f"batch={joined}"]


def test_joined_batches_never_get_an_earlier_name(tmp_path):
    ingested = Ingested(tmp_path)
    names = []
    for _ in range(60):
        failed = ingested.next_name()
        ingested.incoming(failed)  # tasks of its batch may still write there
        name = ingested.next_name()
        assert name != failed
        ingested.incoming(name)
        ingested.commit(name, {})
        names.append(name)
        ingested.compact(most_batches=2)
        assert len(ingested.names()) <= 2 + 3
    assert len({*names}) == len(names)
    ingested.remove_unfinished()
    assert {path.name for path in tmp_path.iterdir()} == {f"batch={name}" for name in ingested.names()}


def test_sources_of_dropped_batches_count_as_read(tmp_path):
    ingested = Ingested(tmp_path)
    for day in range(8):
        take(
            ingested, f"b-{day}", "A", side(sources=(f"{day}",), last_event_ms=day, offsets=(span_range(day, day + 1),))
        )
    take(ingested, "junk", "A", side(sources=("junk",), last_event_ms=10**15))
    ingested.drop_older(2)
    assert ingested.names() == ("b-2", "b-3", "b-4", "b-5", "b-6", "b-7", "junk")
    assert ingested.sources() == {*"01234567", "junk"}
    assert ingested.offsets()["native"] == (span_range(0, 8),)
    assert ingested.sides()[0].records_read == 14
    ingested.forget_files({"1", "2"})
    assert ingested.sources() == {*"1234567", "junk"}
    ingested.drop_older(0)
    assert ingested.names() == ("b-5", "b-6", "b-7", "junk")
    assert ingested.sources() == {*"1234567", "junk"}


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_batch_without_readable_counts_is_refused(tmp_path, text):
    ingested = Ingested(tmp_path)
    take(ingested, "b-1", "A")
    (tmp_path / "batch=b-1" / "books.json").write_text(text)
    with pytest.raises(UnreadableInputError, match="to read everything again"):
        ingested.batches()


def test_sides_equal_those_of_one_batch_run(tmp_path):
    ingested = Ingested(tmp_path)
    take(ingested, "b-1", "A", side(sources=("s.jsonl",)), of="otlp")
    take(ingested, "b-2", "BC", side(trace_topics=("mine",), offsets=(span_range(0, 5),)))
    take(ingested, "b-3", "D", side(trace_topics=("also",), last_event_ms=None))
    native, otlp = ingested.sides()
    assert (rows_of(native.files), rows_of(otlp.files)) == (["B", "C", "D"], ["A"])
    assert (native.records_read, native.last_event_ms, native.offsets) == (4, 7, (span_range(0, 5),))
    assert (native.trace_topics, otlp.trace_topics) == (("also", "mine"), ())
    assert (native.sources, otlp.sources) == (("a.jsonl",), ("s.jsonl",))


def test_fields_of_a_side_are_joined(tmp_path):
    full = {
        "records_read": 1,
        "exploded": 1,
        "sources": ("a",),
        "layouts": ("landing",),
        "truncated_tails": 1,
        "last_event_ms": 1,
        "offsets": (span_range(0, 5),),
        "offsets_without_message": 1,
        "by_place": 1,
        "trace_topics": ("mine",),
        "survey": Survey({("native", "publish", None): Surveyed(1, 1, 1, 1)}, {"native": 1}),
    }
    assert {*full, "files"} == {field.name for field in fields(EventSide)}
    ingested = Ingested(tmp_path)
    take(ingested, "b-1", "A", EventSide(**full))
    (native, _) = ingested.sides()
    assert replace(native, files=()) == EventSide(**full)
    ingested.compact(most_batches=0)
    assert replace(ingested.sides()[0], files=()) == EventSide(**full)


def test_spans_are_surveyed_again_for_trace_topics_of_a_later_batch(tmp_path):
    """An earlier batch took the sends to a trace topic for the application's."""
    ingested = Ingested(tmp_path)
    sends = publish("otlp", "A"), publish("otlp", "B", topic="mine")
    rows = pa.Table.from_pylist([{**row, "bad": None} for row in sends], schema=NORMALISED)
    directory = ingested.incoming("b-1") / "otlp"
    directory.mkdir()
    parquet.write_table(rows, directory / "part.parquet")
    ingested.commit("b-1", {"otlp": side(survey=survey(rows))})
    take(ingested, "b-2", "C", side(trace_topics=("mine",)))
    native, otlp = ingested.sides()
    again = survey_again(PlainEngine(), otlp, native.trace_topics)
    assert {scope: row.rows for (_, _, scope), row in otlp.survey.rows.items()} == {None: 2}
    assert {scope: row.rows for (_, _, scope), row in again.survey.rows.items()} == {None: 1, "TRACE_TRAFFIC": 1}
    assert survey_again(PlainEngine(), otlp, ()) is otlp
