"""OpenTelemetry's exporters with our bytes: what arrives by either protocol, and what is lost."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

import pytest
import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter as stock
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters import http_session, otlp
from otel_mqtrace.exporters.http_session import CheckingSession, RepeatingSession
from otel_mqtrace.exporters.otlp import OtlpSpanExporter
from otel_mqtrace.testing import RecordingExporter, recording_provider
from tests.support.clocks import TickingClock
from tests.support.lanes import GENEROUS_S, tracer_of
from tests.support.otlp_receiver import GrpcReceiver, OtlpReceiver
from tests.support.programs import run_in_child

_BROKEN = ReadableSpan("broken", SpanContext(1, 2, is_remote=False), start_time=-1)


@pytest.fixture
def spans():
    kept = RecordingExporter()
    tracer = recording_provider(kept).get_tracer("shop", "1.0")
    with tracer.start_as_current_span("send orders", attributes={"messaging.system": "kafka"}) as span:
        span.add_event("retry", {"n": 1})
        with tracer.start_as_current_span("inner"):
            pass
    return kept.take_all()


def test_grpc_request_has_the_spans_and_the_headers_of_the_environment(spans, monkeypatch):
    with GrpcReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=orders")
        exporter = OtlpSpanExporter(compression="gzip")
        assert exporter.export(spans) is SpanExportResult.FAILURE  # the receiver has rejected one
        exporter.shutdown()
    assert exporter.take_outcome().lost == {0: "export_failed"}
    assert receiver.requests == [encode_spans(spans)]
    assert receiver.metadata[0]["tenant"] == "orders"


@pytest.mark.parametrize(("variable", "in_code"), [("none", None), ("gzip", None), ("none", "gzip")])
def test_http_compresses_spans_as_code_or_the_environment_sets(spans, receiver, variable, in_code, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", variable)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    assert OtlpSpanExporter(compression=in_code).export(spans) is SpanExportResult.SUCCESS
    expected = trace_service.ExportTraceServiceRequest.FromString(encode_spans(spans).SerializeToString())
    bodies = [each.SerializeToString(deterministic=True) for each in expected.resource_spans[0].scope_spans[0].spans]
    assert sorted(body for kept in receiver.spans.values() for _, body in kept) == sorted(bodies)
    assert receiver.paths == ["/v1/traces"]


def test_stock_exporter_keeps_its_encoder():
    OtlpSpanExporter(protocol="http/protobuf")
    assert stock.encode_spans is encode_spans


def test_unknown_protocol_is_one_warning_and_an_unknown_compression_an_error(caplog):
    OtlpSpanExporter(protocol="carrier-pigeon", endpoint="http://127.0.0.1:1").shutdown()
    assert "unknown OTLP protocol 'carrier-pigeon': use grpc or http/protobuf; grpc is used" in caplog.text
    with pytest.raises(UsageError, match="unknown OTLP compression 'zip': use none, deflate, gzip"):
        OtlpSpanExporter(compression="zip")


def test_request_is_repeated_until_the_receiver_is_back(spans, receiver, exporter):
    receiver.status = 503
    receiver.on_request = lambda number, _: setattr(receiver, "status", 200 if number > 1 else 503)
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert (receiver.requests, len(receiver.spans)) == (2, 2)


def test_what_an_export_imports_is_there_before(run_code):
    names = {"confluent_kafka.admin", "google.protobuf.json_format", "netrc", "encodings.idna"}
    made = f"""
    import sys
    from otel_mqtrace.exporters import native_kafka, otlp
    native_kafka.NativeKafkaSpanExporter(), otlp.OtlpSpanExporter(protocol="http/protobuf")
    print({names} - sys.modules.keys())
    """
    assert run_code(made) == "set()\n"


@pytest.fixture
def receiver():
    with OtlpReceiver() as running:
        yield running


@pytest.fixture
def exporter(receiver):
    return OtlpSpanExporter(protocol="http/protobuf", endpoint=f"{receiver.endpoint}/v1/traces")


@pytest.mark.parametrize(("status", "rejects", "exported", "failed"), [(200, 0, 2, 0), (400, 0, 0, 2), (200, 1, 1, 1)])
def test_each_span_is_counted_once_under_its_reason(spans, receiver, exporter, status, rejects, exported, failed):
    receiver.status, receiver.rejects = status, rejects
    exporter.export_batches([[_BROKEN, each] for each in spans])
    outcome = exporter.take_outcome()
    assert (outcome.exported, outcome.failed, outcome.dropped) == (exported, failed, {"encode_error": 2})
    assert outcome.lost[0] == outcome.lost[2] == "encode_error"
    assert exporter.take_outcome() is None


@pytest.mark.parametrize(
    ("reply", "rejected"),
    [
        (
            trace_service.ExportTraceServiceResponse(partial_success={"rejected_spans": 2, "error_message": "old"}),
            (2, "old"),
        ),
        (b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "old"}, "more": 1}', (2, "old")),
        *((reply, (0, "")) for reply in (b"", b"{}", b'{"partialSuccess": null}', b"{", b"{\xff}", b"OK")),
    ],
)
def test_partial_success_is_read_in_protobuf_and_in_json(reply, rejected):
    assert otlp.read_partial_success(reply if isinstance(reply, bytes) else reply.SerializeToString()) == rejected


def test_waiting_batches_share_one_request_limited_by_size(receiver, exporter, monkeypatch):
    processor = MqTraceSpanProcessor(exporter, max_export_batch_size=10, background=False)
    tracer = tracer_of(processor)
    for most_bytes, ended, exported, posted in ((1 << 20, 35, 30, 1), (1, 15, 20, 1 + 2)):
        monkeypatch.setattr(otlp, "_MAX_JOINED_BYTES", most_bytes)
        for _ in range(ended):
            tracer.start_span("pack").end()
        assert processor.run_once() == exported
        assert len(receiver.paths) == posted
    assert processor.force_flush()
    assert len(receiver.spans) == 50


def test_batch_larger_than_a_receiver_takes_is_split(spans, receiver, exporter, monkeypatch):
    monkeypatch.setattr(otlp, "_MAX_REQUEST_BYTES", len(encode_spans(spans).SerializeToString()) - 1)
    monkeypatch.setattr(otlp, "_MAX_JOINED_BYTES", 1)
    exporter.export([*spans, _BROKEN])
    assert exporter.take_outcome().lost == {2: "encode_error"}
    assert (len(receiver.paths), len(receiver.spans)) == (2, 2)


def test_span_of_a_failed_request_among_joined_batches_is_reported(spans, receiver, exporter, monkeypatch):
    monkeypatch.setattr(otlp, "_MAX_JOINED_BYTES", 1)
    receiver.status = 400
    assert exporter.export_batches([[spans[0]], [_BROKEN, spans[1]]]) is SpanExportResult.FAILURE
    outcome = exporter.take_outcome()
    assert (outcome.failed, outcome.dropped, outcome.exported) == (2, {"encode_error": 1}, 0)
    assert outcome.lost == {0: "export_failed", 1: "encode_error", 2: "export_failed"}


def test_http_session_honours_the_environment(spans, receiver, monkeypatch):
    """Proxies, certificates and netrc as for the stock exporter."""
    monkeypatch.setenv("HTTP_PROXY", receiver.endpoint)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    exporter = OtlpSpanExporter(protocol="http/protobuf", endpoint="http://collector.invalid/v1/traces")
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert receiver.paths == ["http://collector.invalid/v1/traces"]
    assert len(receiver.spans) == 2


def test_forked_child_has_connections_of_its_own(receiver):
    session = RepeatingSession()

    def connections():
        session.post(receiver.endpoint, data=b"")
        return session.get_adapter(receiver.endpoint)

    own = connections()
    assert run_in_child(lambda: connections() is own) == 0
    assert connections() is own


def test_http_session_follows_a_redirect_and_posts_once_to_each_server():
    """OpenTelemetry's exporter asks for it before 1.45."""
    with OtlpReceiver() as moved, OtlpReceiver() as receiver:
        moved.status, moved.location = 307, f"{receiver.endpoint}/v1/traces"
        session = RepeatingSession()
        for number, body in (1, b""), (2, b""), (3, None):
            assert session.post(f"{moved.endpoint}/v1/traces", data=body).status_code == 200
            assert (moved.requests, receiver.requests) == (number, number)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("https://elsewhere/v1/traces", "redirected to 'https://elsewhere/v1/traces': give that as the endpoint"),
        (None, "redirected to no place"),
    ],
)
def test_redirect_that_is_not_followed_is_a_failure(location, words):
    """OpenTelemetry's exporter takes every status below 400 for success, and follows none from 1.45 on."""
    with OtlpReceiver() as moved:
        moved.status, moved.location = 301, location
        reply = CheckingSession(RepeatingSession()).post(f"{moved.endpoint}/v1/traces", data=b"", allow_redirects=False)
    assert (reply.ok, reply.reason, reply.text) == (False, words, words)


