"""Draw the first screen of a report as a picture: ``python -m tools.pictures report.html docs/report.png``.

Part of ``make docs``. Without a Chromium nothing is drawn, and a line reports that. The list of the page's sections
stands beside the picture; a test compares it with the sections of today's page and needs no browser.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
_SIZE = "1280,900"
_SECONDS = 60


def find_sections(page: str) -> list[str]:
    """Return the headings of a page in reading order."""
    return re.findall(r"<h2[^>]*>(.*?)</h2>", page)


def main(page: Path, picture: Path) -> int:
    """Draw ``page`` and record its sections, and return the exit code."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        sys.stdout.write(f"NOT DRAWN: {picture}: no Chromium on PATH\n")
        return 0
    if not page.exists():
        sys.stdout.write(f"NOT DRAWN: {picture}: there is no {page}; run `make demo` first\n")
        return 0
    with TemporaryDirectory() as profile:
        looks = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={_SIZE}")
        where = (f"--user-data-dir={profile}", f"--screenshot={picture.absolute()}", page.absolute().as_uri())
        subprocess.run([browser, *looks, *where], check=True, capture_output=True, timeout=_SECONDS)
    sections = find_sections(page.read_text(encoding="utf-8"))
    picture.with_suffix(".json").write_text(json.dumps(sections, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"drawn: {picture}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
