"""What waits on disk: kept in order, taken once, left to the next process, never more than was allowed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.exporters.batching import TraceMessage
from bridge.exporters.spool import Spool
from otel_mqtrace._errors import UsageError

PLENTY = 1024 * 1024


def message(text, *, keys="k"):
    """A trace message with this value."""
    return TraceMessage(None, None, text.encode() if isinstance(text, str) else text, keys, frozenset(), 1)


def values(spool, count=1000):
    """What waits, oldest first."""
    return [each.message.value.decode() for each in spool.oldest(count)]


def test_what_was_put_comes_back_in_order_with_its_keys(tmp_path):
    """Value, keys and number of contexts: all that the trace topic sees."""
    spool = Spool(tmp_path, max_bytes=PLENTY)
    assert spool.put([message("a", keys="ä b"), message("b", keys="")]) == 2
    assert [(each.message.value, each.message.keys, each.message.contexts) for each in spool.oldest(5)] == [
        (b"a", "ä b", 1),
        (b"b", "", 1),
    ]


def test_what_was_taken_is_gone_and_so_is_its_file(tmp_path):
    """Also from the disk."""
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("a"), message("b"), message("c")])
    spool.took(spool.oldest(2))
    assert values(spool) == ["c"]
    spool.took(spool.oldest(1))
    assert (spool.waiting, spool.waiting_bytes, list(tmp_path.iterdir())) == (0, 0, [])
    assert spool.put([message("d")]) == 1


def test_a_full_spool_refuses_the_newest(tmp_path):
    """As the queue does, and it takes again when there is room."""
    spool = Spool(tmp_path, max_bytes=100)
    assert spool.put([message("a" * 30), message("b" * 30), message("c" * 30)]) == 2
    spool.took(spool.oldest(1))
    assert spool.put([message("d" * 30)]) == 1
    assert values(spool) == ["b" * 30, "d" * 30]


def test_the_next_process_adopts_what_a_dead_one_left(tmp_path):
    """Killed in the middle: what it was told is safe is there, what it had taken is not."""
    code = """
    import os, signal, sys
    from bridge.exporters.spool import Spool
    from tests.bridge.exporters.test_spool import message
    spool = Spool(sys.argv[1], max_bytes=10**6)
    spool.put([message("taken"), message("waits"), message("waits too")])
    spool.took(spool.oldest(1))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path], check=False, timeout=60, capture_output=True
    )
    assert done.returncode == -9, done.stderr.decode()
    assert values(Spool(tmp_path, max_bytes=PLENTY)) == ["waits", "waits too"]


def test_two_spools_of_one_directory_do_not_touch_each_other(tmp_path):
    """A segment belongs to whoever holds its lock; when he is done, to the next one."""
    first = Spool(tmp_path, max_bytes=PLENTY)
    first.put([message("first")])
    second = Spool(tmp_path, max_bytes=PLENTY)
    assert values(second) == []
    second.put([message("second")])
    first.close()
    second.close()
    assert sorted(values(Spool(tmp_path, max_bytes=PLENTY))) == ["first", "second"]


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_torn_tail_costs_only_itself(tmp_path_factory, cut):
    """Wherever a crash or a full disk cut the file, the whole frames before it are there and nothing raises."""
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
    assert reopened.torn == kept % frame_bytes


def test_a_damaged_frame_ends_its_segment(tmp_path):
    """A checksum tells: nothing that was not written is ever sent."""
    spool = Spool(tmp_path, max_bytes=PLENTY)
    spool.put([message("good"), message("bad"), message("lost")])
    spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"bad", b"BAD"))
    reopened = Spool(tmp_path, max_bytes=PLENTY)
    assert values(reopened) == ["good"]
    assert reopened.torn > 0


def test_a_directory_that_is_a_file_is_refused_in_one_line(tmp_path):
    """With its name."""
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
def test_a_spool_is_a_queue_whatever_happens_to_its_process(tmp_path_factory, steps):
    """Against a list: put appends, took removes from the front, a restart changes nothing."""
    directory = tmp_path_factory.mktemp("spool")
    spool, oracle, number = Spool(directory, max_bytes=PLENTY), [], 0
    for step, count in steps:
        if step == "put":
            new = [str(number + each) for each in range(count)]
            number += count
            assert spool.put([message(text) for text in new]) == count
            oracle += new
        elif step == "took":
            spool.took(spool.oldest(count))
            oracle = oracle[count:]
        else:
            spool.close()
            spool = Spool(directory, max_bytes=PLENTY)
        assert values(spool) == oracle
    spool.close()
