"""Addresses and answers of Jaeger; a server is in ``tests/peers/jaeger``, and none at all in ``test_commands``."""

import json
import socketserver
from datetime import datetime, timedelta
from threading import Thread
from urllib.parse import parse_qsl, urlsplit

import pytest

from bridge.storage.paths import as_path
from otel_mqtrace._errors import PeerError, UnreadableInputError, UsageError
from otel_mqtrace.cli import main
from spark_jobs.sources.jaeger import JaegerAddress, fetch_spans, local_sources, name_fetched


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
    "rest", ["a:1", "a/p", "?service=s", "a:x?service=s", "a:0?service=s", "a:1?service=s&limit=2"]
)
def test_address_of_another_form_is_refused(rest):
    with pytest.raises(UsageError, match=r"invalid source .*jaeger://HOST:PORT\?service=NAME"):
        JaegerAddress.parse(f"jaeger://{rest}")


@pytest.fixture
def answering():
    """Start a server that answers each of its ``requests`` with the next of some bytes; return its address."""
    left, requests = [], []

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            requests.append(self.request.recv(4096).decode().split()[1])
            self.wfile.write(left.pop(0))

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:

        def start(*answers):
            left.extend(answers)
            return JaegerAddress("{}:{}".format(*server.server_address), ("shop",))

        start.requests = requests
        Thread(target=server.serve_forever).start()
        yield start
        server.shutdown()


def http(content):
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode()


SERVICES = http('{"services": ["shop"]}')


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"\0\0\x12\x04 of gRPC"], "no Jaeger answers"),
        ([SERVICES[:-5]], "no Jaeger answers"),
        ([http("").replace(b"200 OK", b"404 Not Found")], "404: Not Found; give the port of its page"),
        (
            [http("").replace(b"200 OK", b"500 Down")],
            r"127\.0\.0\.1:\d+ refused .*services: HTTP Error 500: Down; see its log",
        ),
        ([SERVICES, http('{"error": {"message": "no"}}')], "something other than traces"),
        ([http('{"status": "ok"}')], "is not the query API of Jaeger"),
        ([http("{}")], "has no service 'shop'; it has: none"),  # so answers a Jaeger that is empty
    ],
)
def test_answer_that_has_no_traces_is_an_error_of_the_server(answering, tmp_path, answers, message):
    with pytest.raises((PeerError, UnreadableInputError), match=message):
        fetch_spans(answering(*answers), tmp_path / "spans")


def traces(*spans):
    resources = [{"scopeSpans": [{"scope": {}}, {"spans": spans}]}, {"scopeSpans": None}]
    return http(json.dumps({"result": {"resourceSpans": resources}}))


def test_page_that_may_be_cut_off_is_read_in_halves_under_names_of_every_release(answering, tmp_path):
    """Cassandra's limit is three spans for each trace, and it leaves out the spans at both ends."""
    one, other = ({"traceId": name, "startTimeUnixNano": "1"} for name in ("ab", "cd"))
    address = answering(SERVICES, traces(*[one] * 6), traces(one), traces(other))
    fetch_spans(address, tmp_path / "spans", traces_per_page=2)
    assert [line.count("traceId") for line in (tmp_path / "spans").read_text(encoding="utf-8").splitlines()] == [1, 1]
    windows = []
    for request in answering.requests[1:]:
        query = {name.removeprefix("query."): value for name, value in parse_qsl(urlsplit(request).query)}
        windows.append([datetime.fromisoformat(query[name]) for name in ("startTimeMin", "startTimeMax")])
        older = ("service_name", "num_traces", "start_time_min", "start_time_max", "raw_traces")
        newer = ("serviceName", "searchDepth", "startTimeMin", "startTimeMax", "rawTraces")
        assert [query[name] for name in older] == [query[name] for name in newer]
        assert (query["serviceName"], query["searchDepth"], query["rawTraces"]) == ("shop", "2", "true")
    whole, (begin, middle), (again, end) = windows
    assert ([begin, end], middle - again) == (whole, timedelta(microseconds=1))


def test_jaeger_is_a_file_of_its_spans_and_other_sources_stay_as_they_are(answering):
    server = answering(SERVICES, traces({"traceId": "ab"})).server
    given = ["a.jsonl", f"jaeger://{server}?service=shop", "kafka://a:1/t"]
    with local_sources(given) as (file, fetched, topic):
        assert (file, topic) == ("a.jsonl", "kafka://a:1/t")
        name = f"jaeger-{server.replace(':', '-')}.jsonl"
        assert [*map(name_fetched, (file, fetched, topic))] == [None, name, None]
        text = as_path(fetched).read_text(encoding="utf-8")
        assert text.count('"traceId": "ab"') == 1  # a scope may be without spans


def test_jaeger_without_traces_is_named_by_its_address(answering, capsys):
    source = f"jaeger://{answering(SERVICES, http('{}')).server}?service=shop"
    assert main(["inspect", source]) == 0
    assert capsys.readouterr().err == f"mqtrace: nothing in {source}\n"
