"""Write the Grafana dashboard and the Prometheus alert rules from the names of the code's metrics.

In an expression ``<otel.name>`` stands for the Prometheus name of that metric; an unknown name raises ``KeyError``.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider

from bridge.forwarder.service import ForwardMetrics
from otel_mqtrace.clients.confluent_kafka.statistics import ClientStatistics
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.hooks.metrics import MessagingMetrics
from otel_mqtrace.spans.processor import COMPONENT_TYPE, MqTraceSpanProcessor
from otel_mqtrace.spans.queue import EXPORT_FAILED
from spark_jobs.report.prometheus import METRICS, PREFIX
from spark_jobs.taxonomy import Outcome, Verdict

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter


_UNITS: Final = {"s": "_seconds", "By": "_bytes"}


@cache
def metric_names() -> dict[str, str]:
    """Return the name in the code → the name in Prometheus, by OpenTelemetry's rules for translating names.

    Dots become underscores, units become suffixes, units in braces are left out, counters end in ``_total``.
    """
    meter = _NamingMeter("naming")
    MessagingMetrics(meter)
    ClientStatistics(meter)
    ForwardMetrics(meter=meter)
    with tempfile.TemporaryDirectory() as directory:
        exporter = NativeFileSpanExporter(directory=directory)
        MqTraceSpanProcessor(exporter, meter_provider=_NamingProvider(meter)).shutdown()
    return meter.names | {PREFIX + metric.name: PREFIX + metric.name for metric in METRICS}


class _NamingMeter(NoOpMeter):
    """Record the instruments that are created."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.names: dict[str, str] = {}

    def _record(self, name: str, unit: str, suffix: str = "") -> None:
        self.names[name] = name.replace(".", "_") + _UNITS.get(unit, "") + suffix

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        self._record(name, unit, "_total")
        return super().create_counter(name, unit, description)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **advice: Any) -> Any:
        self._record(name, unit)
        return super().create_histogram(name, unit, description, **advice)

    def create_observable_counter(self, name: str, callbacks: Any = None, unit: str = "", description: str = "") -> Any:
        self._record(name, unit, "_total")
        return super().create_observable_counter(name, callbacks, unit, description)

    def create_observable_gauge(self, name: str, callbacks: Any = None, unit: str = "", description: str = "") -> Any:
        self._record(name, unit)
        return super().create_observable_gauge(name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
    ) -> Any:
        self._record(name, unit)
        return super().create_observable_up_down_counter(name, callbacks, unit, description)


class _NamingProvider(NoOpMeterProvider):
    """Give one meter to everybody."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        return self._meter


class Panel(NamedTuple):
    """One panel: ``queries`` maps a legend to its expression; ``unit`` is Grafana's name of a unit."""

    row: str
    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"


class Alert(NamedTuple):
    """One alert; ``summary`` describes the event, ``action`` the remedy."""

    group: str
    name: str
    expr: str
    lasting: str
    severity: str
    summary: str
    action: str


_OURS: Final = f'otel_component_type="{COMPONENT_TYPE}"'
_PROCESSED: Final = "<otel.sdk.processor.span.processed>"
_DROPPED: Final = f'{_PROCESSED}{{{_OURS},error_type!="",error_type!="{EXPORT_FAILED}"}}'
_FAILED: Final = f'{_PROCESSED}{{{_OURS},error_type="{EXPORT_FAILED}"}}'
_FULLNESS: Final = (
    f"<otel.sdk.processor.span.queue.size>{{{_OURS}}} / <otel.sdk.processor.span.queue.capacity>{{{_OURS}}}"
)
_DAY_S: Final = 86_400


def _growth(counter: str, by: str, window: str = "10m") -> str:
    """Return an expression that also sees the first value of a series that did not exist before."""
    return (
        f"sum by ({by}) (increase({counter}[{window}])) > 0 "
        f"or sum by ({by}) ({counter} unless {counter} offset {window}) > 0"
    )


def _quantile(share: str, histogram: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({histogram}_bucket{{{_JOB}}}[$__rate_interval])))"


_JOB: Final = 'job=~"$job"'
_RATE: Final = "[$__rate_interval]"
_PROCESSOR, _MESSAGES, _FORWARDER, _RUNS = "Processor", "Messages", "Forwarder", "Reconciliation"


def _forwarder_rate(name: str) -> str:
    return f"sum by (job) (rate(<mqtrace.forwarder.{name}>{{{_JOB}}}{_RATE}))"


def _processor_rate(error: str) -> str:
    return f'rate({_PROCESSED}{{{_JOB},error_type{error}""}}{_RATE})'


