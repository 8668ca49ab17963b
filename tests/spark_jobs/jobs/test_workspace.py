"""The work directory of a run: it goes with the run, and what a killed run left goes with the next one."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from otel_mqtrace._errors import UsageError
from spark_jobs.jobs.workspace import work_directory

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
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


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "no space left on device"),
        (errno.EDQUOT, "disk quota exceeded"),
        (errno.EFBIG, "file too large"),
    ],
)
def test_full_disk_within_the_block_is_a_line_that_names_out(tmp_path: Path, number: int, why: str) -> None:
    message = f"{why}: free space below --out {tmp_path}, or set TMPDIR"
    with pytest.raises(UsageError, match=message), work_directory(tmp_path):
        raise OSError(number, "as pyarrow has it")
    assert left_in(tmp_path) == []


_TERMINATED = """
import os, signal, sys
from otel_mqtrace import _program
from spark_jobs.exchange import workers
from spark_jobs.jobs import batch, stream

workers.LONG_MAP, workers._TASK_BYTES = 1, 1 << 10  # a small input gets another process as well

def watched(run):
    def run_until(options, *, progress, **others):
        def show(stage):
            progress(stage)
            if stage in {"adding up", "starting Spark"}:
                os.kill(os.getpid(), signal.SIGTERM)
        return run(options, progress=show, **others)
    return run_until

batch.run, stream.run = watched(batch.run), watched(stream.run)
sys.exit(_program.start())
"""


@pytest.mark.parametrize(
    ("how", "background"),
    [(["--engine", "local"], True), (["--stream", "--every", "1m"], False)],
    ids=["batch", "stream"],
)
def test_terminated_run_is_one_line_and_leaves_no_directory_and_no_process(
    tmp_path: Path, background: bool, how: list[str]
) -> None:
    """Also in the background of a shell script, where SIGINT is ignored."""
    sides = ["--native", str(DUAL / "native.jsonl"), "--otlp", str(DUAL / "otlp.jsonl"), "--out", str(tmp_path)]
    words = [sys.executable, "-c", _TERMINATED, "reconcile", *sides, *how]
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *words] if background else words,
        capture_output=True,  # until every process that inherited the pipes has ended
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "mqtrace: interrupted\n")
    assert left_in(tmp_path) == (["stream"] if "--stream" in how else [])
