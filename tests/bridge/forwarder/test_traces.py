"""From trace messages to delivered spans: what is committed when, against sources that remember."""

import errno
import gzip
import itertools
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from bridge.codec.files import BodyDecoder
from bridge.codec.framing import read_landed, unreadable
from bridge.forwarder.files_source import FilesTraceSource, SpanFilesSource
from bridge.forwarder.pairing import Pairing, Position
from bridge.forwarder.resume_file import ResumeFile
from bridge.forwarder.service import METRICS, ForwardMetrics, forward_once
from bridge.forwarder.span_delivery import OtlpDelivery, SpanForwarding
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.landing import LandedMessage, LandingWriter
from otel_mqtrace.testing import ManualClock
from tests.support.archives import land
from tests.support.forwarded_spans import record_of
from tests.support.landings import landed_lines, write_landing
from tests.support.programs import no_file_beyond
from tests.support.trace_stories import START_MS, after, before, body_of, pub


@pytest.fixture
def delivery(receiver):
    delivery = OtlpDelivery(receiver.endpoint)
    yield delivery
    delivery.close()


def _message(body, *, partition=0, offset=0, arrival_ms=START_MS):
    return LandedMessage(source="trace", partition=partition, offset=offset, arrival_ms=arrival_ms, body=body)


class _Log:
    """A topic of two partitions in memory that remembers, like a broker's group, where it was committed."""

    behind = ()

    def __init__(self, *bodies):
        self.messages = [
            _message(body, partition=number % 2, offset=number // 2, arrival_ms=START_MS + number)
            for number, body in enumerate(bodies)
        ]
        self.committed = {}
        self._yielded = 0

    def drain(self):
        while self._yielded < len(self.messages):
            self._yielded += 1
            yield [self.messages[self._yielded - 1]]

    def commit(self, held=()):
        for message in self.messages[: self._yielded]:
            self.committed[message.partition] = message.offset + 1
        for _, partition, offset in held:
            self.committed[partition] = min(offset, self.committed[partition])

    def restarted(self):
        """The topic for another process: what is committed is not yielded again."""
        again = _Log()
        again.messages = [each for each in self.messages if each.offset >= self.committed.get(each.partition, 0)]
        again.committed = dict(self.committed)
        return again


def test_half_is_released_after_its_timeout(receiver, delivery):
    """At the topic's end the wall clock tells; the marked span is delivered before the position moves. A late one is alone."""
    log, clock = _Log(body_of(before())), ManualClock()
    spans = SpanForwarding(delivery, pairing=Pairing(timeout_ms=60_000), clock=clock)
    forward_once(log, spans=spans)
    clock.advance(ms=59_999)
    forward_once(log, spans=spans)
    assert (log.committed, receiver.ids()) == ({0: 0}, set())
    clock.advance(ms=1)
    assert forward_once(log, spans=spans).spans == 1
    assert (log.committed, spans.counts.halves) == ({0: 1}, 1)
    log.messages.append(_message(body_of(after()), offset=1))
    assert forward_once(log, spans=spans, flush=True).spans == 1
    assert (log.committed, spans.counts.halves) == ({0: 2}, 2)


def test_slowest_partition_is_the_clock_in_a_backlog(delivery):
    """A half is not given up because another partition is far ahead; nor kept until the backlog's end."""
    clock = ManualClock()
    clock.advance(ms=10_000_000)
    spans = SpanForwarding(delivery, pairing=Pairing(timeout_ms=60_000), clock=clock)
    spans.take([_message(body_of(before())), _message(body_of(pub("M2")), partition=1)])
    spans.take([_message(body_of(pub("M3")), offset=1, arrival_ms=START_MS + 3_600_000)])
    spans.expire({0, 1})
    assert spans.counts.pending == 1
    spans.take([_message(body_of(pub("M4")), partition=1, offset=1, arrival_ms=START_MS + 60_000)])
    spans.expire({0, 1})
    assert (spans.counts.pending, spans.counts.halves) == (0, 1)


def test_half_whose_partner_arrived_during_a_long_pass_waits_for_the_next_one(delivery):
    """A pass ends where the topic ended as it began; a backlog may take longer than a half waits."""
    clock = ManualClock(wall_ns=START_MS * 1_000_000)

    class LongBacklog(_Log):
        def drain(self):
            yield from super().drain()
            clock.advance(ms=70_000)

    log, spans = LongBacklog(body_of(before())), SpanForwarding(delivery, clock=clock)
    assert forward_once(log, spans=spans).spans == 0
    log.messages.append(_message(body_of(after()), offset=1, arrival_ms=START_MS + 1_000))
    assert (forward_once(log, spans=spans).spans, spans.counts.halves) == (1, 0)


def test_half_of_a_writer_whose_clock_is_behind_waits_as_long_as_others(delivery):
    clock = ManualClock(wall_ns=(START_MS + 3_600_000) * 1_000_000)
    log, spans = _Log(), SpanForwarding(delivery, clock=clock)
    forward_once(log, spans=spans)
    log.messages.append(_message(body_of(before())))
    for advance_ms, pending in ((1_000, 1), (58_999, 1), (1, 0)):
        clock.advance(ms=advance_ms)
        forward_once(log, spans=spans)
        assert spans.counts.pending == pending


def test_refusing_receiver_is_one_sentence_and_nothing_is_committed(receiver, delivery, tmp_path):
    receiver.status = 400
    log, spans = _Log(body_of(pub())), SpanForwarding(delivery)
    with pytest.raises(
        PeerError,
        match=rf"{receiver.endpoint} did not accept 1 span \(400 Bad Request\): .*check --otlp-endpoint and OTEL_EXPORTER_OTLP_…;.*will be forwarded again",
    ):
        forward_once(log, LandingWriter(tmp_path), spans=spans)
    assert log.committed == {}
    receiver.status = 200
    forward_once(log.restarted(), LandingWriter(tmp_path), spans=spans)
    assert len(receiver.ids()) == 1


def test_what_was_committed_before_a_failure_is_counted(receiver, delivery, tmp_path):
    """Nothing forwards it again, so no later run would count that the receiver rejected it."""
    receiver.rejects = 1
    receiver.on_request = lambda number, _: setattr(receiver, "status", 200 if number == 1 else 400)
    log, spans = _Log(body_of(pub()), body_of(pub("M2"))), SpanForwarding(delivery)
    measures = ForwardMetrics(spans)
    with pytest.raises(PeerError):
        forward_once(log, LandingWriter(tmp_path, max_part_bytes=1), spans=spans, on_commit=measures.add)
    assert (log.committed, measures.rejected) == ({0: 1}, 1)


@pytest.mark.parametrize("wall_ms", [0, START_MS - 500], ids=["", "the broker's clock is ahead"])
def test_settled_message_is_neither_landed_nor_delivered_again(receiver, delivery, tmp_path, wall_ms):
    log, commits = _Log(body_of(before()), body_of(pub("M2")), body_of(pub("M3"), before("M4", "R4"))), []
    clock = ManualClock(wall_ns=wall_ms * 1_000_000) if wall_ms else ManualClock()

    def run(source):
        spans = SpanForwarding(delivery, resume_file=ResumeFile(tmp_path / "memory.json"), clock=clock)
        landing = LandingWriter(tmp_path, max_part_bytes=1)
        return forward_once(source, landing, spans=spans, on_commit=commits.append), spans.counts

    assert run(log)[0].spans == sum(each.spans for each in commits) == 2
    clock.advance(ms=100)
    again, counts = run(log.restarted())
    assert (again.messages, again.spans, counts.records, counts.pending) == (0, 0, 2, 2)
    assert len(landed_lines(tmp_path)) == 3
    assert sum(map(len, receiver.spans.values())) == 2


def test_gbk_body_of_another_map_is_read_with_its_options(receiver, delivery):
    body = body_of(pub(keys="订单"), dialect="5.0.0").decode().encode("gbk")
    forward_once(_Log(body), spans=SpanForwarding(delivery, decoder=BodyDecoder(msg_type_map="b", charset="gbk")))
    ((_, span),) = next(iter(receiver.contents().values()))
    assert "订单".encode() in span


def test_forwarder_publishes_its_measures(delivery):
    reader = InMemoryMetricReader()
    spans = SpanForwarding(delivery, clock=ManualClock())
    measures = ForwardMetrics(spans, meter=MeterProvider([reader]).get_meter("test"))
    for log in (_Log(body_of(pub()), body_of(before())), _Log(body_of(pub("M2")) + b"?\x02", b"")):
        measures.add(forward_once(log, spans=spans))
    (resource,) = reader.get_metrics_data().resource_metrics
    metrics = {each.name: each.data.data_points[0].value for each in resource.scope_metrics[0].metrics}
    assert metrics.keys() == METRICS.keys()
    assert (metrics["mqtrace.forwarder.spans"], metrics["mqtrace.forwarder.pending"]) == (2, 1)
    assert (metrics["mqtrace.forwarder.records"], metrics["mqtrace.forwarder.bad_records"]) == (3, 1)
    assert metrics["mqtrace.forwarder.messages"] == 4


@pytest.fixture
def files(tmp_path):
    """A directory of trace messages: a landing's part, a raw body, something to pass over, and a line without a body."""
    directory = tmp_path / "files"
    land(directory, [_message(body_of(pub(), before()), partition=None, offset=None)])
    (directory / "raw.bin").write_bytes(body_of(after()))
    (directory / "zz.jsonl").write_text('{"nothing": 1}\n', encoding="utf-8")
    (directory / ".hidden.jsonl").write_text("{}", encoding="utf-8")
    return directory


@pytest.fixture
def open_files(files):
    return lambda group="g": FilesTraceSource(files, group=group, state=files.parent / "state")


def test_files_are_forwarded_once(files, open_files, delivery):
    spans, source = SpanForwarding(delivery), open_files()
    assert forward_once(source, spans=spans).spans == 2
    assert (source.bad_bodies, source.first_bad) == (1, "zz.jsonl:1: body_base64 missing")
    again = open_files()
    assert list(again.drain()) == []
    (files / "later.bin").write_bytes(body_of(pub("M2")))
    assert forward_once(again, spans=spans).messages == 1
    assert sum(map(len, open_files("other").drain())) == 3
    (files / "raw.bin").write_bytes(body_of(pub("M3")))
    (files / "spans.jsonl").write_text('{"resourceSpans":[]}\n', encoding="utf-8")
    for _ in range(2):  # at every run
        changed = open_files()
        assert (list(changed.drain()), list(changed.drain())) == ([], [])
        assert (changed.changed_files, changed.bad_bodies) == ({"raw.bin"}, 1)
        assert changed.first_bad.startswith("spans.jsonl: holds spans, no native trace bodies: ")
        changed.commit()


def test_file_that_changes_after_it_was_read_is_named_once_while_the_forwarder_runs(files, open_files):
    source = open_files()
    list(source.drain())
    (files / "raw.bin").write_bytes(body_of(pub("M3"), pub("M4")))
    for named in ("raw.bin: changed since it was forwarded: give new content a new file name", ""):
        source.new_bad = ""
        list(source.drain())
        assert source.new_bad == named


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda whole: whole[:-9], "not a readable Parquet file"),
        (gzip.compress, "gzip-compressed; decompress it first (gunzip)"),
    ],
)
def test_unreadable_file_among_others_is_counted_and_read_once_it_is_whole(files, open_files, damage, reason):
    land(files.parent, [_message(body_of(pub()))], suffix="parquet")
    (part,) = files.parent.glob("native/*/*.parquet")
    whole, copy = part.read_bytes(), files / "part"
    copy.write_bytes(damage(whole))
    source = open_files()
    assert [sum(map(len, source.drain())) for _ in range(2)] == [2, 0]
    assert source.bad_bodies == 2
    assert source.first_bad.startswith(f"part: {reason}")
    copy.write_bytes(whole)
    assert sum(map(len, source.drain())) == 1


