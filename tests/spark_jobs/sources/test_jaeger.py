"""Addresses of Jaeger; a server is in ``tests/peers/jaeger``, and none at all in ``test_commands``."""

import pytest

from otel_mqtrace._errors import UsageError
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
