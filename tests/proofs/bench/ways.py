"""The way of one message: our own Python frames, and the files they are in, counted by ``sys.setprofile``.

Both formats go to our own lanes. A way ends where the span is queued: for ``produce`` with its delivery report.
``python -m tests.proofs.bench.ways`` prints the frames.
"""

import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final

import confluent_kafka
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace import MqTraceInstrumentor
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.exporters.otlp import HTTP, OtlpSpanExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.proofs.bench.rows import Effort, Row, Target
from tests.support.source_tree import ROOT

_OURS: Final = str(ROOT / "otel_mqtrace")
_TIMES: Final = 20
_PATIENCE_S: Final = 20.0
_NOWHERE: Final = "http://127.0.0.1:9/v1/traces"
_TOPIC: Final = "ways"
Way = list[tuple[str, str]]
"""File and function of each frame."""
_MOST: Final = {"`produce()` and its report": (15, 6), "`poll()`, with the end of the last message": (15, 8)}


def measure(effort: Effort) -> list[Row]:
    """Return the frames and the files of each way; the shortest of several, for a new millisecond is a frame more."""
    del effort
    rows = []
    for name, way in _ways().items():
        frames, files = _MOST[name]
        rows.append(Row(f"{name}: frames", "none", len(way), None, "frames", Target("≤", frames, "frames")))
        rows.append(
            Row(f"{name}: files", "none", len({file for file, _ in way}), None, "files", Target("≤", files, "files"))
        )
    return rows


def _ways() -> dict[str, Way]:
    provider = TracerProvider(shutdown_on_exit=False)
    instrumentor = MqTraceInstrumentor()
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as landing:
        kafka.create_topic(_TOPIC, partitions=1)
        exporters = (NativeFileSpanExporter(directory=landing), OtlpSpanExporter(protocol=HTTP, endpoint=_NOWHERE))
        instrumentor.instrument(tracer_provider=provider, exporters=exporters)
        try:
            return dict(zip(_MOST, (_produced(kafka.bootstrap_servers), _polled(kafka.bootstrap_servers)), strict=True))
        finally:
            instrumentor.uninstrument()


def _produced(servers: str) -> Way:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    numbers = count()

    def send() -> Way:
        def produce() -> None:
            producer.produce(_TOPIC, b"order", headers=[("number", b"%d" % next(numbers))])

        return _counted(produce) + _counted(lambda: producer.poll(_PATIENCE_S))

    return min((send() for _ in range(_TIMES)), key=len)


def _polled(servers: str) -> Way:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "ways"})
    consumer.assign([confluent_kafka.TopicPartition(_TOPIC, 0, 0)])
    consumer.poll(_PATIENCE_S)
    ways = [_counted(lambda: consumer.poll(_PATIENCE_S)) for _ in range(_TIMES - 1)]
    consumer.close()
    return min(ways, key=len)


def _counted(call: Callable[[], Any]) -> Way:
    way: Way = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_OURS):
            way.append((str(Path(code.co_filename).relative_to(_OURS)), code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return way


if __name__ == "__main__":
    for title, frames in _ways().items():
        sys.stdout.write(f"{title}: {len(frames)} frames in {len({file for file, _ in frames})} files\n")
        sys.stdout.writelines(f"    {file} {function}\n" for file, function in frames)
