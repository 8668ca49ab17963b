"""``mqtrace query`` as a user runs it: what it prints, what it writes, and how it ends."""

import io
import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from bridge.forwarder.span_fields import trace_id_of
from bridge.query.details import answer_json
from bridge.query.findings import FINDING_CODES
from bridge.query.search import Searched
from bridge.query.timeline import STEP_FIELDS, Event, Finding, Kind
from otel_mqtrace.cli import main
from tests.support.archives import ID, T0, answer_of, consume, land, landed, pub
from tests.support.html_page import Page
from tests.support.native_vectors import RECORDED
from tests.support.programs import no_file_beyond
from tests.support.source_tree import ROOT

MESSAGES = landed(pub(), *consume("R1", T0 + 50), pub(T0 + 9, msg_id="OTHER"))


@pytest.fixture
def landing(tmp_path):
    land(tmp_path / "landing", MESSAGES)
    return str(tmp_path / "landing")


@pytest.mark.parametrize("msg_id", [ID, ID.lower(), f"NONE,{ID.lower()}"])
def test_found_message_is_exit_code_0(landing, mqtrace, msg_id):
    code, out, err = mqtrace("query", "--msg-id", msg_id, "--landing", landing)
    assert (code, err) == (0, "")
    assert b"Sent once; consumed by 1 group." in out
    assert b"Searched 4 trace messages" in out


def test_nothing_found_is_exit_code_1_and_one_line_with_the_search(landing, tmp_path, mqtrace):
    page = tmp_path / "message.html"
    code, out, err = mqtrace("query", "--msg-id", "NOBODY", "--landing", landing, "--html", page)
    assert (code, out, err.count("\n")) == (1, b"", 1)
    assert err.startswith("mqtrace: nothing found; searched 4 trace messages of ")
    assert err.endswith("; check the search options\n")
    assert not page.exists()
    (broken := tmp_path / "broken.parquet").write_bytes(b"PAR1 no PAR1")
    code, out, err = mqtrace("query", "--msg-id", "NOBODY", landing, broken, "--json")
    assert (code, json.loads(out)["messages"]) == (1, [])
    assert "broken.parquet: not a readable Parquet file" in err


def test_prefix_lists_its_messages_newest_first(landing, mqtrace):
    code, out, _ = mqtrace("query", landing, "--msg-id", f"{ID[:6]}*", "--json")
    assert (code, [message["msg_id"] for message in json.loads(out)["messages"]]) == (0, [ID])
    code, out, _ = mqtrace("query", landing, "--msg-id", "*")
    assert code == 0
    assert [line.split()[2:7] for line in out.decode().splitlines()[1:4]] == [
        ["OTHER", "orders", "shop", "send", "success"],
        [ID, "orders", "shop", "send", "success"],
        [ID, "orders", "billing", "consume", "success"],
    ]


def test_list_in_a_pipe_breaks_no_name(tmp_path, mqtrace):
    group = "a-group-with-a-name-" + "x" * 200
    land(tmp_path, landed(*consume("R1", T0, group=group), *consume("R2", T0, group=group, msg_id="OTHER")))
    _, out, _ = mqtrace("query", tmp_path, "--group", group)
    assert [group in line for line in out.decode().splitlines()[1:3]] == [True, True]


def test_pages_are_disjoint_and_an_empty_one_is_reported(landing, mqtrace):
    one_a_page = ("query", landing, "--key", "order-1", "--limit", "1", "--page")
    pages = [json.loads(mqtrace(*one_a_page, page, "--json")[1]) for page in ("1", "2")]
    assert [[message["msg_id"] for message in page["messages"]] for page in pages] == [["OTHER"], [ID]]
    counts = [(page["page"], page["pages"], page["total"], page["left_off"]) for page in pages]
    assert counts == [(1, 2, 2, 1), (2, 2, 2, 0)]
    code, out, err = mqtrace(*one_a_page, "3")
    assert (code, out, err) == (1, b"", "mqtrace: page 3 is empty: 2 messages on 2 pages\n")


