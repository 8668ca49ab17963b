"""What an import costs the program that makes it."""

import subprocess
import sys

import pytest

from tests.support.source_tree import ROOT

HEAVY_FOR_AN_APPLICATION = (
    "pyspark",
    "pandas",
    "pyarrow",
    "typer",
    "rich",
    "bridge",
    "spark_jobs",
    "jinja2",
    "prometheus_client",
)

FORBIDDEN = {
    "otel_mqtrace": (*HEAVY_FOR_AN_APPLICATION, "confluent_kafka", "opentelemetry.sdk"),
    "otel_mqtrace.instrumentor": HEAVY_FOR_AN_APPLICATION,
    "otel_mqtrace.model": (*HEAVY_FOR_AN_APPLICATION, "confluent_kafka", "opentelemetry"),
    "otel_mqtrace.semconv": (*HEAVY_FOR_AN_APPLICATION, "confluent_kafka", "opentelemetry"),
    "otel_mqtrace.wire.native": ("pyspark", "pyarrow", "typer", "rich", "confluent_kafka", "opentelemetry"),
    "otel_mqtrace.exporters.native_file": ("pyspark", "pandas", "pyarrow", "typer", "rich", "confluent_kafka"),
    "bridge.commands": (
        "pyspark",
        "pandas",
        "pyarrow",
        "confluent_kafka",
        "opentelemetry",
        "rich",
        "otel_mqtrace.wire.native",
    ),
    "bridge.demo.command": ("pyspark", "pandas", "pyarrow", "confluent_kafka", "opentelemetry.sdk"),
    "bridge.forwarder.command": ("pyspark", "pandas", "pyarrow", "confluent_kafka", "opentelemetry.sdk"),
    "spark_jobs.commands": ("pyspark", "pandas", "pyarrow", "confluent_kafka", "opentelemetry", "rich"),
    "spark_jobs.graph_command": ("pyspark", "pandas", "pyarrow", "confluent_kafka", "opentelemetry", "rich"),
    "spark_jobs.report.files": ("pyspark", "pandas"),
}


@pytest.mark.parametrize("module", FORBIDDEN)
def test_import_loads_no_heavy_module(module):
    names = FORBIDDEN[module]
    code = f"import sys, {module}; print(*(n for n in {names!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
