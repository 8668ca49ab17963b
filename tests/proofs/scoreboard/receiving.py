"""A loopback OTLP/HTTP receiver in a process of its own, which counts what each sender delivered.

``python -m tests.proofs.scoreboard.receiving`` prints its port. ``POST /SENDER/v1/traces`` keeps a request; ``GET /SENDER``
returns its spans by kind as JSON, decoded only then, so that nothing is parsed while something is measured.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from urllib.request import urlopen

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind

from tests.support.source_tree import ROOT

_END_OF_HEAD = b"\r\n\r\n"
_END_S = 20


def spans_by_kind(endpoint: str) -> Counter[SpanKind]:
    """Return how many spans of each kind were delivered to ``endpoint``."""
    with urlopen(endpoint, timeout=_END_S) as answer:
        return Counter({SpanKind[name]: count for name, count in json.load(answer).items()})


@contextmanager
def receiver() -> Iterator[str]:
    """Run one; give the URL below which each sender has a path of its own."""
    command = [sys.executable, "-m", "tests.proofs.scoreboard.receiving"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class _Connection(asyncio.Protocol):
    kept: ClassVar[dict[str, list[bytes]]] = defaultdict(list)
    counted: ClassVar[dict[str, Counter[str]]] = defaultdict(Counter)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._received += data
        while (end := self._received.find(_END_OF_HEAD)) >= 0:
            head = bytes(self._received[:end]).decode("latin-1")
            lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
            whole = end + len(_END_OF_HEAD) + (int(lengths[0].partition(":")[2]) if lengths else 0)
            if len(self._received) < whole:
                return
            body = bytes(self._received[end + len(_END_OF_HEAD) : whole])
            del self._received[:whole]
            method, path, _ = head.split(" ", 2)
            self._answer(method, path.split("/")[1], body)

    def _answer(self, method: str, sender: str, body: bytes) -> None:
        text = b""
        if method == "POST":
            self.kept[sender].append(body)
        else:
            self.counted[sender] += _kinds(self.kept.pop(sender, []))
            text = json.dumps(self.counted[sender]).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))  # type: ignore[attr-defined]


def _kinds(bodies: list[bytes]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                kinds.update(SpanKind(span.kind - 1).name for span in scope.spans)
    return kinds


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
