"""What is remembered beyond the commits: taken once more after a restart is only what waited."""

import pytest

from bridge.forwarder.pairing import Place
from bridge.forwarder.resume_file import ResumeFile
from otel_mqtrace._errors import UsageError
from otel_mqtrace.landing import LandedMessage
from tests.support.forwarded_spans import record_of
from tests.support.trace_stories import before


def _message(offset, *, partition=0, arrival_ms=None):
    arrived_ms = 1_000 + offset if arrival_ms is None else arrival_ms
    return LandedMessage(source="trace", partition=partition, offset=offset, arrival_ms=arrived_ms, body=b"")


def _read(memory, *offsets, partition=0):
    left = [memory.remaining_records(_message(each, partition=partition)) for each in offsets]
    return ["all" if each is None else [index for index in range(3) if index in each] for each in left]


def _waiting(*places):
    return [
        record_of(before(), Place("trace", partition, offset), 1_000 + offset, record_index=index)
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


def test_without_a_file_everything_is_new():
    _remember(None, (0, 0, 1), read=(0, 1))
    assert _read(ResumeFile(), 0, 1) == ["all", "all"]


def test_restart_forwards_only_the_records_that_waited(file):
    _remember(file, (0, 5, 1), (0, 7, 0), (0, 7, 2), read=(5, 6, 7))
    assert _read(ResumeFile(file), 5, 6, 7, 8) == [[1], [], [0, 2], "all"]


def test_crash_before_the_commit_restarts_at_the_commit_before(file):
    """The broker's position is then one commit old: at the first message since, or at what was held at that time."""
    memory = _remember(file, (0, 1, 0), read=(0, 1))
    _read(memory, 2, 3)
    memory.remember(_waiting((0, 3, 0)))
    assert _read(ResumeFile(file), 1, 2, 3, 4) == [[], [], [0], "all"]
    assert _read(ResumeFile(file), 3, 4) == [[0], "all"]


@pytest.mark.parametrize("first", [0, 4, 6])
def test_moved_position_forwards_everything_again(file, first):
    _remember(file, (0, 5, 1), read=(5, 6, 7))
    assert _read(ResumeFile(file), *range(first, 9)) == ["all"] * (9 - first)


def test_topic_created_anew_is_forwarded_from_its_beginning(file):
    _remember(file, (0, 0, 0), read=(0, 1))
    again = ResumeFile(file)
    assert again.remaining_records(_message(0, arrival_ms=9_999)) is None
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


def test_file_is_read_from_its_beginning_whatever_waits(file):
    memory = _remember(file, (None, 1, 0), read=(0, 1, 2), partition=None)
    memory.remember(_waiting((None, 1, 0)))
    assert _read(ResumeFile(file), 0, 1, 2, partition=None) == [[], [0], []]


def test_file_that_cannot_be_read_or_written_is_one_sentence(file):
    memory = ResumeFile(file)
    file.parent.touch()
    _read(memory, 0)
    with pytest.raises(UsageError, match="cannot be written"):
        memory.remember([])
    file.parent.unlink()
    file.parent.mkdir()
    part = '{"partitions":[{"source":"T","partition":0,"next":"x","begins":[],"pending":[]}]}'
    for content in ("", "{", "[]", part):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(UsageError, match="remove it to go on by offsets alone"):
            ResumeFile(file)
