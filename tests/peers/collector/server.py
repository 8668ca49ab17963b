"""Run a real OpenTelemetry Collector on free loopback ports, with the configuration of a test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.request import urlopen

from typing_extensions import Self

from tests.peers.peer import ServerProcess, free_ports

HERE = Path(__file__).resolve().parent
READY = b"Everything is ready"
"""What a Collector, and a Jaeger, logs when each of its pipelines has started."""
_PATIENCE_SECONDS = 60


class Collector:
    """A Collector with its files in ``directory``; use it as a context manager, inside of which it takes spans.

    ``configuration`` is a file of this folder, or any by its whole path; what it names as ``${env:…}`` is ``COLLECTOR_DIR``,
    ``OTLP_GRPC``, ``OTLP_HTTP``, ``METRICS_HOST``, ``METRICS_PORT`` and ``environment``.
    """

    def __init__(
        self,
        program: Path,
        directory: Path,
        configuration: str | Path,
        environment: Mapping[str, object],
        flags: Sequence[str] = (),
    ) -> None:
        grpc, http, self._metrics_port = free_ports(3)
        self.grpc_endpoint, self.traces_url = f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}/v1/traces"
        self.output = directory / "out"
        self._command = [str(program), "--config", f"file:{HERE / configuration}", *flags]
        own = {
            "COLLECTOR_DIR": directory,
            "OTLP_GRPC": self.grpc_endpoint,
            "OTLP_HTTP": f"127.0.0.1:{http}",
            "METRICS_HOST": "127.0.0.1",
            "METRICS_PORT": self._metrics_port,
        }
        self._environment = {name: str(value) for name, value in {**own, **environment}.items()}
        directory.mkdir(parents=True, exist_ok=True)
        self._server = ServerProcess("the Collector", directory / "log")
        self._is_running = False

    def __enter__(self) -> Self:
        self._server.start(self._command, self._environment, lambda: self._server.has_logged(READY))
        self._is_running = True
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it when all that it took is written, as its exit code says."""
        if self._is_running:
            self._is_running = False
            code = self._server.stop(_PATIENCE_SECONDS)
            assert code == 0, f"the Collector ended with {code}"

    def metrics(self) -> str:
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=_PATIENCE_SECONDS) as answer:
            return answer.read().decode()
