"""Paths of stores, without a store; stores themselves: ``tests/cluster``."""

import fcntl
import json
import os
import pickle
import re
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet
from pyarrow.fs import LocalFileSystem

from bridge.addresses import parse_address, parse_directory
from bridge.forwarder.store_landing import StoreLanding
from bridge.storage import locks, paths, stores
from bridge.storage.ranged_files import RangedFile, file_info
from bridge.storage.webhdfs import WebHdfs
from otel_mqtrace._errors import UsageError
from otel_mqtrace.landing import LandedMessage


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *((bucket, "s3a://bucket/a/b") for bucket in ("s3a://bucket/a/b", Path("s3a://bucket/a/b"))),
        ("hdfs://name:8020/x/", "hdfs://name:8020/x"),
        ("hdfs:///x", "hdfs:///x"),
        ("hdfs:/x/y", "hdfs:///x/y"),
        *(("report", "report"), ("file:///a/b", "/a/b"), ("C:/x", "C:/x")),
    ],
)
def test_url_of_a_store_is_a_store_path_and_anything_else_a_path_of_this_machine(text, shown):
    path = paths.as_path(text)
    assert (isinstance(path, paths.StorePath), str(path)) == ("://" in shown, shown)
    assert pickle.loads(pickle.dumps(path)) == path == paths.as_path(path)


def test_url_without_a_name_is_refused():
    for parse in (paths.as_path, parse_address, partial(parse_directory, option="--out")):
        with pytest.raises(UsageError, match="file:// names no file or directory: write file:///PATH"):
            parse("file://")
    with pytest.raises(UsageError, match="s3a:// names no bucket or host: write s3a://NAME/PATH"):
        paths.as_path("s3a://")


def test_store_path_is_taken_apart_and_put_together_as_a_path():
    path = paths.as_path("s3a://bucket/a") / "date=2026-11-21" / "part-1.parquet"
    assert str(path) == "s3a://bucket/a/date=2026-11-21/part-1.parquet"
    assert (path.name, path.suffix, path.parent.name) == ("part-1.parquet", ".parquet", "date=2026-11-21")
    assert str(path.with_name("x")) == "s3a://bucket/a/date=2026-11-21/x"
    assert path.relative_to(paths.as_path("s3a://bucket/a")).as_posix() == "date=2026-11-21/part-1.parquet"
    assert path.is_relative_to(paths.as_path("s3a://bucket/a"))
    assert [*map(str, path.parents)] == ["s3a://bucket/a/date=2026-11-21", "s3a://bucket/a", "s3a://bucket"]


@pytest.mark.parametrize(
    ("pattern", "matched", "missed"),
    [
        ("*.parquet", ["a.parquet"], ["x/a.parquet", "a.parquet.tmp"]),
        ("date=*/part-?.jsonl", ["date=1/part-1.jsonl"], ["date=1/part-12.jsonl", "date=1/x/part-1.jsonl"]),
        ("**/*", ["a", "x/y/a"], []),
        ("[ab]/[!c]", ["a/b"], ["c/b", "a/c"]),
    ],
)
def test_glob_matches_as_in_a_shell(pattern, matched, missed):
    assert [name for name in (*matched, *missed) if re.fullmatch(paths.glob_expression(pattern), name)] == matched


