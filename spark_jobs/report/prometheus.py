"""Write ``metrics.prom``: the metrics of a result in Prometheus's text format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from spark_jobs.report.result import GROUP_COUNTS, balance, split_heaviest
from spark_jobs.report.wording import visible
from spark_jobs.taxonomy import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_jobs.report.result import Latency, Result

PREFIX: Final = "mqtrace_reconcile_"
MOST_GROUPS: Final = 200
"""Pairs of topic and group with series of their own; the others are added up."""
_SIDES: Final = ("native", "otlp")


class Metric(NamedTuple):
    """One gauge, named ``PREFIX + name`` in the file."""

    name: str
    labels: tuple[str, ...]
    help: str


METRICS: Final = (
    Metric("verdict", ("verdict",), "1 for the verdict of the run, 0 for the others."),
    Metric("exit_code", (), "Exit code of the run."),
    Metric("records", ("side", "place"), "Lines of the balance sheet, in records."),
    Metric("balanced", (), "1 when every record is accounted for."),
    Metric("events", ("status",), "Events by status."),
    Metric("kind_events", ("kind", "status"), "Events by kind and status."),
    Metric("reason_events", ("reason",), "Events by reason."),
    Metric("field_verdicts", ("field", "verdict"), "Compared fields by verdict."),
    Metric("gate_value", ("gate", "op"), "Measured value of a gate."),
    Metric("gate_threshold", ("gate", "op"), "Threshold of a gate."),
    Metric("gate_outcome", ("gate", "outcome"), "1 for the outcome of the gate, 0 for the others."),
    Metric("unexplained_events", ("side",), "Events this side lacks without explanation."),
    Metric("attributed_events", ("side",), "Events this side lacks for another named reason."),
    Metric("checked_events", ("side",), "Events this side should have."),
    Metric(
        "unexplained_ratio_upper_bound", ("side",), "Upper bound of the unexplained share of events, 95 % confidence."
    ),
    Metric(
        "ledger_drops",
        ("side", "component", "cause", "service", "place"),
        "Losses that ledgers counted, those attributed to missing events, and the surplus.",
    ),
    Metric("latency_seconds", ("stage", "quantile"), "Latency of a stage."),
    Metric("latency_events", ("stage",), "Events behind the latency of a stage."),
    Metric("group_events", ("topic", "group", "count"), "Consumption of a topic by a group."),
    Metric(
        "other_group_events",
        ("count",),
        f"Consumption by the pairs beyond the {MOST_GROUPS} with series of their own, and the number of `pairs`.",
    ),
    Metric("group_process_seconds", ("topic", "group", "quantile"), "Processing time of a group."),
    Metric("window_begin_seconds", (), "Begin of the window, Unix time."),
    Metric("window_end_seconds", (), "End of the window, Unix time."),
    Metric("horizon_seconds", (), "Settled horizon, Unix time."),
    Metric("spark_jobs", (), "Spark jobs of the run."),
    Metric("spark_stages", (), "Spark stages of the run."),
    Metric("wall_seconds", (), "Wall time of the run."),
)
"""Every metric in the order of the file; ``docs/reconciliation/findings.md`` lists the same."""


def render_metrics(result: Result) -> str:
    """Return the text exposition format 0.0.4; an unknown value is left out, never 0."""
    return generate_latest(_Run(result)).decode()


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as ``prometheus_client`` collects it."""

    result: Result

    def collect(self) -> Iterator[GaugeMetricFamily]:
        values = read_values(self.result)
        for metric in METRICS:
            family = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            taken: set[tuple[str, ...]] = set()  # also of unknown values: a group has the same number in every metric
            for labels, value in flatten_labels(values[metric.name]):
                shown, number = [visible(label) for label in labels], 1
                while tuple(shown) in taken:  # of two equal series Prometheus refuses the whole file
                    number += 1
                    shown[0] = f"{visible(labels[0])} ({number})"
                taken.add(tuple(shown))
                if value is not None and not math.isnan(value):
                    family.add_metric(shown, _round(value))
            if family.samples:
                yield family


def flatten_labels(values: Any, labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float | None]]:
    """Yield the labels and the value of each sample of a metric."""
    if not isinstance(values, Mapping):
        yield labels, values
        return
    for key, each in values.items():
        yield from flatten_labels(each, (*labels, *(key if isinstance(key, tuple) else (key,))))


def _round(value: float) -> float:
    return float(value) if float(value).is_integer() else float(f"{value:.12g}")


def read_values(result: Result) -> dict[str, Any]:
    """Return the value of each metric by name; one with labels is a dictionary, nested or with tuples as keys."""
    groups, others = split_heaviest(result.groups, "deliveries", MOST_GROUPS)
    losses = result.loss.items()
    return {
        "verdict": {word.value: word.value == result.verdict for word in Verdict},
        "exit_code": result.exit_code,
        "records": {(side, line.name): getattr(line, side) for line in balance(result.inputs) for side in _SIDES},
        "balanced": result.conservation.holds,
        "events": result.status,
        "kind_events": result.status_by_kind,
        "reason_events": result.reason,
        "field_verdicts": {item.name: item.verdicts for item in result.fields},
        "gate_value": {(gate.name, gate.op): gate.value for gate in result.gates},
        "gate_threshold": {(gate.name, gate.op): gate.threshold for gate in result.gates},
        "gate_outcome": {
            (gate.name, word.value): word.value == gate.outcome for gate in result.gates for word in Outcome
        },
        "unexplained_events": {side: loss.unexplained for side, loss in losses},
        "attributed_events": {side: loss.attributed for side, loss in losses},
        "checked_events": {side: loss.checked for side, loss in losses},
        "unexplained_ratio_upper_bound": {
            side: None if loss.upper_bound_95_ppm is None else loss.upper_bound_95_ppm * 1e-6 for side, loss in losses
        },
        "ledger_drops": {
            (line.side, line.component, line.cause, line.service or "", place): getattr(line, place)
            for line in (result.ledger.lines if result.ledger else ())
            for place in ("counted", "attributed", "surplus")
        },
        "latency_seconds": {stage: _quantiles(row) for stage, row in result.latency.items()},
        "latency_events": {stage: row.count for stage, row in result.latency.items()},
        "group_events": {
            (group.topic, group.group, name): getattr(group, name) for group in groups for name in GROUP_COUNTS
        },
        "other_group_events": {
            "pairs": len(others),
            **{name: sum(getattr(group, name) for group in others) for name in GROUP_COUNTS},
        },
        "group_process_seconds": {(group.topic, group.group): _quantiles(group.process) for group in groups},
        "window_begin_seconds": _seconds(result.window.begin_ms),
        "window_end_seconds": _seconds(result.window.end_ms),
        "horizon_seconds": _seconds(result.horizon_ms),
        "spark_jobs": result.spark and result.spark.jobs,
        "spark_stages": result.spark and result.spark.stages,
        "wall_seconds": result.wall_seconds,
    }


def _quantiles(row: Latency) -> dict[str, float | None]:
    quantiles = {"0.5": row.p50, "0.95": row.p95, "0.99": row.p99, "1": row.max}
    return {quantile: _seconds(ms) for quantile, ms in quantiles.items()}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
