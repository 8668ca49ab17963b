"""``mqtrace doctor`` on a healthy installation, and one finding for each deliberate fault."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from otel_mqtrace.config import Settings
from otel_mqtrace.doctor.broker import examine_broker
from otel_mqtrace.doctor.checks import Checkup, examine_directories, examine_environment, examine_otlp
from tests.support.opentelemetry_release import needs_sdk

NOBODY = "127.0.0.1:1"
SECRET = "hush-hush"


@pytest.fixture
def examine(environment):
    """Make the doctor's checks in this process; return the findings by code, and the facts."""

    def run(**changes):
        checkup, environ = Checkup(), environment(**changes)
        settings = examine_environment(checkup, environ)
        examine_directories(checkup, settings)
        examine_otlp(checkup, settings, environ)
        examine_broker(checkup, settings, servers=None, probe=False)
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


@pytest.mark.parametrize("finding", BROKEN)
def test_broken_setting_is_the_only_finding(examine, finding):
    findings, _ = examine(**BROKEN[finding])
    assert set(findings) == {finding}
    assert all(findings[finding][part] for part in ("what", "where", "fix"))


@pytest.mark.parametrize(
    ("finding", "changes", "words"),
    [
        ("setting_wrong", {"MQTRACE_DIALECT": "9.9"}, "MQTRACE_DIALECT = '9.9': one of 4.4.0"),
        ("setting_unknown", {"MQTRACE_FOOBAR": SECRET}, "unknown setting MQTRACE_FOOBAR"),
        ("propagator_missing", {"OTEL_PROPAGATORS": "tracecontext,b4"}, "'b4' is not installed"),
        ("no_propagator", {"OTEL_PROPAGATORS": "tracecontext,None,b4"}, "trace"),
        ("exporter_missing", {"MQTRACE_EXPORTERS": f"https://user:{SECRET}@host"}, "'https://…@host'"),
    ],
)
def test_wrong_setting_is_found_with_its_value_and_no_password(examine, finding, changes, words):
    findings, facts = examine(**changes)
    assert set(findings) == {finding}
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


@pytest.mark.parametrize(
    ("finding", "changes"),
    [
        *(
            (f"{kind}_not_writable", {f"MQTRACE_{kind.upper()}_DIR": "/proc/self/nothing/here"})
            for kind in ("landing", "spool", "ledger")
        ),
        ("otlp_unreachable", {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{NOBODY}"}),
        ("kafka_config_unreadable", {"MQTRACE_EXPORTERS": "mqtrace_native", "MQTRACE_KAFKA_CONFIG": "not-there"}),
    ],
)
def test_unusable_destination_is_found(examine, finding, changes):
    assert set(examine(**changes)[0]) == {finding}


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


def test_invalid_topic_name_is_found_without_advice_to_create_it(kafka):
    checkup = Checkup()
    examine_broker(checkup, Settings(trace_topic="bad topic/x"), servers=kafka.bootstrap_servers, probe=False)
    (finding,) = checkup.findings
    assert finding.code == "trace_topic_missing"
    assert "create" not in finding.fix


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


def test_missing_trace_topic_is_found_and_not_created(examine, kafka):
    changes = {
        "MQTRACE_EXPORTERS": "mqtrace_native",
        "MQTRACE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MQTRACE_TRACE_TOPIC": "nobody-made-this",
    }
    for _ in range(2):
        findings, facts = examine(**changes)
        assert set(findings) == {"trace_topic_missing"}
    assert facts["broker"]["brokers"] == 1
    assert examine(**changes, MQTRACE_CREATE_TRACE_TOPIC="true")[0] == {}


def test_existing_trace_topic_is_reported(examine, kafka, topic):
    findings, facts = examine(
        MQTRACE_EXPORTERS="mqtrace_native",
        MQTRACE_BOOTSTRAP_SERVERS=kafka.bootstrap_servers,
        MQTRACE_TRACE_TOPIC=topic,
    )
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


class _Collector(BaseHTTPRequestHandler):
    """Answers with the status the test wants."""

    status = 200

    def do_POST(self):
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(("status", "findings"), [(200, []), (401, []), (404, ["otlp_unreachable"])])
def test_http_endpoint_is_probed_at_its_traces_path(status, findings):
    handler = type("Answering", (_Collector,), {"status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        checkup = Checkup()
        environ = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}/",
        }
        examine_otlp(checkup, Settings(), environ)
        thread.join(10)
    assert [each.code for each in checkup.findings] == findings


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_endpoint_that_is_no_address_is_found(protocol):
    checkup = Checkup()
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}
    examine_otlp(checkup, Settings(), {"OTEL_TRACES_EXPORTER": "otlp", **environ})
    (finding,) = checkup.findings
    assert finding.code == "otlp_unreachable"
    assert "Invalid IPv6 URL" in finding.what


@pytest.mark.parametrize(
    ("exporter", "is_used"), [("otlp", True), ("mqtrace_otlp", True), ("otlp_json_file", False), ("console", False)]
)
def test_endpoint_is_probed_for_exporters_that_send_to_it(exporter, is_used):
    checkup = Checkup()
    environ = {"OTEL_TRACES_EXPORTER": exporter, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    examine_otlp(checkup, Settings(), environ)
    assert [each.code for each in checkup.findings] == ["otlp_unreachable"] * is_used
    assert (checkup.facts["otlp"] == "not used") is not is_used


def test_application_brokers_are_checked_when_no_others_are_named(kafka, topic):
    checkup = Checkup()
    examine_broker(checkup, Settings(trace_topic=topic), servers=kafka.bootstrap_servers, probe=False)
    assert checkup.healthy
    assert checkup.facts["broker"]["partitions"] == 1
