"""The demo needs one extra; it replaces its own output and nothing else, one run at a time."""

import signal
import subprocess
import sys
from typing import Final

import pytest

from bridge.demo import command
from bridge.demo.run import open_workspace, reconcile
from otel_mqtrace._errors import MissingExtraError, UsageError


@pytest.mark.parametrize("absent", ["confluent_kafka", "opentelemetry.exporter.otlp.json.file", "pyspark"])
def test_one_extra_is_named_whatever_is_missing(monkeypatch, tmp_path, absent):
    monkeypatch.setattr(command, "_is_installed", lambda module: module != absent)
    with pytest.raises(MissingExtraError, match=r"otel-mqtrace\[all\]"):
        command.demo(out=str(tmp_path))


@pytest.mark.parametrize(
    ("out", "message"), [("s3a://b/demo", "writes on this machine only"), ("http://h/x", "http://")]
)
def test_store_is_refused(out, message):
    with pytest.raises(UsageError, match=message):
        command.demo(out=out)


def test_directory_is_made_and_a_second_run_replaces_the_first(tmp_path):
    with open_workspace(tmp_path / "a" / "demo") as first:
        assert first.landing.is_dir()
        first.otlp.write_text("old")
        (first.report / "verdicts").mkdir(parents=True)
    with open_workspace(tmp_path / "a" / "demo") as second:
        assert not any(path.exists() for path in (second.otlp, second.report))


def test_second_run_beside_the_first_is_refused_and_changes_nothing(tmp_path):
    with open_workspace(tmp_path / "demo") as first:
        first.otlp.write_text("mine")
        with pytest.raises(UsageError, match=r"--out .*demo is in use by another run"), open_workspace(first.root):
            pass
        assert first.otlp.read_text() == "mine"
    with open_workspace(first.root):
        assert not first.otlp.exists()


@pytest.mark.parametrize("is_ours", [False, True])
def test_directory_with_foreign_files_is_refused(tmp_path, is_ours):
    root, name = tmp_path, "report"
    if is_ours:
        root, name = tmp_path / "demo", "notes.txt"
        with open_workspace(root):
            pass
    (root / name).write_text("mine")
    with pytest.raises(UsageError, match="not the demo's"), open_workspace(root):
        pass
    assert (root / name).read_text() == "mine"


def test_link_is_removed_and_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    with open_workspace(tmp_path / "demo") as ours:
        ours.report.symlink_to(elsewhere, target_is_directory=True)
    with open_workspace(ours.root):
        assert not ours.report.is_symlink()
    assert (elsewhere / "kept").exists()


@pytest.mark.parametrize("path", ["file", "file/demo"])
def test_path_that_is_or_leads_through_a_file_is_refused(tmp_path, path):
    (tmp_path / "file").write_text("")
    fix = r"^cannot create --out .*; choose another directory$"
    with pytest.raises(UsageError, match=fix), open_workspace(tmp_path / path):
        pass


_STAND_IN: Final = """#!{}
import pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
work = pathlib.Path(sys.argv[sys.argv.index("--out") + 1], ".work-1")
work.mkdir(parents=True)
print(flush=True)
signal.sigwait([signal.SIGTERM])
work.rmdir()
"""


class _Interrupted(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.stdout.readline()  # until it can be terminated
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_demo_waits_until_its_reconciliation_has_cleaned_up(monkeypatch, tmp_path, capsys):
    """A program that cleans up when it is terminated stands in for the reconciliation."""
    program = tmp_path / "program"
    program.write_text(_STAND_IN.format(sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(subprocess, "Popen", _Interrupted)
    with open_workspace(tmp_path / "demo") as place, pytest.raises(KeyboardInterrupt):
        reconcile(place, grace_ms=0)
    assert [*place.report.iterdir()] == []
    assert capsys.readouterr().err == "mqtrace demo: interrupted: Spark is being ended, which may take some seconds\n"
