"""Virtual environments as a reader makes them, and the wheel they install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PIP_", "OTEL_", "MQTRACE_", "PYTHONPATH"))
} | {"PIP_NO_COMPILE": "1"}  # each environment is used once: compiling all of it ahead is a third of an installation


@pytest.fixture(scope="session")
def wheel():
    """The wheel that ``make wheel`` built."""
    wheels = sorted((ROOT / "dist").glob("otel_mqtrace-*.whl"))
    assert len(wheels) == 1, "run make wheel"
    return wheels[0]


@pytest.fixture
def make_environment(tmp_path):
    """Make a virtual environment and install ``requirements``; return its ``bin``."""

    def make(*requirements, name="env") -> Path:
        path = tmp_path / name
        subprocess.run([sys.executable, "-m", "venv", path], env=CLEAN, check=True)
        if requirements:
            pip_install(path / "bin", *requirements)
        return path / "bin"

    return make


def pip_install(programs, *requirements):
    """Install into the environment, without the constraints of this project's own."""
    command = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
