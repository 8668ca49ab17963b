"""The batch run on messages that two real systems recorded: RocketMQ's own trace and OpenTelemetry's Java agent.

The expected counts are those of the recordings' own notes: what the application saw, and what each side leaves out.
"""

import signal
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyarrow import parquet
from pyarrow.fs import LocalFileSystem

from bridge.storage.paths import as_path
from bridge.storage.stores import Store
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.spans.mapping import OPERATIONS
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from spark_jobs.exchange.packing import make_blob
from spark_jobs.explain.keys import RESIDUE
from spark_jobs.history.history import RUNS
from spark_jobs.jobs import batch, graph
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.jobs.summarise import judged_window
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.policy import read_policy
from spark_jobs.report.result import VERDICTS
from spark_jobs.schemas import VERDICT
from tests.support.archives import pub
from tests.support.events import START_MS
from tests.support.landings import write_landing
from tests.support.native_spans import span_attributes
from tests.support.otlp_json import PRODUCER, line, resource, span
from tests.support.reading import read_verdicts
from tests.support.trace_stories import body_of

DUAL = Path(__file__).parents[2] / "vectors" / "dual"


def options(folder: str | Path, out: Path, writer: str, **others) -> ReconcileOptions:
    native, otlp = str(DUAL / folder / "native.jsonl"), str(DUAL / folder / "otlp.jsonl")
    chosen = {"profile": "java-agent", "native_writer": writer, "grace_ms": 0, "engine": "local", **others}
    return ReconcileOptions(native=(native,), otlp=(otlp,), out=out, **chosen)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    out = tmp_path_factory.mktemp("app[1]")  # Spark would read the brackets as a pattern
    return run(options("app-4.9.8-dup", out, "rocketmq-4.9.8")), out


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    out = tmp_path_factory.mktemp("scenarios")
    return run(options("scenarios-5.3.3-old", out, "rocketmq-5.3.3")), out


def test_verdicts_of_no_events_are_a_file_with_all_columns(tmp_path):
    (tmp_path / "empty").touch()
    nothing = (str(tmp_path / "empty"),)
    run(ReconcileOptions(native=nothing, otlp=nothing, out=tmp_path / "out", engine="local"))
    assert parquet.read_table(tmp_path / "out" / VERDICTS).equals(VERDICT.empty_table())


def test_residue_of_many_buckets_is_one_array_a_column_in_their_order():
    rows = {
        number: [{"kind": "publish", "msg_id": f"M{number}-{row}", "on_native": True} for row in range(2)]
        for number in (10, 2, 0)
    }
    blobs = {number: make_blob(pa.Table.from_pylist(some, schema=RESIDUE)) for number, some in rows.items()}
    residue = batch.open_residue(blobs)
    assert residue["msg_id"].to_pylist() == ["M0-0", "M0-1", "M2-0", "M2-1", "M10-0", "M10-1"]
    assert {column.num_chunks for column in residue.columns} == {1}


@pytest.mark.usefixtures("interruptible")
def test_interrupt_leaves_the_verdicts_and_the_reports_of_one_run(tmp_path):
    """Before the reports those of the last run stay; once they are being written it waits for all of them."""
    given = options("app-4.9.8-dup", tmp_path, "rocketmq-4.9.8", grace_ms=None)
    run(given)
    before = read_verdicts(tmp_path)

    def interrupted(stage):
        if stage == "adding up":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(replace(given, grace_ms=0), progress=interrupted)
    assert read_verdicts(tmp_path) == before
    reported = []

    def report(result):
        signal.raise_signal(signal.SIGINT)
        reported.append(result)
        return nullcontext({})

    with pytest.raises(KeyboardInterrupt):
        run(replace(given, grace_ms=0), report=report)
    assert len(reported) == 1
    assert read_verdicts(tmp_path) != before


