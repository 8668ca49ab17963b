"""Addresses of Jaeger, and servers that are none; the real one is in ``tests/peers/jaeger``."""

import socket

import pytest

from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.cli import main
from spark_jobs.sources.jaeger import JaegerAddress, local_sources


@pytest.mark.parametrize(
    ("text", "server", "services"),
    [
        ("jaeger://a:1?service=shop", "a:1", ("shop",)),
        ("jaeger://a?service=shop&service=b%20c", "a:16686", ("shop", "b c")),
        ("jaeger://[::1]:1/?service=shop&service=shop", "[::1]:1", ("shop",)),
    ],
)
def test_address_names_the_server_and_its_services(text, server, services):
    assert JaegerAddress.parse(text) == JaegerAddress(server, services)


@pytest.mark.parametrize(
    "text",
    ["jaeger://a:1", "jaeger://?service=s", "jaeger://a:x?service=s", "jaeger://a:1?service=s&limit=2", "jaeger://a/p"],
)
def test_address_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"invalid source .*jaeger://HOST:PORT\?service=NAME"):
        JaegerAddress.parse(text)


def test_other_sources_stay_as_they_are(tmp_path):
    with local_sources(["a.jsonl", "kafka://a:1/t"]) as sources:
        assert sources == ("a.jsonl", "kafka://a:1/t")


def _closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_server_that_does_not_answer_is_named():
    port = _closed_port()
    with (
        pytest.raises(PeerError, match=f"no Jaeger answers at 127.0.0.1:{port}"),
        local_sources([f"jaeger://127.0.0.1:{port}?service=s"]),
    ):
        pass


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["graph", "--out", "{out}", "--otlp"],
        ["reconcile", "--native", "{native}", "--out", "{out}", "--engine", "local", "--otlp"],
    ],
)
def test_command_exits_2_with_one_line(arguments, tmp_path, capsys):
    native = tmp_path / "native.jsonl"
    native.touch()
    given = [argument.format(native=native, out=tmp_path / "out") for argument in arguments]
    assert main([*given, f"jaeger://127.0.0.1:{_closed_port()}?service=s"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mqtrace: error: no Jaeger answers at 127.0.0.1")
    assert error.count("\n") == 1


def test_stream_refuses_jaeger(tmp_path, capsys):
    sources = ["--native", str(tmp_path), "--otlp", "jaeger://a:1?service=s"]
    assert main(["reconcile", *sources, "--out", str(tmp_path / "out"), "--stream"]) == 2
    assert "--stream does not take jaeger://" in capsys.readouterr().err
