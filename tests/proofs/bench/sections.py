"""The sections of ``make bench``: what each measures, its module, and whether it runs by default."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final

from tests.proofs.bench.rows import Effort, Row


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the page. ``home`` is the module whose function ``verb`` returns its rows for an ``Effort``.

    ``usual`` sections run when none is named; the others take long, by ``minutes`` at their usual size: ``messages`` of the
    day they read, or of the topics; of the smaller day where there are two.
    """

    title: str
    home: str
    says: str
    usual: bool = True
    minutes: int = 1
    messages: int = 0
    most_rounds: int = 99
    verb: str = "measured"

    def fitting(self, effort: Effort) -> Effort:
        """Return ``effort`` with no more rounds than the section is worth, and the messages that it will read."""
        messages = self.messages and (effort.messages or self.messages)
        return replace(effort, rounds=min(effort.rounds, self.most_rounds), messages=messages)

    def measured(self, effort: Effort) -> list[Row]:
        act: Callable[[Effort], list[Row]] = getattr(import_module(f"tests.proofs.bench.{self.home}"), self.verb)
        return act(effort)


SECTIONS: Final = {
    "clients": Section(
        "Added to the client's calls",
        "clients",
        "CPU time above that of the client alone in the same turn, three turns a round; the calling thread's, delivery reports"
        " included, or the whole process's until everything is encoded and sent. Each variant is a process of its own against"
        " the embedded broker; OTLP goes over HTTP to a receiver in another process, native records to landing files. The"
        " anchor has the stock batch processor and OTLP exporter.",
        minutes=4,
    ),
    "ways": Section(
        "The way of a message",
        "ways",
        "Our own Python frames on the calling thread until the spans are queued, and the files they are in.",
    ),
    "steps": Section(
        "Our own steps, and the SDK's below them",
        "steps",
        "CPU time of a call, in one thread, no broker. What the SDK does alone is the floor of every instrumentation.",
    ),
    "processor": Section(
        "The span processor",
        "processor",
        "Both processors with their defaults, but for the queue: it holds the whole round, or 2048 while full. Spans go through"
        " five times a round: which thread has the interpreter when is chance.",
    ),
    "imports": Section(
        "Imports",
        "imports",
        "Wall time, each in an interpreter of its own, compiled before; three starts a round. The anchor is the part of the SDK"
        " that a tracer provider is in: `import opentelemetry.sdk` alone loads next to nothing.",
    ),
    "codec": Section(
        "The native codec",
        "codec",
        "The records that a RocketMQ 5.3.3 client wrote, body by body; OTLP carries the same fields as attributes, and puts"
        " them together itself. Ours begins with a record of the model: to make one of a span is a step above.",
        minutes=2,
    ),
    "forwarder": Section("The forwarder", "forwarder", "Native records in, OTLP out, on one core."),
    "from-kafka": Section(
        "From Kafka to OTLP",
        "from_kafka",
        "A real Kafka, and whole processes: `mqtrace forward` on a native trace topic; a Collector with its Kafka receiver on"
        " the same events written as spans, at one thread at a time (`GOMAXPROCS=1`), without metrics or compression. The"
        " Collector decodes no native record.",
        usual=False,
        minutes=3,
        messages=100_000,
        most_rounds=5,
    ),
    "normalisation": Section(
        "Reading spans",
        "normalisation",
        "Files of OTLP to canonical events in parquet: ours in one process, then in two, beside a loop in Python. Both have"
        " read the files before: imports are not counted here.",
        usual=False,
        minutes=10,
        messages=100_000,
        most_rounds=3,
    ),
    "reconcile": Section(
        "Reconciliation",
        "reconcile",
        "Wall time of whole processes, their start included: Spark is `local[2]` with a heap of 2 GB, the local engine has"
        " the same two cores.",
        usual=False,
        minutes=20,
        messages=200_000,
        most_rounds=3,
    ),
    "hot-message": Section(
        "One message with very many deliveries",
        "hot_message",
        "Events written, packed and judged by one process, which holds what a worker holds; then 100,000 of its rows packed"
        " into ever smaller blobs.",
        usual=False,
        minutes=3,
        most_rounds=1,
    ),
    "growth": Section(
        "Ten times as many events",
        "growth",
        "One run of each size on `local[2]` with a heap of 2 GB; the spans are files compressed with zstd.",
        usual=False,
        minutes=15,
        messages=500_000,
        most_rounds=1,
        verb="tenfold",
    ),
    "growth-50": Section(
        "Fifty times as many events",
        "growth",
        "One run of each size on `local[2]` with a heap of 2 GB; the spans are files compressed with zstd, all of it on 20 GB of disk.",
        usual=False,
        minutes=60,
        messages=500_000,
        most_rounds=1,
        verb="fiftyfold",
    ),
}
"""In the order of the page."""
