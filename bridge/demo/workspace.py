"""This module knows the demo's directory: what lies where, and that nothing but our own earlier output is replaced."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Workspace", "claim"]

_MARKER: Final = ".mqtrace-demo"
_NOTE: Final = "Written by `mqtrace demo`, which replaces its own output here when it runs again.\n"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a run of the demo writes."""

    root: Path

    @property
    def landing(self) -> Path:
        """The native side: trace messages as they were landed."""
        return self.root / "landing"

    @property
    def otlp(self) -> Path:
        """The OTLP side: OpenTelemetry's own JSON lines."""
        return self.root / "otlp" / "traces.jsonl"

    @property
    def report(self) -> Path:
        """What the reconciliation writes."""
        return self.root / "report"

    @property
    def findings(self) -> Path:
        """Every seeded fault beside what was found, for a machine to read."""
        return self.root / "findings.json"


def claim(root: Path) -> Workspace:
    """Make ``root`` ready for a run: created, or emptied of an earlier run.

    Raises ``UsageError`` for a file, for a directory that holds anything the demo did not write, and for what the
    system does not let us make or empty.
    """
    try:
        return _claimed(Workspace(root))
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or root}"
        raise UsageError(f"--out {root} cannot be used ({reason}); name a directory that can be written") from error


def _claimed(workspace: Workspace) -> Workspace:
    root = workspace.root
    ours = (workspace.landing, workspace.otlp.parent, workspace.report, workspace.findings, root / _MARKER)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file: give --out a directory")
    present = set(root.iterdir()) if root.exists() else set()
    if present and (root / _MARKER not in present or present - set(ours)):
        raise UsageError(f"{root} holds files that are not the demo's: give --out an empty or a new directory")
    for path in present:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    root.mkdir(parents=True, exist_ok=True)
    (root / _MARKER).write_text(_NOTE, encoding="utf-8")
    workspace.otlp.parent.mkdir()
    workspace.landing.mkdir()
    return workspace
