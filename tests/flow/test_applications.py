"""Applications in processes of their own: unchanged, or with packages named like ours, they are traced in both formats."""

import os
import shutil
import sys
from itertools import product
from pathlib import Path

import pytest

from bridge.forwarder.kafka_source import KafkaTraceSource
from otel_mqtrace.model import TraceType
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.landings import drain_records, landed_lines
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.programs import clean_environment, run_program, run_python
from tests.support.source_tree import ROOT

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
APPLICATION = (ROOT / "tests" / "documents" / "application.py").read_text(encoding="utf-8")
INSTRUMENTED = f"""
import logging, sys
import bridge, spark_jobs
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor

logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
provider = TracerProvider()
trace.set_tracer_provider(provider)
MqTraceInstrumentor().instrument()
{APPLICATION}
provider.shutdown()
print(bridge.MINE, spark_jobs.MINE)
"""


@pytest.fixture
def kafka():
    with EmbeddedKafka() as broker:
        broker.create_topic(TRACE_TOPIC, partitions=1)
        broker.create_topic("orders", partitions=1)
        yield broker


def test_environment_variables_alone_trace_into_both_formats(kafka, tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    environment = clean_environment(
        APPLICATION_SERVERS=kafka.bootstrap_servers,
        OTEL_TRACES_EXPORTER="console",
        OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="confluent_kafka",
        OTEL_SERVICE_NAME="shop",
    )
    done = run_program(launcher, sys.executable, "application.py", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    with KafkaTraceSource(kafka.bootstrap_servers, TRACE_TOPIC) as source:
        _, landed = drain_records(source)
    records = {(record.trace_type, record.beans[0].msg_id): record.group_name for record in landed}
    messages = {msg_id for _, msg_id in records}
    assert len(messages) == 2
    assert records.keys() == set(product((TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER), messages))
    for kind, name in ((TraceType.PUB, "shop"), (TraceType.SUB_BEFORE, "billing")):
        assert {group.partition("-")[0] for (one, _), group in records.items() if one is kind} == {name}
    names = [line.split(":", 1)[1].strip(' ",') for line in done.stdout.splitlines() if line.startswith('    "name"')]
    assert sorted(names) == ["process orders"] * 2 + ["send orders"] * 2


@pytest.fixture
def packages(tmp_path):
    """The environment of a directory with packages named as ours; it comes first, as for every script, ours behind it."""
    for name in ("bridge", "spark_jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n", encoding="utf-8")
    return clean_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))


def test_application_with_its_own_bridge_keeps_both_formats(kafka, packages, tmp_path):
    with OtlpReceiver() as receiver:
        environment = {
            **packages,
            "APPLICATION_SERVERS": kafka.bootstrap_servers,
            "MQTRACE_EXPORTERS": "mqtrace_native_file,mqtrace_otlp",
            "MQTRACE_LANDING_DIR": str(tmp_path / "landing"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        done = run_python(INSTRUMENTED, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        assert "mqtrace" not in done.stderr
        assert done.stdout.splitlines()[-1] == "bridge spark_jobs"
        assert len(receiver.spans) == 4
    assert len(landed_lines(tmp_path / "landing")) > 0


@pytest.mark.parametrize("command", ["decode", "inspect"])
def test_command_names_the_package_that_shadows_ours(packages, tmp_path, command):
    # An editable install of this checkout has an import finder of its own, which a user's installation has not.
    console_script = (
        "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in str(each)];"
        "from otel_mqtrace.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    shutil.rmtree(tmp_path / "spark_jobs")
    done = run_python(console_script, command, "x", cwd=tmp_path, env=packages)
    assert done.returncode == 2
    assert f"the package 'bridge' at {tmp_path / 'bridge'} shadows the one of otel-mqtrace" in done.stderr
    assert done.stderr.count("\n") == 1
