"""What waits on disk: kept in order, taken once, left to the next process, never more than was allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.packing import TraceMessage
from otel_mqtrace.exporters.spool import Spool
from otel_mqtrace.testing import ManualClock

PLENTY = 1024 * 1024


def message(text, *, keys="k"):
    return TraceMessage(None, None, text.encode() if isinstance(text, str) else text, keys, frozenset(), 1)


def values(spool, count=1000):
    return [each.message.value.decode() for each in spool.oldest(count)]


def test_what_was_put_comes_back_in_order_with_its_keys(tmp_path):
    spool = Spool(tmp_path, max_bytes=PLENTY)
    assert spool.put([message("a", keys="ä b"), message("b", keys="")]) == 2
    assert [(each.message.value, each.message.keys, each.message.contexts) for each in spool.oldest(5)] == [
        (b"a", "ä b", 1),
        (b"b", "", 1),
    ]


def test_what_was_taken_is_gone_and_so_is_its_file(tmp_path):
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("a"), message("b"), message("c")])
    spool.ack(spool.oldest(2))
    assert values(spool) == ["c"]
    spool.ack(spool.oldest(1))
    assert (spool.waiting, spool.waiting_bytes, list(tmp_path.iterdir())) == (0, 0, [])
    assert spool.put([message("d")]) == 1


def test_a_full_spool_refuses_the_newest(tmp_path):
    """As the queue does, and it takes again when there is room."""
    spool = Spool(tmp_path, max_bytes=100)
    assert spool.put([message("a" * 30), message("b" * 30), message("c" * 30)]) == 2
    spool.ack(spool.oldest(1))
    assert spool.put([message("d" * 30)]) == 1
    assert values(spool) == ["b" * 30, "d" * 30]


def test_the_next_process_adopts_what_a_dead_one_left(tmp_path):
    code = """
    import os, signal, sys
    from otel_mqtrace.exporters.spool import Spool
    from tests.otel_mqtrace.exporters.test_spool import message
    spool = Spool(sys.argv[1], max_bytes=10**6)
    spool.put([message("taken"), message("waits"), message("waits too")])
    spool.ack(spool.oldest(1))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path], check=False, timeout=60, capture_output=True
    )
    assert done.returncode == -9, done.stderr.decode()
    assert values(Spool(tmp_path, max_bytes=PLENTY)) == ["waits", "waits too"]


def test_two_spools_of_one_directory_do_not_touch_each_other(tmp_path):
    first = Spool(tmp_path, max_bytes=PLENTY)
    first.put([message("first")])
    second = Spool(tmp_path, max_bytes=PLENTY)
    assert values(second) == []
    second.put([message("second")])
    first.close()
    second.close()
    assert sorted(values(Spool(tmp_path, max_bytes=PLENTY))) == ["first", "second"]


@settings(deadline=None)
@given(cut=st.integers(min_value=0, max_value=200))
def test_a_torn_tail_costs_only_itself(tmp_path_factory, cut):
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


def test_a_damaged_frame_ends_its_segment(tmp_path):
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("good"), message("bad"), message("lost")])
    spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"bad", b"BAD"))
    reopened = Spool(tmp_path, max_bytes=PLENTY)
    assert values(reopened) == ["good"]
    assert reopened.corrupt_bytes > 0