@pytest.mark.parametrize(
    ("recording", "events"), [("app", {"publish": 115, "consume": 222}), ("scenarios", {"publish": 171, "consume": 43})]
)
def test_every_send_and_delivery_of_a_recording_is_on_both_sides_and_all_rows_are_counted(request, recording, events):
    result, out = request.getfixturevalue(recording)
    rows = read_verdicts(out)
    assert Counter(row["kind"] for row in rows if row["native"] and row["otlp"]) == events
    assert result.status["MATCHED_EXACT"] + result.status["MATCHED_NORMALISED"] == sum(events.values())
    assert not {"MISMATCHED", "DUPLICATED_NATIVE", "DUPLICATED_OTLP", "DUPLICATED_BOTH"} & set(result.status)
    assert not result.duplicates
    assert result.conservation.holds, result.conservation
    counts = {status: n for status, n in result.status.items() if status not in {"OUT_OF_SCOPE", "MALFORMED"}}
    assert Counter(row["status"] for row in rows) == counts
    assert sum(1 for row in rows if row["native"]) == result.inputs.native.canonical_keys
    assert sum(1 for row in rows if row["otlp"]) == result.inputs.otlp.canonical_keys


def test_one_sided_events_of_the_application_have_their_rule(app):
    result, _ = app
    rules = {rule: count for rule, count in result.reason_detail.items() if not rule.isupper()}
    assert rules == {
        "rocketmq_records_no_one_way_send": 1,
        "rocketmq_records_no_failed_send": 1,
        "java_agent_makes_no_span_for_transaction_end": 11,
        "producer_made_no_trace_context": 3,
    }
    assert result.reason == {"BY_DESIGN": 1 + 1 + 11 + 3, "TRACE_TRAFFIC": 15}
    assert (result.loss["native"].unexplained, result.loss["otlp"].unexplained) == (0, 0)
    assert (result.verdict, result.exit_code) == ("PASS", 0)


def test_one_sided_scenarios_are_all_explained(scenarios):
    result, _ = scenarios
    counts = {
        "rocketmq_records_no_delivery_of_batch_sent_messages": 12,
        "java_agent_makes_no_span_for_recall": 2,
        "java_agent_makes_no_span_for_lite_pull": 2,
        "producer_made_no_trace_context": 26,
        "java_agent_makes_no_span_for_transaction_end": 10,
    }
    assert result.reason_detail.items() >= counts.items()
    assert result.reason == {
        "BY_DESIGN": 28 + 26 + 2,  # producers without native trace; the lite pull consumer, which makes no spans
        "WRITER_SILENT": 10,  # such producers again, the only ones of their topics
        "COUNTERPART_MALFORMED": 1,
        "TRACE_TRAFFIC": 65,
    }


def test_broken_record_is_counted_located_and_fails_a_gate(scenarios):
    result, _ = scenarios
    assert result.inputs.native.malformed == 2
    assert {(sample.side, Path(sample.path).name) for sample in result.malformed} == {("native", "native.jsonl")}
    assert {gate.name for gate in result.gates if gate.outcome == "fail"} == {"malformed"}


def test_outcome_in_a_store_is_replaced_and_a_file_of_others_is_refused(app, tmp_path, monkeypatch):
    store = Store(LocalFileSystem(), str(tmp_path), renames=True)
    monkeypatch.setattr("bridge.storage.paths.open_store", lambda scheme, _: {"hdfs": store}[scheme])
    how = options("app-4.9.8-dup", as_path("hdfs://namenode/of/us"), "rocketmq-4.9.8")
    report = tmp_path / "of" / "us" / "junit.xml"
    for written in ('<testsuites name="mqtrace reconcile">', "", "<testsuites>"):
        run(how, report=lambda _, text=written: nullcontext({report.name: text}))
        assert report.read_text() == written
        assert len(read_verdicts(report.parent)) == len(read_verdicts(app[1]))
        assert {path.name for path in report.parent.iterdir()} == {VERDICTS, report.name}
    with pytest.raises(UsageError, match=r"hdfs://namenode/of/us/junit.xml would be replaced"):
        run(how)
    assert report.read_text() == "<testsuites>"


def test_run_whose_report_cannot_be_written_is_not_in_the_history(tmp_path):
    how = options("app-4.9.8-dup", tmp_path / "out", "rocketmq-4.9.8", history=tmp_path / "history")
    with pytest.raises(UsageError, match="cannot write the report into"):
        run(how, report=lambda _: nullcontext({"missing/report.txt": ""}))
    assert not (tmp_path / "history" / RUNS).exists()
    assert not how.out.exists()


