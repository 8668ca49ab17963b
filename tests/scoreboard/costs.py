"""This module knows what tracing costs the application's own thread, against the client alone.

Each variant is a process of its own, :mod:`tests.scoreboard.contender`; with ``both``, ours writes native records beside
OpenTelemetry's spans. All of them are there at once and take turns, one working while the others wait, so that a machine
which is slow for a second is as slow for everybody. What they sent is read back, and it is a failure when a message
carries no trace, or another than it should.
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

from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from tests.bench.rows import interleaved
from tests.scoreboard.contender import CALLS, WARM
from tests.scoreboard.stage import Seen
from tests.scoreboard.subjects import SUBJECTS
from tests.support.source_tree import ROOT

__all__ = ["BARE", "TURNS", "Variant", "measured_costs", "measured_rounds"]

Variant = tuple[str, str]
"""A subject, and how it is switched on: ``on``, ``off`` (the sampler), ``both`` (formats), ``asleep``.

The last is ``both`` with export threads that do nothing before they are flushed: what is left is the calling thread's.
"""

BARE: Variant = ("bare", "on")
TURNS = 3
"""How often each variant does each call in a round, between starting its process and ending it."""

_MESSAGES, _ROUNDS = 2_000, 3
_HALF, _UNSAMPLED_US = 0.5, 2.0
_END_S = 60.0
_READ_S = 20.0
_JUDGED = ("produce", "poll")
_VARIANTS = [BARE, *((subject, sampling) for subject in SUBJECTS for sampling in ("on", "off"))]


def measured_costs() -> dict[str, dict[str, Seen]]:
    """Measure what the scoreboard asks; return subject → number of the row → what was seen. The best turn counts."""
    turns = measured_rounds(_VARIANTS, rounds=_ROUNDS, messages=_MESSAGES)
    best = {variant: {call: min(took[call] for took in each) for call in _JUDGED} for variant, each in turns.items()}
    bare = best[BARE]
    added = {variant: {call: took[call] - bare[call] for call in bare} for variant, took in best.items()}
    return {subject: _rows(subject, added) for subject in SUBJECTS}


def measured_rounds(
    variants: Sequence[Variant], *, rounds: int, messages: int
) -> dict[Variant, list[dict[str, float]]]:
    """Return what each variant took, turn by turn, ``TURNS`` in a round: call → µs of CPU time a message.

    ``process`` is what the whole process took for a message that was sent. Each turn begins with another variant.
    """
    took: dict[Variant, list[dict[str, float]]] = {variant: [] for variant in variants}
    with EmbeddedKafka() as kafka:
        for number in range(rounds):
            with ExitStack() as stack:
                first = number * TURNS % len(variants)
                running = {
                    variant: stack.enter_context(_contender(variant, kafka, f"costs.{number}.{place}", messages))
                    for place, variant in enumerate([*variants[first:], *variants[:first]])
                }
                taken = {
                    call: interleaved({variant: partial(each.take, call) for variant, each in running.items()}, TURNS)
                    for call in CALLS
                }
            for variant, turns in took.items():
                turns += [
                    {call: taken[call][variant][turn][0] for call in CALLS}
                    | {"process": taken["produce"][variant][turn][1]}
                    for turn in range(TURNS)
                ]
    return took


def _rows(subject: str, added: dict[Variant, dict[str, float]]) -> dict[str, Seen]:
    incumbent, mine, silent = added["incumbent", "on"], added[subject, "on"], added[subject, "off"]
    shares = {call: mine[call] / incumbent[call] for call in mine}
    told = ", ".join(f"{call} {share:.1f}" for call, share in shares.items())
    off = ", ".join(f"{call} {max(silent[call], 0):.0f} µs" for call in silent)
    return {
        "F17": Seen(max(shares.values()) <= _HALF, f"added, as a share of the incumbent's: {told}"),
        "T39": Seen(max(silent.values()) <= _UNSAMPLED_US, f"added: {off}"),
    }


@contextmanager
def _contender(variant: Variant, kafka: EmbeddedKafka, topic: str, messages: int) -> Iterator[_Contender]:
    """Run the process of ``variant`` with a topic of its own; what it sent is looked at when it has ended."""
    servers = kafka.bootstrap_servers
    kafka.create_topic(topic, partitions=1)
    command = [sys.executable, "-m", "tests.scoreboard.contender", *variant, servers, topic, str(messages)]
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
    _audit(variant, servers, topic, TURNS * messages + WARM)


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
        """Return whose it is and what it said at its end."""
        self._process.wait(_END_S)
        self._errors.seek(0)
        return f"{self._variant}: {self._errors.read()[-2000:]}"


def _audit(variant: Variant, servers: str, topic: str, sent: int) -> None:
    """Fail unless every message carries a trace of its own, sampled or not as it should be."""
    traces = [_trace(message) for message in _read_back(servers, topic)]
    assert len(traces) == sent, f"{variant}: {len(traces)} messages"
    if variant == BARE:
        assert not any(each.is_valid for each in traces)
        return
    sampled = variant[1] != "off"
    assert all(each.trace_flags.sampled is sampled for each in traces), f"{variant}: {traces[-1]}"
    assert len({each.trace_id for each in traces if each.is_valid}) == len(traces), f"{variant}"


def _read_back(servers: str, topic: str) -> list[confluent_kafka.Message]:
    """Return all messages of a topic; nothing is instrumented in this process."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "auditing"})
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=_READ_S)
    found: list[confluent_kafka.Message] = []
    while len(found) < end:
        some = [each for each in consumer.consume(end - len(found), _READ_S) if each.error() is None]
        assert some, f"{topic}: {len(found)} of {end} messages could be read"
        found += some
    consumer.close()
    return found


def _trace(message: confluent_kafka.Message) -> SpanContext:
    """Return the trace that a message carries; an invalid one where it carries none."""
    carrier = {name: value.decode() for name, value in message.headers() or ()}
    return get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
