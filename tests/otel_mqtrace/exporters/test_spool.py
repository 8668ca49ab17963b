"""The spool on disk, and an exporter that falls back on it while the broker is away."""

import os
import shutil
import signal
import threading
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace.exporters import native_delivery
from otel_mqtrace.exporters.native_delivery import PATIENCE_MS, MessageDelivery, SpooledDelivery, Undelivered
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.exporters.packing import TraceMessage
from otel_mqtrace.exporters.spool import Spool, encode_frame
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S
from tests.support.native_spans import bean, pub
from tests.support.programs import run_in_child

PLENTY = 1024 * 1024


def message(text, *, keys="k"):
    return TraceMessage(text.encode() if isinstance(text, str) else text, keys, ())


def values(spool, count=1000):
    return [each.message.value.decode() for each in spool.oldest(count)]


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path, max_bytes=PLENTY)


def test_full_spool_refuses_the_newest(tmp_path, caplog):
    spool = Spool(tmp_path, max_bytes=100)
    assert spool.put([message("a" * 30), message("b" * 30), message("c" * 30)]) == 2
    assert "it is full (100 bytes), and more is lost: raise MQTRACE_SPOOL_BYTES" in caplog.text
    spool.ack(spool.oldest(1))
    assert spool.put([message("d" * 30)]) == 1
    assert values(spool) == ["b" * 30, "d" * 30]


def test_spools_of_one_directory_are_independent_also_in_restarted_containers(tmp_path):
    clock = ManualClock()  # as process ids are the same in each container, moments may be
    first = Spool(tmp_path, max_bytes=PLENTY, clock=clock)
    first.put([message("first")])
    second = Spool(tmp_path, max_bytes=PLENTY, clock=clock)
    assert values(second) == []
    assert second.put([message("second")]) == 1
    first.close()
    second.close()
    assert sorted(values(Spool(tmp_path, max_bytes=PLENTY))) == ["first", "second"]


@given(cut=st.integers(min_value=0, max_value=200))
def test_torn_tail_loses_the_torn_message_only(tmp_path_factory, cut):
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory, max_bytes=PLENTY)
    spool.put([message("a" * 40), message("b" * 40), message("c" * 40)])
    frame_bytes = spool.waiting_bytes // 3
    spool.close()
    (path,) = directory.iterdir()
    kept = min(cut, path.stat().st_size)
    os.truncate(path, kept)
    reopened = Spool(directory, max_bytes=PLENTY)
    assert values(reopened) == ["a" * 40, "b" * 40, "c" * 40][: kept // frame_bytes]
    assert reopened.corrupt_bytes == kept % frame_bytes


def test_damaged_frame_ends_its_segment(spool, tmp_path):
    spool.put([message("good"), message("bad"), message("lost")])
    spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"bad", b"BAD"))
    reopened = Spool(tmp_path, max_bytes=PLENTY)
    assert values(reopened) == ["good"]
    assert reopened.corrupt_bytes > 0


STEPS = st.tuples(st.sampled_from(["put", "took"]), st.integers(1, 5)) | st.just(("reopen", 0))


