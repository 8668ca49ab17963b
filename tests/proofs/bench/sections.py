"""The sections of ``make bench``, in the order of the page."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final

from tests.proofs.bench.rows import Effort, Row


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the page, returned by ``function`` of ``module`` for an ``Effort``.

    Sections that are not ``is_default`` run only when named: they take long (``minutes``). ``messages`` is the size of the
    day or topics they read; of the smaller day where there are two.
    """

    title: str
    module: str
    description: str
    is_default: bool = True
    minutes: int = 1
    messages: int = 0
    most_rounds: int = 99
    function: str = "measure"

    def limit_effort(self, effort: Effort) -> Effort:
        """Return ``effort`` with at most ``most_rounds`` and with the number of messages."""
        messages = self.messages and (effort.messages or self.messages)
        return replace(effort, rounds=min(effort.rounds, self.most_rounds), messages=messages)

    def measure(self, effort: Effort) -> list[Row]:
        """Run the section."""
        function: Callable[[Effort], list[Row]] = getattr(
            import_module(f"tests.proofs.bench.{self.module}"), self.function
        )
        return function(effort)


SECTIONS: Final = {
    "clients": Section(
        "Added to the client's calls",
        "clients",
        "Added CPU time per message: that of the traced client minus that of the client alone in the same turn. `calling"
        " thread` includes the delivery report; `whole process` ends when everything is encoded and sent. Every variant runs in"
        " a process of its own against the embedded broker, sends OTLP over HTTP to another process and writes native records"
        " to landing files. The compared instrumentation has OpenTelemetry's batch processor and OTLP exporter.",
        minutes=4,
    ),
    "ways": Section(
        "The way of a message",
        "ways",
        "Python frames of this project on the calling thread until the spans are queued, and the files they are in.",
    ),
    "processor": Section(
        "The span processor",
        "processor",
        "Both processors with their defaults, except for the size of the queue: a whole round, or 2048 for the full queue.",
    ),
    "imports": Section(
        "Imports", "imports", "Wall time in a new interpreter, modules compiled before; three starts a round."
    ),
    "codec": Section(
        "The native codec",
        "codec",
        "Records that a RocketMQ 5.3.3 client wrote, body by body, and OTLP with the same fields as attributes.",
        minutes=2,
    ),
    "forwarder": Section("The forwarder", "forwarding", "Native records in, OTLP out, on one core."),
    "from-kafka": Section(
        "From Kafka to OTLP",
        "from_kafka",
        "Whole processes on a real Kafka: `mqtrace forward` on a native trace topic, and a Collector with its Kafka receiver on"
        " the same events as OTLP spans, on one core (`GOMAXPROCS=1`), without metrics or compression.",
        is_default=False,
        minutes=3,
        messages=100_000,
        most_rounds=5,
    ),
    "normalisation": Section(
        "Reading spans",
        "normalisation",
        "OTLP files to canonical events in parquet, in one process and in two, without imports.",
        is_default=False,
        minutes=10,
        messages=100_000,
        most_rounds=3,
    ),
    "reconcile": Section(
        "Reconciliation",
        "reconcile",
        "Wall time of whole processes, start included, on two cores: Spark is `local[2]` with a heap of 2 GB. Ours writes verdicts"
        " and every report; datacompy and DuckDB read parsed tables and stop at a verdict.",
        is_default=False,
        minutes=6,
        messages=50_000,
        most_rounds=3,
    ),
    "hot-message": Section(
        "One message with very many deliveries",
        "hot_message",
        "Events of one message packed and judged by one process; then 100,000 rows packed into blobs of different sizes.",
        is_default=False,
        minutes=3,
        most_rounds=1,
    ),
    "growth": Section(
        "Ten times as many events",
        "growth",
        "One run of each size on `local[2]` with a heap of 2 GB; the spans are files compressed with zstd.",
        is_default=False,
        minutes=15,
        messages=500_000,
        most_rounds=1,
        function="measure_tenfold",
    ),
    "growth-50": Section(
        "Fifty times as many events",
        "growth",
        "One run of each size on `local[2]` with a heap of 2 GB; the spans are files compressed with zstd, all of it on 20 GB of disk.",
        is_default=False,
        minutes=60,
        messages=500_000,
        most_rounds=1,
        function="measure_fiftyfold",
    ),
}
