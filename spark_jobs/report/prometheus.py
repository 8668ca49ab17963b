"""``metrics.prom``: the run as Prometheus text, for a textfile collector or a push gateway."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from spark_jobs.report.result import balance
from spark_jobs.report.wording import visible
from spark_jobs.taxonomy import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_jobs.report.result import Gate, Latency, Loss, Result

__all__ = ["METRICS", "PREFIX", "Metric", "render_metrics"]

PREFIX: Final = "mqtrace_reconcile_"
_Sample: TypeAlias = "tuple[Sequence[str], float | int | None]"
_COUNTS: Final = ("messages", "deliveries", "failures", "redeliveries", "unmatched")


@dataclass(frozen=True, slots=True)
class Metric:
    """One gauge, named ``PREFIX + name`` in the file; ``samples`` yields the values of its labels and its value."""

    name: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Result], Iterable[_Sample]]


def render_metrics(result: Result) -> str:
    """Return the text exposition format 0.0.4; an unknown value is left out, never 0."""
    return generate_latest(_Run(result)).decode()


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as ``prometheus_client`` collects it."""

    result: Result

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for metric in METRICS:
            family = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.samples(self.result):
                if value is not None and not math.isnan(value):
                    family.add_metric([visible(label, limit=200) for label in labels], _round(value))
            if family.samples:
                yield family


def _round(value: float) -> float:
    return float(value) if float(value).is_integer() else float(f"{value:.12g}")


def _one(value_of: Callable[[Result], float | None]) -> Callable[[Result], Iterable[_Sample]]:
    """Return the single sample of a metric without labels."""
    return lambda result: [((), value_of(result))]


def _by_key(counts: Mapping[str, float]) -> Iterable[_Sample]:
    return [((name,), n) for name, n in counts.items()]


def _nested(counts: Mapping[str, Mapping[str, int]]) -> Iterable[_Sample]:
    return [((outer, inner), n) for outer, inner_counts in counts.items() for inner, n in inner_counts.items()]


def _records(result: Result) -> Iterable[_Sample]:
    for line in balance(result.inputs):
        yield ("native", line.name), line.native
        yield ("otlp", line.name), line.otlp


def _gates(value_of: Callable[[Gate], float | None]) -> Callable[[Result], Iterable[_Sample]]:
    return lambda result: [((gate.name, gate.op), value_of(gate)) for gate in result.gates]


def _outcomes(result: Result) -> Iterable[_Sample]:
    return [((gate.name, word.value), int(word.value == gate.outcome)) for gate in result.gates for word in Outcome]


def _losses(value_of: Callable[[Loss], float | None]) -> Callable[[Result], Iterable[_Sample]]:
    return lambda result: [((side,), value_of(loss)) for side, loss in result.loss.items()]


def _ledger(result: Result) -> Iterable[_Sample]:
    for line in result.ledger.lines if result.ledger else ():
        labels = (line.side, line.component, line.cause, line.service or "")
        yield from (((*labels, place), getattr(line, place)) for place in ("counted", "attributed", "surplus"))


def _quantiles(labels: Sequence[str], row: Latency) -> Iterable[_Sample]:
    for quantile, ms in (("0.5", row.p50), ("0.95", row.p95), ("0.99", row.p99), ("1", row.max)):
        yield (*labels, quantile), _seconds(ms)


def _latencies(result: Result) -> Iterable[_Sample]:
    for stage, row in result.latency.items():
        yield from _quantiles((stage,), row)


def _processing(result: Result) -> Iterable[_Sample]:
    for group in result.groups:
        yield from _quantiles((group.topic, group.group), group.process)


def _groups(result: Result) -> Iterable[_Sample]:
    for group in result.groups:
        yield from (((group.topic, group.group, name), getattr(group, name)) for name in _COUNTS)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "verdict",
        ("verdict",),
        "1 for the verdict of the run, 0 for the others.",
        lambda result: [((word.value,), int(word.value == result.verdict)) for word in Verdict],
    ),
    Metric("exit_code", (), "Exit code of the run.", _one(lambda result: int(result.exit_code))),
    Metric("records", ("side", "place"), "Lines of the balance sheet, in records.", _records),
    Metric(
        "balanced", (), "1 when every record is accounted for.", _one(lambda result: int(result.conservation.holds))
    ),
    Metric("events", ("status",), "Events by status.", lambda result: _by_key(result.status)),
    Metric(
        "kind_events", ("kind", "status"), "Events by kind and status.", lambda result: _nested(result.status_by_kind)
    ),
    Metric("reason_events", ("reason",), "Events by reason.", lambda result: _by_key(result.reason)),
    Metric(
        "field_verdicts",
        ("field", "verdict"),
        "Compared fields by verdict.",
        lambda result: _nested({item.name: item.verdicts for item in result.fields}),
    ),
    Metric("gate_value", ("gate", "op"), "Measured value of a gate.", _gates(lambda gate: gate.value)),
    Metric("gate_threshold", ("gate", "op"), "Threshold of a gate.", _gates(lambda gate: gate.threshold)),
    Metric("gate_outcome", ("gate", "outcome"), "1 for the outcome of the gate, 0 for the others.", _outcomes),
    Metric(
        "unexplained_events",
        ("side",),
        "Events this side lacks without explanation.",
        _losses(lambda loss: loss.unexplained),
    ),
    Metric(
        "attributed_events",
        ("side",),
        "Events this side lacks for another named reason.",
        _losses(lambda loss: loss.attributed),
    ),
    Metric("checked_events", ("side",), "Events this side should have.", _losses(lambda loss: loss.checked)),
    Metric(
        "unexplained_ratio_upper_bound",
        ("side",),
        "Upper bound of the unexplained share of events, 95 % confidence.",
        _losses(lambda loss: None if loss.upper_bound_95_ppm is None else loss.upper_bound_95_ppm * 1e-6),
    ),
    Metric(
        "ledger_drops",
        ("side", "component", "cause", "service", "place"),
        "Losses that ledgers counted, those attributed to missing events, and the surplus.",
        _ledger,
    ),
    Metric("latency_seconds", ("stage", "quantile"), "Latency of a stage.", _latencies),
    Metric(
        "latency_events",
        ("stage",),
        "Events behind the latency of a stage.",
        lambda result: _by_key({stage: row.count for stage, row in result.latency.items()}),
    ),
    Metric("group_events", ("topic", "group", "count"), "Consumption of a topic by a group.", _groups),
    Metric("group_process_seconds", ("topic", "group", "quantile"), "Processing time of a group.", _processing),
    Metric(
        "window_begin_seconds",
        (),
        "Begin of the window, Unix time.",
        _one(lambda result: _seconds(result.window.begin_ms)),
    ),
    Metric(
        "window_end_seconds", (), "End of the window, Unix time.", _one(lambda result: _seconds(result.window.end_ms))
    ),
    Metric("horizon_seconds", (), "Settled horizon, Unix time.", _one(lambda result: _seconds(result.horizon_ms))),
    Metric(
        "spark_jobs", (), "Spark jobs of the run.", _one(lambda result: result.spark.jobs if result.spark else None)
    ),
    Metric(
        "spark_stages",
        (),
        "Spark stages of the run.",
        _one(lambda result: result.spark.stages if result.spark else None),
    ),
    Metric("wall_seconds", (), "Wall time of the run.", _one(lambda result: result.wall_seconds)),
)
"""Every metric in the order of the file; ``docs/reconciliation/findings.md`` lists the same."""
