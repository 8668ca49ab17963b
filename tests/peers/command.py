"""Run ``mqtrace`` as its users do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.programs import run_program


def mqtrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``mqtrace`` with ``arguments`` and return how it ended and what it printed."""
    return run_program(Path(sys.executable).with_name("mqtrace"), *arguments)


def answers(*arguments: object) -> list[dict[str, Any]]:
    """Run ``mqtrace``, which must succeed, and return the JSON objects that it printed, one for each line."""
    done = mqtrace(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line]
