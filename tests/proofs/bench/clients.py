"""What tracing adds to ``produce``, ``poll`` and ``consume``, compared with OpenTelemetry's instrumentation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.proofs.bench.rows import Effort, Row, Target, compare
from tests.proofs.scoreboard.costs import BARE, Variant, measured_rounds

_ANCHOR = "opentelemetry-instrumentation-confluent-kafka"
_MESSAGES = 600
"""Of one turn: fewer than the queue of 2,048 holds at three entries a message."""
_PACED, _HELD = 3_000, 600
_THREAD, _PROCESS = 0, 1
_INCUMBENT, _INCUMBENT_OFF = ("incumbent", "stock"), ("incumbent", "off")
_CALL_TITLES = {
    "produce": "`produce` and its report",
    "poll": "`poll` and its process span",
    "consume": "a message of `consume(100)`",
}
_CALLS = ("produce", "poll", "consume")
_Took = Mapping[Variant, Sequence[Mapping[str, tuple[float, float]]]]


class _Measure(NamedTuple):
    what: str
    ours: Variant
    part: int
    most: tuple[float | None, ...] = (None, None, None)
    theirs: Variant = _INCUMBENT


_MEASURES = (
    _Measure("calling thread, recording", ("ours", "both"), _THREAD, (0.25, 0.2, 0.3)),
    _Measure("whole process, both formats on our lanes", ("ours", "both"), _PROCESS, (0.3, 0.25, 0.6)),
    _Measure("whole process, both formats on our lanes, 512 a batch", ("ours", "both512"), _PROCESS),
    _Measure(
        "whole process, stock processor with `mqtrace_otlp`, and native",
        ("ours", "bytes+native"),
        _PROCESS,
        (0.45, 0.35, 0.8),
    ),
    _Measure(
        "whole process, stock processor and exporter, and native", ("ours", "stock+native"), _PROCESS, (1.3, 0.9, None)
    ),
    _Measure("calling thread, sampler off", ("ours", "off"), _THREAD, (0.25, 0.25, 0.25), _INCUMBENT_OFF),
    _Measure("calling thread, metrics collecting", ("ours", "metrics"), _THREAD, (0.5, 0.5, None)),
    _Measure("whole process, metrics collecting", ("ours", "metrics"), _PROCESS),
    _Measure("whole process, native alone", ("ours", "native"), _PROCESS),
    _Measure("whole process, the incumbent itself with `mqtrace_otlp`", ("incumbent", "bytes"), _PROCESS),
)
_HANDLERS = {"look": "a handler that reads the current span", "relay": "a message that its handler sends on"}


def measure(effort: Effort) -> list[Row]:
    """Return the added time of every variant: its own minus that of the client alone in the same turn."""
    variants = list(dict.fromkeys([BARE, _INCUMBENT, _INCUMBENT_OFF, *(each.ours for each in _MEASURES)]))
    took = measured_rounds(
        variants, rounds=effort.rounds, messages=effort.scale(_MESSAGES, least=200), calls=(*_CALLS, *_HANDLERS)
    )

    def added(variant: Variant, call: str, part: int) -> list[float]:
        return [one[call][part] - bare[call][part] for one, bare in zip(took[variant], took[BARE], strict=True)]

    def row(title: str, measure: _Measure, call: str, most: float | None) -> Row:
        ours, theirs = added(measure.ours, call, measure.part), added(measure.theirs, call, measure.part)
        return compare(title, _ANCHOR, ours, theirs, "µs CPU", None if most is None else Target("≤", most), "")

    rows = [
        row(f"{_CALL_TITLES[call]}: {measure.what}", measure, call, most)
        for measure in _MEASURES
        for call, most in zip(_CALLS, measure.most, strict=True)
    ]
    others = _other_rows(effort)
    whole = _Measure("whole process, both formats", ("ours", "both"), _PROCESS)
    return rows + others + [row(f"{title}: {whole.what}", whole, call, None) for call, title in _HANDLERS.items()]


def _other_rows(effort: Effort) -> list[Row]:
    """Measure the latency of a call, and the objects of a send in flight."""
    ours, variants = ("ours", "both"), [BARE, ("ours", "both"), _INCUMBENT]
    messages = effort.scale(_PACED, least=200)
    paced = measured_rounds(variants, rounds=effort.rounds, messages=messages, calls=("paced",))
    held = measured_rounds(variants, rounds=1, messages=effort.scale(_HELD, least=200), calls=("held",))

    def figures(took: _Took, call: str, part: int, of: Variant) -> list[float]:
        return [turn[call][part] for turn in took[of]]

    def added(part: int, of: Variant) -> list[float]:
        both = zip(figures(held, "held", part, of), figures(held, "held", part, BARE), strict=True)
        return [one - bare for one, bare in both]

    def of_both(act: Callable[..., list[float]], *words: Any) -> tuple[list[float], list[float]]:
        return act(*words, ours), act(*words, _INCUMBENT)

    late, usual = of_both(figures, paced, "paced", 1), of_both(figures, paced, "paced", 0)
    objects, blocks = of_both(added, 0), of_both(added, 1)
    most, note = Target("≤", 0.25), "wall time, the client's own included"
    sent = "a send in flight"
    return [
        compare("`produce` at 3,000/s: the 99.9th percentile of its latency", _ANCHOR, *late, "µs", most, note),
        compare("`produce` at 3,000/s: the median of its latency", _ANCHOR, *usual, "µs"),
        compare(
            f"{sent}: objects that the garbage collector tracks",
            _ANCHOR,
            *objects,
            "objects",
            Target("≤", 5, "objects"),
        ),
        compare(f"{sent}: memory blocks", _ANCHOR, *blocks, "blocks"),
    ]
