"""The demo replaces its own output and nothing else."""

import pytest

from bridge.demo.run import claim
from otel_mqtrace._errors import UsageError


def test_directory_is_made_and_a_second_run_replaces_the_first(tmp_path):
    first = claim(tmp_path / "a" / "demo")
    assert first.landing.is_dir()
    for path in (first.otlp, first.findings):
        path.write_text("old")
    (first.report / "verdicts").mkdir(parents=True)
    second = claim(tmp_path / "a" / "demo")
    assert not any(path.exists() for path in (second.otlp, second.findings, second.report))


@pytest.mark.parametrize("is_ours", [False, True])
def test_directory_with_foreign_files_is_refused(tmp_path, is_ours):
    root = claim(tmp_path / "demo").root if is_ours else tmp_path
    name = "notes.txt" if is_ours else "report"
    (root / name).write_text("mine")
    with pytest.raises(UsageError, match="not the demo's"):
        claim(root)
    assert (root / name).read_text() == "mine"


def test_link_is_removed_and_not_followed(tmp_path):
    ours = claim(tmp_path / "demo")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    ours.report.symlink_to(elsewhere, target_is_directory=True)
    claim(ours.root)
    assert (elsewhere / "kept").exists()


def test_path_that_is_or_leads_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        claim(tmp_path / "file")
    fix = r"^--out .*file/demo cannot be used \(.*\); name a directory that can be written$"
    with pytest.raises(UsageError, match=fix):
        claim(tmp_path / "file" / "demo")
