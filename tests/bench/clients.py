"""This module knows what tracing adds to ``produce``, ``poll`` and ``consume``, beside OpenTelemetry's instrumentation.

The figures are those of ``tests.scoreboard.costs``, which measures each variant in a process of its own.
"""

from __future__ import annotations

from tests.bench.rows import Effort, Row, Target, beside
from tests.scoreboard.costs import BARE, Variant, measured_rounds

__all__ = ["measured"]

_ANCHOR = "opentelemetry-instrumentation-confluent-kafka"
_MESSAGES = 5_000
_BOTH, _OFF, _THEIRS, _THEIRS_OFF = ("ours", "both"), ("ours", "off"), ("incumbent", "on"), ("incumbent", "off")
_ALL_THREADS = "every thread of the process: the batches of both formats encoded and written as well"
_TABLE: tuple[tuple[str, str, Variant, Variant, Target | None, str], ...] = (
    ("`produce` and its delivery, recording", "produce", _BOTH, _THEIRS, Target("≤", 0.5), ""),
    ("`poll` and the process span, recording", "poll", _BOTH, _THEIRS, Target("≤", 0.5), ""),
    (
        "a message of `consume(100)`, recording",
        "consume",
        _BOTH,
        _THEIRS,
        Target("≤", 0.5),
        "ours exports both formats",
    ),
    ("`produce` and its delivery, sampler off", "produce", _OFF, _THEIRS_OFF, Target("≤", 0.4), ""),
    ("`poll`, sampler off", "poll", _OFF, _THEIRS_OFF, Target("≤", 0.4), ""),
    ("a message of `consume(100)`, sampler off", "consume", _OFF, _THEIRS_OFF, Target("≤", 0.4), ""),
    ("a message sent, the whole process", "process", _BOTH, _THEIRS, None, _ALL_THREADS),
)


def measured(effort: Effort) -> list[Row]:
    """Measure every variant; what is told is the time above that of the client alone, in the same round."""
    variants = [BARE, _BOTH, _OFF, _THEIRS, _THEIRS_OFF]
    took = measured_rounds(variants, rounds=effort.rounds, messages=effort.of(_MESSAGES, least=200))

    def added(variant: Variant, call: str) -> list[float]:
        return [one[call] - bare[call] for one, bare in zip(took[variant], took[BARE], strict=True)]

    return [
        beside(f"added to {measure}", _ANCHOR, added(ours, call), added(theirs, call), "µs CPU", target, note)
        for measure, call, ours, theirs, target, note in _TABLE
    ]
