"""``mqtrace forward`` with an OTLP receiver, as a process: what it prints, remembers and refuses."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka.cimpl import Consumer, TopicPartition

from bridge.addresses import Kind
from bridge.forwarder.command import parse_pattern
from otel_mqtrace.cli import main
from otel_mqtrace.landing import claim
from otel_mqtrace.rocketmq.commands import RequestCode, ResponseCode
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.killing import forwarded_under_fire, running_forward
from tests.support.rocketmq_remoting import HANG_UP, SILENCE, RemotingCluster, response_to
from tests.support.topics import put_messages
from tests.support.trace_stories import after, before, body_of, pub

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"


def _options(topic, receiver, *more):
    return ["--source", topic.url, "--otlp-endpoint", receiver.endpoint, *more]


def _put(path, content):
    """Let a file appear whole: the running forwarder may list the directory at any time."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(content)
    hidden.rename(path)


def _committed(topic):
    consumer = Consumer({"bootstrap.servers": topic.servers, "group.id": "mqtrace-forward", "log_level": 0})
    wanted = [TopicPartition(topic.name, partition) for partition in range(2)]
    offsets = [each.offset for each in consumer.committed(wanted, timeout=10)]
    consumer.close()
    return offsets


def test_topic_is_forwarded_once_and_counted(topic, receiver, tmp_path, mqtrace):
    topic.send(body_of(pub(), before(), after()), body_of(before("M2")) + b"Nonsense\x02", partition=0)
    code, out, err = mqtrace("forward", *_options(topic, receiver, "--once", "--json", "--landing", tmp_path))
    assert (code, err) == (0, "")
    counts = json.loads(out)
    expected = {"messages": 2, "records": 4, "bad_records": 1, "spans": 3, "halves": 1}
    assert counts.pop("body_bytes") > 0
    assert [(tmp_path / "native" / part).suffix for part in counts.pop("parts")] == [".parquet"]
    zero = ("trimmed_offsets", "unreadable_bodies", "overflowed", "repeated", "rejected", "pending")
    assert counts == {**dict.fromkeys(zero, 0), **expected}
    assert len(receiver.ids()) == 3
    assert {service for contents in receiver.contents().values() for service, _ in contents} == {"PG_order", "CG_bill"}


def test_summary_lists_notes_for_people(topic, receiver, tmp_path, capsys):
    topic.send(body_of(pub(), before(), before(), before("M2")) + b"Nonsense\x02", partition=0)
    receiver.rejects = 1
    options = ["--landing", str(tmp_path), "--service-name-from", "fixed", "--service-name", "mq", "--max-pending", "1"]
    options += ["--messaging-system", "kafka"]
    assert main(["forward", *_options(topic, receiver, "--once", *options)]) == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    summary = rf"1 trace message \(\d+ bytes\) in 1 part of {re.escape(str(tmp_path))}; 4 records as 3 spans to"
    notes = (
        "2 spans with one half only",
        "1 record sent without waiting longer because too many waited",
        "1 record repeating another",
        "1 bad record without a span",
        "1 span rejected by the receiver",
    )
    assert re.fullmatch(rf"{summary} {receiver.endpoint}; {'; '.join(notes)}", out)
    assert err == f"mqtrace: warning: {notes[-1]}"
    contents = [(service, b"kafka" in span) for spans in receiver.contents().values() for service, span in spans]
    assert contents == [("mq", True)] * 3


def test_topic_without_a_trace_record_is_one_line(topic, tmp_path, mqtrace):
    warning = f"mqtrace: warning: no trace record in 2 messages of --source {topic.url}: name a trace topic\n"
    holding = [b"x", body_of(pub())], [b"?\x02" + body_of(pub())]
    for bodies, said in (([b'{"order": 1}', b""], warning), *((each, "") for each in holding)):
        topic.send(*bodies)
        code, _, err = mqtrace("forward", "--source", topic.url, "--landing", tmp_path, "--once")
        assert (code, err) == (0, said)


