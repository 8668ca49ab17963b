"""This module knows how to have the two sides reconciled, as a user would: the command, its files, nothing inside it.

Spark is another process: this package must not import the one that reconciles, and the driver keeps its own memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyarrow import dataset

from bridge.demo.findings import COLUMNS
from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from bridge.demo.findings import Row
    from bridge.demo.workspace import Workspace

__all__ = ["Reconciled", "reconcile"]

_DRIVER_MEMORY: Final = "1g"
_WITH_RESULT: Final = (0, 1, 3, 4)
"""Exit codes of a run that wrote its result, whatever that says."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What the reconciliation left: its result and its verdicts, field verdicts as pairs."""

    result: dict[str, Any]
    rows: list[Row]


def reconcile(workspace: Workspace, *, grace_ms: int) -> Reconciled:
    """Run ``reconcile`` over both sides and read back what it wrote; ``PeerError`` when it wrote no result."""
    command = [sys.executable, "-m", "spark_jobs", "reconcile"]
    sides = ["--native", str(workspace.landing), "--otlp", str(workspace.otlp), "--out", str(workspace.report)]
    options = ["--grace", f"{grace_ms}ms", "--driver-memory", _DRIVER_MEMORY]
    done = subprocess.run([*command, *sides, *options], capture_output=True, text=True, check=False)
    written = workspace.report / "result.json"
    if done.returncode not in _WITH_RESULT or not written.exists():
        told = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise PeerError(f"the reconciliation ended with exit code {done.returncode}: {told}")
    result = json.loads(written.read_text(encoding="utf-8"))
    verdicts = dataset.dataset(str(workspace.report / "verdicts"), format="parquet")
    return Reconciled(result, verdicts.to_table(columns=list(COLUMNS)).to_pylist())
