"""The file of figures: sections, each with its own date, size and machine.

A section that is measured anew replaces its old figures and no others, so the long ones need not be run every time.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.proofs.bench.rows import Effort, Row
from tests.support.source_tree import ROOT

Figures = dict[str, Any]
"""Name of the section → when, on what, how much, and the rows, all plain data."""

_LIBRARIES = (
    *("otel-mqtrace", "opentelemetry-sdk", "opentelemetry-instrumentation-confluent-kafka", "confluent-kafka"),
    *("protobuf", "pyspark", "pyarrow", "datacompy", "duckdb"),
)


def read(path: Path) -> Figures:
    """Return the sections of a file; none where there is no file, or one of an earlier form."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    sections: Figures = found.get("sections", {})
    return sections


def with_section(figures: Figures, name: str, rows: Sequence[Row], effort: Effort, code: str = "") -> Figures:
    """Return ``figures`` with a section measured now; ``code`` is the commit that was there when it began."""
    measured_at = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    said = {
        "measured_at": measured_at,
        "commit": code,
        "effort": asdict(effort),
        "machine": machine(),
        "rows": [row.as_json() for row in rows],
    }
    return {**figures, name: said}


def is_quick(section: Mapping[str, Any]) -> bool:
    """Return whether a section was measured to show that it runs, and for no more."""
    return bool(section["effort"]["share"] < 1)


def together(kept: Figures, measured: Figures) -> Figures:
    """Return ``kept`` with what was measured since; a quick look or a smaller day replaces no more than its like."""
    return kept | {
        name: said for name, said in measured.items() if name not in kept or _work(said) >= _work(kept[name])
    }


def _work(section: Mapping[str, Any]) -> tuple[float, int]:
    return section["effort"]["share"], section["effort"]["messages"]


def write(path: Path, figures: Figures) -> None:
    """Write the sections."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"sections": figures}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str:
    """Return the commit of the files here, ``-dirty`` when they differ from it; empty outside a clone or without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def machine() -> Mapping[str, Any]:
    """Describe the machine without naming it: processor, Python, the libraries that matter."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
