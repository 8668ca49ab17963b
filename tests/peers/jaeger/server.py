"""Run a real Jaeger v2, all of it in one process, on free loopback ports, and ask it for spans as ``traced`` has them.

``/api/v3`` answers in OTLP/JSON; a search there must name its time range and how many traces it wants, and cannot ask
for attributes, which ``/api/traces``, the API of Jaeger's own page, can.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from typing_extensions import Self

from tests.peers.collector.server import READY
from tests.peers.peer import ServerProcess, free_ports, until
from tests.peers.traced import of_message

HERE = Path(__file__).resolve().parent
_PATIENCE_SECONDS = 60
_SOON, _LONG = timedelta(hours=1), timedelta(days=3650)
_MANY = 1000


@dataclass(frozen=True)
class JaegerQuery:
    """Questions to the Jaeger at ``url``; each waits until the answer holds ``spans`` spans.

    What is sent to it directly is stored when it answers; a Collector hands on later.
    """

    url: str

    def trace(self, trace_id: str, *, spans: int, **how: str) -> list[dict[str, Any]]:
        """Return the spans of a trace, each once, the earliest first; ``raw_traces="true"``: without Jaeger's remarks."""
        return self._spans(f"/api/v3/traces/{trace_id}", how, spans)

    def search(self, service: str, *, spans: int) -> list[dict[str, Any]]:
        now = datetime.now(timezone.utc)
        asked = {"service_name": service, "num_traces": _MANY}
        asked |= {"start_time_min": (now - _LONG).isoformat(), "start_time_max": (now + _SOON).isoformat()}
        return self._spans("/api/v3/traces", {f"query.{name}": value for name, value in asked.items()}, spans)

    def ids_with(self, service: str, *, traces: int = 0, **attributes: str) -> set[str]:
        """Return the ids of the traces with a span of ``service`` that has all ``attributes``, dots as underscores.

        Waits until there are ``traces`` of them.
        """
        tags = json.dumps({name.replace("__", "."): value for name, value in attributes.items()})
        now = datetime.now(timezone.utc)
        times = {"start": _us(now - _LONG), "end": _us(now + _SOON)}

        def ask() -> set[str]:
            traces = self._ask("/api/traces", {"service": service, "tags": tags, "limit": _MANY, **times})
            return {trace["traceID"] for trace in traces["data"]}

        return until(ask, lambda ids: len(ids) >= traces, patience_s=_PATIENCE_SECONDS)

    def services(self) -> set[str]:
        return set(self._ask("/api/v3/services", {})["services"])

    def calls(self) -> set[tuple[str, str]]:
        end_ms, lookback_ms = _us(datetime.now(timezone.utc) + _SOON) // 1000, int(_LONG.total_seconds()) * 1000
        links = self._ask("/api/dependencies", {"endTs": end_ms, "lookback": lookback_ms})
        return {(edge["parent"], edge["child"]) for edge in links["data"]}

    def _spans(self, path: str, parameters: dict[str, Any], count: int) -> list[dict[str, Any]]:
        def ask() -> list[dict[str, Any]]:
            return of_message(json.dumps(self._ask(path, parameters)).encode())

        answer = until(ask, lambda spans: len(spans) >= count, patience_s=_PATIENCE_SECONDS)
        return sorted(answer, key=lambda span: (span["start_ns"], span["span_id"]))

    def _ask(self, path: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            with urlopen(f"{self.url}{path}?{urlencode(parameters)}", timeout=_PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            if refusal.code == HTTPStatus.NOT_FOUND:
                return {}
            raise AssertionError(f"{path}: {refusal.code}: {refusal.read().decode()}") from refusal


def _us(time: datetime) -> int:
    return int(time.timestamp() * 1e6)


class Jaeger:
    """A Jaeger that keeps spans in memory, its log in ``directory``; use it as a context manager.

    OTLP goes to ``traces_url`` or ``grpc_endpoint``; questions go to ``query_url``.
    """

    def __init__(self, program: Path, directory: Path) -> None:
        self.program = program
        names = ("GRPC", "HTTP", "QUERY_HTTP", "QUERY_GRPC")
        self._ports = {f"JAEGER_{name}_PORT": str(port) for name, port in zip(names, free_ports(4), strict=True)}
        grpc, http, query, _ = self._ports.values()
        self.grpc_endpoint, self.traces_url = f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}/v1/traces"
        self.query_url = f"http://127.0.0.1:{query}"
        self._server = ServerProcess("Jaeger", directory / "log")

    def __enter__(self) -> Self:
        command = [str(self.program), "--config", f"file:{HERE / 'jaeger.yaml'}"]
        self._server.start(command, self._ports, lambda: self._server.has_logged(READY))
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
