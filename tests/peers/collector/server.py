"""Run a real OpenTelemetry Collector on free loopback ports, with the configuration of a test."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from typing_extensions import Self

from tests.peers.peer import ServerProcess, free_ports

HERE = Path(__file__).resolve().parent
_ANSWER_SECONDS = 2


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

    def __enter__(self) -> Self:
        self._server.start(self._command, self._environment, self._takes_spans)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.stop()

    def metrics(self) -> str:
        """Return what it exposes about itself to Prometheus."""
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=_ANSWER_SECONDS) as answer:
            return answer.read().decode()

    def _takes_spans(self) -> bool:
        try:
            urlopen(self.traces_url, timeout=_ANSWER_SECONDS).close()
        except HTTPError as answer:
            return answer.code == HTTPStatus.METHOD_NOT_ALLOWED  # it takes a POST only
        return False
