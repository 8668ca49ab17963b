"""Run a program to its end."""

import subprocess
import sys
from typing import Any


def run_program(*words: object, timeout_s: float = 180, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return how a program ended and what it printed, until every process that inherited its pipes has ended."""
    how = {"stdin": subprocess.DEVNULL, "timeout": timeout_s, **options}
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **how)


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run_program(sys.executable, "-c", code, *arguments, **options)
