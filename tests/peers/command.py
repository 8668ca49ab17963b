"""Run ``mqtrace`` as its users do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_PATIENCE_SECONDS = 180


def mqtrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``mqtrace`` with ``arguments`` and return how it ended and what it printed."""
    command = [str(Path(sys.executable).with_name("mqtrace")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)


def answers(*arguments: object) -> list[dict[str, Any]]:
    """Run ``mqtrace``, which must succeed, and return the JSON objects that it printed, one for each line."""
    done = mqtrace(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line]
