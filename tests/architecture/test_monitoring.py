"""The dashboard and the alert rules name metrics that exist, and every metric is shown, alerted on or left out."""

import json
import re
from collections import Counter
from importlib import import_module

import pytest

from tests.support.source_tree import ROOT
from tools.generated_docs import DOCS
from tools.monitoring import ALERTS, LEFT_OUT, PANELS, metric_names, resolve

NAMES = metric_names()
DASHBOARD = json.loads((DOCS / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
CREATED = re.compile(
    r'(?:create_(?:observable_)?(?:up_down_)?(?:counter|gauge|histogram)\(\s*|\((?="otel\.sdk\.))"([\w.]+)"'
)
"""A name where an instrument is made of it, or in a table of the SDK's own metrics."""
EXPRESSIONS = [
    *(expr for panel in PANELS for expr in panel.queries.values()),
    *(alert.expr for alert in ALERTS),
]


def test_every_metric_that_the_code_creates_has_a_prometheus_name():
    written = {
        name
        for package in ("otel_mqtrace", "bridge", "spark_jobs")
        for path in (ROOT / package).rglob("*.py")
        for name in CREATED.findall(path.read_text(encoding="utf-8"))
    }
    assert written <= set(NAMES)
    assert len(written) >= 10


def test_names_follow_the_rules_of_the_translation():
    assert NAMES["otel.sdk.processor.span.processed"] == "otel_sdk_processor_span_processed_total"
    assert NAMES["otel.sdk.processor.span.queue.size"] == "otel_sdk_processor_span_queue_size"
    assert NAMES["messaging.process.duration"] == "messaging_process_duration_seconds"
    assert NAMES["mqtrace.forwarder.body.size"] == "mqtrace_forwarder_body_size_bytes_total"
    assert NAMES["mqtrace.client.broker.rtt"] == "mqtrace_client_broker_rtt_seconds"


def test_every_metric_is_shown_or_left_out_with_a_reason():
    used = {name for expr in EXPRESSIONS for name in re.findall(r"<([a-z][\w.]+)>", expr)}
    assert used | set(LEFT_OUT) == set(NAMES)
    assert not used & set(LEFT_OUT)
    assert all(LEFT_OUT.values())


def test_expression_with_an_unknown_metric_is_refused():
    with pytest.raises(KeyError):
        resolve("rate(<mqtrace.forwarder.renamed>[5m])")


def test_metrics_in_the_expressions_are_those_of_the_code():
    texts = [re.sub(r"by \([^)]*\)", "", resolve(expr)) for expr in EXPRESSIONS]
    named = {name for text in texts for name in re.findall(r"\b(?:mqtrace|messaging|otel_sdk)_\w+", text)}
    assert {name.removesuffix("_bucket") for name in named} <= set(NAMES.values())


def test_panels_have_places_and_numbers_of_their_own():
    assert max(Counter(panel["id"] for panel in DASHBOARD["panels"]).values()) == 1
    cells = Counter(
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert set(cells.values()) == {1}
    assert max(x for x, _ in cells) == 23


def test_dashboard_is_one_by_the_models_of_grafana():
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="its releases need Python 3.11")
    import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    encoder = import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder()
    read = models.Dashboard.from_json(DASHBOARD)
    assert _within(DASHBOARD, json.loads(encoder.encode(read))) == []
    assert _within({**DASHBOARD, "no_such_key": 1}, json.loads(encoder.encode(read))) == ["/no_such_key"]


def _within(ours, theirs, path=""):
    """The places where ``theirs`` lacks or changes a value of ``ours``."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            place
            for key, value in ours.items()
            for place in (_within(value, theirs[key], f"{path}/{key}") if key in theirs else [f"{path}/{key}"])
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            place for at, pair in enumerate(zip(ours, theirs, strict=True)) for place in _within(*pair, f"{path}/{at}")
        ]
    return [] if ours == theirs else [path]
