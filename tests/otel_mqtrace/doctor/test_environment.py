"""``mqtrace doctor`` on a healthy installation, and one finding for each deliberate fault."""

import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import certifi
import pytest

from otel_mqtrace.config import Settings
from otel_mqtrace.doctor import broker
from otel_mqtrace.doctor.broker import examine_broker
from otel_mqtrace.doctor.checks import Checkup, examine_directories, examine_environment, examine_otlp
from tests.support.opentelemetry_release import needs_sdk
from tests.support.otlp_receiver import OtlpReceiver

NOBODY = "127.0.0.1:1"
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
        report = checkup.as_dict()
        return {each["code"]: each for each in report["findings"]}, report["facts"]

    return run


def test_healthy_installation_has_no_findings(ask):
    code, findings, facts = ask()
    assert (code, findings) == (0, {})
    assert facts["versions"]["confluent-kafka"]
    assert facts["versions"]["librdkafka"]
    assert "mqtrace_confluent_kafka" in facts["instrumentations"]["installed"]


BROKEN = {
    "setting_wrong": {"MQTRACE_QUEUE_SIZE": "many"},
    "setting_unknown": {"MQTRACE_QUEU_SIZE": "7"},
    "switched_off": {"MQTRACE_ENABLED": "false"},
    "exporter_missing": {"MQTRACE_EXPORTERS": "mqtrace_nativ"},
    "instrumentation_disabled": {
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka,mqtrace_confluent_kafka"
    },
    "sdk_disabled": {"OTEL_SDK_DISABLED": "true"},
    "sampled_out": {"OTEL_TRACES_SAMPLER": "always_off"},
    "no_propagator": {"OTEL_PROPAGATORS": "none"},
    "config_file_missing": {"OTEL_CONFIG_FILE": "not-there.yaml"},
}
"""Finding → what brings it about."""


NOWHERE = "/proc/self/nothing/here"


@pytest.mark.parametrize(
    ("finding", "changes", "words"),
    [
        *((finding, changes, "") for finding, changes in BROKEN.items()),
        ("setting_wrong", {"MQTRACE_DIALECT": "9.9"}, "MQTRACE_DIALECT = '9.9': one of 4.4.0"),
        ("setting_unknown", {"MQTRACE_FOOBAR": SECRET}, "unknown setting MQTRACE_FOOBAR"),
        ("propagator_missing", {"OTEL_PROPAGATORS": "tracecontext,b4"}, "'b4' is not installed"),
        ("no_propagator", {"OTEL_PROPAGATORS": "tracecontext,None,b4"}, "trace"),
        ("exporter_missing", {"MQTRACE_EXPORTERS": f"https://user:{SECRET}@host"}, "'https://…@host'"),
        *(
            (f"{kind}_not_writable", {f"MQTRACE_{kind.upper()}_DIR": NOWHERE}, "")
            for kind in ("landing", "spool", "ledger")
        ),
        ("otlp_unreachable", {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{NOBODY}"}, ""),
        ("kafka_config_unreadable", {"MQTRACE_EXPORTERS": "mqtrace_native", "MQTRACE_KAFKA_CONFIG": "not-there"}, ""),
    ],
)
def test_fault_is_the_only_finding_with_its_value_and_no_password(examine, finding, changes, words):
    findings, facts = examine(**changes)
    assert set(findings) == {finding}
    assert all(findings[finding][part] for part in ("what", "where", "fix"))
    assert words in findings[finding]["what"]
    assert SECRET not in str(facts) + str(findings)


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
    findings, _ = examine(
        MQTRACE_EXPORTERS="mqtrace_native",
        MQTRACE_BOOTSTRAP_SERVERS=kafka.bootstrap_servers,
        MQTRACE_KAFKA_CONFIG=str(properties),
    )
    assert set(findings) == {"kafka_config_refused"}
    assert 'No such configuration property: "nonsense.key"' in findings["kafka_config_refused"]["what"]


@needs_sdk(40, "OpenTelemetry's instrumentation of that time wraps the client in another way")
def test_all_findings_are_reported_at_once(ask):
    together = {name: value for changes in BROKEN.values() for name, value in changes.items()}
    together |= {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "mqtrace_confluent_kafka"}
    code, findings, _ = ask(**together)
    assert code == 1
    assert set(findings) == {*BROKEN, "other_instrumentation"}


def test_doctor_leaves_no_files(examine, tmp_path):
    examine(MQTRACE_SPOOL_DIR=str(tmp_path / "a" / "spool"), MQTRACE_LEDGER_DIR=str(tmp_path / "a" / "ledger"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("topic", "is_advised"), [("nobody-made-this", True), ("bad topic/x", False)])
def test_missing_trace_topic_is_found_and_not_created(examine, kafka, topic, is_advised):
    changes = {
        "MQTRACE_EXPORTERS": "mqtrace_native",
        "MQTRACE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MQTRACE_TRACE_TOPIC": topic,
    }
    for _ in range(2):
        findings, facts = examine(**changes)
        assert set(findings) == {"trace_topic_missing"}
    assert facts["broker"]["brokers"] == 1
    assert ("create" in findings["trace_topic_missing"]["fix"]) is is_advised
    assert (examine(**changes, MQTRACE_CREATE_TRACE_TOPIC="true")[0] == {}) is is_advised


@pytest.mark.parametrize("named_by", ["the environment", "the application"])
def test_existing_trace_topic_is_reported(examine, kafka, topic, named_by):
    servers = {"MQTRACE_BOOTSTRAP_SERVERS" if named_by == "the environment" else "servers": kafka.bootstrap_servers}
    findings, facts = examine(MQTRACE_EXPORTERS="mqtrace_native", MQTRACE_TRACE_TOPIC=topic, **servers)
    assert findings == {}
    assert facts["broker"]["partitions"] == 1
    assert "--probe" in facts["broker"]["clock"]


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
    environ = {
        **changes,
        "OTEL_TRACES_EXPORTER": exporter,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }
    examine_otlp(checkup, Settings(), environ)
    return [each.code for each in checkup.findings], checkup


@pytest.mark.parametrize(
    ("answer", "findings"),
    [
        ({}, []),
        ({"status": 401}, []),
        ({"status": 404}, ["otlp_unreachable"]),
        ({"status": 302, "location": "https://elsewhere"}, ["otlp_unreachable"]),
        ({"content_type": "text/html"}, ["otlp_unreachable"]),
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
        (None, ["native traces wait on disk: the broker is away"], ["broker_unreachable"]),
    ],
)
def test_brokers_that_took_the_records_of_the_command_may_end_with_it(spool_dir, warnings, findings, monkeypatch):
    monkeypatch.setattr(broker, "_TIMEOUT_S", 0.2)
    account = {"NativeKafkaSpanExporter": {"exported": 1}}
    checkup = Checkup(facts={"processes": [{"processors": [account], "warnings": warnings}]})
    examine_broker(checkup, Settings(spool_dir=spool_dir), servers="127.0.0.1:9", probe=False)
    assert [each.code for each in checkup.findings] == findings
