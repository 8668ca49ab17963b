"""``mqtrace doctor``: a finding for each fault of an environment, and for all that went untraced in a command."""

import ast
import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import TimeoutError as FutureTimeout
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import MagicMock, Mock

import certifi
import pytest
from confluent_kafka import KafkaError, KafkaException

from otel_mqtrace.cli import main
from otel_mqtrace.config import Settings
from otel_mqtrace.doctor import broker, checks
from otel_mqtrace.doctor.broker import examine_broker, examine_rocketmq
from otel_mqtrace.doctor.checks import examine_directories, examine_environment, examine_otlp
from otel_mqtrace.doctor.child_process import examine_reports
from otel_mqtrace.doctor.findings import Checkup
from otel_mqtrace.provider import EXPORTER_GROUP
from tests.support.opentelemetry_release import needs_sdk
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.programs import MQTRACE, clean_environment, run_program
from tests.support.rocketmq_remoting import TRACE_TOPIC, tracing_cluster

DOCTOR = (*MQTRACE, "doctor")
QUIET = {
    "MQTRACE_EXPORTERS": "mqtrace_native_file",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka",
}
"""Records go to files, and nothing else is on."""


@pytest.fixture
def environment(tmp_path):
    """The environment of a healthy installation; what a test adds breaks it. ``None`` takes a variable away."""

    def make(**changes):
        made = clean_environment(**{**QUIET, "MQTRACE_LANDING_DIR": str(tmp_path / "landing"), **changes})
        return {name: value for name, value in made.items() if value is not None}

    return make


@pytest.fixture
def doctor(environment):
    return lambda *arguments, typed="", **changes: run_program(
        *DOCTOR, *arguments, env=environment(**changes), input=typed
    )


@pytest.fixture
def ask(doctor):
    """Run ``mqtrace doctor --json`` and return its exit code, its findings by code, and its facts."""

    def run_json(*arguments, **changes):
        done = doctor("--json", *arguments, **changes)
        assert done.stdout, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert report["healthy"] == (not report["findings"])
        return done.returncode, {each["code"]: each for each in report["findings"]}, report["facts"]

    return run_json


@pytest.fixture
def application(tmp_path):
    """Write a program and return the command line that runs it, under ``opentelemetry-instrument`` if asked for."""

    def write(text, *, instrumented=False):
        path = tmp_path / "app.py"
        path.write_text(text, encoding="utf-8")
        launcher = [str(Path(sys.executable).with_name("opentelemetry-instrument"))]
        return [*launcher * instrumented, sys.executable, str(path)]

    return write


NOBODY = "127.0.0.1:1"
ROCKETMQ = {"MQTRACE_EXPORTERS": "mqtrace_native_rocketmq"}
SECRET = "hush-hush"


@pytest.fixture
def examine(environment):
    """Make the doctor's checks in this process; return the findings by code, and the facts."""

    def run(*, servers=None, **changes):
        checkup, environ = Checkup(), environment(**changes)
        settings = examine_environment(checkup, environ)
        examine_directories(checkup, settings)
        examine_otlp(checkup, settings, environ)
        examine_broker(checkup, settings, servers=servers, probe=False)
        examine_rocketmq(checkup, settings)
        report = checkup.as_dict()
        return {each["code"]: each for each in report["findings"]}, report["facts"]

    return run


def test_healthy_installation_has_no_findings(ask):
    code, findings, facts = ask()
    assert (code, findings) == (0, {})
    assert facts["versions"]["confluent-kafka"]
    assert facts["versions"]["librdkafka"]
    assert "mqtrace_confluent_kafka" in facts["instrumentations"]["installed"]


def test_findings_that_the_checks_name_are_in_the_table_and_get_all_values_of_their_words():
    sources = [ast.parse(each.read_text("utf-8")) for each in Path(checks.__file__).parent.glob("*.py")]
    calls = [each for source in sources for each in ast.walk(source) if isinstance(each, ast.Call)]
    checkup = Checkup()
    for call in calls:
        if ast.unparse(call.func) == "checkup.add" and isinstance(call.args[0], ast.Constant):
            checkup.add(call.args[0].value, **{given.arg: given.arg for given in call.keywords})
    assert {each.code for each in checkup.findings} > {"clock_skew", "exporter_broken", "no_distro", "warned"}


