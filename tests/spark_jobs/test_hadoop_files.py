"""File systems of Hadoop's only: a mount table over a directory of this machine, through a real JVM."""

import json
import os
import signal

import pytest
from py4j import java_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from bridge.storage import locks, paths, stores
from otel_mqtrace._errors import UsageError
from otel_mqtrace.cli import main
from spark_jobs.history.history import open_history
from tests.support.programs import run_python


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return tmp_path_factory.mktemp("mounted")  # Hadoop reads a mount table once


@pytest.fixture
def mounted(real):
    stores.use_settings({"fs.viewfs.mounttable.nowhere.link./traces": real.as_uri()})
    yield paths.as_path("viewfs://nowhere/traces"), real
    stores.use_settings({})


def test_file_is_written_whole_read_by_ranges_and_replaced(mounted):
    root, real = mounted
    content = bytes(range(256)) * 40_000  # 10 MB: several pieces
    (root / "a" / "file").write_bytes(content)
    assert (real / "a" / "file").read_bytes() == content == (root / "a" / "file").read_bytes()
    with (root / "a" / "file").open() as file:
        file.seek(5_000_000)
        assert file.read(10) == content[5_000_000:5_000_010]
    (root / "a" / "file").write_text("less")
    assert (root / "a" / "file").read_text() == "less"
    assert [path.name for path in (root / "a").iterdir()] == ["file"]


def test_directories_are_listed_copied_moved_and_removed(mounted):
    root, _ = mounted
    (root / "b" / "x" / "one").write_text("1")
    root.store.files.copy_file((root / "b" / "x" / "one").key, (root / "b" / "two").key)
    assert sorted(str(path) for path in (root / "b").rglob("*")) == [
        f"{root}/b/{name}" for name in ("two", "x", "x/one")
    ]
    assert ((root / "b").is_dir(), (root / "b" / "two").is_file()) == (True, True)
    assert (root / "b" / "two").stat().st_size == 1
    root.store.files.move((root / "b").key, (root / "c").key)
    assert sorted(path.name for path in root.glob("c/**/*") if path.is_file()) == ["one", "two"]
    paths.remove_tree(root / "c")
    assert not (root / "c").exists()
    with pytest.raises(FileNotFoundError):
        (root / "c" / "two").read_bytes()


def test_error_that_pyspark_takes_for_one_of_its_own_jvm_is_still_read(mounted, monkeypatch):
    """Once a session runs, its hook converts errors of every JVM by their number, which may be another object there."""
    plain = java_gateway.get_return_value

    def convert(*args):
        try:
            return plain(*args)
        except Py4JJavaError:
            raise Py4JError(
                "An error occurred while calling z:org.apache.spark.util.Utils.exceptionString. Trace:"
            ) from None

    monkeypatch.setattr(java_gateway, "get_return_value", convert)
    root, _ = mounted
    assert not (root / "none").exists()
    with pytest.raises(FileNotFoundError):
        (root / "none").read_bytes()


def test_replaced_tree_is_what_the_last_run_wrote(mounted):
    root, _ = mounted
    for name in ("first", "second"):
        (root / "work" / f"{name}.parquet").write_text(name)
        paths.replace_tree(root / "work", root / "verdicts", spare=root / "spare", stale=root / "result.json")
        paths.remove_tree(root / "work")
        (file,) = paths.list_files(root / "verdicts")
        assert paths.as_path(file).read_text() == name


_KILLED_WITHIN = """
import json, os, signal, sys
from bridge.storage import locks, paths, stores
stores.use_settings(json.loads(sys.argv[2]))
with locks.hold(paths.as_path(sys.argv[1]), name="--out"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_directory_held_in_a_store_is_refused_to_another_run(mounted):
    root, real = mounted
    with locks.hold(root / "out", name="--out") as check_held:
        who = rf"--out viewfs://nowhere/traces/out is in use by another run \(process {os.getpid()} on .*, since .*Z\)"
        with pytest.raises(UsageError, match=who), locks.hold(root / "out", name="--out"):
            pass
        check_held()
        (mine,) = (real / "out").glob(".lock-*")
        mine.unlink()
        with pytest.raises(UsageError, match="another run took --out"):
            check_held()
    assert not list((real / "out").glob(".lock-*"))


def test_run_killed_on_this_machine_holds_nothing(mounted):
    root, real = mounted
    killed = run_python(_KILLED_WITHIN, root / "killed", json.dumps(stores.current_settings()))
    assert killed.returncode == -signal.SIGKILL
    (left,) = (real / "killed").glob(".lock-*")
    with locks.hold(root / "killed", name="--out"):
        assert not left.exists()


def test_history_taken_by_another_run_is_noticed(mounted):
    root, real = mounted
    with open_history(root / "past") as history:
        history.check_held()
        (mine,) = (real / "past").glob(".lock-*")
        mine.unlink()
        with pytest.raises(UsageError, match="another run took --history"):
            history.check_held()


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ('{"machine": "m", "host": "h", "pid": 1, "since": "2026-11-26T02:00:00Z"}', r" \(process 1 on h, since .*\)"),
        ("", ""),
    ],
    ids=["owner", "begun"],
)
@pytest.mark.parametrize(("age_s", "is_refused"), [(30, True), (90, False)])
def test_run_on_another_machine_holds_a_directory_for_a_minute(mounted, age_s, is_refused, text, who):
    root, real = mounted
    other = real / "elsewhere" / ".lock-1"
    other.parent.mkdir(exist_ok=True)
    other.write_text(text)
    last = other.stat().st_mtime - age_s
    os.utime(other, (last, last))
    if is_refused:
        with pytest.raises(UsageError, match=f"by another run{who}:"), locks.hold(root / "elsewhere", name="--out"):
            pass
        assert [path.name for path in other.parent.iterdir() if path.suffix != ".crc"] == [other.name]
    else:
        with locks.hold(root / "elsewhere", name="--out"):
            assert not other.exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--native", ["reconcile", "--native", "nowhere://h/x", "--otlp", "o", "--out", "out"]),
        ("--otlp", ["reconcile", "--native", "n", "--otlp", "nowhere://h/x", "--out", "out"]),
        ("--out", ["reconcile", "--native", "n", "--otlp", "o", "--out", "nowhere://h/x"]),
        ("--history", ["reconcile", "--native", "n", "--otlp", "o", "--out", "out", "--history", "nowhere://h/x"]),
        ("--native", ["graph", "--native", "nowhere://h/x", "--out", "out"]),
        ("--landing", ["forward", "--source", "n", "--landing", "nowhere://h/x", "--once"]),
        ("SRC", ["inspect", "nowhere://h/x"]),
    ],
)
def test_unknown_scheme_is_refused_in_one_line_by_its_option(option, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mqtrace: error: {option} nowhere://h/x: Hadoop cannot open nowhere:// (")
    assert 'No FileSystem for scheme "nowhere"); there are file://, s3a://' in line
    assert line.endswith("jaeger://") == (option not in {"--out", "--history", "--landing"})
