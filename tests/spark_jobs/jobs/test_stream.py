"""The stream: whatever comes when, and however it was killed, it ends where one batch over everything ends."""

import base64
import json
import shutil
import signal
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bridge.otlp.detect import Side
from bridge.storage.locks import hold
from otel_mqtrace._errors import PeerError, UnreadableInputError, UsageError
from otel_mqtrace.testing.embedded import EmbeddedKafka
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.jobs import batch, stream
from spark_jobs.jobs.ingested import Batch, Ingested, survey_again
from spark_jobs.jobs.options import ReconcileOptions, no_progress
from spark_jobs.jobs.reading import EventSide, ReadOptions
from spark_jobs.jobs.stream import Ingest, begin_behind_dropped, find_new_ranges
from spark_jobs.jobs.workspace import open_workspace
from spark_jobs.judging.facts import survey
from spark_jobs.policy.policy import read_policy
from spark_jobs.schemas import NORMALISED
from spark_jobs.sources.kafka import topic_address, topic_ranges
from tests.support.archives import pub
from tests.support.events import START_MS, publish
from tests.support.landings import write_landing
from tests.support.native_spans import span_attributes
from tests.support.otlp_json import PRODUCER, line, resource, span
from tests.support.programs import run_python
from tests.support.reading import PlainEngine, read_sources, read_verdicts, rows_in
from tests.support.topics import put_messages
from tests.support.trace_stories import body_of

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
MINUTE_MS, DAY_MS = 60_000, 86_400_000
ODD_NAME = "part [1] %41+ü.jsonl"  # Hadoop would take it for a pattern, a URL for an escape

# The stream, but it kills itself after it has committed its second batch, before Spark knows of it.
KILLED = """
import os, signal, sys
from pathlib import Path
from spark_jobs.jobs import stream
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.jobs.ingested import Ingested

native, otlp, out = sys.argv[1:]
commit, committed = Ingested.commit, []

def commit_and_die(self, name, batch, **others):
    commit(self, name, batch, **others)
    committed.append(name)
    if len(committed) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

Ingested.commit = commit_and_die
options = ReconcileOptions(native=(native,), otlp=(otlp,), out=Path(out), profile="java-agent",
    native_writer="rocketmq-4.9.8", grace_ms=0, master="local[1]")
stream.run(options, files_per_batch=1)
"""


def laid_down(root: Path) -> tuple[Path, Path]:
    for side, name, sizes in (("native", "native.jsonl", (5, 4, 6)), ("otlp", "otlp.jsonl", (2, 3))):
        lines = (DUAL / name).read_bytes().splitlines(keepends=True)
        directory = root / side / "date=2026-11-21"
        directory.mkdir(parents=True)
        for number, size in enumerate(sizes):
            part = ODD_NAME if number == 1 else f"part-{number}.jsonl"
            (directory / part).write_bytes(b"".join(lines[:size]))
            del lines[:size]
        assert not lines
        (directory / "part-9.jsonl.tmp").write_bytes(b'{"half')
        (directory / ".hidden.jsonl").write_bytes(b"{}")
        (directory / "notes.md").write_text("not data")
    return root / "native", root / "otlp"


def options(native: Path, otlp: Path, out: Path, **others) -> ReconcileOptions:
    chosen = {"profile": "java-agent", "native_writer": "rocketmq-4.9.8", "grace_ms": 0, **others}
    return ReconcileOptions(native=(str(native),), otlp=(str(otlp),), out=out, **chosen)


