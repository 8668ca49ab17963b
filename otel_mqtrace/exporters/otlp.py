"""OpenTelemetry's own OTLP exporters, HTTP and gRPC, given request bytes that are already encoded.

Endpoint, headers, TLS, compression, time-outs, retries and self-metrics stay OpenTelemetry's. Its exporter modules call
one function, ``encode_spans``, for the message; a second instance of the module gets another function of that name. The
stock exporters keep theirs. What that saves is the row ``mqtrace_otlp`` of the benchmark. Needs the ``otlp`` extra.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_mqtrace._errors import MissingExtraError, UsageError
from otel_mqtrace.spans.mapping import attributes_of
from otel_mqtrace.spans.queue import ENCODE_ERROR, EXPORT_FAILED, ExportOutcome
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import ReadableSpan

_logger: Final = logging.getLogger(__name__)
GRPC, HTTP = "grpc", "http/protobuf"
_MODULES: Final = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    HTTP: "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_IMPORTED_BY_EXPORTS: Final = ("google.protobuf.json_format", "netrc", "encodings.idna")
"""Imported before: a child that is forked while a worker imports one would wait for it until the end."""
_COMPRESSIONS: Final = {"none": "NoCompression", "deflate": "Deflate", "gzip": "Gzip"}
"""A compression as OTLP's variables name it → as the stock exporters' enumerations do."""
_EXPORT_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


_MAX_JOINED_BYTES: Final = 1 << 20
"""Batches are joined up to this size."""
_MAX_REQUEST_BYTES: Final = 4 << 20
"""A batch is split above this size: the most that a gRPC server takes by default."""
_CREDENTIAL_PROVIDER: Final = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER"


@dataclass(frozen=True, slots=True)
class _Message:
    """An encoded request in place of a protobuf message."""

    body: bytes

    def SerializeToString(self, **_: object) -> bytes:  # noqa: N802 - protobuf's name
        return self.body

    SerializePartialToString = SerializeToString


def _make_stub(read_reply: Callable[[bytes], bytes], channel: Any) -> SimpleNamespace:
    """Return the stub of OTLP's trace service over gRPC, for requests that are bytes already."""
    serializers = {"request_serializer": attrgetter("body"), "response_deserializer": read_reply}
    return SimpleNamespace(Export=channel.unary_unary(_EXPORT_METHOD, **serializers))


