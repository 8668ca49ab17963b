"""Tiny OTLP receivers: one for HTTP, which keeps every span it was ever given by its ids, and one for gRPC."""

import gzip
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from typing_extensions import Self

_OK = 200


class OtlpReceiver:
    """Answers every request with ``status``; ``spans`` are by (trace id, span id), each with all contents it ever had.

    ``on_request(number, "before" | "kept")`` is called for each request: with nothing kept yet, and kept but unanswered.
    If it says yes to the first, the request is neither kept nor answered.
    """

    def __init__(self) -> None:
        self.spans: dict[tuple[bytes, bytes], list[tuple[str, bytes]]] = defaultdict(list)
        self.requests = 0
        self.paths: list[str] = []
        self.status = _OK
        self.location: str | None = None
        self.content_type: str | None = "application/x-protobuf"
        self.rejects = 0
        self.on_request: Callable[[int, str], object] | None = None
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def ids(self) -> set[tuple[str, str]]:
        return set(self.contents())

    def contents(self) -> dict[tuple[str, str], set[tuple[str, bytes]]]:
        """By id, what was ever said under it: (service name, the span's bytes)."""
        with self._lock:
            return {(trace_id.hex(), span_id.hex()): set(copies) for (trace_id, span_id), copies in self.spans.items()}

    def _take(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_spans:
                service = resource.resource.attributes[0].value.string_value
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        encoded = span.SerializeToString(deterministic=True)
                        self.spans[span.trace_id, span.span_id].append((service, encoded))

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler's own self is another
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                with receiver._lock:
                    receiver.requests += 1
                    number = receiver.requests
                    receiver.paths.append(self.path)
                if receiver._notify(number, "before"):
                    return
                if receiver.status == _OK:
                    receiver._take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
                    receiver._notify(number, "kept")
                rejected = trace_service_pb2.ExportTracePartialSuccess(rejected_spans=receiver.rejects)
                answer = trace_service_pb2.ExportTraceServiceResponse(partial_success=rejected).SerializeToString()
                try:
                    self.send_response(receiver.status)
                    if receiver.location:
                        self.send_header("Location", receiver.location)
                    if receiver.content_type:
                        self.send_header("Content-Type", receiver.content_type)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:  # the client was killed
                    return

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _notify(self, number: int, moment: str) -> object:
        return None if self.on_request is None else self.on_request(number, moment)


class GrpcReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes every request, and says that it rejected one of its spans."""

    def __init__(self) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self._server = grpc.server(ThreadPoolExecutor(1))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:  # noqa: N802 - the service's own name
        self.metadata.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse(
            partial_success=trace_service_pb2.ExportTracePartialSuccess(rejected_spans=1)
        )

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait(10)
