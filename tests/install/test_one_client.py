"""An application with one client under ``opentelemetry-instrument``: both formats arrive and nothing is warned of."""

import subprocess

import pytest

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.install.conftest import CLEAN

pytestmark = pytest.mark.install

_CONFLUENT = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1]})
producer.produce("orders", b"paid")
assert producer.flush(20) == 0
"""
_AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaProducer
async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        await producer.send_and_wait("orders", b"paid")
asyncio.run(main())
"""


@pytest.mark.parametrize(("extra", "program"), [("kafka", _CONFLUENT), ("aiokafka", _AIOKAFKA)])
def test_one_client_is_traced_without_a_warning(extra, program, wheel, make_environment, tmp_path):
    programs = make_environment(f"{wheel}[{extra},cli]", "opentelemetry-distro")
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    settings = {
        "PATH": f"{programs}:{CLEAN['PATH']}",
        "MQTRACE_EXPORTERS": "mqtrace_native_file",
        "MQTRACE_LANDING_DIR": str(tmp_path / "landing"),
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        command = ["opentelemetry-instrument", "python", "app.py", kafka.bootstrap_servers]
        done = subprocess.run(
            command, env={**CLEAN, **settings}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 0, done.stderr
    assert "mqtrace" not in done.stderr
    assert '"name": "send orders"' in done.stdout
    assert list((tmp_path / "landing").rglob("part-*.jsonl"))
