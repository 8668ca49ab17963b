"""Run a real OpenTelemetry Collector on free loopback ports, with the configuration of a test."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from typing_extensions import Self

from tests.peers.peer import ServerProcess, free_ports

HERE = Path(__file__).resolve().parent
_ANSWER_SECONDS = 2


@dataclass
class Collector:
    """A Collector with its files in ``directory``; use it as a context manager.

    ``configuration`` is a file of this folder, or any by its whole path; what it names as ``${env:…}`` is ``COLLECTOR_DIR``,
    ``OTLP_GRPC``, ``OTLP_HTTP``, ``METRICS_HOST``, ``METRICS_PORT`` and ``environment``. The ports stay the same when it is
    stopped and started again.
    """

    program: Path
    directory: Path
    configuration: str | Path
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    grpc_port: int = 0
    http_port: int = 0
    metrics_port: int = 0
    _server: ServerProcess | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.grpc_port, self.http_port, self.metrics_port = free_ports(3)
        self._server = ServerProcess("the Collector", self.directory / "log")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def traces_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/v1/traces"

    @property
    def grpc_endpoint(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def output(self) -> Path:
        return self.directory / "out"

    def start(self) -> None:
        """Start it, and return when it takes spans."""
        own = {
            "COLLECTOR_DIR": self.directory,
            "OTLP_GRPC": self.grpc_endpoint,
            "OTLP_HTTP": f"127.0.0.1:{self.http_port}",
            "METRICS_HOST": "127.0.0.1",
            "METRICS_PORT": self.metrics_port,
        }
        command = [str(self.program), "--config", f"file:{HERE / self.configuration}", *self.flags]
        environment = {name: str(value) for name, value in {**own, **self.environment}.items()}
        self._server.start(command, environment, self._takes_spans)

    def stop(self) -> None:
        self._server.stop()

    def counters(self) -> dict[str, float]:
        """Return its own counters by name, summed over whatever they are divided by."""
        sums: dict[str, float] = {}
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=_ANSWER_SECONDS) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        for line in lines:
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def _takes_spans(self) -> bool:
        try:
            urlopen(self.traces_url, timeout=_ANSWER_SECONDS).close()
        except HTTPError as answer:
            return answer.code == HTTPStatus.METHOD_NOT_ALLOWED  # it takes a POST only
        return False
