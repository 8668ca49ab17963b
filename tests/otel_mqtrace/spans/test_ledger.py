"""The loss ledger's file and the callback on losses."""

import json
from decimal import Decimal

import pytest
from confluent_kafka import KafkaError
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_mqtrace import semconv
from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace.spans.loss_ledger import BUCKET_MS, MAX_ROWS, Ledger
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.spans.queue import EXPORT_FAILED, QUEUE_FULL, ExportOutcome
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S, Scripted, span, stuck_processor, worker_ended

MINUTE_NS = 60_000_000_000
SHOP = Resource({"service.name": "shop", "service.instance.id": "shop-1"})


def lost_span(*, end_ns=MINUTE_NS, start_ns=MINUTE_NS, resource=SHOP, **attributes):
    times = {"start_time": start_ns, "end_time": end_ns}
    return ReadableSpan("a", context=span().context, resource=resource, attributes=attributes, **times)


def lane_losses(*, side="native", component="X", **options):
    return Ledger(None, **options).add_lane(side=side, component=component)


def test_row_has_side_component_bucket_and_cause():
    losses = lane_losses(component="NativeKafkaSpanExporter")
    losses.note("queue_full", lost_span(**{semconv.MQTRACE_GROUP_NAME: "billing"}))
    (row,) = losses.rows()
    lane = {"side": "native", "component": "NativeKafkaSpanExporter"}
    writer = {"service": "shop", "instance": "shop-1", "group": "billing"}
    bucket = {"bucket_start_ms": 60_000, "bucket_ms": BUCKET_MS}
    assert row == {**lane, **writer, **bucket, "cause": "queue_full", "count": 1}


def _rows(*losses):
    lane = lane_losses()
    for cause, lost in losses:
        lane.note(cause, lost_span(**lost))
    return lane.rows()


def _counts(*losses):
    return [(row["component"], row["cause"], row["bucket_start_ms"], row["count"]) for row in _rows(*losses)]


def test_losses_of_one_cause_and_bucket_share_a_row():
    ends_ns = (MINUTE_NS, MINUTE_NS + 9_999_999_999, MINUTE_NS + 10_000_000_000)
    assert _counts(*(("queue_full", {"end_ns": end_ns}) for end_ns in ends_ns), ("export_failed", {})) == [
        ("X", "queue_full", 60_000, 2),
        ("X", "queue_full", 70_000, 1),
        ("X", "export_failed", 60_000, 1),
    ]


@pytest.mark.parametrize(
    ("lost", "component", "count"),
    [
        ({semconv.MESSAGING_BATCH_MESSAGE_COUNT: 40}, "X", 40),
        ({"end_ns": None}, "X start", 1),
        *(({semconv.MESSAGING_BATCH_MESSAGE_COUNT: invalid}, "X", 1) for invalid in (0, -3, "x")),
    ],
    ids=["batch", "start", "batch of none", "negative count", "no count"],
)
def test_lost_batch_counts_its_messages_and_a_start_its_own_component(lost, component, count):
    assert _counts(("queue_full", lost)) == [(component, "queue_full", 60_000, count)]


@pytest.mark.parametrize(
    ("scope", "attributes", "counts"),
    [
        ("other", {"messaging.system": "kafka"}, 1),
        ("other", {}, 1),
        ("other", {"http.request.method": "GET"}, 0),
        (semconv.SCOPE, {"messaging.system": "kafka", "messaging.operation.name": "poll"}, 0),
    ],
    ids=["another instrumentation's", "says nothing", "of HTTP", "our poll's"],
)
def test_lost_span_that_is_no_message_s_is_not_in_the_ledger(scope, attributes, counts):
    losses = lane_losses(side="otlp")
    context, scope = span().context, InstrumentationScope(scope)
    losses.note("queue_full", ReadableSpan("a", context=context, attributes=attributes, instrumentation_scope=scope))
    assert [row["count"] for row in losses.rows()] == [1] * counts
    assert losses.changes == counts


def test_service_without_an_instance_has_host_and_process_as_instance():
    (row,) = _rows(("queue_full", {"resource": Resource({"service.name": "shop"})}))
    assert row["service"] == "shop"
    assert row["instance"].rpartition(":")[2].isdigit()


