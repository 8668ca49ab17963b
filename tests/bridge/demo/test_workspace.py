"""The demo replaces its own output and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bridge.demo.run import claim
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_directory_is_made(tmp_path: Path) -> None:
    workspace = claim(tmp_path / "a" / "b")
    assert workspace.landing.is_dir()
    assert claim(tmp_path / "empty").otlp.parent.is_dir()


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    first = claim(tmp_path / "demo")
    first.otlp.write_text("old")
    first.findings.write_text("old")
    (first.report / "verdicts").mkdir(parents=True)
    second = claim(tmp_path / "demo")
    assert not second.otlp.exists()
    assert not second.findings.exists()
    assert not second.report.exists()


def test_foreign_files_are_never_touched(tmp_path: Path) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "report").write_text("mine")
    with pytest.raises(UsageError, match="not the demo's"):
        claim(foreign)
    assert (foreign / "report").read_text() == "mine"
    ours = claim(tmp_path / "demo")
    (ours.root / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not the demo's"):
        claim(ours.root)
    assert (ours.root / "notes.txt").exists()


def test_a_link_is_removed_not_followed(tmp_path: Path) -> None:
    ours = claim(tmp_path / "demo")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    ours.report.symlink_to(elsewhere, target_is_directory=True)
    claim(ours.root)
    assert (elsewhere / "kept").exists()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        claim(tmp_path / "file")


def test_refusal_of_the_system_names_option_and_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match=r"^--out .*file/demo cannot be used \(.*\); name a directory that can be written$"
    ):
        claim(tmp_path / "file" / "demo")