def test_a_directory_that_is_a_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "taken"
    path.write_text("")
    with pytest.raises(UsageError, match="taken"):
        Spool(path, max_bytes=PLENTY)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 5)),
            st.tuples(st.just("took"), st.integers(1, 5)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=12,
    )
)
@settings(deadline=None)
@example(steps=[("put", 2), ("reopen", 0), ("put", 1), ("reopen", 0), ("put", 1), ("took", 1), ("reopen", 0)])
def test_a_spool_is_a_queue_whatever_happens_to_its_process(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("spool")
    spool, oracle, number = Spool(directory, max_bytes=PLENTY), [], 0
    for step, count in steps:
        if step == "put":
            new = [str(number + each) for each in range(count)]
            number += count
            assert spool.put([message(text) for text in new]) == count
            oracle += new
        elif step == "took":
            spool.ack(spool.oldest(count))
            oracle = oracle[count:]
        else:
            spool.close()
            spool = Spool(directory, max_bytes=PLENTY)
        assert values(spool) == oracle
    spool.close()


def test_a_restarted_container_writes_beside_what_its_predecessor_left(tmp_path):
    clock = ManualClock()
    Spool(tmp_path, max_bytes=PLENTY, clock=clock).put([message("before")])
    assert Spool(tmp_path, max_bytes=PLENTY, clock=clock).put([message("after")]) == 1


def test_a_file_that_cannot_be_read_costs_nobody_the_spool(tmp_path, caplog):
    """Somebody else's, or no file at all: it is told, and left alone."""
    (tmp_path / "spool-other-1-0.mqspool").mkdir()
    spool = Spool(tmp_path, max_bytes=PLENTY)
    assert spool.put([message("a")]) == 1
    assert "spool-other-1-0.mqspool" in caplog.text


def test_what_a_sibling_left_behind_is_adopted_without_a_restart(tmp_path):
    sibling, spool = Spool(tmp_path, max_bytes=PLENTY), Spool(tmp_path, max_bytes=PLENTY)
    sibling.put([message("a")])
    spool.adopt()
    assert spool.waiting == 0
    sibling.close()
    spool.adopt()
    spool.adopt()
    assert values(spool) == ["a"]


def test_what_could_not_be_synced_is_not_called_safe(tmp_path, monkeypatch):
    """It is taken back, so that it cannot be both failed and delivered."""
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("safe")])

    def refuse(_fd):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse)
        assert spool.put([message("lost"), message("lost too")]) == 0
    assert values(spool) == ["safe"]
    assert spool.put([message("after")]) == 1
    spool.close()
    assert values(Spool(tmp_path, max_bytes=PLENTY)) == ["safe", "after"]


def test_what_was_taken_before_the_disk_was_full_is_synced(tmp_path, monkeypatch):
    """Half a frame is cut off again, and the whole ones before it are safe, not only written."""
    spool, synced, real = Spool(tmp_path, max_bytes=PLENTY), [], os.pwrite

    def half(fd, data, offset):
        return real(fd, data if b"fits" in data else data[:20], offset)

    monkeypatch.setattr(os, "pwrite", half)
    monkeypatch.setattr(os, "fsync", synced.append)
    assert spool.put([message("fits"), message("does not"), message("fits, but later")]) == 1
    assert spool.waiting_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert spool._own.fd in synced


def test_a_directory_removed_at_run_time_is_made_again(tmp_path):
    directory = tmp_path / "spool"
    spool = Spool(directory, max_bytes=PLENTY)
    spool.put([message("before")])
    shutil.rmtree(directory)
    assert spool.put([message("after")]) == 1
    assert values(spool) == ["before", "after"]
    spool.close()
    assert values(Spool(directory, max_bytes=PLENTY)) == ["after"]


def test_a_file_cut_behind_our_back_loses_only_what_was_cut(tmp_path):
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("whole"), message("cut")])
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    assert values(spool) == ["whole"]
    assert (spool.waiting, spool.corrupt_bytes > 0) == (1, True)


def test_marks_that_the_disk_refuses_are_remembered_at_least_here(tmp_path, monkeypatch):
    """The broker has them: this process never sends them again, and nothing raises."""
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("a"), message("b"), message("c")])

    def refuse(*_args):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", refuse)
        spool.ack(spool.oldest(2))
    assert values(spool) == ["c"]


def test_a_closed_spool_touches_no_descriptor_of_the_applications(tmp_path):
    """The number of a descriptor that was closed is soon another file's."""
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_that_was_not_told_of_its_fork_leaves_its_parents_file_alone(tmp_path):
    """A processor of somebody else tells its exporters nothing; two would write at one place."""
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("of the parent")])
    pid = os.fork()
    if not pid:
        os._exit(spool.waiting * 10 + spool.put([message("of the child, longer")]) + spool.waiting * 100)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10 + 1 + 100
    spool.put([message("of the parent too")])
    assert values(spool) == ["of the parent", "of the parent too"]
    spool.close()
    assert sorted(values(Spool(tmp_path, max_bytes=PLENTY))) == [
        "of the child, longer",
        "of the parent",
        "of the parent too",
    ]