def rows(out: Path) -> list[str]:
    """Return every verdict, without what only a history knows."""
    plain = read_verdicts(out)
    for row in plain:
        del row["lifecycle"], row["first_seen_run"]
        for side in filter(None, (row["native"], row["otlp"])):
            del side["first_seen_run"], side["left_as"]
    return sorted(map(repr, plain))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return laid_down(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def whole(recorded, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return batch.run(options(*recorded, out, engine="local")), rows(out)


def run_rounds(given: ReconcileOptions, arrive, *, rounds: int, **how):
    """Stream until the wait of that number; ``arrive()`` brings data in the first. Return all results, the last, the waits."""
    waits, reported = [], []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == rounds:
            raise KeyboardInterrupt
        if len(waits) == 1:
            arrive()

    how["report"] = lambda result: nullcontext(reported.append(result) or {})
    last = stream.run(given, every_ms=30_000, wait=wait, **how)
    return reported, last, waits


@pytest.fixture(scope="module")
def streamed(spark, recorded, tmp_path_factory):
    root, out = tmp_path_factory.mktemp("arriving"), tmp_path_factory.mktemp("streamed")
    native, otlp = (Path(shutil.copytree(side, root / side.name)) for side in recorded)
    kept_back = [path for side in (native, otlp) for path in sorted(side.rglob("part*.jsonl"))[1:]]
    for path in kept_back:
        path.rename(path.with_suffix(".jsonl.tmp"))

    def arrive():
        for path in kept_back:
            path.with_suffix(".jsonl.tmp").rename(path)

    given = options(native, otlp, out, history=out / "history")
    streamed = run_rounds(given, arrive, rounds=3, files_per_batch=2)
    return *streamed, sorted(row.replace(str(root), str(recorded[0].parent)) for row in rows(out))


@pytest.mark.spark
def test_stream_of_pieces_gets_the_verdicts_of_one_batch(whole, streamed):
    batched, expected = whole
    _, last, _, verdicts = streamed
    assert verdicts == expected
    assert (last.status, last.reason, last.loss) == (batched.status, batched.reason, batched.loss)
    assert last.inputs.native.records_read == batched.inputs.native.records_read
    assert last.inputs.otlp.records_read == batched.inputs.otlp.records_read
    assert last.conservation.holds, last.conservation


@pytest.mark.spark
def test_round_without_new_data_is_not_reported(streamed):
    reported, last, waits, _ = streamed
    assert waits == [30.0] * 3
    assert [result.run for result in reported] == [1, 2]
    assert last == reported[-1]
    assert reported[0].status != last.status


@pytest.mark.spark
def test_next_round_resolves_open_keys_and_counts_them_once(streamed):
    reported, last, _, _ = streamed
    assert reported[0].lifecycle["new"] > 0
    assert last.lifecycle["resolved"] > 0
    native = last.inputs.native
    assert native.carried == native.read_again > 0


@pytest.mark.spark
def test_killed_stream_continues_and_a_file_that_grows_later_makes_it_inconclusive(spark, recorded, whole, tmp_path):
    native, otlp = (Path(shutil.copytree(side, tmp_path / side.name)) for side in recorded)
    out = tmp_path / "out"
    killed = run_python(KILLED, native, otlp, out)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    events = out / "stream" / "events"
    assert len(list(events.glob("batch=*"))) == 2
    half_written = events / "batch=files-000000003-0"
    half_written.mkdir()

    def append(_result):
        with (native / "date=2026-11-21" / "part-0.jsonl").open("ab") as file:
            file.write(b"{}\n")
        return nullcontext({})

    result = stream.run(options(native, otlp, out), files_per_batch=1, report=append)
    batched, expected = whole
    assert sorted(row.replace(str(tmp_path), str(recorded[0].parent)) for row in rows(out)) == expected
    assert (result.status, result.doubt, result.exit_code) == (batched.status, None, 0)
    assert not half_written.exists()

    again = stream.run(options(native, otlp, out))
    assert (again.verdict, again.exit_code) == ("INCONCLUSIVE", 4)
    assert "part-0.jsonl has grown since it was read" in again.doubt


def test_stream_refuses_other_reading_options_than_before_and_ones_that_it_cannot_read(recorded, tmp_path):
    (tmp_path / "stream").mkdir()
    how = '{"--native-writer": "rocketmq-4.9.8", "--msg-type-map": "a", "--charset": "gbk", "--otlp-format": null}'
    damaged = ("", "[1]", "[[1, 2]]", '{"writers": {"profile": 3}}', '{"writers": {"profile": [5, 3]}}')
    for text, refusal in ((how, "--charset gbk: give the same"), *((each, "remove the directory") for each in damaged)):
        (tmp_path / "stream" / "how.json").write_text(text)
        with pytest.raises((UsageError, UnreadableInputError), match=refusal):
            stream.run(options(*recorded, tmp_path))


@pytest.mark.spark
def test_writers_are_detected_at_the_first_data_and_kept(spark, recorded, whole, tmp_path):
    sides, out = (tmp_path / "native", tmp_path / "otlp"), tmp_path / "out"
    for side in sides:
        side.mkdir()
        (side / "empty.jsonl").touch()
    auto = ReconcileOptions(native=(str(sides[0]),), otlp=(str(sides[1]),), out=out, grace_ms=0)
    moving = replace(auto, native=(f"{sides[0]}/*.jsonl",), out=tmp_path / "moving")
    assert len(run_rounds(moving, (sides[0] / "empty.jsonl").unlink, rounds=2)[0]) == 1

    def arrive():
        for side, source in zip(sides, recorded, strict=True):
            shutil.copytree(source, side, dirs_exist_ok=True)

    reported, *_ = run_rounds(auto, arrive, rounds=2)
    first, last = (result.writers for result in reported)
    assert (first.profile, first.native_writer, first.evidence) == ("mqtrace", "mqtrace", ())
    assert (last.profile, last.native_writer) == ("java-agent", "rocketmq-4.9.8")
    assert [row.replace(str(tmp_path), str(recorded[0].parent)) for row in rows(out)] == whole[1]

    (sides[1] / "later.jsonl").write_text(line(resource("shop", span(1, PRODUCER, 1, 1, {}), scope="otel_mqtrace")))
    kept, before = out / "stream" / "how.json", out / "before"
    before.hardlink_to(kept)
    assert stream.run(auto).writers == last
    assert not kept.samefile(before)  # replaced: a run that is killed while it writes leaves the old one


@pytest.mark.spark
def test_span_from_before_the_native_side_begins_is_late_in_every_round(spark, tmp_path):
    sent = {at_ms: pub(at_ms, msg_id=f"{at_ms:032X}") for at_ms in (START_MS - 10 * MINUTE_MS, START_MS)}
    plain = {at_ms: span_attributes(each)[0].items() for at_ms, each in sent.items()}
    early, late = (
        line(resource("shop", span(at_ms, PRODUCER, at_ms, 10, {k: v for k, v in some if isinstance(v, str)})))
        for at_ms, some in plain.items()
    )
    (tmp_path / "native.jsonl").touch()
    (tmp_path / "early.jsonl").write_text(early)
    out, how = tmp_path / "out", {"profile": "mqtrace", "native_writer": "mqtrace"}
    given = options(tmp_path / "*native.jsonl", tmp_path / "*e*ly.jsonl", out, history=out / "history", **how)

    def arrive():
        write_landing(tmp_path / "1-native.jsonl", body_of(sent[START_MS]))
        (tmp_path / "lately.jsonl").write_text(late)

    (first, second), *_ = run_rounds(given, arrive, rounds=2)
    assert (first.status, stream.run(given).reason) == ({"PENDING": 1}, second.reason)
    assert second.reason == {"LATE_BEYOND_RETENTION": 1}


@pytest.mark.spark
def test_old_key_that_is_read_again_keeps_its_count_without_the_ledger(spark, tmp_path):
    for day in (1, 2, 20):
        at_ms = START_MS + day * DAY_MS
        sent = pub(at_ms, msg_id=f"{day:032X}")
        write_landing(tmp_path / f"{day}-native.jsonl", body_of(sent))
        plain = {name: value for name, value in span_attributes(sent)[0].items() if isinstance(value, str)}
        if day != 2:  # the day of the span that was lost, and counted
            (tmp_path / f"{day}-otlp.jsonl").write_text(line(resource("shop", span(day, PRODUCER, at_ms, 10, plain))))
    (tmp_path / "ledger.json").write_text('{"ledger_version": 1, "rows": [{"side": "otlp", "count": 1}]}')
    how = {"profile": "mqtrace", "native_writer": "mqtrace", "history": tmp_path / "out" / "history"}
    given = options(tmp_path / "*native.jsonl", tmp_path / "*otlp.jsonl", tmp_path / "out", **how)
    counted = stream.run(replace(given, ledger=(str(tmp_path / "ledger.json"),)))
    assert counted.reason == stream.run(given).reason == {"DROP_ATTRIBUTED": 1}


def test_file_removed_between_listing_and_reading_is_left_out(tmp_path):
    native, otlp = laid_down(tmp_path)
    gone = native / "date=2026-11-21" / "part-0.jsonl"

    def remove(stage):
        if stage.startswith("reading"):
            gone.unlink(missing_ok=True)

    ingest = Ingest(options(native, otlp, tmp_path / "out"), files_per_batch=10, progress=remove)
    assert ingest.ingest(PlainEngine()) == 1
    sources = [source for side in ingest.ingested.total().sides.values() for source in side.sources]
    assert (len(sources), str(gone) in sources) == (4, False)


def test_file_that_was_empty_when_it_was_read_has_grown_too(tmp_path):
    native, otlp = laid_down(tmp_path)
    empty = otlp / "date=2026-11-21" / "part-8.jsonl"
    empty.touch()
    ingest = Ingest(options(native, otlp, tmp_path / "out"), files_per_batch=10, progress=no_progress)
    assert (ingest.ingest(PlainEngine()), ingest.find_grown()) == (1, [])
    empty.write_bytes(b"{}")
    assert (ingest.ingest(PlainEngine()), ingest.find_grown()) == (0, [str(empty)])


@pytest.mark.parametrize("given_ms", [None, START_MS, START_MS + 5 * MINUTE_MS])
def test_window_begins_the_grace_behind_dropped_batches_unless_it_is_given_later(given_ms):
    policy = replace(read_policy(None), begin_ms=given_ms)
    assert begin_behind_dropped(policy, None) is policy
    begin_ms = max(START_MS + MINUTE_MS + 1, given_ms or 0)
    assert begin_behind_dropped(policy, START_MS).begin_ms == begin_ms
    agents = replace(read_policy(None, profile="java-agent"), grace_ms=0)
    assert begin_behind_dropped(agents, START_MS).begin_ms == START_MS + 501


def test_message_whose_records_came_in_two_batches_is_not_lost_when_one_is_dropped(tmp_path):
    """Spans come two minutes later than records, so the last of every batch meet in the next one."""
    ingested = Ingested(tmp_path / "events")
    for number in range(6):
        name = ingested.make_batch("files")
        minutes = {"native": range(5 * number, 5 * number + 5), "otlp": range(max(5 * number - 2, 0), 5 * number + 3)}
        sends = {
            side: [publish(side, f"M{at}", at_ms=at * MINUTE_MS) for at in of_side] for side, of_side in minutes.items()
        }
        ingested.commit(name, Batch({side: written(ingested.place(name) / side, rows) for side, rows in sends.items()}))
    ingested.drop_older(6 * MINUTE_MS)
    assert len(ingested.batches()) == 4
    policy = begin_behind_dropped(read_policy(None), ingested.dropped_until_ms())
    with open_workspace(tmp_path / "out", None, LocalEngine) as place:
        sides = tuple(ingested.total().sides.values())
        result = batch.reconcile(place, sides, policy, progress=no_progress)
    assert result.status == {"MATCHED_EXACT": 17, "PENDING": 2, "OUT_OF_SCOPE": 3}


def written(directory, events):
    directory.mkdir(parents=True)
    rows = pa.Table.from_pylist([{**event, "bad": None} for event in events], schema=NORMALISED)
    parquet.write_table(rows, directory / "part-0.parquet")
    last_ms = max(event["end_ms"] for event in events)
    read = {"files": (str(directory / "part-0.parquet"),), "records_read": len(rows), "last_event_ms": last_ms}
    return EventSide(**read, survey=survey(rows))


def test_second_stream_in_a_directory_is_refused(recorded, tmp_path):
    with hold(tmp_path / "stream", name="--out"), pytest.raises(UsageError, match="in use by another run"):
        stream.run(options(*recorded, tmp_path))


def test_rounds_without_pause_are_refused(recorded, tmp_path):
    with pytest.raises(UsageError, match="--every is less than a second"):
        stream.run(options(*recorded, tmp_path), every_ms=0)


MINE = "my-traces"


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka() as running:
        running.create_topic(MINE, 2)
        running.create_topic("spans", 1)
        yield running


def send(kafka, topic, values):
    messages = ({"value": value, "timestamp": 1_795_262_480_000} for value in values)
    put_messages(kafka.bootstrap_servers, topic, *messages, partitions=2 if topic == MINE else 1)


def events_of(sides):
    """Return the rows of both sides, without the scope, which judging and surveying find again."""
    return [Counter(repr({**row, "scope": None}) for row in rows_in(side.files)) for side in sides]


def balance_of(sides):
    """Return what is counted of each side, in any order of its survey, without partitions that hold nothing."""
    balance = []
    for side in sides:
        offsets = tuple(one for one in side.offsets if one.first < one.end)
        counts = sorted(map(repr, side.survey.rows.items()))
        balance.append((replace(side, files=(), survey=None, offsets=offsets), counts))
    return balance


def test_messages_of_topics_are_ingested_once_in_any_number_of_rounds(kafka, tmp_path):
    bodies = [base64.b64decode(json.loads(text)["body_base64"]) for text in (DUAL / "native.jsonl").open()]
    spans = [
        line.replace(b"RMQ_SYS_TRACE_TOPIC", MINE.encode()) for line in (DUAL / "otlp.jsonl").read_bytes().splitlines()
    ]
    native, otlp = (f"kafka://{kafka.bootstrap_servers}/{topic}" for topic in (MINE, "spans"))
    how = ReadOptions(native_writer="rocketmq-4.9.8")
    given = ReconcileOptions(native=(native,), otlp=(otlp,), out=tmp_path, reading=how)
    ingest, engine = Ingest(given, files_per_batch=1, progress=no_progress), PlainEngine()

    def sides():
        native_side, span_side = ingest.ingested.total().sides.values()
        return native_side, survey_again(engine, span_side, native_side.trace_topics)

    send(kafka, "spans", spans)
    counts = [ingest.ingest(engine)]
    send(kafka, MINE, bodies)
    counts += [ingest.ingest(engine), ingest.ingest(engine)]
    assert counts == [1, 1, 0]
    in_rounds = sides()

    one_native = read_sources(engine, Side.NATIVE, [native], tmp_path / "once-native", how)
    how = replace(how, trace_topics=one_native.trace_topics)
    at_once = one_native, read_sources(engine, Side.OTLP, [otlp], tmp_path / "once-otlp", how)
    assert events_of(in_rounds) == events_of(at_once)
    assert balance_of(in_rounds) == balance_of(at_once)
    assert "TRACE_TRAFFIC" in {scope for _, _, scope in in_rounds[1].survey.rows}

    events = events_of(in_rounds)
    ingest.ingested.compact(most_batches=1)
    assert events_of(sides()) == events
    assert balance_of(sides()) == balance_of(in_rounds)
    assert ingest.ingest(engine) == 0


def test_topic_that_was_created_again_is_refused(kafka):
    kafka.create_topic("anew", 1)
    send(kafka, "anew", [b"1", b"2"])
    (held,) = topic_ranges(topic_address(kafka.bootstrap_servers, "anew"), {})
    assert find_new_ranges([held], []) == (held,)
    assert (held.first, held.end) == (0, 2)
    assert find_new_ranges([held], [held]) == ()
    with pytest.raises(PeerError, match="created again"):
        find_new_ranges([held], [replace(held, end=3)])