def test_settings_of_hadoop_are_read_and_those_of_spark_win(tmp_path, monkeypatch):
    site = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(site.format("fs.s3a.endpoint", "http://a:1"))
    (tmp_path / "hdfs-site.xml").write_text(site.format("dfs.namenode.http-address", "name:9871"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    stores.use_settings({"fs.s3a.endpoint": "http://b:2", "spark.app.name": "x"})
    try:
        assert stores.current_settings() == {"fs.s3a.endpoint": "http://b:2", "dfs.namenode.http-address": "name:9871"}
    finally:
        stores.use_settings({})


HTTP = "dfs.namenode.http-address"
OF_SERVICE = {f"{HTTP}.service.a": "one:9870", f"{HTTP}.service.b": "two:9870"}


@pytest.mark.parametrize(
    ("name", "settings", "addresses"),
    [
        ("host:8020", {}, ["host:9870"]),
        ("[::1]:8020", {}, ["[::1]:9870"]),
        ("host:8020", {HTTP: "0.0.0.0:50070"}, ["host:50070"]),
        ("host:8020", {HTTP: "other:50070"}, ["host:9870"]),
        ("host:8020", {HTTP: "other:50070", "fs.defaultFS": "hdfs://host:8020/"}, ["other:50070"]),
        ("service", {**OF_SERVICE, "dfs.ha.namenodes.service": "a, b"}, [*OF_SERVICE.values()]),
    ],
)
def test_namenodes_answer_where_the_settings_say(name, settings, addresses):
    assert stores.namenodes(name, HTTP, settings) == addresses


@pytest.mark.parametrize("url", ["s3a:///x", "https://h/x", "abfss://container/x", "hdfs://[::1/x", "webhdfs://[::1/x"])
def test_store_that_cannot_be_opened_is_refused_in_one_line(url):
    scheme, _, rest = url.partition("://")
    with pytest.raises(UsageError):
        stores.open_store(scheme, rest.partition("/")[0])


@pytest.mark.parametrize("name", ["spans.json.zst", "spans.json.gz", "spans.json"])
def test_store_keeps_bytes_as_they_are_whatever_the_name_ends_in(tmp_path, name):
    class LocalPath(paths.StorePath):
        store = stores.Store(LocalFileSystem(), str(tmp_path), renames=True)

    path = LocalPath(f"s3a://bucket/{name}")
    path.write_bytes(b"as it is")
    assert (tmp_path / name).read_bytes() == b"as it is"
    assert path.read_bytes() == path.open().read() == b"as it is"


def test_file_that_describes_a_tree_stays_until_the_new_one_is_copied(tmp_path, monkeypatch):
    store = stores.Store(LocalFileSystem(), str(tmp_path), renames=False)
    monkeypatch.setattr("bridge.storage.paths.open_store", lambda *_: store)
    source, final, stale = (paths.as_path(f"s3a://bucket/{name}") for name in ("work", "verdicts", "result.json"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "part-0.parquet").touch()
    stale.write_text("{}")
    with pytest.raises(FileNotFoundError, match="part-0"):  # this store has directories, and here it has none
        paths.replace_tree(source, final, spare=final, stale=stale)
    assert stale.exists()
    (tmp_path / "verdicts").mkdir()
    paths.replace_tree(source, final, spare=final, stale=stale)
    assert not stale.exists()
    assert len(list(final.glob("part-0-*.parquet"))) == 1


_CONTENT = (bytes(range(251)) * 16_800)[: 4 << 20]  # four blocks that are read ahead


class FilesInMemory(WebHdfs):
    def info(self, path):
        return file_info("/", path, len(_CONTENT), 0)

    def read(self, path, offset, length):
        return _CONTENT[offset : offset + length]


@example(ranges=[(1 << 20, len(_CONTENT) - 1)])  # beyond the end
@given(st.lists(st.tuples(st.integers(1, 3 << 19), st.integers(0, len(_CONTENT) - 1)), max_size=8))
def test_ranges_read_ahead_are_those_of_the_file(ranges):
    file = FilesInMemory(["nowhere:1"], "user").open_input_file("x")
    for length, offset in ranges:
        assert file.read_at(length, offset) == _CONTENT[offset : offset + length]


@pytest.mark.parametrize("content", [b"abcde", b"abc"])  # of five bytes when it was opened
def test_what_is_left_of_a_file_is_read_whole_from_a_store_that_gives_pieces(content):
    assert RangedFile(lambda length, offset: content[offset:][: min(length, 2)], 5).readall() == content


def test_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with paths.write_atomically(target) as unready:
            Path(unready).write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert target.read_text() == "old"
    with paths.write_atomically(str(target)) as unready:
        Path(unready).write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "new"}


@pytest.mark.parametrize("has_locks", [True, False])
def test_held_directory_is_refused_to_another_run_until_the_block_ends(tmp_path, monkeypatch, has_locks):
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError))
    hold = partial(locks.hold, tmp_path, name="--out")
    with hold():
        with pytest.raises(UsageError, match=r"--out .* is in use by another run"), hold():
            pass
        assert bool(list(tmp_path.iterdir())) is not has_locks
    with hold():
        pass
    assert not list(tmp_path.iterdir())


def test_directory_made_to_be_held_and_left_empty_is_removed(tmp_path):
    with locks.hold(tmp_path / "reports" / "today", name="--out"):
        pass
    assert not list(tmp_path.iterdir())
    with locks.hold(tmp_path / "reports" / "today", name="--out"):
        (tmp_path / "reports" / "today" / "result.json").touch()
    assert (tmp_path / "reports" / "today" / "result.json").exists()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_part_that_a_store_refuses_is_uploaded_by_the_next_attempt(tmp_path, monkeypatch, suffix):
    store = stores.Store(LocalFileSystem(), str(tmp_path), renames=False)
    monkeypatch.setattr("bridge.storage.paths.open_store", lambda *_: store)
    landing = StoreLanding(paths.as_path("s3a://bucket/landing"), format=suffix)
    messages = [LandedMessage(source="t", arrival_ms=day * 86_400_000, body=b"x" * day) for day in (1, 1, 2)]
    landing.write(messages)
    native = tmp_path / "landing" / "native"
    native.parent.touch()
    with pytest.raises(UsageError, match="cannot write to the landing s3a://bucket/landing: "):
        landing.finish()
    native.parent.unlink()
    for directory in ("_manifest", "date=1970-01-02", "date=1970-01-03"):  # as an object store has them
        (native / directory).mkdir(parents=True)
    assert [(part.messages, part.body_bytes) for part in landing.finish()] == [(2, 2), (1, 2)]
    assert landing.finish() == ()
    counted = {json.loads(file.read_text())["file"] for file in native.glob("_manifest/*.json")}
    assert counted == {path.relative_to(native).as_posix() for path in native.glob("date=*/*")}
    assert len(counted) == 2
    (native / "date=1970-01-02" / "part-foreign.parquet").write_text("no Parquet")
    damaged = native / "date=1970-01-02" / "part-damaged.parquet"
    parquet.write_table(pa.table({"arrival_ms": [1], "body": [b"x"]}), damaged)
    damaged.write_bytes(b"PAR1" + b"\xff" * 16 + damaged.read_bytes()[20:])
    growing, abandoned = (native / "date=1970-01-02" / f".part-{name}" for name in ("growing", "abandoned"))
    growing.touch()
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    following = StoreLanding(paths.as_path("s3a://bucket/landing"), format=suffix)
    following.write(messages)
    assert len(following.finish()) == 2
    assert (growing.exists(), abandoned.exists()) == (True, False)


def test_tilde_that_no_shell_expanded_is_the_name_of_a_directory(tmp_path, monkeypatch):
    """As in ``--out=~/report``."""
    monkeypatch.chdir(tmp_path)
    Path("~").mkdir()
    parquet.write_table(pa.table({"key": [1]}), tmp_path / "~" / "verdicts.parquet")
    assert paths.open_parquet(Path("~/verdicts.parquet")).metadata.num_rows == 1