def test_file_that_is_damaged_in_its_middle_is_forwarded_up_to_there_once(files, open_files):
    part = files / "part.parquet"
    rows = pa.Table.from_pylist([{"body": body_of(pub())}] * 1_200)
    pq.write_table(rows, part, row_group_size=600)
    page = pq.ParquetFile(part).metadata.row_group(1).column(0).data_page_offset
    with part.open("r+b") as file:
        file.seek(page)
        file.write(b"\xff" * 50)
    source = open_files()
    forwarded, again = [sum(map(len, source.drain())) for _ in range(2)]
    assert (2 < forwarded <= 2 + 600, again) == (True, 0)
    assert (source.bad_bodies, "\n" in source.first_bad) == (2, False)
    assert source.first_bad.startswith("part.parquet: not a readable Parquet file (")
    source.commit()
    assert not any(open_files().drain())


def test_system_that_fails_in_the_middle_of_a_file_ends_the_run(files, open_files, monkeypatch):
    """Read again in the next pass, the file would repeat what was yielded of it."""

    def read(stream, framing, *, name):
        yield from itertools.islice(read_landed(stream, framing, name=name), 1)
        raise unreadable(name, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr("bridge.forwarder.files_source.read_landed", read)
    with pytest.raises(PeerError, match="Input/output error"):
        list(open_files().drain())


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_message_of_a_landing_keeps_its_arrival_and_keys(form, tmp_path):
    """A landing made today of old records is not late."""
    written = replace(_message(body_of(pub())), keys="k1 k2")
    land(tmp_path, [written], suffix=form)
    ((read,),) = FilesTraceSource(tmp_path, group="g", state=tmp_path).drain()
    assert (read.arrival_ms, read.keys) == (written.arrival_ms, written.keys)


def test_message_of_a_dumped_rocketmq_topic_arrived_when_the_broker_stored_it(tmp_path):
    dump = write_landing(tmp_path / "dump.jsonl", body_of(pub()), store_ms=START_MS, queue_id=3)
    ((read,),) = FilesTraceSource(dump, group="g", state=tmp_path).drain()
    assert read.arrival_ms == START_MS


def test_file_without_a_trace_record_is_counted_and_not_landed(files, open_files):
    (files / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x01\x02")
    source = open_files()
    assert sum(map(len, source.drain())) == 2
    assert (source.bad_bodies, source.first_bad) == (2, "picture.png: no record")


@pytest.mark.parametrize(
    ("kind", "content"), [(FilesTraceSource, body_of(pub())), (SpanFilesSource, b'{"resourceSpans":[{}]}')]
)
def test_file_that_is_removed_before_its_turn_is_passed_over(kind, content, tmp_path):
    for name in "ab":
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    source = kind(tmp_path / "in", group="g", state=tmp_path / "state")
    drained = source.drain()
    next(drained)
    (tmp_path / "in" / "b").unlink()
    assert (list(drained), source.bad_bodies) == ([], 0)
    (tmp_path / "in" / "b").write_bytes(content + b"\n" + content)
    assert len(list(source.drain())) == 1


def test_link_to_a_file_elsewhere_is_forwarded_once(files, open_files, delivery, tmp_path):
    (tmp_path / "elsewhere.bin").write_bytes(body_of(pub("M2")))
    (files / "link.bin").symlink_to(tmp_path / "elsewhere.bin")
    assert forward_once(open_files(), spans=SpanForwarding(delivery)).messages == 3
    assert list(open_files().drain()) == []


def test_file_with_a_waiting_half_is_read_again(files, open_files, delivery):
    (files / "raw.bin").rename(files / ".raw.bin")
    forward_once(open_files(), spans=SpanForwarding(delivery))
    (files / ".raw.bin").rename(files / "raw.bin")
    spans = SpanForwarding(delivery)
    forward_once(open_files(), spans=spans)
    assert (spans.counts.records, spans.counts.pending) == (3, 0)
    assert list(open_files().drain()) == []


@pytest.mark.parametrize("text", ["[]", '{"done": {"a": [1]}}', '{"done": {"a": [1, 1e999]}}', '{"done": 1}'])
def test_unreadable_state_names_the_option(files, open_files, delivery, text):
    forward_once(open_files(), spans=SpanForwarding(delivery))
    (kept,) = (files.parent / "state").iterdir()
    kept.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="name another --state DIR"):
        open_files()


# -- what is remembered beyond the commits: taken once more after a restart is only what waited
def _read(memory, *offsets, partition=0):
    settled = [_message(b"", partition=partition, offset=each, arrival_ms=1_000 + each) for each in offsets]
    left = [memory.remaining_records(each) for each in settled]
    return ["all" if each is None else [index for index in range(3) if index in each] for each in left]


def _waiting(*places):
    return [
        record_of(before(), Position("trace", partition, offset), 1_000 + offset, record_index=index)
        for partition, offset, index in places
    ]


def _remember(file, *waiting, read=(), partition=0):
    memory = ResumeFile(file)
    assert _read(memory, *read, partition=partition) == ["all"] * len(read)
    memory.remember(_waiting(*waiting))
    return memory


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "memory.json"


@pytest.mark.parametrize(
    ("first", "left"), [(5, [[1], [], [0, 2], "all"]), (0, ["all"] * 9), (4, ["all"] * 5), (6, ["all"] * 3)]
)
def test_restart_forwards_only_the_records_that_waited_unless_the_position_moved(file, first, left):
    _remember(file, (0, 5, 1), (0, 7, 0), (0, 7, 2), read=(5, 6, 7))
    assert _read(ResumeFile(file), *range(first, 9)) == left


@pytest.mark.parametrize(
    ("partition", "held", "read", "later", "held_later", "left"),
    [
        (0, [1], (0, 1), (2, 3), [3], {1: [[], [], [0], "all"], 3: [[0], "all"]}),
        (0, [1], (0, 1), (), [], {1: [[], "all"]}),  # its half was joined by a message of another partition
        (None, [1], (0, 1, 2), (), [1], {0: [[], [0], []]}),
        (None, [], (0, 1), (2, 3), [], {0: [[], [], [], [], "all"]}),
    ],
    ids=["topic", "topic without later messages", "file with a waiting half", "file of several commits"],
)
def test_crash_before_the_commit_restarts_at_the_commit_before(file, partition, held, read, later, held_later, left):
    """A topic's position is then one commit old: at the first message since, or at what was held; a file's at its beginning."""
    memory = _remember(file, *((partition, each, 0) for each in held), read=read, partition=partition)
    _read(memory, *later, partition=partition)
    memory.remember(_waiting(*((partition, each, 0) for each in held_later)))
    for first, records in left.items():
        assert _read(ResumeFile(file), *range(first, first + len(records)), partition=partition) == records


def test_topic_created_anew_is_forwarded_from_its_beginning(file):
    _remember(file, (0, 0, 0), read=(0, 1))
    again = ResumeFile(file)
    assert again.remaining_records(_message(b"", arrival_ms=9_999)) is None
    assert _read(again, 1) == ["all"]


def test_restart_during_a_restart_forgets_nothing(file):
    memory = ResumeFile(file)
    _read(memory, 0, 1, 2, 3)
    _read(memory, 0, 1, partition=1)
    memory.remember(_waiting((0, 0, 0), (0, 2, 0), (1, 0, 0)))
    second = ResumeFile(file)
    assert _read(second, 0, 1) == [[0], []]
    second.remember(_waiting((0, 0, 0)))
    third = ResumeFile(file)
    assert _read(third, 0, 1, 2, 3, 4) == [[0], [], [0], [], "all"]
    assert _read(third, 0, 1, 2, partition=1) == [[0], [], "all"]


def test_restart_during_a_restart_begins_where_the_first_did(file):
    """Nothing waits any more; but a commit in the middle would make void what is remembered of the rest."""
    _remember(file, (0, 0, 0), (0, 2, 0), read=(0, 1, 2, 3))
    second = ResumeFile(file)
    for offset, left in enumerate([[0], []]):
        assert _read(second, offset) == [left]
        second.remember([])
        assert second.unsettled() == {Position("trace", 0, 0)}
    third = ResumeFile(file)
    assert _read(third, 0, 1, 2, 3) == [[], [], [0], []]
    third.remember([])
    assert third.unsettled() == set()
    assert _read(ResumeFile(file), 0, 1, 2, 3, 4) == [[], [], [], [], "all"]


def test_end_of_a_pass_ends_what_an_earlier_process_has_left(file):
    """The rest of it is gone, and to wait for it would hold back the position for ever."""
    _remember(file, (0, 0, 0), read=(0, 1, 2, 3))
    memory = ResumeFile(file)
    assert _read(memory, 0, 1) == [[0], []]
    memory.end_pass()
    memory.remember([])
    assert memory.unsettled() == set()


def test_what_was_committed_last_is_forwarded_again_where_its_position_is_moved_back(file):
    for partition in (0, None):
        memory = _remember(file, read=(0, 1), partition=partition)
        memory.end_pass()
        for _ in range(2):
            memory.remember([])
        assert _read(ResumeFile(file), 0, 1, partition=partition) == ["all", "all"]


def test_file_that_cannot_be_read_or_written_is_one_sentence(file):
    memory = ResumeFile(file)
    file.parent.touch()
    _read(memory, 0)
    with pytest.raises(UsageError, match=r"cannot be written \(.*\); give --state a DIR"):
        memory.remember([])
    file.parent.unlink()
    file.parent.mkdir()
    with no_file_beyond(10), pytest.raises(UsageError, match=r"cannot be written \(File too large\); raise ulimit -f"):
        memory.remember([])
    part = '{"partitions":[{"source":"T","partition":0,"next":"x","begins":[],"pending":[]}]}'
    for content in ("", "{", "[]", part):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(UsageError, match=r"read \((Expecting|its content is not).*; remove it to go on by"):
            ResumeFile(file)