def test_offsets_that_are_moved_back_forward_everything_again(topic, receiver, tmp_path):
    topic.send(body_of(pub()), body_of(before(), after()), partition=0)
    options = _options(topic, receiver, "--once", "--state", str(tmp_path))
    assert main(["forward", *options]) == 0
    consumer = Consumer({"bootstrap.servers": topic.servers, "group.id": "mqtrace-forward", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 0)], asynchronous=False)
    consumer.close()
    assert main(["forward", *options]) == 0
    assert [len(copies) for copies in receiver.spans.values()] == [2, 2]


def test_unreachable_receiver_is_exit_2_and_one_line(topic, mqtrace):
    topic.send(body_of(pub()), partition=0)
    options = ["--source", topic.url, "--otlp-endpoint", "http://user:secret@127.0.0.1:1/\x1b"]
    assert mqtrace.refuses("forward", *options, "--once", "--otlp-timeout-ms", "200").startswith(
        "mqtrace: error: the OTLP receiver http://…@127.0.0.1:1/⟨U+001B⟩ cannot be reached (Connection refused) for 1 span: "
        "start it or give another --otlp-endpoint; "
    )
    assert _committed(topic)[0] < 0


def test_receiver_that_fails_after_its_first_request_is_exit_1(topic, receiver, mqtrace):
    """Two full requests are handed over together."""
    topic.send(body_of(*[pub(str(number)) for number in range(4_096)]), partition=0)
    receiver.on_request = lambda number, _: setattr(receiver, "status", 200 if number == 1 else 400)
    code, _, err = mqtrace("forward", *_options(topic, receiver, "--once"))
    assert code == 1
    assert "did not accept 2,048 spans (400 Bad Request)" in err


def test_receiver_that_does_not_answer_in_time_is_one_line_with_the_time(topic, receiver, mqtrace):
    topic.send(body_of(pub()), partition=0)
    is_over = Event()
    receiver.on_request = lambda *_: is_over.wait(30)
    err = mqtrace.refuses("forward", *_options(topic, receiver, "--once", "--otlp-timeout-ms", "300"))
    is_over.set()
    assert err.startswith(
        f"mqtrace: error: the OTLP receiver {receiver.endpoint} did not answer for 1 span within 0.3 s: see its log, or "
        "raise --otlp-timeout-ms; "
    )


@pytest.mark.parametrize(("number", "arrive"), [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 0)])
def test_signal_commits_what_is_done_and_keeps_what_waits(topic, receiver, tmp_path, capsys, number, arrive):
    topic.send(body_of(before()), body_of(pub()), partition=0)
    topic.send(body_of(pub("M2")), partition=1)
    options = _options(topic, receiver, "--state", str(tmp_path))
    with running_forward(*options) as process:
        assert process.stderr.readline() == (
            "mqtrace: 3 trace messages read, 2 spans accepted, 1 record waiting for the other half, uncommitted\n"
        )
        process.send_signal(number)
        out, _ = process.communicate()
    assert process.returncode == 0
    assert "1 record waiting for the other half, uncommitted" in out
    assert _committed(topic) == [0, 1]
    topic.send(*[body_of(after())] * arrive, partition=1)
    assert main(["forward", *options, "--once"]) == 0
    assert "nothing new" not in capsys.readouterr().out
    assert _committed(topic) == [2, 1 + arrive]
    assert {len(contents) for contents in receiver.spans.values()} == {1}
    assert len(receiver.ids()) == 3


def test_landing_that_fails_later_is_exit_1(tmp_path):
    source, landing = tmp_path / "in", tmp_path / "landing"
    source.mkdir()
    with running_forward("--source", str(source), "--landing", str(landing), "--json") as process:
        _put(source / "a\n\x1b.gz", b"\x1f\x8b")
        reason = "a⟨U+000A⟩⟨U+001B⟩.gz: gzip-compressed; decompress it first (gunzip)"
        assert process.stderr.readline() == f"mqtrace: warning: not forwarded: {reason}\n"
        _put(source / "a", body_of(pub()))
        assert process.stderr.readline() == "mqtrace: 1 trace message committed\n"
        shutil.rmtree(landing)
        landing.touch()
        _put(source / "b", body_of(pub()))
        out, err = process.communicate()
    assert (process.returncode, json.loads(out)["messages"]) == (1, 1)
    assert err.startswith(f"mqtrace: error: cannot write to the landing {landing}: ")