def open_stock_exporter(
    protocol: str, *, read_reply: Callable[[bytes], bytes], on_error: Callable[[str], object] = str, **settings: Any
) -> SpanExporter:
    """Return OpenTelemetry's exporter, whose ``export`` takes requests instead of spans.

    A request has a length, and a ``body``: the bytes of an ``ExportTraceServiceRequest``.

    Args:
        protocol: ``grpc`` or ``http/protobuf``.
        read_reply: Called with the body of each good reply, which it returns.
        on_error: Called with the error or status of each request over HTTP that fails.
        settings: Keywords of OpenTelemetry's ``OTLPSpanExporter``; those that are ``None`` are left to its environment.
            ``compression`` may be one of the words ``none``, ``deflate`` and ``gzip``.

    Raises:
        MissingExtraError: OpenTelemetry's exporter is not installed.
        UsageError: ``compression`` is another word.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        for name in _IMPORTED_BY_EXPORTS:
            importlib.import_module(name)
        module = _load_second_instance(_MODULES[protocol])
        if protocol == HTTP:
            from otel_mqtrace.exporters.http_session import CheckingSession, RepeatingSession  # noqa: PLC0415 - optional extra

            find_session = getattr(module, "_load_session_from_envvar", lambda _: None)  # since release 1.37
            session: Any = given.get("session") or find_session(_CREDENTIAL_PROVIDER) or RepeatingSession()
            given["session"] = CheckingSession(session, read_reply, on_error)
    except ImportError as error:
        raise MissingExtraError(f"OTLP over {protocol.removesuffix('/protobuf')}", "otlp") from error
    compression = given.get("compression")
    if isinstance(compression, str):
        if compression not in _COMPRESSIONS:
            raise UsageError(f"unknown OTLP compression {compression!r}: use {', '.join(_COMPRESSIONS)}")
        given["compression"] = getattr(module.Compression, _COMPRESSIONS[compression])
    module.__dict__["encode_spans"] = lambda request: _Message(request.body)
    if protocol == GRPC:
        stub = partial(_make_stub, read_reply)
        module.__dict__["TraceServiceStub"] = stub
        module.OTLPSpanExporter._stub = staticmethod(stub)  # noqa: SLF001 - where releases before 1.40 look for it
    exporter: SpanExporter = module.OTLPSpanExporter(**given)
    return exporter


def read_partial_success(reply: bytes) -> tuple[int, str]:
    """Return how many spans the receiver rejected although it took the request, and why; some reply in JSON."""
    from google.protobuf import json_format  # noqa: PLC0415 - optional extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - optional extra
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415 - optional extra
        ExportTraceServiceResponse,
    )

    try:
        if reply.startswith(b"{"):
            response = json_format.Parse(reply, ExportTraceServiceResponse(), ignore_unknown_fields=True)
        else:
            response = ExportTraceServiceResponse.FromString(reply)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError):
        return 0, ""  # receivers answer all kinds of things; the status has decided already
    return max(response.partial_success.rejected_spans, 0), response.partial_success.error_message


def _load_second_instance(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class _Request:
    """The bytes of so many spans, and the positions among them of those that could not be encoded."""

    spans: int
    body: bytes
    unencoded: list[int]

    def __len__(self) -> int:  # the stock exporter's metrics count by it
        return self.spans


class OtlpSpanExporter(SpanExporter):
    """OpenTelemetry's OTLP exporter, with every span encoded by :mod:`otel_mqtrace.wire.otlp`.

    Every setting may also come from ``OTEL_EXPORTER_OTLP_TRACES_…`` and ``OTEL_EXPORTER_OTLP_…``, as for the stock
    exporter. A span that OTLP cannot encode is left out, logged, and counted as ``encode_error`` in our processor's
    stats.

    Args:
        protocol: ``grpc`` or ``http/protobuf``; else ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL``,
            ``OTEL_EXPORTER_OTLP_PROTOCOL``, ``grpc``. That is the choice of ``OTEL_TRACES_EXPORTER=otlp``.
        endpoint: As the stock exporter of the protocol takes it.
        headers: Sent with each request.
        timeout: Seconds for one request with its retries.
        compression: ``none``, ``gzip`` or ``deflate``, or what the stock exporter takes.
        meter_provider: For the exporter's own metrics.
        settings: Further keywords of the stock exporter, such as ``certificate_file`` or ``credentials``.
    """

    def __init__(  # noqa: PLR0913 - plain keyword values, as declarative configuration gives them
        self,
        *,
        protocol: str | None = None,
        endpoint: str | None = None,
        headers: Any = None,
        timeout: float | None = None,
        compression: Any = None,
        meter_provider: MeterProvider | None = None,
        **settings: Any,
    ) -> None:
        self._outcome: ExportOutcome | None = None
        self._rejected = 0
        self._exporter = open_stock_exporter(
            _choose_protocol(protocol),
            read_reply=self._read_reply,
            endpoint=endpoint,
            headers=headers,
            timeout=timeout,
            compression=compression,
            meter_provider=meter_provider,
            **settings,
        )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send ``spans`` in one request; returns once it is accepted or given up."""
        return self.export_batches([spans])

    def export_batches(self, batches: Sequence[Sequence[ReadableSpan]]) -> SpanExportResult:
        """Send several batches, joined up to 1 MiB and split above 4 MiB; ``FAILURE`` if any of them is lost."""
        lost: dict[int, str] = {}
        position = 0
        for request in _join(batches):
            spans = range(position, position + request.spans)
            position = spans.stop
            self._rejected = 0
            if self._exporter.export(request) is not SpanExportResult.SUCCESS:  # type: ignore[arg-type]  # it only encodes it
                self._rejected = request.spans
            lost |= dict.fromkeys((spans.start + each for each in request.unencoded), ENCODE_ERROR)
            sent = (each for each in spans if each not in lost)
            lost |= dict.fromkeys([*islice(sent, self._rejected)], EXPORT_FAILED)  # a reply does not say which
        self._outcome = outcome = ExportOutcome.of(position, lost)
        return SpanExportResult.FAILURE if outcome.failed else SpanExportResult.SUCCESS

    def _read_reply(self, reply: bytes) -> bytes:
        self._rejected, reason = read_partial_success(reply)
        if self._rejected:
            _logger.error("mqtrace: spans rejected by the OTLP receiver: %d (%s)", self._rejected, reason)
        return reply

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last export, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return what OpenTelemetry's exporter does: nothing is buffered."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Refuse further batches; a retry that waits is given up."""
        self._exporter.shutdown()


def _join(batches: Sequence[Sequence[ReadableSpan]]) -> Iterator[_Request]:
    bodies: list[bytes] = []
    errors: list[int] = []
    spans = 0
    for count, body, unencoded in chain.from_iterable(map(_encode, batches)):
        for error, number in Counter(map(repr, unencoded.values())).items():
            _logger.error("mqtrace: spans left out because they cannot be written as OTLP: %d (%s)", number, error)
        if bodies and sum(map(len, bodies)) + len(body) > _MAX_JOINED_BYTES:
            yield _Request(spans, b"".join(bodies), errors)
            bodies, spans, errors = [], 0, []
        bodies.append(body)
        errors += [spans + position for position in unencoded]
        spans += count
    yield _Request(spans, b"".join(bodies), errors)


def _encode(batch: Sequence[ReadableSpan]) -> Iterator[tuple[int, bytes, Mapping[int, Exception]]]:
    """Yield a batch, in halves where it is too large: how many spans, their bytes, and the errors by position."""
    body, unencoded = encode_spans(batch, attributes_of)
    half = len(batch) // 2
    if half and len(body) > _MAX_REQUEST_BYTES:
        yield from _encode(batch[:half])
        yield from _encode(batch[half:])
    else:
        yield len(batch), body, unencoded


def _choose_protocol(given: str | None) -> str:
    named = given or next((os.environ[name] for name in _PROTOCOL_VARIABLES if os.environ.get(name, "").strip()), GRPC)
    protocol = named.strip()
    if protocol in _MODULES:
        return protocol
    _logger.warning("mqtrace: unknown OTLP protocol %r: use grpc or http/protobuf; grpc is used", protocol)
    return GRPC
