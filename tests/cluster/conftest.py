"""What machines of a cluster have, and what a run without one gives."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.package import main as package
from tests.cluster.cluster_runs import arguments, mqtrace, verdict_rows
from tests.cluster.clusters import spark_environment
from tests.support.programs import run_program


@pytest.fixture(scope="session")
def here(tmp_path_factory: Any) -> Counter[str]:
    out = tmp_path_factory.mktemp("here")
    mqtrace(*arguments(out), "--engine", "local")
    return verdict_rows(out)


@pytest.fixture(scope="session")
def zipped(tmp_path_factory: Any) -> Path:
    target = tmp_path_factory.mktemp("zip") / "mqtrace-spark.zip"
    assert package(["--out", str(target)]) == 0
    return target


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: Any) -> dict[str, str]:
    """The environment of a machine that has our dependencies and not us: another Python, a folder of packages."""
    packages = tmp_path_factory.mktemp("packages")
    for place in {Path(path) for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}}:
        for item in place.iterdir():
            if "otel_mqtrace" not in item.name and not (packages / item.name).exists():
                (packages / item.name).symlink_to(item)
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    environment = spark_environment(PYTHONPATH=str(packages), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)
    asked = run_program(python, "-c", "import pyarrow, otel_mqtrace", env=environment, cwd=packages)
    assert "No module named 'otel_mqtrace'" in asked.stderr, "our packages must not be there"
    return environment
