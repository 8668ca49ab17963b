"""A landing is searched completely, and what need not be opened is not."""

import base64
import json
import shutil
from dataclasses import replace

import pytest

from bridge.codec.files import BodyDecoder
from bridge.query.landing_archive import FilesArchive
from bridge.query.matching import Query
from bridge.query.search import ArrivalRange, search
from otel_mqtrace._errors import UnreadableInputError
from otel_mqtrace.landing import LandingWriter, manifest_path
from tests.support.archives import ID, T0, consume, land, landed, pub

DAY_MS = 86_400_000
MESSAGES = [
    *landed(pub(), *consume("R1", T0 + 50)),
    *(replace(one, arrival_ms=one.arrival_ms + DAY_MS, offset=one.offset + 10) for one in landed(*consume("R2", T0 + 90))),
]  # fmt: skip


@pytest.fixture
def part(tmp_path):
    (landed_part,) = land(tmp_path, MESSAGES[:1])
    return tmp_path / "native" / landed_part.file


def _bodies(archive, text=ID):
    return sorted(message.body for message in archive.find_messages([text]))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_every_message_is_found_as_it_was_landed(tmp_path, suffix):
    land(tmp_path, MESSAGES, suffix=suffix)
    messages = sorted(FilesArchive([tmp_path]).find_messages([ID]), key=lambda message: message.offset)
    assert messages == sorted(MESSAGES, key=lambda message: message.offset)


def test_files_are_told_by_their_content_not_their_names(tmp_path):
    for suffix in ("jsonl", "parquet"):
        land(tmp_path / "landing", MESSAGES[:1], suffix=suffix)
    for number, part in enumerate(sorted((tmp_path / "landing").glob("native/*/part-*"))):
        part.rename(tmp_path / ("a.parquet", "b.1")[number])
    (tmp_path / "spans.jsonl").write_text('{"resourceSpans": []}\n', encoding="utf-8")
    archive = FilesArchive([tmp_path / "a.parquet", tmp_path])
    assert (len(_bodies(archive)), archive.searched.remarks) == (2, ())


@pytest.mark.parametrize("named", ["native", "native/*/part-*"])
def test_directory_and_glob_below_a_landing_are_searched_like_it(tmp_path, named):
    land(tmp_path, MESSAGES)
    assert _bodies(FilesArchive([tmp_path / named])) == _bodies(FilesArchive([tmp_path]))


@pytest.mark.parametrize(
    "place", ["date=2026-11-21/dump.jsonl", "native/dump.jsonl", "date=2026-11-21/part-00000.json"]
)
def test_directory_that_is_laid_out_like_a_landing_is_searched(part, tmp_path, place):
    """Others partition by date, too, or name a directory so; its files are not parts."""
    dump = tmp_path / "other" / place
    dump.parent.mkdir(parents=True)
    part.rename(dump)
    assert len(_bodies(FilesArchive([tmp_path / "other"]))) == 1


def test_message_without_the_text_is_counted_but_not_found(tmp_path):
    land(tmp_path, MESSAGES[::-1])
    archive = FilesArchive([tmp_path])
    assert _bodies(archive, "NOBODY") == []
    searched = archive.searched
    assert (searched.messages, searched.first_arrival_ms, searched.last_arrival_ms) == (5, T0, T0 + DAY_MS + 1)


def test_messages_without_a_time_are_a_remark_where_a_range_is_given(tmp_path):
    land(tmp_path, [replace(MESSAGES[0], arrival_ms=0)])
    archive = FilesArchive(list(tmp_path.glob("native/*/part-*")), arrivals=ArrivalRange(T0, None))
    assert (_bodies(archive), len(archive.searched.remarks)) == ([], 1)
    assert archive.searched.remarks[0].startswith("1 trace message without a time of arrival")


def test_invalid_or_empty_manifest_excludes_nothing(tmp_path):
    land(tmp_path, MESSAGES)
    manifest_path(tmp_path).write_bytes(b'\xff\n[]\n{"file": 1}\n{"file": "x", "first_arrival_ms": "a"}\n')
    everything = ArrivalRange(T0 - 1, None)
    assert len(_bodies(FilesArchive([tmp_path], arrivals=everything))) == 5
    manifest_path(tmp_path).unlink()
    assert len(_bodies(FilesArchive([tmp_path], arrivals=everything))) == 5


