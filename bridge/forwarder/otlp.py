"""This module knows how spans are delivered over OTLP: by OpenTelemetry's exporter, accepted or an error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace._errors import MissingExtraError, PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["OtlpDelivery", "open_exporter"]

_TRACES_PATH: Final = "/v1/traces"
_AT_ONCE: Final = 512
_MOST_CHARACTERS: Final = 1 << 20
"""Of the attributes of one request: a gRPC receiver takes 4 MiB unless told otherwise, and a character is up to 4."""
_EXPORTER_LOGGERS: Final = "opentelemetry.exporter.otlp"
_GRPC: Final = {"grpc": True, "grpcs": False}
"""URL scheme → whether the connection is in the clear."""


class OtlpDelivery:
    """Delivers spans and returns once they are accepted.

    ``rejected`` counts spans that the receiver said it will not keep although it took the request (OTLP's partial
    success); asking again would not help.

    Args:
        endpoint: ``http[s]://host:port[/path]`` (the path defaults to ``/v1/traces``) or ``grpc[s]://host:port``.
            Headers, TLS and compression by ``OTEL_EXPORTER_OTLP_*``.
        timeout_s: For one request with all its retries.
        exporter: Instead of the one for ``endpoint``.

    Raises:
        MissingExtraError: the ``otlp`` extra is not installed.
        UsageError: an endpoint of another form.
    """

    def __init__(self, endpoint: str, *, timeout_s: float = 10, exporter: SpanExporter | None = None) -> None:
        self.endpoint = endpoint
        self.rejected = 0
        self._reasons = _LastWords()
        self._exporter = exporter or open_exporter(endpoint, timeout_s=timeout_s, on_reply=self._read)
        logging.getLogger(_EXPORTER_LOGGERS).addHandler(self._reasons)

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:
        """Have all of ``spans`` accepted.

        Raises:
            PeerError: some were not, after the exporter's own retries; any of them may have been.
        """
        left = len(spans)
        for request in _requests(spans):
            self._reasons.text = ""
            if self._exporter.export(request) is not SpanExportResult.SUCCESS:
                said = f" ({self._reasons.text})" if self._reasons.text else ""
                raise PeerError(
                    f"the OTLP receiver {self.endpoint} did not accept {left} spans{said}; "
                    "they are not committed and will be forwarded again"
                )
            left -= len(request)

    def close(self) -> None:
        """Let the connection go."""
        logging.getLogger(_EXPORTER_LOGGERS).removeHandler(self._reasons)
        self._exporter.shutdown()

    def _read(self, body: bytes) -> None:
        """Count what the reply of an accepted request says was rejected."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415 - optional extra
            ExportTraceServiceResponse,
        )

        try:
            self.rejected += ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans
        except Exception:  # noqa: BLE001 - receivers answer all kinds of things; the status has decided already
            return


def _requests(spans: Sequence[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    """Cut ``spans`` into requests that no receiver finds too large: it would refuse them again and again."""
    first, characters = 0, 0
    for number, span in enumerate(spans):
        own = sum(len(str(value)) for value in (span.attributes or {}).values())
        if number > first and (number - first >= _AT_ONCE or characters + own > _MOST_CHARACTERS):
            yield spans[first:number]
            first, characters = number, 0
        characters += own
    if first < len(spans):
        yield spans[first:]


def open_exporter(endpoint: str, *, timeout_s: float, on_reply: Any = None) -> SpanExporter:
    """Return OpenTelemetry's exporter for ``endpoint``; ``on_reply`` is given the body of each good HTTP reply."""
    try:
        scheme, host, path, query, _ = urlsplit(endpoint)
    except ValueError:  # a bracket that nothing closes
        scheme = host = path = query = ""
    if not host or scheme not in {"http", "https", *_GRPC}:
        raise UsageError(
            f"--otlp-endpoint {endpoint} is not understood: give http[s]://HOST:PORT[/PATH] or grpc[s]://HOST:PORT"
        )
    if scheme in _GRPC:
        return _open_grpc(host, insecure=_GRPC[scheme], timeout_s=timeout_s)
    whole = urlunsplit((scheme, host, path if path.strip("/") else _TRACES_PATH, query, ""))
    return _open_http(whole, timeout_s=timeout_s, on_reply=on_reply)


def _open_http(endpoint: str, *, timeout_s: float, on_reply: Any) -> SpanExporter:
    try:
        import requests  # noqa: PLC0415 - comes with the otlp extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - optional extra
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise MissingExtraError("forwarding to OTLP", "otlp") from error
    session = requests.Session()
    if on_reply is not None:
        session.hooks["response"].append(lambda reply, **_: on_reply(reply.content) if reply.ok else None)
    return OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s, session=session)


def _open_grpc(host: str, *, insecure: bool, timeout_s: float) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415 - optional extra
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise MissingExtraError("forwarding to OTLP over gRPC", "otlp") from error
    return OTLPSpanExporter(endpoint=host, insecure=insecure, timeout=timeout_s)


class _LastWords(logging.Handler):
    """Keeps what the exporter logged last: the only place where it says why."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