def test_messages_without_an_id_have_no_trace_in_common(tmp_path, capsys):
    """The forwarder makes a trace of each record that names no message."""
    land(tmp_path, landed(pub(msg_id="null", keys="k")))
    options = ["query", str(tmp_path), "--key", "k", "--link-template", "https://jaeger.example/trace/{trace_id}"]
    assert main([*options, "--json"]) == 0
    (message,) = json.loads(capsys.readouterr().out)["messages"]
    assert (message["trace_id"], message["link"]) == (None, None)
    page = tmp_path / "page.html"
    assert main([*options, "--html", str(page)]) == 0
    assert "trace id of" not in capsys.readouterr().out + page.read_text(encoding="utf-8")


def test_message_has_its_trace_id_and_link(landing, mqtrace):
    template = "https://jaeger.example/trace/{trace_id}"
    _, out, _ = mqtrace("query", landing, "--msg-id", ID, "--link-template", template, "--json")
    (message,) = json.loads(out)["messages"]
    assert message["trace_id"] == trace_id_of(ID)
    assert message["link"] == f"https://jaeger.example/trace/{message['trace_id']}"
    _, out, _ = mqtrace("query", landing, "--msg-id", ID)
    assert f"trace id of mqtrace forward {message['trace_id']}" in out.decode()


def test_dump_of_a_rocketmq_topic_is_read_beside_landings(landing, mqtrace):
    """Its fields have other names: topic, store_ms, queue_id, queue_offset."""
    code, out, _ = mqtrace("query", str(RECORDED / "rocketmq-5.3.3.jsonl"), landing, "--key", "retry", "--json")
    answer = json.loads(out)
    assert (code, answer["found"], answer["messages"][0]["groups"][0]["outcome"]) == (0, 1, "success")


