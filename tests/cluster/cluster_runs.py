"""A recorded pair reconciled by commands, as a user runs them on a cluster, and the verdicts that come of it."""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bridge.storage.paths import AnyPath, as_path, list_files, open_parquet
from tests.cluster.clusters import SPARK_HOME, spark_environment
from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
DUAL = ROOT / "tests" / "vectors" / "dual" / "scenarios-5.3.3-old"
INPUTS = ("native.jsonl", "otlp.pb.framed")
LONGEST_S = 1200


def arguments(out: str | Path, inputs: str | Path = DUAL) -> list[str]:
    sides = ["--native", f"{inputs}/{INPUTS[0]}", "--otlp", f"{inputs}/{INPUTS[1]}"]
    written_by = ["--profile", "java-agent", "--native-writer", "rocketmq-5.3.3"]
    return ["reconcile", *sides, *written_by, "--grace", "0", "--out", str(out)]


def run(command: list[str], environment: Mapping[str, str], cwd: Path | None = None) -> None:
    """Run a reconciliation to its end; a gate may fail, because the recording has losses."""
    done = run_program(*command, env=environment, cwd=cwd, timeout_s=LONGEST_S)
    assert done.returncode in {0, 1}, done.stderr[-3000:] + done.stdout[-3000:]  # spark-submit joins both of Python's


def mqtrace(*words: str, **environment: str) -> None:
    """Run ``python -m spark_jobs`` away from the repository."""
    run(
        [sys.executable, "-m", "spark_jobs", *words],
        spark_environment(PYTHONPATH=str(ROOT), **environment),
        Path.home(),
    )


def submit(master: str, zipped: Path, *conf: str) -> list[str]:
    """Return the words of ``spark-submit`` up to those of ``reconcile``; ``conf`` are words, too."""
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--py-files", str(zipped)]
    return [*command, *conf, str(ROOT / "spark_jobs" / "__main__.py")]


def put(source: Path, target: AnyPath) -> None:
    for file in source.rglob("*") if source.is_dir() else (source,):
        if file.is_file():
            place = target / file.relative_to(source).as_posix() if source.is_dir() else target
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())


def verdict_rows(out: str | Path) -> Counter[str]:
    """Return the verdict rows below ``out`` as a multiset, without where each side was read."""
    rows: Counter[str] = Counter()
    for file in list_files(as_path(out) / "verdicts"):
        for row in open_parquet(file).read().to_pylist():
            for side in ("native", "otlp"):
                (row[side] or {}).pop("path", None)
            rows[repr(row)] += 1
    return rows
