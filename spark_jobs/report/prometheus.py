"""Write ``metrics.prom``: the metrics of a result in Prometheus's text format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from spark_jobs.report.result import GROUP_COUNTS, balance, split_heaviest
from spark_jobs.report.wording import visible
from spark_jobs.taxonomy import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_jobs.report.result import Gate, Group, Latency, Loss, Result

PREFIX: Final = "mqtrace_reconcile_"
MOST_GROUPS: Final = 200
"""Pairs of topic and group with series of their own; the others are added up."""
_Sample: TypeAlias = "tuple[Sequence[str], float | int | None]"


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
                    family.add_metric([visible(label) for label in labels], _round(value))
            if family.samples:
                yield family


def _round(value: float) -> float:
    return float(value) if float(value).is_integer() else float(f"{value:.12g}")


_Samples: TypeAlias = "Callable[[Result], Iterable[_Sample]]"


def _one(name: str, help_: str, value_of: Callable[[Result], float | None]) -> Metric:
    return Metric(name, (), help_, lambda result: [((), value_of(result))])


def _by_key(counts_of: Callable[[Result], Mapping[str, float]]) -> _Samples:
    return lambda result: [((name,), n) for name, n in counts_of(result).items()]


def _nested(counts_of: Callable[[Result], Mapping[str, Mapping[str, int]]]) -> _Samples:
    return lambda result: [
        ((outer, inner), n) for outer, counts in counts_of(result).items() for inner, n in counts.items()
    ]


def _verdicts(result: Result) -> Iterable[_Sample]:
    return [((word.value,), int(word.value == result.verdict)) for word in Verdict]


def _records(result: Result) -> Iterable[_Sample]:
    for line in balance(result.inputs):
        yield ("native", line.name), line.native
        yield ("otlp", line.name), line.otlp


def _gates(value_of: Callable[[Gate], float | None]) -> _Samples:
    return lambda result: [((gate.name, gate.op), value_of(gate)) for gate in result.gates]


def _outcomes(result: Result) -> Iterable[_Sample]:
    return [((gate.name, word.value), int(word.value == gate.outcome)) for gate in result.gates for word in Outcome]


def _loss(name: str, help_: str, value_of: Callable[[Loss], float | None]) -> Metric:
    return Metric(
        name, ("side",), help_, lambda result: [((side,), value_of(loss)) for side, loss in result.loss.items()]
    )


def _bound(loss: Loss) -> float | None:
    return None if loss.upper_bound_95_ppm is None else loss.upper_bound_95_ppm * 1e-6


def _ledger(result: Result) -> Iterable[_Sample]:
    for line in result.ledger.lines if result.ledger else ():
        labels = (line.side, line.component, line.cause, line.service or "")
        yield from (((*labels, place), getattr(line, place)) for place in ("counted", "attributed", "surplus"))


def _quantiles(rows_of: Callable[[Result], Iterable[tuple[Sequence[str], Latency]]]) -> _Samples:
    return lambda result: [
        ((*labels, quantile), _seconds(ms))
        for labels, row in rows_of(result)
        for quantile, ms in (("0.5", row.p50), ("0.95", row.p95), ("0.99", row.p99), ("1", row.max))
    ]


def _verdicts_of_fields(result: Result) -> Mapping[str, Mapping[str, int]]:
    return {item.name: item.verdicts for item in result.fields}


def _latency_counts(result: Result) -> Mapping[str, float]:
    return {stage: row.count for stage, row in result.latency.items()}


def _latencies(result: Result) -> Iterable[tuple[Sequence[str], Latency]]:
    return [((stage,), row) for stage, row in result.latency.items()]


def _processing(result: Result) -> Iterable[tuple[Sequence[str], Latency]]:
    return [((group.topic, group.group), group.process) for group in _split(result)[0]]


def _groups(result: Result) -> Iterable[_Sample]:
    for group in _split(result)[0]:
        yield from (((group.topic, group.group, name), getattr(group, name)) for name in GROUP_COUNTS)


def _other_groups(result: Result) -> Iterable[_Sample]:
    others = _split(result)[1]
    yield ("pairs",), len(others)
    yield from (((name,), sum(getattr(group, name) for group in others)) for name in GROUP_COUNTS)


def _split(result: Result) -> tuple[list[Group], list[Group]]:
    return split_heaviest(result.groups, "deliveries", MOST_GROUPS)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _of_spark(name: str) -> Callable[[Result], float | None]:
    return lambda result: getattr(result.spark, name) if result.spark else None


_GROUP_QUANTILE = ("topic", "group", "quantile")
_LEDGER_LABELS = ("side", "component", "cause", "service", "place")
_LEDGER_HELP = "Losses that ledgers counted, those attributed to missing events, and the surplus."
_OTHERS_HELP = f"Consumption by the pairs beyond the {MOST_GROUPS} with series of their own, and the number of `pairs`."
_BOUND_HELP = "Upper bound of the unexplained share of events, 95 % confidence."

METRICS: Final[tuple[Metric, ...]] = (
    Metric("verdict", ("verdict",), "1 for the verdict of the run, 0 for the others.", _verdicts),
    _one("exit_code", "Exit code of the run.", lambda result: int(result.exit_code)),
    Metric("records", ("side", "place"), "Lines of the balance sheet, in records.", _records),
    _one("balanced", "1 when every record is accounted for.", lambda result: int(result.conservation.holds)),
    Metric("events", ("status",), "Events by status.", _by_key(lambda result: result.status)),
    Metric("kind_events", ("kind", "status"), "Events by kind and status.", _nested(lambda it: it.status_by_kind)),
    Metric("reason_events", ("reason",), "Events by reason.", _by_key(lambda result: result.reason)),
    Metric("field_verdicts", ("field", "verdict"), "Compared fields by verdict.", _nested(_verdicts_of_fields)),
    Metric("gate_value", ("gate", "op"), "Measured value of a gate.", _gates(lambda gate: gate.value)),
    Metric("gate_threshold", ("gate", "op"), "Threshold of a gate.", _gates(lambda gate: gate.threshold)),
    Metric("gate_outcome", ("gate", "outcome"), "1 for the outcome of the gate, 0 for the others.", _outcomes),
    _loss("unexplained_events", "Events this side lacks without explanation.", lambda loss: loss.unexplained),
    _loss("attributed_events", "Events this side lacks for another named reason.", lambda loss: loss.attributed),
    _loss("checked_events", "Events this side should have.", lambda loss: loss.checked),
    _loss("unexplained_ratio_upper_bound", _BOUND_HELP, _bound),
    Metric("ledger_drops", _LEDGER_LABELS, _LEDGER_HELP, _ledger),
    Metric("latency_seconds", ("stage", "quantile"), "Latency of a stage.", _quantiles(_latencies)),
    Metric("latency_events", ("stage",), "Events behind the latency of a stage.", _by_key(_latency_counts)),
    Metric("group_events", ("topic", "group", "count"), "Consumption of a topic by a group.", _groups),
    Metric("other_group_events", ("count",), _OTHERS_HELP, _other_groups),
    Metric("group_process_seconds", _GROUP_QUANTILE, "Processing time of a group.", _quantiles(_processing)),
    _one("window_begin_seconds", "Begin of the window, Unix time.", lambda result: _seconds(result.window.begin_ms)),
    _one("window_end_seconds", "End of the window, Unix time.", lambda result: _seconds(result.window.end_ms)),
    _one("horizon_seconds", "Settled horizon, Unix time.", lambda result: _seconds(result.horizon_ms)),
    _one("spark_jobs", "Spark jobs of the run.", _of_spark("jobs")),
    _one("spark_stages", "Spark stages of the run.", _of_spark("stages")),
    _one("wall_seconds", "Wall time of the run.", lambda result: result.wall_seconds),
)
"""Every metric in the order of the file; ``docs/reconciliation/findings.md`` lists the same."""