PANELS: Final = (
    Panel(
        _PROCESSOR,
        "Spans processed",
        {"{{otel_component_name}}": f"sum by (otel_component_name) ({_processor_rate('=')})"},
        "ops",
    ),
    Panel(
        _PROCESSOR,
        "Spans lost",
        {"{{error_type}}": f"sum by (error_type) ({_processor_rate('!=')})"},
        "ops",
    ),
    Panel(_PROCESSOR, "Queue, share in use", {"{{instance}} {{otel_component_name}}": _FULLNESS}, "percentunit"),
    Panel(
        _PROCESSOR,
        "Exported, and in the batch in flight",
        {
            "exported": f"sum(rate(<otel.sdk.exporter.span.exported>{{{_JOB}}}{_RATE}))",
            "in flight": f"sum(<otel.sdk.exporter.span.inflight>{{{_JOB}}})",
        },
    ),
    Panel(
        _PROCESSOR,
        "Duration of an export, 95 %",
        {"{{otel_component_name}}": _quantile("0.95", "<otel.sdk.exporter.operation.duration>", "otel_component_name")},
        "s",
    ),
    Panel(
        _MESSAGES,
        "Messages sent and consumed",
        {
            f"{word} {{{{messaging_destination_name}}}}": "sum by (messaging_destination_name) "
            f"(rate(<messaging.client.{word}.messages>{{{_JOB}}}{_RATE}))"
            for word in ("sent", "consumed")
        },
        "ops",
    ),
    Panel(
        _MESSAGES,
        "Duration of a client operation, 95 %",
        {
            "{{messaging_operation_name}}": _quantile(
                "0.95", "<messaging.client.operation.duration>", "messaging_operation_name"
            )
        },
        "s",
    ),
    Panel(
        _MESSAGES,
        "Duration of processing, 95 %",
        {
            "{{messaging_consumer_group_name}}": _quantile(
                "0.95", "<messaging.process.duration>", "messaging_consumer_group_name"
            )
        },
        "s",
    ),
    Panel(
        _MESSAGES,
        "Consumer lag",
        {
            "{{messaging_consumer_group_name}} {{messaging_destination_name}}": "sum by "
            f"(messaging_consumer_group_name, messaging_destination_name) (<mqtrace.client.consumer.lag>{{{_JOB}}})"
        },
    ),
    Panel(_FORWARDER, "Trace messages read", {"{{job}}": _forwarder_rate("messages")}, "ops"),
    Panel(_FORWARDER, "Bytes of their bodies", {"{{job}}": _forwarder_rate("body.size")}, "Bps"),
    Panel(
        _FORWARDER,
        "Records read and spans accepted",
        {name: _forwarder_rate(name) for name in ("records", "spans", "repeated")},
        "ops",
    ),
    Panel(
        _FORWARDER,
        "Incomplete, rejected and unreadable",
        {name: _forwarder_rate(name) for name in ("halves", "overflowed", "rejected", "bad_records")},
        "ops",
    ),
    Panel(_FORWARDER, "Records waiting for their other half", {"{{job}}": f"<mqtrace.forwarder.pending>{{{_JOB}}}"}),
    Panel(_RUNS, "Verdict", {"{{verdict}}": "<mqtrace_reconcile_verdict> == 1"}, kind="stat"),
    Panel(_RUNS, "Counts balanced (1) and exit code", {
        "balanced": "<mqtrace_reconcile_balanced>", "exit code": "<mqtrace_reconcile_exit_code>",
    }, kind="stat"),
    Panel(
        _RUNS, "End of the window", {"end": "<mqtrace_reconcile_window_end_seconds> * 1000"}, "dateTimeAsIso", "stat"
    ),
    Panel(_RUNS, "Events by status", {"{{status}}": "<mqtrace_reconcile_events>"}),
    Panel(_RUNS, "Events by reason", {"{{reason}}": "<mqtrace_reconcile_reason_events>"}),
    Panel(_RUNS, "Losses", {
        "unexplained {{side}}": "<mqtrace_reconcile_unexplained_events>",
        "explained {{side}}": "<mqtrace_reconcile_attributed_events>",
    }),
    Panel(_RUNS, "Unexplained share, upper bound (95 %)", {
        "{{side}}": "<mqtrace_reconcile_unexplained_ratio_upper_bound>",
    }, "percentunit"),
    Panel(_RUNS, "Gates that did not pass", {
        "{{gate}} {{outcome}}": f'<mqtrace_reconcile_gate_outcome>{{outcome!="{Outcome.PASS.value}"}} == 1',
    }, kind="table"),
    Panel(_RUNS, "Gates: value and threshold", {
        "value {{gate}}": "<mqtrace_reconcile_gate_value>",
        "threshold {{gate}} {{op}}": "<mqtrace_reconcile_gate_threshold>",
    }, kind="table"),
    Panel(_RUNS, "Latency", {"{{stage}} {{quantile}}": "<mqtrace_reconcile_latency_seconds>"}, "s"),
    Panel(_RUNS, "Consumption by group", {
        "{{topic}} {{group}} {{count}}": "<mqtrace_reconcile_group_events>",
        "others {{count}}": "<mqtrace_reconcile_other_group_events>",
    }),
    Panel(_RUNS, "Processing time of a group", {
        "{{topic}} {{group}} {{quantile}}": "<mqtrace_reconcile_group_process_seconds>",
    }, "s"),
    Panel(_RUNS, "Losses that ledgers counted", {
        "{{side}} {{cause}} {{place}}": "sum by (side, cause, place) (<mqtrace_reconcile_ledger_drops>)",
    }),
    Panel(_RUNS, "Wall time of a run", {"wall time": "<mqtrace_reconcile_wall_seconds>"}, "s"),
)  # fmt: skip

