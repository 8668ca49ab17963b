"""The exporter that needs no broker."""

import json
import shutil

import pytest

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.landing import manifest_path
from otel_mqtrace.model import TraceType
from tests.support.landings import landed_bodies, landed_lines, records_of
from tests.support.native_spans import bean, pub, sub


def _records(root):
    return records_of(landed_bodies(root))


def test_spans_become_records_in_the_landing(exported, tmp_path, clock):
    exporter = NativeFileSpanExporter(directory=tmp_path, trace_topic="MY_TRACE", clock=clock)
    exported(exporter, pub(1), sub(bean(1), bean(2)))
    records = _records(tmp_path)
    assert [(record.trace_type, record.beans[0].msg_id) for record in records] == [
        (TraceType.PUB, bean(1).msg_id),
        (TraceType.SUB_BEFORE, bean(1).msg_id),
        (TraceType.SUB_BEFORE, bean(2).msg_id),
        (TraceType.SUB_AFTER, bean(1).msg_id),
        (TraceType.SUB_AFTER, bean(2).msg_id),
    ]
    line, *_ = landed_lines(tmp_path)
    assert (line["source"], line["partition"], line["offset"]) == ("MY_TRACE", None, None)
    assert line["arrival_ms"] == clock.wall_ns() // 1_000_000
    assert {bean(1).msg_id, "order-1"} <= set(line["keys"].split(" "))


@pytest.mark.parametrize(
    "steps",
    [[(0, [1], 0), (0, [], 0), (999, [], 0), (1, [], 1)], [(0, [1], 0), (1000, [2], 2)]],
    ids=["without more records", "in a lane that is never idle"],
)
def test_part_is_finished_at_its_age(traced, tmp_path, clock, steps):
    exporter = NativeFileSpanExporter(directory=tmp_path, clock=clock, max_part_age_millis=1000)
    processor, trace = traced(exporter, max_export_batch_size=1)
    for passed_ms, numbers, lines in steps:
        clock.advance(ms=passed_ms)
        trace(*map(pub, numbers))
        processor.run_once() if numbers else exporter.on_idle()
        assert len(landed_lines(tmp_path)) == lines