@pytest.mark.parametrize(
    ("most", "lost", "bucket_start_ms"),
    [
        (MAX_ROWS, lambda number: {semconv.MQTRACE_GROUP_NAME: f"g{number}"}, 60_000),
        (2 * MAX_ROWS, lambda number: {"end_ns": number * BUCKET_MS * 1_000_000}, 0),
    ],
    ids=["groups", "times"],
)
def test_ledger_is_limited_and_keeps_the_count(most, lost, bucket_start_ms):
    kept = _rows(*(("queue_full", lost(number)) for number in range(most + 50)))
    assert len(kept) == most + 1
    assert sum(row["count"] for row in kept) == most + 50
    assert [kept[-1][name] for name in ("group", "component", "bucket_start_ms")] == [None, "X", bucket_start_ms]


def test_lost_span_with_an_impossible_time_costs_the_ledger_no_other():
    losses = lane_losses()
    losses.note("queue_full", lost_span(end_ns="soon"))
    losses.note("queue_full", lost_span())
    assert sum(row["count"] for row in losses.rows()) == 1


def test_file_is_written_after_a_loss_at_most_every_five_seconds(tmp_path):
    clock = ManualClock()
    ledger = Ledger(tmp_path / "of" / "ledgers")
    losses = ledger.add_lane(side="native", component="X")
    ledger.save_due(clock.monotonic_ns(), last=True)
    assert not list(tmp_path.rglob("*"))
    losses.note("queue_full", lost_span())
    ledger.save_due(clock.monotonic_ns())
    (path,) = tmp_path.rglob("*.json")
    losses.note("queue_full", lost_span())
    clock.advance(ms=4_999)
    ledger.save_due(clock.monotonic_ns())
    assert json.loads(path.read_text())["rows"][0]["count"] == 1
    clock.advance(ms=1)
    ledger.save_due(clock.monotonic_ns())
    assert json.loads(path.read_text()) == ledger.document()
    losses.note("queue_full", lost_span())
    ledger.save_due(clock.monotonic_ns(), last=True)
    assert json.loads(path.read_text())["rows"][0]["count"] == 3
    assert [each.name for each in tmp_path.rglob("*.part")] == []


@pytest.mark.parametrize(
    ("directory", "lost", "problem"),
    [("taken", {}, "File exists"), ("ledgers", {"end_ns": Decimal(5)}, "Decimal")],
    ids=["no directory", "no document"],
)
def test_ledger_that_cannot_be_written_is_logged_once(tmp_path, caplog, directory, lost, problem):
    (tmp_path / "taken").write_text("a file")
    ledger = Ledger(tmp_path / directory)
    losses = ledger.add_lane(side="native", component="X")
    for is_last in (True, False, True):
        losses.note("queue_full", lost_span(**lost))
        ledger.save_due(MonotonicNs(0), last=is_last)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "not written" in line
    assert problem in line


def test_ledger_of_a_processor_has_its_losses_by_side_and_cause(tmp_path):
    native, otlp = Scripted(), Scripted(SpanExportResult.FAILURE)
    native.ledger_side = "native"
    native.take_outcome = lambda: ExportOutcome(exported=1, dropped={"too_large": 1}, lost={0: "too_large"})
    processor = MqTraceSpanProcessor(
        native, otlp, max_queue_size=2, max_export_batch_size=2, background=False, ledger_dir=tmp_path
    )
    for name in ("big", "small", "refused"):
        processor.on_end(lost_span(**{semconv.MQTRACE_GROUP_NAME: name}))
    processor.force_flush()
    processor.shutdown()
    processor.on_end(lost_span(**{semconv.MQTRACE_GROUP_NAME: "late"}))
    rows = [(row["side"], row["cause"], row["group"]) for row in processor.ledger()["rows"]]
    assert rows == [
        ("native", "queue_full", "refused"),
        ("native", "too_large", "big"),
        ("native", "already_shutdown", "late"),
        ("otlp", "queue_full", "refused"),
        ("otlp", "export_failed", "big"),
        ("otlp", "export_failed", "small"),
        ("otlp", "already_shutdown", "late"),
    ]
    (path,) = tmp_path.glob("ledger-*.json")
    written = json.loads(path.read_text())
    assert written["ledger_version"] == 1
    assert written["rows"] == [row for row in processor.ledger()["rows"] if row["cause"] != "already_shutdown"]