_DETAIL: Final = "one client's detail, on request only (`MQTRACE_CLIENT_METRICS`): for Explore, when the lag grows"
LEFT_OUT: Final = {
    "mqtrace.collection": "has no values",
    **{
        f"mqtrace.client.{side}.queue.{unit}": _DETAIL
        for side in ("consumer", "producer")
        for unit in ("messages", "bytes")
    },
    "mqtrace_reconcile_records": "the lines of the balance sheet: `balanced` shows whether they add up",
    "mqtrace_reconcile_kind_events": "the events by status once more, for each kind",
    "mqtrace_reconcile_field_verdicts": "too many series for a panel; the report shows them",
    "mqtrace_reconcile_checked_events": "the divisor of the unexplained share",
    "mqtrace_reconcile_latency_events": "how many events a latency is of",
    "mqtrace_reconcile_window_begin_seconds": "the end of the window is what grows old",
    "mqtrace_reconcile_horizon_seconds": "follows the end of the window",
    "mqtrace_reconcile_spark_jobs": "of use to developers only",
    "mqtrace_reconcile_spark_stages": "of use to developers only",
}
"""Metrics in neither the dashboard nor the rules, each with the reason."""

_LANE: Final = "job, instance, otel_component_name, error_type"
ALERTS: Final = (
    Alert(
        "processor", "MqtraceSpansDropped", _growth(_DROPPED, _LANE), "0m", "warning",
        "Spans were lost before their export; the label `error_type` has the reason.",
        "With `queue_full` the exporter is slower than the application: a larger queue only delays it.",
    ),
    Alert(
        "processor", "MqtraceExportsFailing", _growth(_FAILED, _LANE), "0m", "warning",
        "Spans were lost because their export failed.",
        "The destination refuses or does not answer: the application's log has one line in 30 seconds with the sums.",
    ),
    Alert(
        "processor", "MqtraceQueueAlmostFull", f"{_FULLNESS} > 0.8", "5m", "warning",
        "The processor's queue has been more than 80 % full for five minutes.",
        "Spans will be dropped next: look at the destination and at the duration of exports.",
    ),
    Alert(
        "forwarder", "MqtraceForwarderRejected", _growth("<mqtrace.forwarder.rejected>", "job, instance"), "0m",
        "critical", "The receiver took spans of the forwarder and threw them away.",
        "The receiver's log has the reason; the landing still holds the records.",
    ),
    Alert(
        "forwarder", "MqtraceForwarderOverflowed", _growth("<mqtrace.forwarder.overflowed>", "job, instance"), "0m",
        "warning", "The forwarder wrote incomplete spans because too many records waited for their other half.",
        "Raise `--max-pending`, or find the consumer whose listener calls never end.",
    ),
    Alert(
        "forwarder", "MqtraceForwarderBadRecords", _growth("<mqtrace.forwarder.bad_records>", "job, instance"), "0m",
        "warning", "Pieces of trace messages are not records.",
        "Run `mqtrace decode` on the landing: it names position, field and reason.",
    ),
    Alert(
        "forwarder", "MqtraceForwarderHalves",
        "sum by (job) (rate(<mqtrace.forwarder.halves>[30m])) "
        "> 0.05 * sum by (job) (rate(<mqtrace.forwarder.spans>[30m]))", "15m", "warning",
        "More than 5 % of the forwarder's spans are of one half of a listener call.",
        "Consumers die in their listeners, or take longer than `--pair-timeout`.",
    ),
    Alert(
        "forwarder", "MqtraceForwarderStalled",
        "sum by (job) (increase(<mqtrace.forwarder.messages>[30m])) == 0 "
        "and sum by (job) (increase(<mqtrace.forwarder.messages>[6h])) > 0", "5m", "warning",
        "The forwarder read no trace message for half an hour, and did in the hours before.",
        "Where the trace topic is not idle, a peer is away: the forwarder's last line names it.",
    ),
    Alert(
        "forwarder", "MqtraceForwarderAbsent",
        "count by (job) (<mqtrace.forwarder.messages> offset 1h) unless count by (job) (<mqtrace.forwarder.messages>)",
        "5m", "critical", "A forwarder that reported an hour ago reports no more.",
        "Start it again: nothing is lost until the retention of the trace topic passes.",
    ),
    Alert(
        "reconciliation", "MqtraceReconcileFailed",
        f'<mqtrace_reconcile_verdict>{{verdict="{Verdict.FAIL.value}"}} == 1', "0m", "critical",
        "The last reconciliation failed a gate.", "Open `report.html`: it names the gate and shows samples.",
    ),
    Alert(
        "reconciliation", "MqtraceReconcileUnbalanced", "<mqtrace_reconcile_balanced> == 0", "0m", "critical",
        "The counts of the last reconciliation do not balance.",
        "Its figures cannot be trusted: report it with the run's `result.json`.",
    ),
    Alert(
        "reconciliation", "MqtraceReconcileInconclusive",
        f'<mqtrace_reconcile_verdict>{{verdict="{Verdict.INCONCLUSIVE.value}"}} == 1', "0m", "warning",
        "The last reconciliation could conclude nothing.",
        "A side is empty, or all of its data lies inside the grace: look at the inputs of the run.",
    ),
    Alert(
        "reconciliation", "MqtraceReconcileOld",
        f"time() - <mqtrace_reconcile_window_end_seconds> > {2 * _DAY_S}", "10m", "warning",
        "The last reconciliation is of data that ended more than two days ago.",
        "The scheduled run does not start or does not finish, or `metrics.prom` is not collected.",
    ),
)  # fmt: skip


