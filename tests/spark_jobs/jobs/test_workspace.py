"""The work directory of a run: it goes with the run, and what a killed run left goes with the next one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spark_jobs.jobs.workspace import work_directory

if TYPE_CHECKING:
    from pathlib import Path

_KILLED_WITHIN = """
import os, pathlib, signal, sys
from spark_jobs.jobs.workspace import work_directory
with work_directory(pathlib.Path(sys.argv[1])) as work:
    (work / "rows.parquet").write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_in(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_directory_is_removed_after_the_block(tmp_path: Path) -> None:
    with work_directory(tmp_path) as work:
        (work / "rows.parquet").write_bytes(b"some")
        assert left_in(tmp_path) == [work.name]
    assert left_in(tmp_path) == []


def test_directory_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED_WITHIN, str(tmp_path)], check=False)
    assert killed.returncode < 0
    assert len(left_in(tmp_path)) == 1
    with work_directory(tmp_path) as work:
        assert left_in(tmp_path) == [work.name]


def test_directory_without_a_lock_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / ".work-of-somebody").mkdir()
    with work_directory(tmp_path):
        pass
    assert left_in(tmp_path) == [".work-of-somebody"]


def test_file_system_error_within_the_block_is_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space left"), work_directory(tmp_path):
        raise OSError("no space left")
