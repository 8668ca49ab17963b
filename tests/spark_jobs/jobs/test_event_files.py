"""The events of a task, written by the task: one file that is whole or not there, and what is told of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql import functions as F

from spark_jobs.jobs.event_files import WRITTEN, written_events
from spark_jobs.normalise.otlp import event_batches
from spark_jobs.spark_schemas import LEDGER, NORMALISED
from tests.spark_jobs.normalise.made_spans import BAD_ROW, LEDGER_ROW, batch, events, span

FACTS = [name for name in WRITTEN.names if name not in LEDGER.names]
MS = 1_000_000
ID = "messaging.message.id"
OF_KAFKA = {
    "messaging.system": "kafka",
    "messaging.operation.type": "process",
    "messaging.destination.name": "t",
    "messaging.destination.partition.id": "0",
    "messaging.kafka.offset": "7",
}


def told(directory, *batches):
    """Return what is told of the events, and the ledger."""
    (rows,) = (made.to_pylist() for made in written_events(directory, event_batches)("files", iter(batches)))
    ledger, facts = rows
    assert [ledger[name] for name in FACTS] == [None, None, None]
    assert [facts[name] for name in LEDGER.names] == [None, None]
    return {name: facts[name] for name in FACTS}, {name: ledger[name] for name in LEDGER.names}


def test_what_is_written_is_what_was_told_apart(tmp_path):
    """Every event, in order, and no row of the ledger."""
    rows = [LEDGER_ROW, span({ID: "a"}), BAD_ROW, span({ID: "b,c"}), LEDGER_ROW]
    told(tmp_path, batch(*rows[:2]), batch(*rows[2:]))
    (file,) = tmp_path.iterdir()
    assert file.name == "files-00000.parquet"
    expected = [{name: event[name] for name in NORMALISED.names} for event in events(*rows) if event["due"] is None]
    assert parquet.read_table(file).to_pylist() == expected


def test_what_is_told_is_what_is_in_the_file(tmp_path):
    """Rows beyond a span's first, events known by their place only, the latest start or end."""
    rows = [span(OF_KAFKA), span({ID: "b,c,d"}, start_ns=9_000 * MS, end_ns=0), span({ID: "a"}, end_ns=8_000 * MS)]
    assert told(tmp_path, batch(*rows)) == ({"extra": 2, "by_place": 1, "last_ms": 9_000}, {"due": 0, "tails": 0})


@given(dues=st.lists(st.integers(0, 9), max_size=5))
def test_the_ledger_is_added_up(tmp_path_factory, dues):
    """Whatever batch its rows stand in."""
    batches = [batch({**LEDGER_ROW, "due": due, "tails": 1}) for due in dues]
    assert told(tmp_path_factory.mktemp("events"), *batches)[1] == {"due": sum(dues), "tails": len(dues)}


def test_without_an_event_there_is_no_file(tmp_path):
    """And nothing is told but the ledger."""
    facts, ledger = told(tmp_path, batch(LEDGER_ROW))
    assert facts == {"extra": 0, "by_place": 0, "last_ms": None}
    assert ledger == {"due": 3, "tails": 0}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", [1, 40_000])
def test_a_task_that_fails_leaves_no_file(tmp_path, rows):
    """Neither of what it still held nor of what it had written."""

    def broken():
        yield batch(*[span({ID: "a"})] * rows)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(written_events(tmp_path, event_batches)("files", broken()))
    assert not list(tmp_path.iterdir())


def test_a_task_that_is_run_again_writes_its_file_again(tmp_path):
    """What is read in the end is its work once."""
    for _ in range(2):
        told(tmp_path, batch(span({ID: "a"})))
    assert [file.name for file in tmp_path.iterdir()] == ["files-00000.parquet"]


def test_each_task_of_a_job_has_a_file_of_its_own(spark, tmp_path):
    """Named by the task; Spark reads them as it reads its own, and passes over what is not whole."""
    write = written_events(tmp_path, event_batches)

    def batches(ids):
        made = [batch(*(span({ID: str(row)}) for row in some.column("id").to_pylist())) for some in ids]
        yield from write("files", iter(made))

    assert sum(row["extra"] or 0 for row in spark.range(0, 40, 1, 4).mapInArrow(batches, WRITTEN).collect()) == 0
    (tmp_path / ".files-00009.parquet.unready").write_bytes(b"half of it")
    written = spark.read.schema(NORMALISED).parquet(f"file://{tmp_path}")
    assert sorted(file.name for file in tmp_path.glob("files-*")) == [f"files-0000{at}.parquet" for at in range(4)]
    assert sorted(int(row[0]) for row in written.select("msg_id").collect()) == list(range(40))
    assert written.where(F.col("bad").isNotNull()).count() == 0