def resolve(expr: str) -> str:
    """Return an expression with the Prometheus names of its metrics."""
    return re.sub(r"<([a-z][\w.]+)>", lambda found: metric_names()[found[1]], expr)


def alert_rules() -> str:
    """Return the rules as YAML, a group for each part."""
    groups = [
        {
            "name": f"mqtrace-{group}",
            "rules": [
                {
                    "alert": alert.name,
                    "expr": resolve(alert.expr),
                    "for": alert.lasting,
                    "labels": {"severity": alert.severity},
                    "annotations": {"summary": alert.summary, "description": alert.action},
                }
                for alert in ALERTS
                if alert.group == group
            ],
        }
        for group in dict.fromkeys(alert.group for alert in ALERTS)
    ]
    text: str = yaml.safe_dump({"groups": groups}, sort_keys=False, width=120)
    return f"# Generated from tools/monitoring.py by `make docs`.\n{text}"


def alert_table() -> str:
    """Return the alerts as a Markdown table."""
    rows = [f"| `{alert.name}` | {alert.severity} | {alert.summary} | {alert.action} |\n" for alert in ALERTS]
    return "| alert | severity | meaning | what to do |\n| --- | --- | --- | --- |\n" + "".join(rows)


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _ROW_WIDTH = 8, 8, 24


def dashboard() -> str:
    """Return the dashboard as JSON; its variables choose the data source and the jobs."""
    return (
        json.dumps(
            {
                "uid": "mqtrace",
                "title": "mqtrace",
                "description": "Generated from tools/monitoring.py by `make docs`.",
                "tags": ["mqtrace", "opentelemetry"],
                "timezone": "browser",
                "editable": True,
                "refresh": "1m",
                "schemaVersion": 39,
                "time": {"from": "now-6h", "to": "now"},
                "templating": {"list": [_source_variable(), _job_variable()]},
                "panels": _panels(),
            },
            indent=1,
        )
        + "\n"
    )


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _job_variable() -> dict[str, Any]:
    names = "|".join(
        resolve(f"<{name}>") for name in ("otel.sdk.processor.span.processed", "mqtrace.forwarder.messages")
    )
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": _SOURCE,
        "query": f'label_values({{__name__=~"{names}"}}, job)',
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "hide": 0,
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in dict.fromkeys(panel.row for panel in PANELS):
        y += _HEIGHT
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": _ROW_WIDTH, "h": 1},
            }
        )
        y += 1
        for place, panel in enumerate(panel for panel in PANELS if panel.row == row):
            x = place * _WIDTH % _ROW_WIDTH
            y += _HEIGHT if place and not x else 0
            panels.append(_panel(panel, len(panels) + 1, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}))
    return panels


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    instant = panel.kind != "timeseries"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": resolve(expr),
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for at, (legend, expr) in enumerate(panel.queries.items())
        ],
    }
