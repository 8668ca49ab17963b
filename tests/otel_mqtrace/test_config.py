"""Settings from the environment and from code; a wrong one warns and the application starts."""

import logging
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace import config
from otel_mqtrace.client_properties import without_password
from otel_mqtrace.config import Settings

CONTRACT = {
    "MQTRACE_ENABLED": (True, "false", False),
    "MQTRACE_TRACE_TOPIC": ("RMQ_SYS_TRACE_TOPIC", "traces", "traces"),
    "MQTRACE_EXPORTERS": (("mqtrace_native",), "a, b", ("a", "b")),
    "MQTRACE_BOOTSTRAP_SERVERS": (None, "b:1,c:2", "b:1,c:2"),
    "MQTRACE_KAFKA_CONFIG": (None, "trace.properties", "trace.properties"),
    "MQTRACE_LANDING_DIR": ("mqtrace-landing", "here", "here"),
    "MQTRACE_DIALECT": ("5.5.0", "4.9.8", "4.9.5"),
    "MQTRACE_REGION_ID": ("DefaultRegion", "cn-hangzhou", "cn-hangzhou"),
    "MQTRACE_PRESET": (None, "rocketmq4", "rocketmq4"),
    "MQTRACE_QUEUE_SIZE": (None, "64", 64),
    "MQTRACE_BATCH_SIZE": (None, "7", 7),
    "MQTRACE_LINGER_MS": (None, "9", 9),
    "MQTRACE_MAX_MESSAGE_BYTES": (128_000, "250", 250),
    "MQTRACE_PROCESS_CONTEXT": ("auto", "both", "both"),
    "MQTRACE_RECEIVE_SPANS": (False, "true", True),
    "MQTRACE_TOPIC_EXCLUDE": ((), "audit.*, *-noise", ("audit.*", "*-noise")),
    "MQTRACE_CREATE_TRACE_TOPIC": (False, "true", True),
}
"""Variable → (its default, a text, what that sets); a default of ``None`` is left to the part that uses the setting."""


@pytest.fixture(autouse=True)
def _nothing_warned_yet(monkeypatch):
    monkeypatch.setattr(config, "_warned", set())


@pytest.mark.parametrize("variable", CONTRACT)
def test_variable_sets_its_setting_which_has_the_default_of_the_contract(variable):
    default, text, value = CONTRACT[variable]
    name = variable.removeprefix("MQTRACE_").lower()
    assert getattr(Settings.from_env(environ={}), name) == default
    assert Settings.from_env(environ={variable: text}) == replace(Settings(), **{name: value})


def test_code_wins_over_the_environment():
    environ = {"MQTRACE_REGION_ID": "env", "MQTRACE_EXPORTERS": "a, b", "MQTRACE_RECEIVE_SPANS": "yes"}
    settings = Settings.from_env({"region_id": "code", "linger_ms": None}, environ=environ)
    assert (settings.region_id, settings.exporters, settings.receive_spans) == ("code", ("a", "b"), True)


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("MQTRACE_QUEUE_SIZE", "many", "2048"),
        ("MQTRACE_ENABLED", "perhaps", "True"),
        ("MQTRACE_PROCESS_CONTEXT", "sideways", "'auto'"),
        ("MQTRACE_PRESET", "rocketmq9", "no preset"),
        ("MQTRACE_DIALECT", "4.9.9", "the nearest is 4.9.8; '5.5.0'"),
        ("MQTRACE_QUEUE_SIZE", str(10**30), "2048"),
        ("MQTRACE_TOPIC_SAMPLING", "5", "nothing"),
        ("MQTRACE_MAX_MESSAGE_BYTES", "0", "128000"),
    ],
)
def test_wrong_value_is_one_warning_with_name_value_and_default(caplog, name, value, default):
    for _ in range(2):
        assert Settings.from_env(environ={name: value}) == Settings()
    (record,) = caplog.records
    assert all(part in record.getMessage() for part in (name, value, default))


@pytest.mark.parametrize("name", [each.name for each in fields(Settings)])
def test_warning_of_a_wrong_value_names_the_value_in_use(caplog, name):
    Settings.from_env({name: object()}, environ={})
    assert name in caplog.text
    assert not re.search(r"(None|\(.*\)|\{\}) is used", caplog.text)


@pytest.mark.parametrize(
    "name", ["topic_include", "topic_exclude", "topic_sampling", "capture_headers", "redact_headers"]
)
def test_open_bracket_of_a_pattern_is_one_warning_and_the_other_patterns_hold(caplog, name):
    share = "=0.5" * (name == "topic_sampling")
    environment = {f"MQTRACE_{name.upper()}": f"or[[]d]ers{share},[]a]{share},a[!]*{share}"}
    for _ in range(2):
        assert [*getattr(Settings.from_env(environ=environment), name)] == ["or[[]d]ers", "[]a]", "a[!]*"]
    (warning,) = caplog.messages
    assert warning == f"mqtrace: {name} = 'a[!]*': a [ that no ] closes stands for itself; close it, or write [[]"


