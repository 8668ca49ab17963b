"""This module knows how OpenTelemetry's HTTP exporter is given requests that are written already.

It encodes its spans and hands the bytes to a client that does the rest; ours go to the same client. Needs the ``otlp``
extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

if TYPE_CHECKING:
    import requests

    from bridge.forwarder.wire import Request

__all__ = ["HttpRequestExporter", "open_http_exporter"]


class HttpRequestExporter(OTLPSpanExporter):
    """Exports requests instead of spans; everything else is as it was."""

    def export_request(self, request: Request) -> bool:
        """Have ``request`` accepted, or tell that it was not."""
        with self._metrics.export_operation(len(request.events)) as told:
            result = self._client.export(request.body)
            told.error = result.error
        return result.success


def open_http_exporter(endpoint: str, *, timeout_s: float, session: requests.Session) -> OTLPSpanExporter:
    """Return the exporter for ``endpoint``; one of spans where this release has no such client."""
    exporter = HttpRequestExporter(endpoint=endpoint, timeout=timeout_s, session=session)
    if hasattr(getattr(exporter, "_client", None), "export") and hasattr(exporter, "_metrics"):
        return exporter
    return OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s, session=session)