def test_restarted_container_writes_a_file_of_its_own(tmp_path):
    for _ in range(2):  # it often has the host name and pid of the one before
        ledger = Ledger(tmp_path)
        ledger.add_lane(side="native", component="X").note("queue_full", lost_span())
        ledger.save_due(MonotonicNs(0), last=True)
    assert [json.loads(path.read_text())["rows"][0]["count"] for path in tmp_path.iterdir()] == [1, 1]


def test_batch_in_flight_when_the_shutdown_times_out_is_in_the_file_once(tmp_path):
    processor, exporter = stuck_processor(ledger_dir=tmp_path)
    exporter.answers = [SpanExportResult.FAILURE]
    processor.on_end(span())
    processor.shutdown(timeout_millis=10)
    (path,) = tmp_path.glob("ledger-*.json")
    written = path.read_text()
    assert [(row["cause"], row["count"]) for row in json.loads(written)["rows"]] == [("shutdown_timeout", 2)]
    exporter.let_go.set()
    assert worker_ended(processor, GENEROUS_S)
    assert path.read_text() == written


def lossy(on_drop, *answers, **settings):
    return MqTraceSpanProcessor(
        Scripted(*answers), max_queue_size=2, max_export_batch_size=2, background=False, on_drop=on_drop, **settings
    )


def test_callback_gets_new_losses_by_reason_once_and_its_own_spans_are_traced():
    calls = []
    processor = lossy(
        lambda lane, lost: calls.append((lane, dict(lost), is_instrumentation_enabled())), SpanExportResult.FAILURE
    )
    for _ in range(5):
        processor.on_end(span())
    assert calls == []
    processor.force_flush()
    assert calls == [("Scripted", {QUEUE_FULL: 3, EXPORT_FAILED: 2}, True)]
    processor.on_end(span())
    processor.force_flush()
    assert len(calls) == 1
    for _ in range(3):
        processor.on_end(span())
    processor.shutdown()
    assert calls[1:] == [("Scripted", {QUEUE_FULL: 1}, True)]


@pytest.mark.parametrize("failure", [RuntimeError(), KafkaError(KafkaError._FAIL)], ids=repr)
def test_exception_of_the_loss_callback_is_logged_once(caplog, failure):
    def refuse(_lane, _lost):
        raise failure

    processor = lossy(refuse, SpanExportResult.FAILURE)
    for _ in range(3):
        processor.on_end(span())
    processor.force_flush()
    processor.on_end(span())
    assert processor.force_flush()
    assert processor.stats()["Scripted"]["exported"] == 1
    for _ in range(3):
        processor.on_end(span())
    processor.shutdown()
    raised = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in raised] == ["mqtrace: on_drop of Scripted raised (logged once)"]


def test_losses_reported_out_of_order_are_passed_once():
    calls = []
    losses = lane_losses(on_drop=lambda _lane, lost: calls.append(dict(lost)))
    older = {"offered": 3, "exported": 0, "dropped": {QUEUE_FULL: 2}, "failed": 0, "pending": 1}
    newer = {"offered": 4, "exported": 0, "dropped": {QUEUE_FULL: 3}, "failed": 0, "pending": 1}
    for stats in (newer, older, newer):
        losses.report(stats, MonotonicNs(0))
    assert calls == [{QUEUE_FULL: 3}]


def test_loss_callback_may_read_stats_and_flush_during_a_shutdown():
    answers = []

    def ask(lane, _lost):
        assert not answers or processor.lanes[0]._exporter_closed.wait(GENEROUS_S)  # its thread may be late
        answers.append((processor.stats()[lane]["dropped"]["shutdown_timeout"], processor.force_flush(10**9)))

    processor, exporter = stuck_processor(on_drop=ask)
    processor.on_end(span("waits"))
    processor.shutdown(timeout_millis=50)
    assert answers == [(1, False), (2, True)]  # what waits, then the batch in flight
    assert exporter.batches == []  # the shutdown did not wait for it
    exporter.let_go.set()
