"""The alert rules and ``metrics.prom``, checked by the real promtool."""

from pathlib import Path

import pytest
import yaml

from otel_mqtrace.spans.processor import COMPONENT_TYPE
from spark_jobs.report.files import render_reports
from spark_jobs.report.prometheus import METRICS, PREFIX
from tests.support.programs import run_program
from tests.support.results import result
from tools.generated_docs import DOCS
from tools.monitoring import ALERTS

pytestmark = pytest.mark.peers

RULES = DOCS / "deploy" / "prometheus-alerts.yaml"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yaml")


def test_each_alert_fires_when_it_should_and_is_silent_before(promtool, tmp_path):
    texts = {f"SUMMARY {alert.name}": alert.summary for alert in ALERTS}
    texts |= {f"ACTION {alert.name}": alert.action for alert in ALERTS}
    text = UNIT_TESTS.read_text(encoding="utf-8").replace("COMPONENT", COMPONENT_TYPE).replace("RULES", str(RULES))
    document = yaml.safe_load(text)
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]
    for expected in (alert for case in cases for alert in case["exp_alerts"]):
        expected["exp_annotations"] = {key: texts[value] for key, value in expected["exp_annotations"].items()}
    names = {alert.name for alert in ALERTS}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names
    path = tmp_path / "alerts_test.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = run_program(promtool, "test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules(promtool):
    done = run_program(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_promtool_accepts_the_metrics_of_a_run(promtool):
    """Its one remark is on the label `quantile` of two gauges: that label is part of the contract."""
    done = run_program(promtool, "check", "metrics", stdin=None, input=render_reports(result())["metrics.prom"])
    remarks = set((done.stdout + done.stderr).splitlines())
    assert remarks == {
        f'{PREFIX}{metric.name} non-summary metrics should not have "quantile" label'
        for metric in METRICS
        if "quantile" in metric.labels
    }
