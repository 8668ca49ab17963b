"""Losses that the application itself counted: its processor's full queue, its own ledger file, the whole batch run."""

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.spans.mapping import OPERATIONS
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.support.archives import pub
from tests.support.events import START_MS
from tests.support.native_spans import span_attributes
from tests.support.reading import read_verdicts

ROOM = 8
SENDS = 29
NS_PER_MS = 1_000_000


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
        began = {"start_time": at_ms * NS_PER_MS, "attributes": span_attributes(trace_ctx).span}
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
