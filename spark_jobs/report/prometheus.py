"""``metrics.prom``: the run as Prometheus text, for a textfile collector or a push gateway."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from spark_jobs.report.result import balance
from spark_jobs.report.wording import visible
from spark_jobs.taxonomy import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from spark_jobs.report.result import Gate, Latency, Result

__all__ = ["METRICS", "PREFIX", "Metric", "render_metrics"]

PREFIX: Final = "mqtrace_reconcile_"
_Sample: TypeAlias = "tuple[Mapping[str, str], float | int | None]"


@dataclass(frozen=True, slots=True)
class Metric:
    """One gauge, named ``PREFIX + name`` in the file; ``of`` yields its labels and values."""

    name: str
    labels: tuple[str, ...]
    says: str
    of: Callable[[Result], Iterable[_Sample]]


def render_metrics(result: Result) -> str:
    """Return the text exposition format 0.0.4; a value nobody knows is left out, not written as 0."""
    return generate_latest(_Run(result)).decode()


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as ``prometheus_client`` collects it."""

    result: Result

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for metric in METRICS:
            family = GaugeMetricFamily(PREFIX + metric.name, metric.says, labels=metric.labels)
            for labels, value in metric.of(self.result):
                if value is not None and not math.isnan(value):
                    family.add_metric([visible(labels[name], limit=200) for name in metric.labels], _rounded(value))
            if family.samples:
                yield family


def _rounded(value: float) -> float:
    return float(value) if float(value).is_integer() else float(f"{value:.12g}")


def _one(value: float | None) -> list[_Sample]:
    return [({}, value)]


def _by(label: str, counts: Mapping[str, float]) -> list[_Sample]:
    return [({label: name}, n) for name, n in counts.items()]


def _verdict(result: Result) -> list[_Sample]:
    return [({"verdict": word.value}, int(word.value == result.verdict)) for word in Verdict]


def _records(result: Result) -> Iterable[_Sample]:
    for line in balance(result.inputs):
        yield {"side": "native", "place": line.name}, line.native
        yield {"side": "otlp", "place": line.name}, line.otlp


def _kinds(result: Result) -> Iterable[_Sample]:
    for kind, counts in result.status_by_kind.items():
        yield from (({"kind": kind, "status": status}, n) for status, n in counts.items())


def _fields(result: Result) -> Iterable[_Sample]:
    for item in result.fields:
        yield from (({"field": item.name, "verdict": verdict}, n) for verdict, n in item.verdicts.items())


def _gates(value: Callable[[Gate], float | None]) -> Callable[[Result], Iterable[_Sample]]:
    return lambda result: (({"gate": gate.name, "op": gate.op}, value(gate)) for gate in result.gates)


def _outcomes(result: Result) -> Iterable[_Sample]:
    for gate in result.gates:
        yield from (({"gate": gate.name, "outcome": word.value}, int(word.value == gate.outcome)) for word in Outcome)


def _loss(name: str, scale: float = 1) -> Callable[[Result], Iterable[_Sample]]:
    def samples(result: Result) -> Iterable[_Sample]:
        for side, loss in result.loss.items():
            value = getattr(loss, name)
            yield {"side": side}, None if value is None else value * scale

    return samples


def _ledger(result: Result) -> Iterable[_Sample]:
    for line in result.ledger.lines if result.ledger else ():
        labels = {"side": line.side, "component": line.component, "cause": line.cause, "service": line.service or ""}
        for place in ("counted", "attributed", "surplus"):
            yield {**labels, "place": place}, getattr(line, place)


def _quantiles(labels: dict[str, str], row: Latency) -> Iterable[_Sample]:
    for quantile, value in (("0.5", row.p50), ("0.95", row.p95), ("0.99", row.p99), ("1", row.max)):
        yield {**labels, "quantile": quantile}, None if value is None else value / 1000


def _latency(result: Result) -> Iterable[_Sample]:
    return chain.from_iterable(_quantiles({"stage": stage}, row) for stage, row in result.latency.items())