NO_SERVER = (
    "the name server 127.0.0.1:1 cannot be reached (Connection refused); see that it runs, or correct the address\n"
)
OF_LANDING = ["--msg-id", "A", "--landing", "LANDING"]
WRONG = {
    "empty id": (["--msg-id", " ", "--landing", "LANDING"], "--msg-id is empty"),
    "empty key": (["--key", "", "--landing", "LANDING"], "--key is empty"),
    "nowhere": (["--msg-id", "A"], "no place is named to search"),
    "two places": ([*OF_LANDING, "--bootstrap", "b"], "are different places"),
    "no landing": (["--msg-id", "A", "--landing", "LANDING/none"], "no such file, directory or match"),
    "empty directory": (["LANDING/empty"], "LANDING/empty holds no landing and no file of native bodies"),
    "no time": ([*OF_LANDING, "--begin", "soon"], "invalid time 'soon': use 2026"),
    "a range backwards": ([*OF_LANDING, "--begin", "2026-11-21", "--end", "2026-11-20"], "before --begin"),
    "no such charset": ([*OF_LANDING, "--charset", "klingon"], "unknown charset"),
    "no directory for the page": ([*OF_LANDING, "--html", "LANDING/x/y"], "no directory LANDING/x; "),
    "page is a directory": ([*OF_LANDING, "--html", "LANDING"], "--html LANDING is not a file"),
    "page on standard output": ([*OF_LANDING, "--html", "-"], "--html - is not a file"),
    "scan of a landing": ([*OF_LANDING, "--scan"], "--scan is for RocketMQ"),
    "client of a landing": (["LANDING", "--kafka-config", "f"], "--kafka-config f is for Kafka topics, and none is"),
    "trace topic of a landing": (["LANDING", "--trace-topic", "T"], "--trace-topic T changes nothing here"),
    "no text": (["--key", "\udcff", "--landing", "LANDING"], "--key ⟨U+DCFF⟩ is not UTF-8: use a UTF-8 terminal"),
    "a topic in an index": (["--namesrv", "127.0.0.1:1", "--topic", "orders"], "add --scan"),
    "no address": (["LANDING", "--link-template", "jaeger"], "is not a web address"),
    "unknown name in an address": (["LANDING", "--link-template", "http://j/{x}"], "{x} is unknown"),
    "no limit": ([*OF_LANDING, "--limit", "0"], "limit"),
    "two topics": (["--msg-id", "A", "kafka://b:1/t", "kafka://c:1/t"], "are different places"),
    "unreadable kind": (["--msg-id", "A", "jaeger://a:1?service=x"], "cannot read jaeger://a:1?service=x here"),
    "no broker of a SRC": (["--msg-id", "A", "kafka://127.0.0.1:1/t", "--timeout-ms", "200"], "does not answer"),
    "no name server of a SRC": (["--msg-id", "A", "rocketmq://127.0.0.1:1/t", "--timeout-ms", "200"], NO_SERVER),
    "no broker": (["--bootstrap", "PLAINTEXT://127.0.0.1:1", "--timeout-ms", "200"], "does not answer"),
    "no port": (["--bootstrap", "b:65536"], "--bootstrap b:65536: port 65536 is not between 1 and 65535"),
    "empty bootstrap": (["--bootstrap", " "], "--bootstrap is empty: write HOST:PORT"),
    "password": (["--namesrv", "who:very-secret@b:1"], "--namesrv carries a password: write HOST:PORT"),
    "no name server": (["--msg-id", "A", "--namesrv", "127.0.0.1:1", "--timeout-ms", "200"], NO_SERVER),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_invalid_call_is_exit_code_2_and_one_line_without_the_secret(arguments, reason, landing, mqtrace, monkeypatch):
    monkeypatch.setenv("MQTRACE_ROCKETMQ_ACCESS_KEY", "who")
    monkeypatch.setenv("MQTRACE_ROCKETMQ_SECRET_KEY", "very-secret")
    Path(landing, "empty").mkdir()
    arguments = [argument.replace("LANDING", landing) for argument in arguments]
    err = mqtrace.refuses("query", *arguments)
    assert reason.replace("LANDING", landing) in err
    assert "very-secret" not in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PAR1 no PAR1", ": not a readable Parquet file"),
        (bytes(range(256)), ", line 1: not a landed message (not JSON)"),
    ],
)
def test_only_input_that_cannot_be_read_is_exit_code_2_and_one_line_with_the_reason(content, why, tmp_path, mqtrace):
    (tmp_path / "broken").write_bytes(content)
    err = mqtrace.refuses("query", "--msg-id", ID, tmp_path / "broken")
    assert err.startswith(f"mqtrace: error: nothing to search in {tmp_path / 'broken'}: broken{why}")


def test_json_lists_messages_with_their_timelines(landing, mqtrace):
    code, out, _ = mqtrace("query", "--key", "order-1", "--landing", landing, "--json")
    answer = json.loads(out)
    assert (code, answer["found"], answer["left_off"], answer["schema_version"]) == (0, 2, 0, 1)
    row = answer["list"][0]
    assert (row["msg_id"], row["role"], row["outcome"], row["attempts"]) == ("OTHER", "producer", "success", 1)
    first = answer["messages"][0]
    assert (first["sends"][0]["outcome"], first["sends"][0]["msg_type"]) == ("success", "Normal_Msg")
    (attempt,) = first["groups"][0]["attempts"]
    assert (attempt["outcome"], attempt["context_code"], attempt["elapsed_ms"]) == ("success", "SUCCESS", 5)
    assert [event["kind"] for event in first["timeline"]] == ["send", "consume"]
    assert {finding["code"] for finding in answer["messages"][1]["findings"]} <= set(FINDING_CODES)


def test_page_is_written_beside_the_output(landing, tmp_path, mqtrace):
    file = tmp_path / "message\x07.html"
    code, out, err = mqtrace("query", "--msg-id", ID, "--landing", landing, "--html", file)
    assert (code, err) == (0, f"mqtrace: the page is {tmp_path}/message⟨U+0007⟩.html\n")
    assert b"Sent once" in out
    shown = Page(file.read_text(encoding="utf-8")).text
    assert ID in shown
    assert f"trace id of mqtrace forward {trace_id_of(ID)}" in shown


