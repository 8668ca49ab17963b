"""Run a real Jaeger v2, all of it in one process, on free loopback ports."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from typing_extensions import Self

from tests.peers.peer import ServerProcess, free_ports

HERE = Path(__file__).resolve().parent
_ANSWER_SECONDS = 2


@dataclass
class Jaeger:
    """A Jaeger that keeps spans in memory, its log in ``directory``; use it as a context manager.

    OTLP goes to ``traces_url`` or ``grpc_endpoint``; questions go to ``query_url``.
    """

    program: Path
    directory: Path
    traces_url: str = ""
    grpc_endpoint: str = ""
    query_url: str = ""
    _server: ServerProcess | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        names = ("GRPC", "HTTP", "QUERY_HTTP", "QUERY_GRPC")
        ports = {f"JAEGER_{name}_PORT": str(port) for name, port in zip(names, free_ports(len(names)), strict=True)}
        self.grpc_endpoint = f"127.0.0.1:{ports['JAEGER_GRPC_PORT']}"
        self.traces_url = f"http://127.0.0.1:{ports['JAEGER_HTTP_PORT']}/v1/traces"
        self.query_url = f"http://127.0.0.1:{ports['JAEGER_QUERY_HTTP_PORT']}"
        self._server = ServerProcess("Jaeger", self.directory / "log")
        self._server.start([str(self.program), "--config", f"file:{HERE / 'jaeger.yaml'}"], ports, self._answers)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _answers(self) -> bool:
        urlopen(f"{self.query_url}/api/v3/services", timeout=_ANSWER_SECONDS).close()
        return True