def test_source_that_stops_answering_before_anything_came_is_exit_1(receiver, capsys):
    with RemotingCluster(queues=1) as cluster:
        end = partial(response_to, code=ResponseCode.SUCCESS, fields={"offset": "0"})
        cluster.brokers[0].answer_first(RequestCode.GET_MAX_OFFSET, end, HANG_UP)
        source = f"rocketmq://{cluster.namesrv}/T"
        assert main(["forward", "--source", source, "--otlp-endpoint", receiver.endpoint]) == 1
        assert capsys.readouterr().err == (
            "mqtrace: error: the broker broker-a of T does not answer: "
            f"{cluster.brokers[0].address} closed the connection; see that it runs\n"
        )


def test_codec_that_is_found_missing_later_is_exit_1(receiver, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with RemotingCluster(queues=1) as cluster:
        broker, source = cluster.brokers[0], f"rocketmq://{cluster.namesrv}/T"
        broker.put(body_of(pub()))
        receiver.on_request = lambda *_: broker.put(b"", sys_flag=1 | 1 << 8)
        assert main(["forward", "--source", source, "--otlp-endpoint", receiver.endpoint]) == 1
    assert "compressed by lz4 needs the 'reconcile' extra" in capsys.readouterr().err


def _await_sleep(process):
    """Return once a process waits in a system call: Python handles a signal that comes just before it only after it."""
    status = Path(f"/proc/{process.pid}/stat")
    while status.exists() and status.read_text().rpartition(") ")[2][0] != "S":
        os.sched_yield()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("interruptible")
def test_signal_before_the_source_has_answered_ends_at_once(tmp_path, number):
    with RemotingCluster() as cluster:
        is_asked = Event()
        cluster.name_server.answer_first(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _: is_asked.set() or SILENCE)
        options = ["--landing", str(tmp_path), "--timeout-ms", "86400000"]
        with running_forward("--source", f"rocketmq://{cluster.namesrv}/T", *options) as process:
            assert is_asked.wait(30)
            _await_sleep(process)
            process.send_signal(number)
            assert (process.wait(), process.stderr.read()) == (128 + number, "mqtrace: interrupted\n")


def test_receiver_that_fails_after_an_empty_pass_is_exit_1(receiver, tmp_path):
    (tmp_path / "none.gz").write_bytes(b"\x1f\x8b")
    receiver.status = 400
    options = ["--source", str(tmp_path), "--otlp-endpoint", receiver.endpoint, "--state", str(tmp_path / "state")]
    with running_forward(*options) as process:
        assert "not forwarded: none.gz" in process.stderr.readline()
        _put(tmp_path / "a", body_of(pub()))
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.startswith(f"mqtrace: error: the OTLP receiver {receiver.endpoint} did not accept 1 span (400 ")


@pytest.fixture
def ignoring():
    """Have what this process starts ignore SIGHUP, as nohup does, and SIGINT, as a shell does in the background."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("ignoring")
def test_ignored_sighup_stays_ignored_and_an_ignored_sigint_stops(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    with running_forward("--source", str(source), "--landing", str(tmp_path / "landing")) as process:
        for name in ("a", "b"):
            _put(source / name, body_of(pub()))
            assert process.stderr.readline() == "mqtrace: 1 trace message committed\n"
            process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 0
    assert out.startswith("2 trace messages (")


TO_RECEIVER = "--source files:. --otlp-endpoint http://h"
TO_LANDING = "--source files:. --landing x"
NO_KAFKA = "kafka://127.0.0.1:1/t"
WRONG = [
    ("--source files:.", "give --otlp-endpoint URL, --landing DIR or both"),
    *(
        (f"--source files:. --otlp-endpoint '{url}'", f"{url} is not understood: give http[s]://HOST")
        for url in ("http://[::1", "localhost:4317", "kafka://h:1", "http://", "http://h:99999", "")
    ),
    ("--source files:/nowhere/at/all --landing x", "no such file, directory or match"),
    (
        "--source jaeger://user:secret@host:1?service=shop --landing x",
        f"cannot read jaeger://…@host:1?service=shop here; give {Kind.FILES.value} or {Kind.KAFKA.value} or ",
    ),
    (f"--source {NO_KAFKA} --landing x --timeout-ms 300", "does not answer for t"),
    ("--source rocketmq://host --landing x", "rocketmq://NAMESRV"),
    (f"{TO_RECEIVER} --charset runes", "--charset: unknown charset 'runes'"),
    ("--source ' ' --landing x", "--source is empty: name a file, a directory or a topic"),
    ("--source files:. --native ''", "--native is empty: name a file, a directory or a topic"),
    *(
        (f"{TO_RECEIVER} {option} {value}", f"Invalid value for '{option}'")
        for option in ("--timeout-ms", "--otlp-timeout-ms")
        for value in ("99999999999999999999", "86400001", "inf", "nan", "0")
    ),
    (f"{TO_LANDING} --pair-timeout soon", "--pair-timeout: invalid duration 'soon'"),
    (f"{TO_RECEIVER} --stamped-after [", "--stamped-after '[' has a [ that no ] closes"),
    (f"{TO_RECEIVER} --stamped-after a[!]*", "--stamped-after 'a[!]*' has a [ that no ] closes"),
    (f"{TO_RECEIVER} --stamped-after ''", "--stamped-after is empty"),
    (f"--source {NO_KAFKA} --landing x --client-config file", "; correct --client-config, or the address"),
    (
        f"--source {DUAL}/otlp.jsonl --native {NO_KAFKA} --client-config file",
        ": correct --native, or the properties in --client-config)",
    ),
    ("--source files:. --landing ''", "--landing is empty"),
    ("--source files:. --landing kafka://a/b", "--landing kafka://a/b: kafka:// is not a store"),
    (f"{TO_LANDING} --state ' '", "--state is empty"),
    # the words are those of RocketMQ's own tools
    ("--source rocketmq://h:1/T --landing x --client-config file", "accessKey, secretKey"),
    *(
        (f"--source {DUAL}/{name} --landing x", "holds spans, no native trace bodies: give --native URL")
        for name in ("otlp.jsonl", "otlp.pb.framed")
    ),
    ("--source file --landing file", "--landing file is a file: name a directory"),
    ("--source file --native file", "--native file is a file: name a directory"),
    ("--source file --landing x --state file", "--state file is a file: name a directory"),
    (f"--source {NO_KAFKA} --landing x --group ''", "--group is empty"),
    (f"{TO_LANDING} --group ' '", "--group is empty"),
    (f"{TO_LANDING} --dialect 5.5.0", "--dialect 5.5.0 is for --native"),
    ("--source a --landing x --client-config f", "--client-config f is for topics, and none is"),
    ("--source files:. --native x --landing y", "run them apart"),
    (f"{TO_RECEIVER} --native x", "run them apart"),
    ("--source rocketmq://h:1/T --native x", "of a Collector"),
    (f"--source {DUAL}/native.jsonl --native x", "holds native trace bodies, no spans"),
    ("--source files:. --native x", "--native x and --source files:. overlap"),
    ("--source 'x*' --landing x", "land somewhere else, or name the files to read, as in '*.jsonl'"),
    (f"{TO_RECEIVER} --service-name x", "--service-name x changes nothing here: add --service-name-from fixed"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_invalid_options_are_exit_2_and_one_line(options, message, tmp_path, monkeypatch, mqtrace):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("user=x\n", encoding="utf-8")
    assert message in mqtrace.refuses("forward", *shlex.split(options), "--once")


@pytest.mark.parametrize(
    ("source", "landing", "overlap"),
    [
        *(("all", landing, True) for landing in ("all", "all/deep", "link")),
        ("all/native/date=2026-11-21", "all", True),
        ("all", "beside", False),
    ],
)
def test_landing_that_overlaps_its_source_is_refused(source, landing, overlap, tmp_path, monkeypatch, mqtrace):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all/native/date=2026-11-21").mkdir(parents=True)
    (tmp_path / "all/a.bin").write_bytes(body_of(pub()))
    (tmp_path / "link").symlink_to("all")
    code, _, err = mqtrace("forward", "--source", f"files:{source}", "--landing", landing, "--once")
    assert (code, "overlap" in err, err.count("\n")) == (2 if overlap else 0, overlap, int(overlap))


def test_second_forwarder_of_a_source_and_group_is_refused_while_the_first_runs(tmp_path, capsys):
    (tmp_path / "a.bin").write_bytes(body_of(pub()))
    options = ["forward", "--source", str(tmp_path / "a.bin"), "--landing", str(tmp_path / "landing"), "--once"]
    assert main([*options, "--timeout-ms", "86400000", "--otlp-timeout-ms", "86400000"]) == 0
    (lock,) = (tmp_path / "landing" / "_mqtrace-forward").glob("*.lock")
    with lock.open("rb") as file:
        assert claim(file)
        assert main(options) == 2
    assert "another mqtrace forward of" in capsys.readouterr().err
    assert main([*options, "--group", "other"]) == main(options) == 0
    new, again = capsys.readouterr().out.splitlines()
    assert new.startswith("1 trace message (")
    assert "; nothing new for group mqtrace-forward: it has forwarded all of --source" in again
    assert again.endswith("wherever that went; use another --group to start over")


def test_source_that_is_spelled_otherwise_shares_the_lock_and_what_is_remembered(receiver, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    files = ("in/", "link", f"file://{tmp_path}/in")
    topics = [f"kafka://{servers}/t" for servers in ("127.0.0.1:1,LOCALHOST:2", "localhost:2,127.0.0.1:1")]
    topics += [f"rocketmq://{servers}/t" for servers in ("127.0.0.1:1;127.0.0.1:2", "127.0.0.1:2,127.0.0.1:1")]
    options = ["--otlp-endpoint", receiver.endpoint, "--state", "state", "--timeout-ms", "300", "--once"]
    assert [main(["forward", "--source", source, *options]) for source in (*files, *topics)] == [0] * 3 + [2] * 4
    assert Counter(each.suffix for each in (tmp_path / "state").iterdir()) == {".json": 1, ".lock": 3}


@pytest.mark.parametrize(("target", "wanted"), [("--landing", "trace messages"), ("--native", "OTLP messages")])
def test_source_without_messages_is_said_to_hold_none(target, wanted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    options = ["forward", "--source", "empty", target, "out", "--state", "state", "--once"]
    for _ in range(2):
        assert main(options) == 0
        assert capsys.readouterr().out.endswith(f"; --source empty holds no {wanted}\n")
        (tmp_path / "empty" / "none.jsonl").touch()
    (tmp_path / "empty" / "a.jsonl").write_text("{}\n{}\n")
    assert main(options) == 0
    out = capsys.readouterr().out
    assert "--source empty holds no" not in out
    passed_over = {
        "--landing": "; 2 pieces of input without a trace message; first: a.jsonl:1: body_base64 missing\n",
        "--native": "; 1 piece of input without OTLP traces; first: a.jsonl: cannot detect the format of ",
    }
    assert passed_over[target] in out


def test_file_that_changed_after_it_was_forwarded_is_named_at_every_run(tmp_path, capsys):
    source = tmp_path / "a.bin"
    source.write_bytes(body_of(pub()))
    options = ["forward", "--source", str(source), "--landing", str(tmp_path / "landing"), "--once"]
    options += ["--state", str(tmp_path / "state")]
    assert main(options) == 0
    assert {each.suffix for each in (tmp_path / "state").iterdir()} == {".json", ".lock"}
    source.write_bytes(body_of(pub(), pub("M2")))
    capsys.readouterr()
    for _ in range(2):
        assert main(options) == 0
        _, words = capsys.readouterr().out.strip().split("; ", 1)
        assert words == (
            "1 file changed after forwarding and not read again; first: a.bin: give new content a new file name"
        )
    assert main([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unreadable_bodies"] == 1


# -- killed again and again; more of it: tests/peers ------------------------------------------------------------------
def test_kill_9_loses_nothing_and_repeats_only_the_same_spans(tmp_path):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("traces", 3)
        send = partial(put_messages, kafka.bootstrap_servers, "traces", partitions=3)
        output = forwarded_under_fire(f"kafka://{kafka.bootstrap_servers}/traces", send, tmp_path, kills=5, seed=7)
    assert output.spans > 100
    assert output.at_work > 2
    assert (output.lost, output.unexpected, output.contradicted) == (0, 0, 0)


@pytest.mark.parametrize("text", ["PG_[[]", "[]]", "[!]]", "[!a]b", "[a[]", "a]"])
def test_pattern_whose_brackets_fnmatch_closes_is_taken(text):
    assert parse_pattern(text) == text
