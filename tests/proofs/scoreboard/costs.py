"""What tracing costs an application, its calling thread and its whole process, above the client alone.

Each variant is a process of its own, :mod:`tests.proofs.scoreboard.contender`. They take turns, one working while the others
wait, so that a slow second is as slow for each. The messages are read back: a missing or wrong trace fails the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO

import confluent_kafka
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.proofs.bench.rows import run_in_turns
from tests.proofs.scoreboard.contender import WARM
from tests.proofs.scoreboard.receiving import receiver
from tests.support.source_tree import ROOT

Variant = tuple[str, str]
"""A subject and its mode.

``stock``: the SDK's batch processor and OTLP exporter. ``bytes``: the SDK's processor with ``mqtrace_otlp``.
``stock+native``, ``bytes+native``: the same beside native records. ``native``: those alone. ``both``: both formats on our
own lanes, ``both512`` with 512 spans a batch, as the SDK's processor has. ``metrics``: with a MeterProvider. ``off``: nothing is sampled.
"""

BARE: Variant = ("bare", "stock")
TURNS = 3
"""How often each variant does each call in a round, between starting its process and ending it."""

_SENDING = frozenset({"produce", "paced", "held"})
_END_S = 60.0
_READ_S = 20.0


def measured_rounds(
    variants: Sequence[Variant], *, rounds: int, messages: int, calls: Sequence[str]
) -> dict[Variant, list[dict[str, tuple[float, float]]]]:
    """Return what each variant took, turn by turn, ``TURNS`` in a round: call → µs of CPU time a message.

    The pairs are the calling thread and the whole process, other figures for ``paced`` and ``held``. Each turn begins with
    another variant.
    """
    took: dict[Variant, list[dict[str, tuple[float, float]]]] = {variant: [] for variant in variants}
    with EmbeddedKafka() as kafka, receiver() as endpoint:
        for number in range(rounds):
            with ExitStack() as stack:
                first = number * TURNS % len(variants)
                running = {
                    variant: stack.enter_context(
                        _contender(variant, kafka, f"costs.{number}.{place}", messages, endpoint, calls)
                    )
                    for place, variant in enumerate([*variants[first:], *variants[:first]])
                }
                taken = {
                    call: run_in_turns({variant: partial(each.take, call) for variant, each in running.items()}, TURNS)
                    for call in calls
                }
            for variant, turns in took.items():
                turns += [{call: taken[call][variant][turn] for call in calls} for turn in range(TURNS)]
    return took


@contextmanager
def _contender(
    variant: Variant, kafka: EmbeddedKafka, topic: str, messages: int, endpoint: str, calls: Sequence[str]
) -> Iterator[_Contender]:
    """Run the process of ``variant`` with a topic of its own; what it sent is looked at when it has ended."""
    servers = kafka.bootstrap_servers
    kafka.create_topic(topic, partitions=1)
    kafka.create_topic(f"{topic}.relayed", partitions=1)
    words = (*variant, servers, topic, str(messages), f"{endpoint}/{topic}")
    command = [sys.executable, "-m", "tests.proofs.scoreboard.contender", *words]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        one = _Contender(variant, process, errors)
        try:
            yield one
            process.communicate(timeout=_END_S)
        except BaseException:
            process.kill()
            raise
        assert process.returncode == 0, one.failure()
    _audit(variant, servers, topic, sum(call in _SENDING for call in calls) * (TURNS * messages + WARM))


class _Contender:
    """The process of one variant, which does what it is told to."""

    def __init__(self, variant: Variant, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._variant, self._process, self._errors = variant, process, errors

    def take(self, call: str) -> tuple[float, float]:
        """Let it do ``call``; return the µs of CPU time a message, of the calling thread and of the whole process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it says why where its answer is missing
            self._process.stdin.write(f"{call}\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.failure()
        thread, process = json.loads(answer)
        return thread, process

    def failure(self) -> str:
        self._process.wait(_END_S)
        self._errors.seek(0)
        return f"{self._variant}: {self._errors.read()[-2000:]}"


def _audit(variant: Variant, servers: str, topic: str, sent: int) -> None:
    traces = [_trace(message) for message in _read_back(servers, topic)]
    assert len(traces) == sent, f"{variant}: {len(traces)} messages"
    if variant == BARE:
        assert not any(each.is_valid for each in traces)
        return
    sampled = variant[1] != "off"
    assert all(each.trace_flags.sampled is sampled for each in traces), f"{variant}: {traces[-1]}"
    assert len({each.trace_id for each in traces if each.is_valid}) == len(traces), f"{variant}"


def _read_back(servers: str, topic: str) -> list[confluent_kafka.Message]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "auditing"})
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=_READ_S)
    messages: list[confluent_kafka.Message] = []
    while len(messages) < end:
        some = [each for each in consumer.consume(end - len(messages), _READ_S) if each.error() is None]
        assert some, f"{topic}: {len(messages)} of {end} messages could be read"
        messages += some
    consumer.close()
    return messages


def _trace(message: confluent_kafka.Message) -> SpanContext:
    carrier = {name: value.decode() for name, value in message.headers() or ()}
    return get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
