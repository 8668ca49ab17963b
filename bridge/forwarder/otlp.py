"""Deliver the spans of events over OTLP: accepted, or an error.

Retries, headers, TLS, compression and time-outs are those of OpenTelemetry's exporter, which is given request bytes.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.sdk.trace.export import SpanExportResult

from bridge.forwarder.wire import requests_of
from bridge.page.wording import counted
from otel_mqtrace._errors import MissingExtraError, PeerError, UsageError
from otel_mqtrace.exporters.otlp import GRPC, HTTP, open_stock_exporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace.export import SpanExporter

    from bridge.forwarder.meaning import SpanRules
    from bridge.forwarder.pairing import Event

__all__ = ["OtlpDelivery", "open_exporter"]

_TRACES_PATH: Final = "/v1/traces"
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

    Raises:
        MissingExtraError: the ``otlp`` extra is not installed.
        UsageError: an endpoint of another form.
    """

    def __init__(self, endpoint: str, *, timeout_s: float = 10) -> None:
        self.endpoint = endpoint
        self.rejected = 0
        self._reasons = _LastWords()
        self._exporter: Any = open_exporter(endpoint, timeout_s=timeout_s, on_reply=self._read)
        logging.getLogger(_EXPORTER_LOGGERS).addHandler(self._reasons)

    def deliver(self, events: Sequence[Event], rules: SpanRules) -> None:
        """Have the spans of all ``events`` accepted.

        Raises:
            PeerError: some were not, after the exporter's own retries; any of them may have been.
        """
        left = len(events)
        for request in requests_of(events, rules):
            self._reasons.text = ""
            if self._exporter.export(request) is not SpanExportResult.SUCCESS:
                said = f" ({self._reasons.text})" if self._reasons.text else ""
                raise PeerError(
                    f"the OTLP receiver {self.endpoint} did not accept {counted(left, 'span')}{said}; "
                    "they are not committed and will be forwarded again"
                )
            left -= len(request.events)

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
        return open_stock_exporter(GRPC, _body_of, endpoint=host, insecure=_GRPC[scheme], timeout=timeout_s)
    whole = urlunsplit((scheme, host, path if path.strip("/") else _TRACES_PATH, query, ""))
    return open_stock_exporter(HTTP, _body_of, endpoint=whole, timeout=timeout_s, session=_session(on_reply))


_body_of: Final = attrgetter("body")


def _session(on_reply: Any) -> Any:
    try:
        import requests  # noqa: PLC0415 - comes with the otlp extra
    except ImportError as error:
        raise MissingExtraError("forwarding to OTLP", "otlp") from error
    session = requests.Session()
    if on_reply is not None:
        session.hooks["response"].append(lambda reply, **_: on_reply(reply.content) if reply.ok else None)
    return session


class _LastWords(logging.Handler):
    """Keeps what the exporter logged last: the only place where it says why."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