def test_record_lost_between_reading_and_judging_is_exit_code_3(tmp_path, monkeypatch):
    read = batch.read_sides

    def leaking(*arguments, **keywords):
        native, whole = read(*arguments, **keywords)
        (path,) = whole.files
        rows = parquet.read_table(path)
        parquet.write_table(rows.filter(pc.not_equal(pc.bit_wise_and(rows["raw_hash"], 7), 0)), path)
        return native, whole

    monkeypatch.setattr(batch, "read_sides", leaking)
    result = run(options("app-4.9.8-dup", tmp_path, "rocketmq-4.9.8"))
    assert (result.verdict, result.exit_code) == ("FAIL", 3)
    assert not result.conservation.holds
    assert "≠" in result.conservation.otlp
    assert "≠" not in result.conservation.native


def test_span_that_knows_only_its_kafka_position_and_the_record_of_its_message_are_one_send(tmp_path):
    place = {"destination.name": "orders", "destination.partition.id": "0", "kafka.offset": 7}
    named = {"system": "kafka", "operation.type": "send", **place}
    attributes = {f"messaging.{name}": value for name, value in named.items()}
    sent = pub(START_MS, topic="orders", offset_msg_id="orders-0@7")
    write_landing(tmp_path / "native.jsonl", body_of(sent))
    (tmp_path / "otlp.jsonl").write_text(line(resource("shop", span(1, PRODUCER, START_MS, 4, attributes))))
    how = options(tmp_path, tmp_path / "out", "mqtrace")
    run(how)
    (row,) = read_verdicts(how.out)
    assert row["msg_id"] == sent.beans[0].msg_id
    assert row["native"]
    assert row["otlp"]
    (edge,) = graph.run(how).edges
    assert (edge.count, edge.native, edge.otlp) == (1, 1, 1)


ROOM, SENDS, NS_PER_MS = 8, 29, 1_000_000


def test_loss_with_its_ledger_is_attributed_and_the_run_passes(tmp_path):
    """A burst of sends is traced into native records and, through a queue that is too small, into spans."""
    native, ledgers, spans = tmp_path / "landing", tmp_path / "ledgers", tmp_path / "otlp.jsonl"
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    small = {"max_queue_size": ROOM, "max_export_batch_size": ROOM}
    for exporter, room in ((NativeFileSpanExporter(directory=native), {}), (FileSpanExporter(str(spans)), small)):
        provider.add_span_processor(MqTraceSpanProcessor(exporter, background=False, ledger_dir=ledgers, **room))
    tracer = provider.get_tracer("shop")

    def send(at_ms):
        trace_ctx = pub(at_ms, msg_id=new_unique_id())  # of this process, as the ledger names it
        operation = OPERATIONS[trace_ctx.trace_type]
        began = {"start_time": at_ms * NS_PER_MS, "attributes": span_attributes(trace_ctx)[0]}
        tracer.start_span(operation.name, kind=operation.kind, **began).end((at_ms + 3) * NS_PER_MS)
        return trace_ctx.beans[0].msg_id

    sent = [send(START_MS + number) for number in range(SENDS)]
    assert provider.force_flush()
    send(START_MS + 1_200_000)
    provider.shutdown()

    sources = {"native": (str(native),), "otlp": (str(spans),), "ledger": (str(ledgers),)}
    result = run(ReconcileOptions(**sources, out=tmp_path / "out", grace_ms=0, engine="local"))
    lost = [row for row in read_verdicts(tmp_path / "out") if row["reason"]]
    assert {row["msg_id"] for row in lost} == set(sent[ROOM:])
    causes = {(row["status"], row["reason"], row["reason_detail"]) for row in lost}
    assert causes == {("NATIVE_ONLY", "DROP_ATTRIBUTED", "queue_full")}
    assert (result.exit_code, result.conservation.holds) == (0, True)
    assert (result.loss["otlp"].attributed, result.loss["otlp"].unexplained) == (SENDS - ROOM, 0)
    assert {gate.name: gate.outcome for gate in result.gates}["attributed_loss_otlp"] == "warn"
    assert (result.ledger.attributed["otlp"], result.ledger.surplus["otlp"]) == (SENDS - ROOM, 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (20, 30)),
        ({"begin_ms": 25}, (25, 30)),
        ({"end_ms": 25}, (20, 25)),
        ({"begin_ms": 40}, (40, 40)),
        ({"end_ms": 10}, (10, 10)),
        ({"begin_ms": 5, "end_ms": 10}, (5, 10)),
    ],
)
def test_window_never_ends_before_it_begins(given, expected):
    window = judged_window(Facts(first_ms=20, data_end_ms=30), replace(read_policy(None), **given))
    assert (window.begin_ms, window.end_ms) == expected