@pytest.mark.parametrize(
    ("finding", "changes", "words"),
    [
        ("switched_off", {"MQTRACE_ENABLED": "false"}, ""),
        (
            "instrumentation_disabled",
            {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka,mqtrace_confluent_kafka"},
            "",
        ),
        ("sdk_disabled", {"OTEL_SDK_DISABLED": "true"}, ""),
        ("sampled_out", {"OTEL_TRACES_SAMPLER": "always_off"}, ""),
        ("no_propagator", {"OTEL_PROPAGATORS": "none"}, ""),
        ("config_file_missing", {"OTEL_CONFIG_FILE": "not-there.yaml"}, ""),
        ("setting_wrong", {"MQTRACE_DIALECT": "9.9"}, "MQTRACE_DIALECT = '9.9': no dialect '9.9' can be written"),
        ("setting_unknown", {"MQTRACE_FOOBAR": SECRET}, "unknown setting MQTRACE_FOOBAR"),
        ("propagator_missing", {"OTEL_PROPAGATORS": "tracecontext,b4"}, "'b4' is not installed"),
        ("no_propagator", {"OTEL_PROPAGATORS": "tracecontext,None,b4"}, "trace"),
        ("exporter_missing", {"MQTRACE_EXPORTERS": f"https://user:{SECRET}@host"}, "'https://…@host'"),
        ("exporter_missing", {"OTEL_TRACES_EXPORTER": f"none,https://user:{SECRET}@host"}, "nothing is traced"),
        ("broker_unreachable", ROCKETMQ, "no name server is set"),
        ("broker_unreachable", ROCKETMQ | {"MQTRACE_NAMESRV": NOBODY}, f"the name server {NOBODY}"),
        *(
            (f"{kind}_not_writable", {f"MQTRACE_{kind.upper()}_DIR": "/proc/self/nothing/here"}, "")
            for kind in ("landing", "spool", "ledger")
        ),
        (
            "otlp_unreachable",
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{NOBODY}"},
            "does not take spans: Connection refused",
        ),
        ("kafka_config_unreadable", {"MQTRACE_EXPORTERS": "mqtrace_native", "MQTRACE_KAFKA_CONFIG": "not-there"}, ""),
    ],
)
def test_fault_is_the_only_finding_with_its_value_and_no_password(examine, finding, changes, words):
    findings, facts = examine(**changes)
    assert set(findings) == {finding}
    assert all(findings[finding][part] for part in ("what", "where", "fix"))
    assert words in findings[finding]["what"]
    assert SECRET not in str(facts) + str(findings)


def test_wrong_setting_that_a_process_warned_of_is_one_finding(environment):
    checkup = Checkup()
    warning = "MQTRACE_RECEIVE_SPANS = 'so': true or false was expected; False is used"
    checkup.add("warned", where="app.py (pid 7)", warning=warning)
    examine_environment(checkup, environment(MQTRACE_RECEIVE_SPANS="so"))
    assert [each.code for each in checkup.findings] == ["setting_wrong"]


@pytest.mark.parametrize(
    ("protocol", "installed", "is_found"),
    [(None, "grpc", True), ("http/protobuf", "http", True), ("http/protobuf", "grpc", False), ("grpc", "http", False)],
)
def test_exporter_of_otlp_is_that_of_its_protocol(environment, monkeypatch, protocol, installed, is_found):
    points = {EXPORTER_GROUP: [EntryPoint(name := f"otlp_proto_{installed}", "builtins:object", EXPORTER_GROUP)]}
    monkeypatch.setattr(checks, "entry_points", lambda group: points.get(group, []))
    checkup, changes = Checkup(), {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    examine_environment(checkup, environment(MQTRACE_EXPORTERS=name, **changes))
    assert ("exporter_missing" in str(checkup.as_dict()["findings"])) is not is_found


@pytest.mark.parametrize(
    ("changes", "findings", "fact"),
    [
        ({}, [], {"topic": TRACE_TOPIC, "queues": 4}),
        ({"MQTRACE_TRACE_TOPIC": "absent"}, ["trace_topic_missing"], None),
        (
            {"MQTRACE_TRACE_TOPIC": "absent", "MQTRACE_CREATE_TRACE_TOPIC": "true"},
            [],
            "the trace topic is missing and will be created by the first export",
        ),
    ],
)
def test_trace_topic_of_a_rocketmq_is_looked_for(examine, changes, findings, fact):
    with tracing_cluster() as cluster:
        changes |= {"MQTRACE_EXPORTERS": "mqtrace_native_rocketmq", "MQTRACE_NAMESRV": cluster.namesrv}
        found, facts = examine(**changes)
        for broker in cluster.brokers:
            broker.is_known = False
        without, _ = examine(**changes)
    assert ([*found], [*without]) == (findings, ["broker_unreachable"])
    assert facts.get("rocketmq") == fact


def test_credentials_are_listed_as_a_fact(examine):
    keys = {f"MQTRACE_ROCKETMQ_{each}_KEY": SECRET for each in ("ACCESS", "SECRET")}
    findings, facts = examine(**keys)
    assert findings == {}
    assert facts["settings"].items() >= dict.fromkeys(keys, "(set)").items()
    assert SECRET not in str(facts)


@pytest.mark.parametrize(("text", "findings"), [("propagator: {}\n", []), ("tracer_provider:\n", ["no_propagator"])])
def test_declarative_configuration_without_a_propagator_is_found(examine, tmp_path, text, findings):
    path = tmp_path / "otel.yaml"
    path.write_text(text, encoding="utf-8")
    assert [*examine(OTEL_CONFIG_FILE=str(path))[0]] == findings


def test_refused_client_property_is_found(examine, kafka, tmp_path):
    properties = tmp_path / "client.properties"
    properties.write_text("nonsense.key=1\n", encoding="utf-8")
    client = {"MQTRACE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "MQTRACE_KAFKA_CONFIG": str(properties)}
    findings, _ = examine(MQTRACE_EXPORTERS="mqtrace_native", **client)
    assert set(findings) == {"kafka_config_refused"}
    assert 'No such configuration property: "nonsense.key"' in findings["kafka_config_refused"]["what"]


def test_doctor_leaves_no_files(examine, tmp_path):
    examine(MQTRACE_SPOOL_DIR=str(tmp_path / "a" / "spool"), MQTRACE_LEDGER_DIR=str(tmp_path / "a" / "ledger"))
    assert list(tmp_path.iterdir()) == []


def test_missing_trace_topic_is_found_and_not_created(examine, kafka):
    changes = {"MQTRACE_EXPORTERS": "mqtrace_native", "MQTRACE_TRACE_TOPIC": "nobody-made-this"}
    changes["MQTRACE_BOOTSTRAP_SERVERS"] = kafka.bootstrap_servers
    for _ in range(2):
        findings, facts = examine(**changes)
        assert set(findings) == {"trace_topic_missing"}
    assert facts["broker"]["brokers"] == 1
    assert "create" in findings["trace_topic_missing"]["fix"]
    assert examine(**changes, MQTRACE_CREATE_TRACE_TOPIC="true")[0] == {}


@pytest.mark.parametrize(("exporter", "topic"), [("", "bad topic"), ("", "a" * 250), ("", ".."), ("_rocketmq", "a.b")])
def test_trace_topic_that_no_broker_can_have_is_found_without_one(examine, exporter, topic):
    changes = {"MQTRACE_TRACE_TOPIC": topic, "MQTRACE_CREATE_TRACE_TOPIC": "true"}
    findings, _ = examine(MQTRACE_EXPORTERS=f"mqtrace_native{exporter}", **changes)
    assert "can have no topic named" in findings["trace_topic_missing"]["what"]


@pytest.mark.parametrize("named_by", ["the environment", "the application"])
def test_existing_trace_topic_is_reported(examine, kafka, topic, named_by):
    servers = {"MQTRACE_BOOTSTRAP_SERVERS" if named_by == "the environment" else "servers": kafka.bootstrap_servers}
    findings, facts = examine(MQTRACE_EXPORTERS="mqtrace_native", MQTRACE_TRACE_TOPIC=topic, **servers)
    assert findings == {}
    assert facts["broker"]["partitions"] == 1
    assert "--probe" in facts["broker"]["clock"]
    assert "no controller" in facts["broker"]["configuration"], "the client waits for one, in vain"


@pytest.mark.parametrize("broken", ["connection", "line", "setting"])
def test_password_is_not_shown_by_the_doctor(doctor, tmp_path, broken):
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"bootstrap.servers={NOBODY}\nsasl.username=me\nsasl.password={SECRET}\n"
        + (f"{SECRET}\n" if broken == "line" else "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"),
        encoding="utf-8",
    )
    changes = {"MQTRACE_EXPORTERS": "mqtrace_native", "MQTRACE_KAFKA_CONFIG": str(properties)}
    if broken == "setting":
        changes |= {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:{SECRET}@{NOBODY}"}
        changes |= {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}"}
    done = doctor(*["--json"] * (broken == "connection"), **changes)
    assert done.returncode == 1, done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def _examined_otlp(protocol="grpc", *, exporter="otlp", endpoint, **changes):
    checkup = Checkup()
    otlp = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    examine_otlp(checkup, Settings(), {"OTEL_TRACES_EXPORTER": exporter, **otlp, **changes})
    return [each.code for each in checkup.findings], checkup


@pytest.mark.parametrize(
    ("answer", "findings"),
    [
        *((answer, []) for answer in ({}, {"status": 401})),
        *((answer, ["otlp_unreachable"]) for answer in ({"status": 404}, {"content_type": "text/html"})),
        ({"status": 302, "location": "https://elsewhere"}, ["otlp_unreachable"]),
    ],
)
def test_http_endpoint_is_probed_at_its_traces_path(answer, findings):
    with OtlpReceiver() as receiver:
        vars(receiver).update(answer)
        codes, _ = _examined_otlp("http/protobuf", endpoint=f"{receiver.endpoint}/")
    assert (codes, receiver.paths) == (findings, ["/v1/traces"])


def test_socket_of_a_collector_is_probed():
    with socket.socket(socket.AF_UNIX) as server, TemporaryDirectory(dir="/tmp") as short:  # 107 bytes at most
        path = Path(short) / "otlp"
        server.bind(str(path))
        server.listen()
        assert [_examined_otlp(endpoint=f"unix:{slashes}{path}")[0] for slashes in ("", "//")] == [[], []]
    assert _examined_otlp(endpoint=f"unix://{path}")[0] == ["otlp_unreachable"]


@pytest.mark.parametrize(("bundle", "problem"), [("no-such.pem", "no-such.pem"), ("of-hungary.pem", "refused")])
def test_https_endpoint_is_probed_with_the_certificates_of_the_exporter(bundle, problem, tmp_path):
    (tmp_path / "of-hungary.pem").write_text("# Főtanúsítvány\n" + Path(certifi.where()).read_text())
    where = {"endpoint": "https://127.0.0.1:9", "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / bundle)}
    assert problem in _examined_otlp("http/protobuf", **where)[1].findings[0].what


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_endpoint_that_is_no_address_is_found(protocol):
    codes, checkup = _examined_otlp(protocol, endpoint="http://[::1")
    assert codes == ["otlp_unreachable"]
    assert "Invalid IPv6 URL" in checkup.findings[0].what


@pytest.mark.parametrize(
    ("exporter", "is_used"), [("otlp", True), ("mqtrace_otlp", True), ("otlp_json_file", False), ("console", False)]
)
def test_endpoint_is_probed_for_exporters_that_send_to_it(exporter, is_used):
    codes, checkup = _examined_otlp(exporter=exporter, endpoint="http://127.0.0.1:9")
    assert codes == ["otlp_unreachable"] * is_used
    assert (checkup.facts["otlp"] == "not used") is not is_used


@pytest.mark.parametrize(
    ("spool_dir", "warnings", "findings"),
    [
        (None, [], []),
        ("spool", [], ["broker_unreachable"]),
        (None, ["native traces are not delivered (those that wait on disk as spooled)"], ["broker_unreachable"]),
    ],
)
def test_brokers_that_took_the_records_of_the_command_may_end_with_it(spool_dir, warnings, findings, monkeypatch):
    monkeypatch.setattr(broker, "_TIMEOUT_S", 0.2)
    account = {"NativeKafkaSpanExporter": {"exported": 1}}
    checkup = Checkup(facts={"processes": [{"processors": [account], "warnings": warnings}]})
    for servers in ("127.0.0.1:9,::::", f"PLAINTEXT://127.0.0.1:9/,{NOBODY}"):
        examine_broker(checkup, Settings(spool_dir=spool_dir), servers=servers, probe=False)
    assert [each.code for each in checkup.findings] == findings * 2
    assert ["an address is not HOST:PORT" in each.what for each in checkup.findings] == [True, False] * len(findings)


@pytest.mark.parametrize("answer", [{"side_effect": FutureTimeout}, {"return_value": KafkaException(KafkaError(29))}])
def test_topic_of_a_probe_that_the_brokers_do_not_delete_is_named(kafka, answer):
    admin, checkup = MagicMock(), Checkup(facts={"broker": {}})
    admin.delete_topics.return_value.__getitem__.return_value.exception = Mock(**answer)
    assert "skew_ms" in broker._measure_skew(checkup, admin, {"bootstrap.servers": kafka.bootstrap_servers})
    (name,) = admin.delete_topics.call_args.args[0]
    assert checkup.facts["broker"]["probe_topic"].startswith(f"{name} may be left")


# -- a command that the doctor runs: it runs as ever, and then what went untraced in it is reported ----------------------

SDK = """
import sys, confluent_kafka
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor
SERVERS, TOPIC = sys.argv[1:3]
conf = {"bootstrap.servers": SERVERS, "log_level": 0}
"""
HEALTHY = f"""{SDK}
from opentelemetry import propagate
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from otel_mqtrace import AioKafkaInstrumentor, MqTraceSpanProcessor
from otel_mqtrace.testing import RecordingExporter
provider = TracerProvider()
if sys.argv[3] == "own":
    provider.add_span_processor(MqTraceSpanProcessor(RecordingExporter()))
propagate.set_global_textmap(TraceContextTextMapPropagator())
for each in MqTraceInstrumentor(), AioKafkaInstrumentor():
    each.instrument(tracer_provider=provider)
producer = confluent_kafka.Producer(conf)
for _ in range(15):
    producer.produce(TOPIC, b"x")
assert producer.flush(10) == 0
print(sys.stdin.read().upper())
sys.exit(7)
"""
BROKEN = f"""{SDK}
early = confluent_kafka.Producer(conf)
HELD = (confluent_kafka.Producer,)
original = confluent_kafka.Producer

class Slim(confluent_kafka.Producer):
    __slots__ = ()

def enclosing(kept):
    return lambda: kept

factory = enclosing(original)
MqTraceInstrumentor().instrument()
class Later(factory()):
    pass
confluent_kafka.Producer(conf).produce(TOPIC, b"x")
class Stranger(confluent_kafka.Producer):
    __module__ = "ddtrace.contrib.internal.kafka.patch"
confluent_kafka.Producer = Stranger
"""


def test_healthy_command_has_no_findings(application, doctor, kafka, topic):
    done = doctor("--", *application(HEALTHY), kafka.bootstrap_servers, topic, "own", typed="hello")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("HELLO\n")
    for text in ("exit_code: 7", "process 1:\n", "healthy"):
        assert text in done.stdout
    assert "survey" not in done.stdout, "a heading without anything under it"
    assert all(line == line.rstrip() for line in done.stdout.splitlines()), "padded in a pipe"


def test_everything_untraced_is_reported(application, ask, kafka, topic):
    code, findings, facts = ask("--", *application(BROKEN), kafka.bootstrap_servers, topic)
    assert code == 1
    untraced = {"client_untraced", "name_bound_before", "untraceable_class", "class_of_original"}
    assert set(findings) == {*untraced, "wrapped_twice", "no_provider", "warned"}
    assert "Datadog" in findings["wrapped_twice"]["what"]
    assert facts["command"]["exit_code"] == 0


def test_command_that_never_instruments_is_reported(ask):
    code, findings, facts = ask("--", sys.executable, "-c", "print(1, end=''); raise SystemExit(3)")
    assert (code, set(findings)) == (1, {"not_instrumented"})
    assert facts["command"]["exit_code"] == 3
    assert findings["not_instrumented"]["what"] == "the command ended with exit code 3 and never switched mqtrace on"


def test_failed_set_up_of_opentelemetry_is_not_a_missing_opentelemetry_instrument(ask, application):
    command = "env", *application("pass", instrumented=True)
    _, findings, _ = ask("--", *command, OTEL_TRACES_EXPORTER="no_such_exporter")
    assert "OpenTelemetry's set-up" in findings["not_instrumented"]["fix"]


@needs_sdk(40, "OpenTelemetry's instrumentation of that time wraps the client in another way")
def test_other_instrumentation_is_reported_under_opentelemetry_instrument(application, ask, kafka, topic):
    program = "import sys, confluent_kafka; confluent_kafka.Producer({'bootstrap.servers': sys.argv[1]})"
    command = [*application(program, instrumented=True), kafka.bootstrap_servers]
    code, findings, _ = ask("--", *command, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="aiokafka")
    assert code == 1
    assert "other_instrumentation" in findings
    (finding,) = {"stepped_back", "wrapped_twice"} & set(findings)  # whichever of the two was loaded first
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=confluent_kafka" in findings[finding]["what"]


def test_signal_is_passed_to_the_command(application, environment):
    program = """
import signal, sys
from otel_mqtrace import MqTraceInstrumentor
MqTraceInstrumentor().instrument()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a pause would miss one that comes just before it
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(5)
"""
    command = [*DOCTOR, "--json", "--", *application(program)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        report = process.stdout.read()
    assert process.returncode == 1
    assert '"exit_code": 5' in report


def test_missing_program_is_one_line_and_a_finding_in_json(capsys):
    assert main(["doctor", "--json", "--", "no-such-program"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mqtrace: error: no-such-program cannot be started")
    assert len(captured.err.splitlines()) == 1
    assert [each["code"] for each in json.loads(captured.out)["findings"]] == ["command_not_started"]


@pytest.mark.parametrize("processor", ["own", "ours"])
def test_provider_given_in_code_records_and_is_reported_once(application, ask, kafka, topic, processor):
    code, findings, facts = ask("--", *application(HEALTHY), kafka.bootstrap_servers, topic, processor)
    assert (code, findings) == (0, {})
    (process,) = facts["processes"]
    assert set(process["clients"]) == {"confluent-kafka", "aiokafka"}
    assert process["propagated"] == ["traceparent", "tracestate"]
    ((lane, account),) = [each for processor in process["processors"] for each in processor.items()]
    assert lane == "NativeFileSpanExporter"
    assert (account["exported"], account["pending"]) == (15, 0)


def test_warnings_are_reported_and_still_on_stderr(application, doctor):
    program = """
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor
MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters="nobody")
"""
    done = doctor("--json", "--", *application(program))
    known = sorted({point.name for point in entry_points(group=EXPORTER_GROUP)})
    line = f"no exporter named 'nobody'; spans do not go there: name one of {', '.join(known)}"
    assert done.stderr == f"mqtrace: {line}\n"
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["facts"]["processes"][0]["warnings"] == [line]
    assert done.returncode == 1
    assert [(each["code"], each["severity"]) for each in report["findings"]] == [("exporter_not_attached", "error")]


def _output(*, account=(), client="confluent-kafka", besides=(), outcome="instrumented", records=True, **changes):
    lane = {"offered": 3, "exported": 3, "dropped": {}, "failed": 0, "pending": 0, **dict(account)}
    outcomes = {client: outcome, **dict.fromkeys(besides, "instrumented")}
    of_client = {"survey": {}, "provider": "opentelemetry.sdk.trace.TracerProvider", "records": records}
    clients = {name: {"outcome": each, **of_client} for name, each in outcomes.items()}
    of_process = {"pid": 1, "program": "app.py", "ended": True, "running": False, "application_servers": None}
    without_loss = {"unrecorded": {}, "refused_exporters": {}, "warnings": [], "propagated": ["baggage", "traceparent"]}
    return {**of_process, **without_loss, "clients": clients, "processors": [{"Exporter": lane}], **changes}


def _findings(*reports):
    checkup = Checkup()
    examine_reports(checkup, reports, [])
    return checkup.findings


@pytest.mark.parametrize(
    ("changes", "findings"),
    [
        ({}, []),
        ({"account": {"dropped": {"queue_full": 2}}}, ["spans_lost"]),
        ({"account": {"failed": 1}, "warnings": ["#", "native traces are not written"]}, ["spans_lost", "warned"]),
        ({"account": {"offered": 0}}, ["nothing_recorded"]),
        ({"unrecorded": {"transaction_too_long": 5}}, ["unrecorded"]),
        ({"ended": False}, ["ended_abruptly"]),
        ({"ended": False, "besides": ["aiokafka"]}, ["ended_abruptly"]),
        ({"ended": False, "running": True}, []),
        ({"outcome": "switched_off"}, ["switched_off"]),
        ({"outcome": "no_client"}, ["client_missing"]),
        ({"outcome": "no_client", "besides": ["aiokafka"]}, []),
        ({"refused_exporters": {"mqtrace_native": "no module"}, "warnings": ["no module"]}, ["exporter_not_attached"]),
        ({"warnings": ["the spool is full"]}, ["warned"]),
        ({"outcome": "broken_client: libssl.so.3", "client": "aiokafka"}, ["client_broken"]),
        ({"outcome": "stepped_back: ddtrace", "besides": ["aiokafka"]}, ["stepped_back"]),
        ({"records": False}, ["no_provider"]),
        ({"propagated": []}, ["no_propagator"]),
        ({"propagated": ["baggage"]}, ["no_propagator"]),
    ],
)
def test_report_of_a_process_becomes_findings(changes, findings):
    assert [each.code for each in _findings(_output(**changes))] == findings


@pytest.mark.parametrize(("disabled", "is_missing"), [("mqtrace_confluent_kafka", False), ("mqtrace_kafka", True)])
def test_client_is_missing_unless_an_instrumentation_of_ours_is_disabled(monkeypatch, disabled, is_missing):
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", disabled)
    assert len(_findings(_output(outcome="no_client", client="aiokafka"))) == is_missing


def test_process_without_a_span_beside_one_with_spans_is_no_finding():
    none = {"account": {"offered": 0}}
    findings = _findings(_output(), _output(**none), _output(**none, ended=False))
    assert [each.code for each in findings] == ["ended_abruptly"]


PROCESSES = f"""{SDK}
import multiprocessing

def send():
    trace.set_tracer_provider(TracerProvider())
    MqTraceInstrumentor().instrument()
    producer = confluent_kafka.Producer(conf)
    producer.produce(TOPIC, b"x")
    assert producer.flush(10) == 0

if __name__ == "__main__":
    for start in "fork", "spawn":
        process = multiprocessing.get_context(start).Process(target=send)
        process.start()
        process.join()
"""


def test_processes_of_multiprocessing_are_no_findings(application, ask, kafka, topic):
    """Its resource tracker is a Python process as any other, instrumented at its start, and sends nothing."""
    code, findings, facts = ask("--", *application(PROCESSES, instrumented=True), kafka.bootstrap_servers, topic)
    assert (code, findings) == (0, {})
    processors = [processor for each in facts["processes"] for processor in each["processors"]]
    assert sum(lane["exported"] for processor in processors for lane in processor.values()) == 2
