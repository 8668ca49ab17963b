"""The SDK's own tests of its batch span processor, run against ours: a drop-in keeps the promises of what it replaces."""

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

APPLY = 11
"""The SDK 1.45 has so many that ask for behaviour and not for its own inside; the shim says why of each other one."""
SUITES = ("tests/shared_internal/test_batch_processor.py", "tests/trace/export/test_export.py")


def _cache():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "otel-mqtrace" / "foreign"


def _suite(directory):
    """The tests of the installed version, out of its source distribution; fetched once for each machine."""
    release = version("opentelemetry-sdk")
    kept = _cache() / f"opentelemetry_sdk-{release}.tar.gz"
    if not kept.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "opentelemetry-sdk"]
        fetched = subprocess.run(
            [*command, "--dest", directory, f"opentelemetry-sdk=={release}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=180,
        )
        archives = list(directory.glob("*.tar.gz"))
        if fetched.returncode or not archives:
            pytest.skip(f"the source distribution cannot be had: {fetched.stderr.strip()[-200:]}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(archives[0].read_bytes())
    with tarfile.open(kept) as archive:
        archive.extractall(directory, filter="data")
    return directory / f"opentelemetry_sdk-{release}"


def test_sdks_own_tests_pass_with_our_processor_in_its_place(tmp_path):
    suite = _suite(tmp_path)
    arguments = ["-p", "batch_processor_shim", "-p", "no:randomly", "-p", "no:cacheprovider", "-q", "-rs"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", suite, *arguments, *SUITES],
        cwd=suite,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    summary = re.search(r"(?:(\d+) failed, )?(\d+) passed", done.stdout)
    assert summary, done.stdout + done.stderr
    assert (done.returncode, int(summary[2])) == (0, APPLY), done.stdout