@given(steps=st.lists(STEPS, max_size=12))
@example(steps=[("put", 2), ("reopen", 0), ("put", 1), ("reopen", 0), ("put", 1), ("took", 1), ("reopen", 0)])
def test_spool_is_a_queue_of_messages_with_their_keys_across_restarts(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("spool")
    spool, oracle, number = Spool(directory, max_bytes=PLENTY), [], 0
    for step, count in steps:
        if step == "put":
            new = [message(str(number + each), keys="ä b" if each else "") for each in range(count)]
            number += count
            assert spool.put(new) == count
            oracle += new
        elif step == "took":
            spool.ack(spool.oldest(count))
            oracle = oracle[count:]
        else:
            spool.close()
            spool = Spool(directory, max_bytes=PLENTY)
        assert [each.message for each in spool.oldest(1000)] == oracle
        assert spool.waiting == len(oracle)
        assert bool(list(directory.iterdir())) == bool(oracle)
        assert spool.waiting_bytes == sum(len(encode_frame(each)) for each in oracle)
    spool.close()


def test_unreadable_file_does_not_break_the_spool(tmp_path, caplog):
    (tmp_path / "spool-other-1-0.mqspool").mkdir()
    assert Spool(tmp_path, max_bytes=PLENTY).put([message("a")]) == 1
    assert "spool-other-1-0.mqspool" in caplog.text


def test_messages_that_could_not_be_synced_are_refused(spool, tmp_path, monkeypatch):
    spool.put([message("safe")])
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", Mock(side_effect=OSError(5, "Input/output error")))
        assert spool.put([message("lost"), message("lost too")]) == 0
    assert values(spool) == ["safe"]
    assert spool.put([message("after")]) == 1
    spool.close()
    assert values(Spool(tmp_path, max_bytes=PLENTY)) == ["safe", "after"]


def test_messages_before_a_full_disk_are_synced_and_so_is_the_mark_of_the_last(tmp_path, monkeypatch):
    spool, synced, real = Spool(directory := tmp_path / "new", max_bytes=PLENTY), set(), os.pwrite

    def half(fd, data, offset):
        return real(fd, data if b"fits" in data else data[:20], offset)

    monkeypatch.setattr(os, "pwrite", half)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    assert spool.put([message("fits"), message("does not"), message("fits, but later")]) == 1
    assert spool.waiting_bytes == sum(path.stat().st_size for path in directory.iterdir())
    files = {path.stat().st_ino for path in directory.iterdir() if path.stat().st_size}
    assert {*files, directory.stat().st_ino, tmp_path.stat().st_ino} <= synced
    synced.clear()
    spool.ack(spool.oldest(1))
    assert synced == files


def test_removed_directory_is_made_again(tmp_path, caplog):
    directory = tmp_path / "spool"
    spool = Spool(directory, max_bytes=PLENTY)
    spool.put([message("before")])
    shutil.rmtree(directory)
    assert spool.put([message("after")]) == 1
    assert (values(spool), spool.corrupt_bytes) == (["before", "after"], 0)
    spool.close()
    assert spool.corrupt_bytes > 0
    assert "messages lost with it: 1: exclude *.mqspool from its clean-up" in caplog.text
    assert values(Spool(directory, max_bytes=PLENTY)) == ["after"]


def test_messages_of_a_killed_process_are_read_by_one_other(tmp_path):
    def die():
        Spool(tmp_path, max_bytes=PLENTY).put([message("a"), message("b")])
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(die) == -signal.SIGKILL
    assert [values(each) for each in [Spool(tmp_path, max_bytes=PLENTY) for _ in range(2)]] == [["a", "b"], []]


@pytest.mark.parametrize("content", [b"torn", bytes(100)], ids=["less than a frame", "zeros of a power failure"])
def test_file_of_a_dead_process_without_a_whole_message_is_counted_once_and_removed(tmp_path, content):
    (tmp_path / "spool-host-1-1.mqspool").write_bytes(content)
    spools = [Spool(tmp_path, max_bytes=PLENTY) for _ in range(2)]
    assert ([each.corrupt_bytes for each in spools], list(tmp_path.iterdir())) == ([len(content), 0], [])


def test_truncated_file_loses_the_truncated_message_only(spool, tmp_path):
    spool.put([message("whole"), message("cut")])
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    assert values(spool) == ["whole"]
    assert (spool.waiting, spool.corrupt_bytes > 0) == (1, True)
    os.truncate(path, 0)
    assert values(spool) == []
    spool.close()
    assert list(tmp_path.rglob("*.mqspool")) == []


def test_acknowledgement_that_cannot_be_written_is_kept_in_memory(spool, monkeypatch):
    spool.put([message("a"), message("b"), message("c")])
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", Mock(side_effect=OSError(30, "Read-only file system")))
        spool.ack(spool.oldest(2))
    assert values(spool) == ["c"]


def test_closed_spool_uses_no_file_descriptor(tmp_path):
    spool = Spool(tmp_path / "spool", max_bytes=PLENTY)
    spool.put([message("a")])
    waiting = spool.oldest(1)
    spool.close()
    with (tmp_path / "of the application").open("w+b", buffering=0) as file:
        file.write(b"own data")
        spool.ack(waiting)
        spool.close()
        spool.after_fork()
        file.seek(0)
        assert file.read() == b"own data"


def test_forked_child_writes_a_file_of_its_own(spool, tmp_path):
    spool.put([message("of the parent")])
    child = run_in_child(
        lambda: spool.waiting * 10 + spool.put([message("of the child, longer")]) + spool.waiting * 100
    )
    assert child == 10 + 1 + 100
    spool.put([message("of the parent too")])
    assert values(spool) == ["of the parent", "of the parent too"]
    spool.close()
    left = sorted(values(Spool(tmp_path, max_bytes=PLENTY)))
    assert left == ["of the child, longer", "of the parent", "of the parent too"]


NAME = "NativeKafkaSpanExporter"
NOWHERE = "127.0.0.1:1"


def exporter_of(servers, spool, **options):
    options = {"export_timeout_millis": 500, **options}
    return NativeKafkaSpanExporter(bootstrap_servers=servers, spool_dir=spool, **options)


def test_spooled_records_arrive_once_in_order_when_the_broker_is_back(kafka, traced, arrived, tmp_path, monkeypatch):
    first = exporter_of(kafka.bootstrap_servers, tmp_path, export_timeout_millis=20_000)
    processor, trace = traced(first, max_export_batch_size=1)
    trace(pub(9))
    assert processor.force_flush()
    kafka.broker_down(1)
    monkeypatch.setattr(native_delivery, "PATIENCE_MS", 500)
    trace(*map(pub, range(3)))
    processor.run_once()
    assert not processor.force_flush(timeout_millis=1_000)  # it is safe, but it is not there
    assert (processor.stats()[NAME]["exported"], first.stats()["spooled"]) == (4, 3)
    processor.shutdown(timeout_millis=1_000)
    monkeypatch.undo()
    kafka.broker_up(1)
    second = exporter_of(kafka.bootstrap_servers, tmp_path, export_timeout_millis=20_000)
    processor, trace = traced(second)
    trace(pub(3))
    assert processor.force_flush()
    assert sorted(arrived()) == [bean(number).msg_id for number in (0, 1, 2, 3, 9)]
    assert second.stats()["spool_waiting"] == 0
    assert list(tmp_path.rglob("*.mqspool")) == []
    processor.shutdown()
    assert arrived() == [bean(number).msg_id for number in (9, 3, 0, 1, 2)]


def test_exporter_with_a_full_spool_counts_the_newest_as_failed(traced, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MQTRACE_SPOOL_BYTES", "400")
    exporter = exporter_of(NOWHERE, tmp_path)
    processor, trace = traced(exporter, max_export_batch_size=1)
    trace(*map(pub, range(5)))
    assert not processor.force_flush()
    stats = processor.stats()[NAME]
    assert stats["exported"] == exporter.stats()["spool_waiting"] > 0
    assert stats["failed"] == 5 - stats["exported"] > 0
    assert "native traces are not delivered" in caplog.text


def test_span_that_cannot_be_encoded_is_logged_as_lost_beside_a_spool(traced, tmp_path, caplog):
    processor, trace = traced(exporter_of(NOWHERE, tmp_path))
    trace(pub(0, body_length=2**40))
    processor.force_flush()
    assert processor.stats()[NAME]["dropped"]["encode_error"] == 1
    assert "native traces are not delivered" in caplog.text


def test_unusable_spool_is_logged_and_the_exporter_works(kafka, exported, arrived, tmp_path, caplog):
    (tmp_path / "taken").write_text("")
    exporter = exporter_of(kafka.bootstrap_servers, tmp_path / "taken", export_timeout_millis=10_000)
    assert "taken" in caplog.text
    exported(exporter, pub(0))
    assert arrived() == [bean(0).msg_id]
    assert exporter.export([]) is SpanExportResult.SUCCESS


class Broker(MessageDelivery):
    """The other side of a delivery: takes what ``takes`` allows, waits out its deadline for the rest."""

    def __init__(self, clock):
        super().__init__(clock)
        self.clock = clock
        self.takes = lambda _message: True
        self.taken = []
        self.waited_ms = []
        self.forks = 0

    def deliver(self, messages, deadline):
        left = [each for each in messages if not self.takes(each)]
        rejected = tuple(each for each in messages if each.value == b"refused" and each not in left)
        self.taken += [each.value.decode() for each in messages if each not in (*left, *rejected)]
        if left:
            self.waited_ms.append((deadline - self.clock.monotonic_ns()) // 10**6)
            self.clock.advance(ms=self.waited_ms[-1])
        return Undelivered(tuple(left), rejected)

    def close(self, deadline):
        self.takes = lambda _message: False

    def after_fork(self):
        self.forks += 1


@pytest.fixture
def broker(clock):
    return Broker(clock)


@pytest.fixture
def delivery(broker, clock, tmp_path):
    return SpooledDelivery(broker, Spool(tmp_path, max_bytes=10**6), timeout_ms=30_000, clock=clock)


def in_ms(clock, ms):
    return MonotonicNs(clock.monotonic_ns() + ms * 10**6)


@pytest.mark.parametrize(("allowed_ms", "first_ms", "later_ms"), [(30_000, PATIENCE_MS, 2_000), (300, 300, 300)])
def test_outage_delays_each_delivery_by_seconds_only(delivery, broker, clock, allowed_ms, first_ms, later_ms):
    broker.takes = lambda _message: False
    for number in range(3):
        assert delivery.deliver([message(str(number))], in_ms(clock, allowed_ms)).messages == ()
        assert delivery.deliver([message(f"{number} more")], in_ms(clock, allowed_ms)).messages == ()
        clock.advance(ms=5_000)
        delivery.idle()
        clock.advance(ms=5_000)
    assert broker.waited_ms == [first_ms, 2_000, *[later_ms, 2_000] * 2]
    assert delivery.stats()["spooled"] == 6


def test_accepted_oldest_message_ends_an_outage(delivery, broker, clock):
    broker.takes = lambda _message: False
    for text in ("a", "refused", "c"):
        delivery.deliver([message(text)], in_ms(clock, 30_000))
    broker.takes = lambda _message: True
    clock.advance(ms=5_000)
    assert delivery.deliver([message("new")], in_ms(clock, 30_000)).messages == ()
    assert broker.taken == ["a", "new", "c"]
    none = dict.fromkeys(("spool_waiting", "spool_torn_bytes"), 0)
    assert delivery.stats() == {"spooled": 3, "replayed": 2, "replay_refused": 1, **none}


def test_one_undeliverable_message_is_not_an_outage(delivery, broker, clock):
    back_ns = in_ms(clock, 25_000)
    broker.takes = lambda each: clock.monotonic_ns() > back_ns and each.value != b"poison"
    for texts in (["a", "poison"], [], [], [], ["b"], ["c"], ["d"]):
        delivery.deliver([*map(message, texts)], in_ms(clock, 30_000))
        clock.advance(ms=5_000)
        delivery.idle()
    assert broker.taken == [*"abcd"]
    assert delivery.stats()["spool_waiting"] == 1


def test_files_of_other_processes_are_read_twice_a_minute_and_at_once_after_a_fork(delivery, broker, clock, tmp_path):
    def leave(text):
        sibling = Spool(tmp_path, max_bytes=10**6)
        sibling.put([message(text)])
        sibling.close()

    leave("a")
    delivery.idle()
    assert broker.taken == []
    clock.advance(ms=30_000)
    delivery.idle()
    leave("b")
    delivery.idle()
    assert broker.taken == ["a"]
    delivery.after_fork()
    delivery.idle()
    assert broker.taken == ["a", "b"]
    assert (delivery.stats()["replayed"], broker.forks) == (1, 1)  # the parent counts its own


def test_shutdown_during_a_delivery_leaves_the_message_on_disk(delivery, broker, tmp_path):
    inside, let_go = threading.Event(), threading.Event()

    def hang(_message):
        inside.set()
        let_go.wait(GENEROUS_S)
        return False

    broker.takes = hang
    left = []
    lane = threading.Thread(target=lambda: left.append(delivery.deliver([message("a")], MonotonicNs(10**18))))
    lane.start()
    assert inside.wait(GENEROUS_S)
    delivery.close(MonotonicNs(0))
    assert lane.is_alive()
    let_go.set()
    lane.join(GENEROUS_S)
    assert left == [Undelivered()]
    assert [each.message.value for each in Spool(tmp_path, max_bytes=10**6).oldest(5)] == [b"a"]
