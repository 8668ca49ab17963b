"""The file of figures: sections, each with its own date, size and machine."""

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
"""Section → date, machine, effort and rows, all plain data."""

_LIBRARIES = (
    *("otel-mqtrace", "opentelemetry-sdk", "opentelemetry-instrumentation-confluent-kafka", "confluent-kafka"),
    *("protobuf", "pyspark", "pyarrow", "datacompy", "duckdb"),
)


def read(path: Path) -> Figures:
    """Return the sections of a file; none without a file."""
    if not path.exists():
        return {}
    sections: Figures = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return sections


def add_section(figures: Figures, name: str, rows: Sequence[Row], effort: Effort, code: str = "") -> Figures:
    """Return ``figures`` with a section measured now at the commit ``code``."""
    section = {
        "measured_at": datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": code,
        "effort": asdict(effort),
        "machine": machine(),
        "rows": [row.to_json() for row in rows],
    }
    return {**figures, name: section}


def is_quick(section: Mapping[str, Any]) -> bool:
    """Return whether a section was run with ``--quick``."""
    return bool(section["effort"]["share"] < 1)


def merge_figures(kept: Figures, measured: Figures) -> Figures:
    """Return ``kept`` with every section of ``measured``, except a quick run of a section that was measured in full."""
    quick = {name for name, section in measured.items() if is_quick(section)}
    return kept | {
        name: section
        for name, section in measured.items()
        if name not in quick or name not in kept or is_quick(kept[name])
    }


def write(path: Path, figures: Figures) -> None:
    """Write the sections."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"sections": figures}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str:
    """Return the commit of the source tree, with ``-dirty`` after changes; empty outside a clone or without git."""
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
        "libraries": {name: number for name in _LIBRARIES if (number := _version(name))},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
