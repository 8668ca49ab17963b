"""This module knows axe-core, the judge of accessible pages: fetched once by npm into ``build/``, asked in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.support.chromium import Tab

_VERSION: Final = "4.14.1"
_KEPT: Final = Path(__file__).parents[2] / "build" / "npm"
_RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_source() -> str:
    """Return the script; whoever has neither npm nor the file is told that nothing was judged."""
    package = _KEPT / f"axe-core-{_VERSION}.tgz"
    if not package.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm on PATH: NO PAGE WAS JUDGED by axe-core")
        _KEPT.mkdir(parents=True, exist_ok=True)
        fetched = [npm, "pack", f"axe-core@{_VERSION}", "--silent", "--pack-destination", str(_KEPT)]
        done = subprocess.run(fetched, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode or not package.exists():
            pytest.skip(f"npm could not fetch axe-core, NO PAGE WAS JUDGED: {done.stderr.strip()[-200:]}")
    with tarfile.open(package) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def findings(tab: Tab, source: str) -> list[str]:
    """Return what axe finds wrong with the open page, serious and critical, each with the elements it means."""
    tab.ask(f"{source};0")
    asked = json.dumps({"runOnly": {"type": "tag", "values": _RULES}, "resultTypes": ["violations"]})
    told = tab.ask(f"axe.run(document, {asked}).then(found => JSON.stringify(found.violations))")
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in json.loads(told)
        if each["impact"] in {"serious", "critical"}
    ]