def test_warning_of_a_wrong_option_names_the_value_of_the_environment(caplog):
    Settings.from_env({"topic_sampling": 5}, environ={"MQTRACE_TOPIC_SAMPLING": "audit.*=0.5"})
    assert "; {'audit.*': 0.5} is used" in caplog.text


def test_batch_size_larger_than_the_queue_is_a_wrong_value(caplog):
    settings = Settings.from_env({"batch_size": 100}, environ={"MQTRACE_QUEUE_SIZE": "50"})
    assert (settings.queue_size, settings.batch_size) == (50, 50)
    assert "batch_size = 100: no such batch fits a queue_size of 50; 50 is used" in caplog.text


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Settings)]), st.text() | st.integers() | st.none()))
def test_any_value_is_accepted_or_replaced(overrides):
    assert isinstance(Settings.from_env(overrides, environ={}), Settings)


def test_none_as_the_only_exporter_means_no_exporter():
    """As OpenTelemetry's own OTEL_TRACES_EXPORTER reads it."""
    assert Settings.from_env(environ={"MQTRACE_EXPORTERS": "none"}).exporters == ()


@pytest.mark.parametrize(
    ("topic", "excluded"), [("RMQ_SYS_TRACE_TOPIC", True), ("audit.x", True), ("orders", False), ("AUDIT.x", False)]
)
def test_trace_topic_and_matching_topics_are_excluded(topic, excluded):
    assert Settings(topic_exclude=("audit.*",)).excludes(topic) is excluded


@pytest.mark.parametrize(
    "overrides",
    [
        {"kafka_config": {"sasl.password": "hunter2"}},
        {"kafka_config": 5, "bootstrap_servers": ["hunter2:9092", 5]},
        {"bootstrap_servers": ["hunter2:9092"]},
        {"preset": "https://me:hunter2@host/path"},
        {"sasl_password": "hunter2"},
        {"kafka_config": ["sasl.password=hunter2"]},
    ],
)
def test_password_is_not_logged(caplog, overrides):
    with caplog.at_level(logging.DEBUG):
        settings = Settings.from_env(overrides, environ={})
    assert "hunter2" not in caplog.text + repr(settings)


def test_client_properties_may_be_a_mapping(caplog):
    given = {"sasl.password": "hunter2"}
    settings = Settings.from_env({"kafka_config": given}, environ={})
    given.clear()
    assert settings.kafka_config == {"sasl.password": "hunter2"}
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        *(("bootstrap_servers", given, "a:1,b:2") for given in ("a:1, ,b:2,", ["a:1", "b:2"], ("a:1 ", " b:2"))),
        ("topic_sampling", {}, {}),
        ("exporters", "a, b,a", ("a", "b")),
    ],
)
def test_value_may_have_several_forms_or_be_empty(name, given, value, caplog):
    assert getattr(Settings.from_env({name: given}, environ={}), name) == value
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        *(
            (name, value, f"{name} = {value!r}: a list of names was expected")
            for name in ("topic_exclude", "capture_headers", "exporters")
            for value in (b"audit", ["a", None], [5], {"a": 1, 5: 2})
        ),
        *(
            ("topic_sampling", value, "pattern=share pairs were expected")
            for value in (5, b"a=1", [5], ["a=2"], {"a": "much"}, {"a": 10**400})
        ),
        ("region_id", "eu\udcff", "text in UTF-8 was expected"),
        ("landing_dir", "s3a://bucket/landing", "a directory of this machine was expected"),
        ("spool_dir", "spool\0", "a directory of this machine was expected"),
        ("bootstrap_servers", " , ", "some text was expected"),
        ("headerless_sends", "send_each", "one of correlate, leave was expected; 'correlate' is used"),
    ],
)
def test_value_of_another_shape_is_not_used_and_the_expected_one_is_named(caplog, name, value, complaint):
    assert getattr(Settings.from_env({name: value}, environ={}), name) == getattr(Settings(), name)
    assert complaint in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://me:hush@host:1/x and http://host:2", "see https://…@host:1/x and http://host:2"),
        ("'otlp://me:hu@sh@host'", "'otlp://…@host'"),
        ("redis://:hush@host", "redis://…@host"),
        ("a:1@b:2", "a:1@b:2"),
        ("https://host/a:b@c", "https://host/a:b@c"),
    ],
)
def test_address_is_shown_without_user_and_password(text, shown):
    assert without_password(text) == shown
