"""The world that the documents speak of: brokers, a receiver, an application, and what it has left."""

import os
import re
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

from otel_mqtrace._clock import SystemClock
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.documents.stand_in import curl
from tests.support.landings import landed_bodies, records_of
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.programs import clean_environment, run_program
from tests.support.rocketmq_remoting import TRACE_TOPIC, tracing_cluster
from tests.support.source_tree import ROOT
from tests.support.topics import put_messages

_HERE = ROOT / "tests" / "documents"
_STAND_INS = ("pip", "make", "docker", "otelcol-contrib", "kafka-topics.sh", "curl", "spark-submit", "venv-pack")
_PRELUDE = """
set -eu
{stand_ins}
python() {{ case "${{2-}}" in (tests.proofs.bench.scale) shift 2; {stand_in} scale "$@";; (*) command python "$@";; esac; }}
mqtrace() {{
  code=0
  case "$*" in
    (*s3a://*|*hdfs://*) {stand_in} parsed "$@"; return;;  # there is no such store: tests/cluster has them
    (forward*--once*) ;;
    (forward*) set -- "$@" --once;;  # it would go on until stopped
    (*--every*|*://spark-*) {stand_in} parsed "$@"; return;;  # so would this, and there is no such cluster: tests/cluster has one
    (*--print-policy*) ;;
    ("demo --messages 500 --seed 7 --out mqtrace-demo") {stand_in} parsed "$@"; return;;  # tests/flow runs this very one
    ({skipped}) {stand_in} looked_up "$@"; return;;
  esac
  command mqtrace "$@" || code=$?
  case "$1:$code" in doctor:1) return 0;; esac  # findings are an answer
  return $code
}}
"""


_SPANS = ("traces", "spans", "otlp")
_POINT = (
    '{"attributes":[{"key":"error.type","value":{"stringValue":"queue_full"}}],'
    '"startTimeUnixNano":"1795219200000000000","timeUnixNano":"1795219260000000000","asInt":"0"}'
)
_SDK = (
    '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"otel.sdk.processor.span.processed","sum":'
    f'{{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[{_POINT}]}}}}]}}]}}]}}\n'
)


class World:
    """Servers behind the addresses that the documents name; their trace topics hold what the application has sent."""

    def __init__(self, kafka, rocketmq, receiver):
        self.kafka, self.rocketmq, self.receiver, self.left = kafka, rocketmq, receiver, None

    def placed(self, text):
        """Return ``text`` with what is here in place of the addresses, ids, releases and days that a reader will replace."""
        here = {
            r"(localhost|127\.0\.0\.1):9092": self.kafka.bootstrap_servers,
            r"10\.0\.0\.1:9876;10\.0\.0\.2:9876|ns1:9876;ns2:9876|(localhost|127\.0\.0\.1|10\.0\.0\.1):9876": self.rocketmq.namesrv,
            r"(grpc|http)://(localhost|127\.0\.0\.1):431[78]": self.receiver.endpoint,
            r"landing/native/date=2026-11-21": f"landing/native/{self.left.day}",
            r"part-0\.jsonl": "part-*.jsonl",
            "AC1415116D1418B4AAC217FE1B4E0000|C00002027A9A4E0E2F2A6972872E01E4": self.left.message_id,
            r" --begin 2h": "",  # the embedded broker knows no times
            r"--messages 5000000 --hot 100000": "--messages 5000 --hot 1000",
        }
        for pattern, actual in here.items():
            text = re.sub(pattern, actual, text)
        return text

    def run(self, text, cwd, *, on_spark=True, programs=None, **environment):
        """Run a block as a shell does, and end at the first line that fails; return what it printed.

        Without ``on_spark`` the commands that start a Spark read their options and look their sources up, no more.
        ``programs`` is the ``bin`` of a virtual environment in which ``pip`` installs and the commands are run.
        """
        python = f"{sys.executable} {_HERE / 'stand_in.py'}"
        stood_in = _STAND_INS if programs is None else [name for name in _STAND_INS if name != "pip"]
        stand_ins = "\n".join(f'{name}() {{ {python} {name} "$@"; }}' for name in stood_in)
        skipped = "'no command'" if on_spark else "reconcile' '*|graph' '*"
        prelude = _PRELUDE.format(stand_ins=stand_ins, stand_in=python, skipped=skipped)
        known = {**self._environment(programs), **environment}
        done = run_program("bash", "-c", prelude + text, cwd=cwd, env=known)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        assert "nothing is traced" not in done.stderr
        return done.stdout

    def _environment(self, programs):
        return clean_environment(
            PYTHONPATH=str(ROOT) if programs is None else "",
            PATH=f"{programs or Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            APPLICATION_SERVERS=self.kafka.bootstrap_servers,
            OTEL_EXPORTER_OTLP_ENDPOINT=self.receiver.endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="confluent_kafka",
        )

    def put(self):
        """Put what the application has left into both trace topics, and its spans into a Collector's topic."""
        lines = (self.left.home / "traces.jsonl").read_bytes().splitlines()
        for topic, bodies in ((TRACE_TOPIC, self.left.bodies), ("otlp_spans", lines)):
            put_messages(self.kafka.bootstrap_servers, topic, *bodies)
        now_ms, keys = SystemClock().wall_ns() // 1_000_000, {"KEYS": f"{self.left.message_id} order-7"}
        self.rocketmq.brokers[0].put(*self.left.bodies, topic=TRACE_TOPIC, properties=keys, store_ms=now_ms)