def test_part_in_progress_is_read_up_to_its_last_whole_line(tmp_path):
    LandingWriter(tmp_path).write(MESSAGES[:2])
    (growing,) = tmp_path.glob("native/*/.part-*")
    with growing.open("ab") as torn:
        torn.write(b'{"source": "RMQ_SYS')
    archive = FilesArchive([tmp_path])
    assert len(_bodies(archive)) == 2
    assert archive.searched.remarks == ()


def test_part_finished_during_the_search_is_read(tmp_path):
    writers = [LandingWriter(tmp_path) for _ in range(2)]
    for writer, message in zip(writers, MESSAGES, strict=False):
        writer.write([message])
    messages = FilesArchive([tmp_path]).find_messages([ID])
    first = next(messages)
    for writer in writers:
        writer.finish()
    assert {first.offset, *(message.offset for message in messages)} == {0, 1}


def test_part_seen_growing_and_finished_is_one_record_seen_twice(tmp_path, part):
    part.with_name(f".{part.name}.inprogress").write_bytes(part.read_bytes())
    (story,) = search(FilesArchive([tmp_path]), Query(frozenset({ID})), BodyDecoder(), limit=1).stories
    assert (story.records, story.repeats, len(story.sends[0].evidence[0].places)) == (1, 1, 1)


@pytest.mark.parametrize("charset", ["gbk", "utf-16"])
def test_key_is_found_in_the_charset_of_the_bodies(tmp_path, charset):
    (message,) = landed(pub(keys="订单-1"))
    land(tmp_path, [replace(message, keys=None, body=message.body.decode().encode(charset))])
    (story,) = search(FilesArchive([tmp_path]), Query(key="订单-1"), BodyDecoder(charset=charset), limit=1).stories
    assert story.keys == ("订单-1",)


ODD_LINES = [*("no json", "[]", "null", '"text"', '{"body_base64": "!"}', '{"body_base64": 5}'), "[" * 100_000]


def test_odd_line_is_a_remark_and_its_neighbours_are_read(tmp_path, part):
    good = part.read_text(encoding="utf-8")
    part.write_text("\n".join(ODD_LINES) + "\n" + good, encoding="utf-8")
    archive = FilesArchive([tmp_path])
    assert len(_bodies(archive)) == 1
    assert len(archive.searched.remarks) == len(ODD_LINES)
    assert archive.searched.remarks[0] == f"{part.name}, line 1: not a landed message (not JSON)"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"source": None, "arrival_ms": 5}, ("part", 1, 5)),
        (
            {"source": None, "topic": "T", "offset": None, "queue_offset": 7, "arrival_ms": None, "store_ms": 6},
            ("T", 7, 6),
        ),
        ({"source": "T", "partition": "3", "offset": 4.0, "arrival_ms": "soon", "keys": ["a"]}, ("T", None, 0)),
    ],
)
def test_field_of_another_type_is_absent_and_the_body_is_searched(part, given, expected):
    (message,) = landed(pub())
    line = given | {"body_base64": base64.b64encode(message.body).decode()}
    path = part.parent / "part"
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    archive = FilesArchive([path])
    (found,) = archive.find_messages([ID])
    assert (found.source, found.offset, found.arrival_ms) == expected
    assert (found.body, found.partition, found.keys) == (message.body, None, None)
    assert not archive.searched.remarks


def test_day_that_cannot_be_listed_is_a_remark_and_alone_an_error(tmp_path, part):
    day = part.parent.with_name("date=2026-02-01")
    day.symlink_to(day)  # a link to itself cannot be listed
    archive = FilesArchive([tmp_path])
    assert len(_bodies(archive)) == 1
    assert archive.searched.remarks == (f"{day} could not be read: Too many levels of symbolic links",)
    shutil.rmtree(part.parent)
    with pytest.raises(UnreadableInputError, match=f"nothing to search in .*{day} could not be read"):
        _bodies(FilesArchive([tmp_path]))


def test_remarks_are_bounded_and_counted(tmp_path, part):
    part.with_name("part-whole.jsonl").write_bytes(part.read_bytes())
    part.write_bytes(bytes(range(256)) * 2 + b"\nx" * 500)
    archive = FilesArchive([tmp_path])
    assert len(_bodies(archive)) == 1
    assert len(archive.searched.remarks) == 21
    assert archive.searched.remarks[-1].startswith("and ")


def test_progress_ends_with_everything(tmp_path):
    land(tmp_path, MESSAGES)
    seen = []
    _bodies(FilesArchive([tmp_path], on_progress=lambda done, whole: seen.append((done, whole))))
    done, whole = seen[-1]
    assert done == whole == sum(part.stat().st_size for part in tmp_path.glob("native/*/part-*"))
