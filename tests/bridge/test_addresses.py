"""One grammar for every command: what a SRC names, and what a command answers that cannot read it."""

import os
from pathlib import Path

import pytest

from bridge.addresses import Kind, data_files, expand_files, parse_address, parse_directory, reads_tree
from otel_mqtrace._errors import UsageError


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("landing", Kind.FILES, {"path": "landing"}),
        ("files:landing", Kind.FILES, {"path": "landing"}),
        ("otlp/*.jsonl", Kind.FILES, {"path": "otlp/*.jsonl"}),
        ("file:///data/landing", Kind.FILES, {"path": "/data/landing"}),
        ("kafka://a:9092,b:9092/spans", Kind.KAFKA, {"servers": "a:9092,b:9092", "topic": "spans"}),
        ("rocketmq://a:9876;b:9876/T", Kind.ROCKETMQ, {"servers": "a:9876;b:9876", "topic": "T"}),
        ("jaeger://a:16686?service=shop", Kind.JAEGER, {"path": "a:16686?service=shop"}),
        ("s3a://bucket/landing", Kind.FILES, {"path": "s3a://bucket/landing"}),
    ],
)
def test_source_is_parsed(text, kind, facts):
    address = parse_address(text)
    assert address.kind is kind
    assert {name: getattr(address, name) for name in facts} == facts


def test_malformed_source_is_refused():
    incomplete = ("kafka://broker", "kafka:///topic", "rocketmq://a:9876/", "files:", " ")
    for text in (*incomplete, "kafka:/a:9092/T", "Kafka://a/T", "S3A://b/c"):
        with pytest.raises(UsageError, match="write"):
            parse_address(text)


@pytest.mark.parametrize("servers", ["a:99999", "a:9092,[::1]:0", "a:" + "9" * 5_000])
def test_port_that_cannot_be_is_refused_at_once(servers):
    with pytest.raises(UsageError, match=r"^kafka://a:.*/t: port \d+ is not between 1 and 65535$"):
        parse_address(f"kafka://{servers}/t")
    assert parse_address("kafka://a:65535,[::1]:1,b/t").servers == "a:65535,[::1]:1,b"


@pytest.mark.parametrize("pattern", ["", "*", "*/a.jsonl", "*/*.jsonl", "**/*.jsonl"])
def test_directory_below_that_cannot_be_listed_is_named(pattern, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    listed = os.scandir

    def list_some(path):
        if Path(path) != tmp_path:
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", list_some)
    monkeypatch.setattr(Path, "lstat", lambda path: list_some(path.parent))
    with pytest.raises(UsageError, match=f"cannot read {tmp_path / 'sub'}: Permission denied"):
        expand_files(str(tmp_path / pattern))


def test_directory_and_glob_hold_data_files_only(tmp_path):
    tmp_path /= ".hidden"  # a directory below which nothing is read unless it is named
    native = tmp_path / "native.tmp"  # a suffix by which a file is ignored
    wanted = [native / "a.jsonl", native / "b.jsonl"]
    others = [native / name for name in ("_manifest.jsonl", ".part-0.jsonl.tmp", "README.md")]
    native.mkdir(parents=True)
    os.mkfifo(native / "c.jsonl")
    (native / "d.jsonl").symlink_to("d.jsonl")
    for path in (*wanted, *others):
        path.touch()
    assert data_files(tmp_path) == wanted
    assert expand_files(str(tmp_path)) == (wanted, False)
    assert expand_files(str(native / "?.jsonl")) == (wanted, False)
    assert expand_files(str(tmp_path / "**" / "?.jsonl")) == (wanted, False)
    assert expand_files(str(tmp_path / "**")) == (sorted([*wanted, others[0], others[2]]), False)
    assert expand_files(str(wanted[0])) == ([wanted[0]], True)
    with pytest.raises(UsageError, match="no such file, directory or match"):
        expand_files(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match=r"^cannot read .*: File name too long"):
        expand_files(str(tmp_path / ("long" * 100)))


def test_only_directories_read_files_written_later(tmp_path):
    (tmp_path / "one.jsonl").touch()
    trees = {"": True, "one.jsonl": False, "missing.jsonl": False, "*.jsonl": False, "*": True, "**/*.jsonl": True}
    assert {name: reads_tree(str(tmp_path / name)) for name in trees} == trees


def test_relative_directory_with_a_colon_is_no_url_to_pyarrow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_directory("run-T01:30", option="--out") == tmp_path / "run-T01:30"
