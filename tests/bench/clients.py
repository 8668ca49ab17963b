"""This module knows what tracing adds to ``produce``, ``poll`` and ``consume``, beside OpenTelemetry's instrumentation.

The figures are those of ``tests.scoreboard.costs``, whose variants take turns, each in a process of its own.
"""

from __future__ import annotations

from tests.bench.rows import Effort, Row, Target, beside
from tests.scoreboard.costs import BARE, Variant, measured_rounds

__all__ = ["POLL_ALONE", "PRODUCE_ALONE", "measured"]

PRODUCE_ALONE = "added to `produce` and its delivery, nothing exported meanwhile"
POLL_ALONE = "added to `poll` and the process span, nothing exported meanwhile"

_ANCHOR = "opentelemetry-instrumentation-confluent-kafka"
_MESSAGES = 5_000
_BOTH, _OFF, _THEIRS, _THEIRS_OFF = ("ours", "both"), ("ours", "off"), ("incumbent", "on"), ("incumbent", "off")
_ALONE, _THEIRS_ALONE = ("ours", "asleep"), ("incumbent", "asleep")
_HELD = "the export threads of either wait until the calls are over"
_ALL_THREADS = "every thread of the process: the batches of both formats encoded and written as well"
_TABLE: tuple[tuple[str, str, Variant, Variant, Target | None, str], ...] = (
    ("added to `produce` and its delivery, recording", "produce", _BOTH, _THEIRS, Target("≤", 0.5), ""),
    ("added to `poll` and the process span, recording", "poll", _BOTH, _THEIRS, Target("≤", 0.5), ""),
    (
        "added to a message of `consume(100)`, recording",
        "consume",
        _BOTH,
        _THEIRS,
        Target("≤", 0.5),
        "ours exports both formats",
    ),
    ("added to `produce` and its delivery, sampler off", "produce", _OFF, _THEIRS_OFF, Target("≤", 0.4), ""),
    ("added to `poll`, sampler off", "poll", _OFF, _THEIRS_OFF, Target("≤", 0.4), ""),
    ("added to a message of `consume(100)`, sampler off", "consume", _OFF, _THEIRS_OFF, Target("≤", 0.4), ""),
    (PRODUCE_ALONE, "produce", _ALONE, _THEIRS_ALONE, None, _HELD),
    (POLL_ALONE, "poll", _ALONE, _THEIRS_ALONE, None, _HELD),
    ("added to a message sent, the whole process", "process", _BOTH, _THEIRS, None, _ALL_THREADS),
)


def measured(effort: Effort) -> list[Row]:
    """Measure every variant; what is told is the time above that of the client alone, in the same turn."""
    variants = [BARE, _BOTH, _OFF, _ALONE, _THEIRS, _THEIRS_OFF, _THEIRS_ALONE]
    took = measured_rounds(variants, rounds=effort.rounds, messages=effort.of(_MESSAGES, least=200))

    def added(variant: Variant, call: str) -> list[float]:
        return [one[call] - bare[call] for one, bare in zip(took[variant], took[BARE], strict=True)]

    return [
        beside(measure, _ANCHOR, added(ours, call), added(theirs, call), "µs CPU", target, note)
        for measure, call, ours, theirs, target, note in _TABLE
    ]