def test_shutdown_in_another_working_directory_finishes_the_part_and_refuses_later_spans(traced, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    processor, trace = traced(NativeFileSpanExporter(directory="landing"))
    monkeypatch.chdir(tmp_path.parent)
    trace(pub(1))
    processor.shutdown()
    trace(pub(2))
    assert processor.stats()["NativeFileSpanExporter"]["dropped"]["already_shutdown"] == 1
    assert len(_records(tmp_path / "landing")) == 1
    assert json.loads(manifest_path(tmp_path / "landing").read_text())["messages"] == 1


def test_export_after_shutdown_fails_and_is_counted(traced, tmp_path):
    exporter = NativeFileSpanExporter(directory=tmp_path)
    processor, trace = traced(exporter)
    exporter.shutdown()
    trace(pub(1))
    assert not processor.force_flush()
    assert processor.stats()["NativeFileSpanExporter"]["failed"] == 1
    assert exporter.stats()["undelivered_messages"] == 1
    assert landed_lines(tmp_path) == []


def test_part_that_cannot_be_finished_is_logged_and_retried(traced, tmp_path, caplog):
    processor, trace = traced(NativeFileSpanExporter(directory=tmp_path), max_export_batch_size=1)
    trace(pub(1))
    processor.run_once()
    [day] = (tmp_path / "native").iterdir()
    [in_progress] = day.iterdir()
    taken = day / in_progress.name.removeprefix(".").removesuffix(".inprogress")
    taken.mkdir()  # no file can have this name now
    assert not processor.force_flush()
    assert "native traces are not written" in caplog.text
    assert "MQTRACE_LANDING_DIR" in caplog.text
    taken.rmdir()
    assert processor.force_flush()
    assert len(_records(tmp_path)) == 1
    assert processor.stats()["NativeFileSpanExporter"]["exported"] == 1


@pytest.mark.parametrize("later", [(), (2,)], ids=["no record", "a record"])
@pytest.mark.parametrize("take_away", [shutil.rmtree, lambda landing: landing.rename(landing.with_name("moved"))])
def test_removal_or_move_of_the_open_part_is_logged_and_later_records_are_written(
    traced, tmp_path, caplog, take_away, later
):
    processor, trace = traced(NativeFileSpanExporter(directory=tmp_path))
    trace(pub(1))
    processor.run_once(now=10**18)
    take_away(tmp_path / "native")
    trace(*map(pub, later))
    assert processor.force_flush()
    assert [record.beans[0].msg_id for record in _records(tmp_path)] == [bean(number).msg_id for number in later]
    (line,) = caplog.messages
    assert line.endswith("(trace messages in it: 1): exclude *.inprogress from its clean-up")


def test_bad_spans_are_counted_by_reason_and_the_others_written(traced, tmp_path, caplog):
    exporter = NativeFileSpanExporter(directory=tmp_path, max_message_bytes=1000)
    processor, trace = traced(exporter)
    trace(pub(1), pub(2, keys="x" * 2000), pub(3, body_length=2**40), pub(4, store_host="a\x01b"))
    processor.force_flush()
    stats = processor.stats()["NativeFileSpanExporter"]
    assert (stats["exported"], stats["dropped"]["too_large"], stats["dropped"]["encode_error"]) == (2, 1, 1)
    assert exporter.stats()["refused"] == {"too_large": 1, "encode_error": 1}
    assert exporter.stats()["replaced"] == 1
    assert [record.beans[0].msg_id for record in _records(tmp_path)] == [bean(1).msg_id, bean(4).msg_id]


def test_unwritable_directory_fails_the_batch_and_is_logged_once(traced, tmp_path, caplog):
    (tmp_path / "file").touch()
    processor, trace = traced(NativeFileSpanExporter(directory=tmp_path / "file"), max_export_batch_size=1)
    for number in range(3):
        trace(pub(number))
        processor.run_once()
    assert processor.stats()["NativeFileSpanExporter"]["failed"] == 3
    assert len([r for r in caplog.records if r.name == "otel_mqtrace.exporters.native_delivery"]) == 1


def test_wrong_dialect_and_region_are_logged_once_and_the_defaults_are_written(exported, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("otel_mqtrace.config._warned", set())
    exporters = [NativeFileSpanExporter(directory=tmp_path, dialect="6.6.6", region_id=7) for _ in range(2)]
    exported(exporters[0], pub(1)._replace(region_id=None))
    assert [record.region_id for record in _records(tmp_path)] == ["DefaultRegion"]
    dialect, region = caplog.messages
    assert "option dialect = '6.6.6': no release 6.6.6 of RocketMQ is known; the nearest is" in dialect
    assert region == "mqtrace: option region_id = 7: some text was expected; 'DefaultRegion' is used"


FORKED = """
import os, sys
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from tests.support.native_spans import pub, traced

processor, trace = traced(NativeFileSpanExporter(directory=sys.argv[1]), background=True)
trace(pub(1))
processor.force_flush()
trace(pub(2))
children = []
for child in range(3):
    pid = os.fork()
    if not pid:
        trace(pub(10 + child))
        processor.shutdown()
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
processor.shutdown()
"""


def test_forked_processes_share_a_directory_and_need_no_extra_package(run_code, tmp_path):
    without = "import sys; sys.modules |= dict.fromkeys(('confluent_kafka', 'pyarrow', 'typer', 'pyspark'))"
    run_code(without + FORKED, tmp_path)
    written = sorted(record.beans[0].msg_id for record in _records(tmp_path))
    assert written == [bean(number).msg_id for number in (1, 2, 10, 11, 12)]
