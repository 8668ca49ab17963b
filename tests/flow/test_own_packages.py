"""An application with packages named ``bridge`` and ``spark_jobs`` of its own keeps both formats and our commands' word."""

import json
import os
import subprocess
import sys

import pytest

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.landings import landed_lines
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.source_tree import ROOT

APPLICATION = """
import json, logging, sys
import bridge, spark_jobs
from confluent_kafka import Consumer, Producer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor

logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
provider = TracerProvider()
trace.set_tracer_provider(provider)
MqTraceInstrumentor().instrument()
servers = sys.argv[1]
producer = Producer({"bootstrap.servers": servers})
producer.produce("orders", b"an order")
producer.flush(20)
consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
assert consumer.poll(20) is not None
consumer.close()
provider.shutdown()
print(json.dumps([bridge.MINE, spark_jobs.MINE]))
"""


@pytest.fixture
def application(tmp_path):
    for name in ("bridge", "spark_jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n", encoding="utf-8")
    (tmp_path / "shop.py").write_text(APPLICATION, encoding="utf-8")
    return tmp_path


def _run(command, directory, **environment):
    # The application's directory comes first, as it does for every script; ours is installed behind it.
    paths = os.pathsep.join([str(directory), str(ROOT)])
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_application_with_its_own_bridge_keeps_both_formats(application):
    with EmbeddedKafka() as kafka, OtlpReceiver() as receiver:
        kafka.create_topic("orders", partitions=1)
        done = _run(
            ["shop.py", kafka.bootstrap_servers],
            application,
            MQTRACE_EXPORTERS="mqtrace_native_file,mqtrace_otlp",
            MQTRACE_LANDING_DIR=str(application / "landing"),
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
        assert done.returncode == 0, done.stderr
        assert "mqtrace" not in done.stderr
        assert json.loads(done.stdout) == ["bridge", "spark_jobs"]
        assert len(receiver.spans) == 2
    assert len(landed_lines(application / "landing")) > 0


def test_command_names_the_package_that_shadows_ours(application):
    # An editable install of this checkout has an import finder of its own, which a user's installation has not.
    console_script = (
        "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in str(each)];"
        "from otel_mqtrace.cli import main; sys.exit(main(['decode', 'x']))"
    )
    done = _run(["-c", console_script], application)
    assert done.returncode == 2
    assert f"the package 'bridge' at {application / 'bridge'} shadows the one of otel-mqtrace" in done.stderr
    assert done.stderr.count("\n") == 1
