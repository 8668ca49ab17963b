"""The events of a task, written by the task: one file that is whole or not there, and what it comes to."""

import pytest
from pyarrow import parquet

from spark_jobs.jobs import reading
from spark_jobs.jobs.reading import write_events
from spark_jobs.normalise.spans import event_batches
from spark_jobs.schemas import NORMALISED
from tests.spark_jobs.normalise.made_spans import BAD_ROW, batch, events, span

MS = 1_000_000
ID = "messaging.message.id"
OF_KAFKA = {
    "messaging.system": "kafka",
    "messaging.operation.type": "process",
    "messaging.destination.name": "t",
    "messaging.destination.partition.id": "0",
    "messaging.kafka.offset": "7",
}


def written(directory, *batches):
    return write_events(str(directory / "files-00000.parquet"), event_batches(batches))


def test_file_holds_every_event_in_order(tmp_path):
    rows = [span({ID: "a"}), BAD_ROW, span({ID: "b,c"})]
    files = written(tmp_path, batch(*rows[:2]), batch(*rows[2:]))
    (file,) = tmp_path.iterdir()
    assert files.files == (str(file),)
    expected = [{name: event[name] for name in NORMALISED.names} for event in events(*rows)]
    assert parquet.read_table(file).to_pylist() == expected
    assert (sum(row.rows for row in files.survey.rows), files.survey.malformed) == (3, {"otlp": 1})


def test_answer_counts_what_is_in_the_file(tmp_path):
    rows = [span(OF_KAFKA), span({ID: "b,c,d"}, start_ns=9_000 * MS, end_ns=0), span({ID: "a"}, end_ns=8_000 * MS)]
    files = written(tmp_path, batch(*rows))
    assert (files.exploded, files.by_place, files.last_event_ms) == (2, 1, 9_000)


def test_task_without_an_event_writes_no_file(tmp_path):
    files = written(tmp_path, batch())
    assert (files.files, files.exploded, files.by_place, files.last_event_ms) == ((), 0, 0, None)
    assert files.survey.rows == ()
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize(("rows", "size"), [(10, 1 << 30), (1 << 30, 4_000)])
def test_rows_are_written_in_bounded_groups(tmp_path, monkeypatch, rows, size):
    """By number or by bytes: what a task holds does not grow with its input."""
    monkeypatch.setattr(reading, "_GROUP_ROWS", rows)
    monkeypatch.setattr(reading, "_GROUP_BYTES", size)
    files = written(tmp_path, *(batch(*(span({ID: f"{at}-{copy}"}) for copy in range(4))) for at in range(9)))
    file = parquet.ParquetFile(files.files[0])
    assert file.metadata.num_row_groups > 2
    assert [row["msg_id"] for row in file.read().to_pylist()] == [
        f"{at}-{copy}" for at in range(9) for copy in range(4)
    ]