def _process(result: Result) -> Iterable[_Sample]:
    for group in result.groups:
        yield from _quantiles({"topic": group.topic, "group": group.group}, group.process)


def _group(result: Result) -> Iterable[_Sample]:
    for group in result.groups:
        for name in ("messages", "deliveries", "failures", "redeliveries", "unmatched"):
            yield {"topic": group.topic, "group": group.group, "count": name}, getattr(group, name)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _balanced(result: Result) -> Iterable[_Sample]:
    return _one(int(result.conservation.holds))


def _latency_events(result: Result) -> Iterable[_Sample]:
    return _by("stage", {stage: row.count for stage, row in result.latency.items()})


def _window(end: str) -> Callable[[Result], Iterable[_Sample]]:
    return lambda result: _one(_seconds(getattr(result.window, end)))


METRICS: tuple[Metric, ...] = (
    Metric("verdict", ("verdict",), "1 for the verdict of the run, 0 for the others.", _verdict),
    Metric("exit_code", (), "Exit code of the run.", lambda result: _one(int(result.exit_code))),
    Metric("records", ("side", "place"), "Lines of the balance sheet, in records.", _records),
    Metric("balanced", (), "1 when every record is accounted for.", _balanced),
    Metric("events", ("status",), "Events by status.", lambda result: _by("status", result.status)),
    Metric("kind_events", ("kind", "status"), "Events by kind and status.", _kinds),
    Metric("reason_events", ("reason",), "Events by reason.", lambda result: _by("reason", result.reason)),
    Metric("field_verdicts", ("field", "verdict"), "Compared fields by verdict.", _fields),
    Metric("gate_value", ("gate", "op"), "Measured value of a gate.", _gates(lambda gate: gate.value)),
    Metric("gate_threshold", ("gate", "op"), "Threshold of a gate.", _gates(lambda gate: gate.threshold)),
    Metric("gate_outcome", ("gate", "outcome"), "1 for the outcome of the gate, 0 for the others.", _outcomes),
    Metric("unexplained_events", ("side",), "Events this side lacks without explanation.", _loss("unexplained")),
    Metric("attributed_events", ("side",), "Events this side lacks for another named reason.", _loss("attributed")),
    Metric("checked_events", ("side",), "Events this side should have.", _loss("checked")),
    Metric(
        "unexplained_ratio_upper_bound",
        ("side",),
        "Upper bound of the unexplained share of events, 95 % confidence.",
        _loss("upper_bound_95_ppm", 1e-6),
    ),
    Metric(
        "ledger_drops",
        ("side", "component", "cause", "service", "place"),
        "Losses that ledgers counted, those attributed to missing events, and the surplus.",
        _ledger,
    ),
    Metric("latency_seconds", ("stage", "quantile"), "Latency of a stage.", _latency),
    Metric("latency_events", ("stage",), "Events behind the latency of a stage.", _latency_events),
    Metric("group_events", ("topic", "group", "count"), "Consumption of a topic by a group.", _group),
    Metric("group_process_seconds", ("topic", "group", "quantile"), "Processing time of a group.", _process),
    Metric(
        "window_begin_seconds",
        (),
        "Begin of the window, Unix time.",
        _window("begin_ms"),
    ),
    Metric("window_end_seconds", (), "End of the window, Unix time.", _window("end_ms")),
    Metric("horizon_seconds", (), "Settled horizon, Unix time.", lambda result: _one(_seconds(result.horizon_ms))),
    Metric(
        "spark_jobs", (), "Spark jobs of the run.", lambda result: _one(result.spark.jobs if result.spark else None)
    ),
    Metric(
        "spark_stages",
        (),
        "Spark stages of the run.",
        lambda result: _one(result.spark.stages if result.spark else None),
    ),
    Metric("wall_seconds", (), "Wall time of the run.", lambda result: _one(result.wall_seconds)),
)
"""Every metric, in the order it is written; ``docs/reconciliation/findings.md`` lists the same."""