def application_run(home):
    """Run the application once in ``home``; return what it left: spans, a landing, bodies, wherever a document looks for them."""
    shutil.copy(_HERE / "application.py", home / "app.py")
    (home / "docs").symlink_to(ROOT / "docs")
    for directory in ("build", "ledgers", *_SPANS):
        (home / directory).mkdir()
    settings = {"MQTRACE_EXPORTERS": "mqtrace_native_file", "OTEL_TRACES_EXPORTER": "otlp_json_file"}
    settings |= {"MQTRACE_LEDGER_DIR": "ledgers"}
    with _servers() as world:
        once = "opentelemetry-instrument python app.py > traces.jsonl"
        world.run(once, home, MQTRACE_LANDING_DIR="landing", **settings)
    for directory in _SPANS:
        shutil.copy(home / "traces.jsonl", home / directory / "done-1.jsonl")
    shutil.copytree(home / "landing", home / "mqtrace-demo" / "landing")
    (home / "mqtrace-demo" / "otlp").mkdir()
    shutil.copy(home / "traces.jsonl", home / "mqtrace-demo" / "otlp")
    curl("--output", home / "collector-metrics.txt")
    (home / "sdk-metrics.jsonl").write_text(_SDK, encoding="utf-8")
    bodies = tuple(landed_bodies(home / "landing"))
    (home / "body.bin").write_bytes(b"".join(bodies))
    beans = [bean for record in records_of(bodies) for bean in record.beans]
    return SimpleNamespace(
        home=home,
        bodies=bodies,
        message_id=next(bean.msg_id for bean in beans if bean.keys == "order-7"),
        day=next((home / "landing" / "native").glob("date=*")).name,
    )


@contextmanager
def documented_world(left):
    """Give a world of its own servers, whose trace topics hold what ``left`` has."""
    with _servers() as world:
        world.left = left
        world.put()
        yield world


@contextmanager
def _servers():
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka())
        rocketmq = stack.enter_context(tracing_cluster())
        receiver = stack.enter_context(OtlpReceiver())
        rocketmq.brokers[0].topics.add("rmq_sys_TRACE_DATA_null")
        for topic in (TRACE_TOPIC, "orders", "otlp_spans"):
            kafka.create_topic(topic, partitions=1)
        yield World(kafka, rocketmq, receiver)