def test_page_replaces_only_a_page(landing, tmp_path, mqtrace):
    (part,) = Path(landing, "native").glob("date=*/part-*")
    content = part.read_bytes()
    err = mqtrace.refuses("query", "--msg-id", ID, landing, "--html", part)
    assert f"--html {part} would replace a file that is not a page of mqtrace" in err
    assert part.read_bytes() == content
    (tmp_path / "page").touch()
    for _ in range(2):
        assert mqtrace("query", "--msg-id", ID, landing, "--html", tmp_path / "page")[0] == 0


@pytest.mark.parametrize("existed", [False, True])
def test_page_that_cannot_be_written_is_removed_unless_a_file_was_there(landing, tmp_path, capsys, existed):
    file = tmp_path / "message.html"
    if existed:
        file.write_text("<!doctype html>")
    with no_file_beyond(100):
        code = main(["query", "--msg-id", ID, "--landing", landing, "--html", str(file)])
    assert (code, file.exists()) == (2, existed)
    assert capsys.readouterr().err == f"mqtrace: error: cannot write --html {file}: File too large; raise ulimit -f\n"


def test_range_of_arrivals_narrows_the_search(landing, mqtrace):
    end = "2026-11-21T11:20:00.002Z"
    code, _, err = mqtrace("query", "--msg-id", "OTHER", "--key", "order-1", "--landing", landing, "--end", end)
    assert code == 1
    assert "options (--key is one of the message's KEYS, not Kafka's record key), and --end against the arrival" in err
    code, _, _ = mqtrace("query", "--msg-id", "OTHER", "--landing", landing, "--begin", str(T0 + 3))
    assert code == 0


HOSTILE = ["\x1b[2J\x07", "\u202etxet", "<b>&\"'", "[red]x[/red]", "a b", "ï\ud800", "{0}%s", "--help", "/etc", "*"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_id_is_found_and_escaped_on_the_terminal(text, tmp_path, mqtrace):
    land(tmp_path, landed(pub(msg_id=text.encode("utf-8", "replace").decode())))
    code, out, err = mqtrace("query", f"--msg-id={text}", "--landing", tmp_path)
    assert (code, err) == (0, "")
    assert not set(out.decode()) & {"\x1b", "\x07", "\u202e", "\ud800"}
    assert b"Sent once" in out


def test_query_prints_to_a_terminal_that_is_not_utf_8(landing, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert main(["query", "--msg-id", ID, "--landing", landing]) == 0
    assert b"Sent once" in raw.getvalue()


DOCUMENT = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")
PARTS = {"searched": Searched, "findings[]": Finding, "timeline[]": Event}
STEPS = {"sends[]": Kind.SEND, "transaction_ends[]": Kind.TRANSACTION_END, "recalls[]": Kind.RECALL}
MESSAGE = answer_json(answer_of(landed(pub()), ID))["messages"][0]
EVIDENCE = MESSAGE["sends"][0]["evidence"][0]


def test_every_finding_has_its_line():
    assert tuple(re.findall(r"^\| `([a-z_]+)` \| [a-z]", DOCUMENT, re.MULTILINE)[:15]) == FINDING_CODES


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        *((row, {one.name for one in fields(kind)}) for row, kind in PARTS.items()),
        *((row, {*STEP_FIELDS[kind], "evidence"}) for row, kind in STEPS.items()),
        ("attempts[]", {*STEP_FIELDS[Kind.CONSUME], "evidence", "elapsed_ms"}),
        ("messages[]", set(MESSAGE)),
        ("evidence[]", {*EVIDENCE, *EVIDENCE["places"][0]}),
    ],
)
def test_every_key_of_a_part_is_in_its_row(row, keys):
    (documented,) = re.findall(rf"^\| `{re.escape(row)}` \| `([^`]+)` \|$", DOCUMENT, re.MULTILINE)
    assert set(re.findall(r"\w+", documented)) == keys