@pytest.mark.parametrize(
    ("content_type", "is_good"), [("Text/HTML; charset=utf-8", False), ("application/json", True), (None, True)]
)
def test_web_page_in_reply_is_a_failure(content_type, is_good, spans, receiver, exporter):
    receiver.content_type, errors = content_type, []
    reply = CheckingSession(RepeatingSession(), on_error=errors.append).post(f"{receiver.endpoint}/v1/traces", data=b"")
    words = "it answers with a web page, not as an OTLP receiver: check the endpoint"
    assert (reply.ok, errors) == (is_good, [] if is_good else [words])
    assert exporter.export(spans) is (SpanExportResult.SUCCESS if is_good else SpanExportResult.FAILURE)


@pytest.mark.skipif(not hasattr(stock, "_load_session_from_envvar"), reason="needs a release with credential providers")
def test_replies_to_the_session_of_a_credential_provider_are_checked(spans, receiver, monkeypatch):
    lookup = pytest.importorskip("opentelemetry.exporter.otlp.proto.http._common", reason="since release 1.37")
    own = EntryPoint("own", "requests:Session", "opentelemetry_otlp_credential_provider")
    # OpenTelemetry looks the installed ones up once
    monkeypatch.setattr(lookup, "entry_points", lambda **_: [own])
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "own")
    exporter = OtlpSpanExporter(protocol="http/protobuf", endpoint=f"{receiver.endpoint}/v1/traces")
    receiver.rejects = 1
    assert exporter.export(spans) is SpanExportResult.FAILURE
    receiver.rejects, receiver.content_type = 0, "text/html"
    assert exporter.export(spans) is SpanExportResult.FAILURE


def test_http_request_ends_in_time_when_its_reply_drips(monkeypatch):
    monkeypatch.setattr(http_session, "_CLOCK", TickingClock())  # a second passes from one byte to the next
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        ended = threading.Event()

        def drip():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"H" * 98)
                ended.wait(GENEROUS_S)

        pool.submit(drip)
        try:
            with pytest.raises(requests.ReadTimeout, match="did not end within the time-out"):
                CheckingSession(RepeatingSession()).post(
                    f"http://127.0.0.1:{server.getsockname()[1]}", data=b"", timeout=GENEROUS_S
                )
        finally:
            ended.set()


def test_http_certificate_of_the_exporter_wins_over_the_environments(monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/other.pem")
    errors: list[str] = []
    session = CheckingSession(RepeatingSession(), on_error=errors.append)
    session.verify = "/mine.pem"
    with pytest.raises(OSError, match=r"/mine\.pem"):
        session.post("https://h:1", data=b"")
    assert "/mine.pem" in errors[0]
