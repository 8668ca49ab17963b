"""Find lines of a large file again, for evidence: it is read in ranges, in which lines have no numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

__all__ = ["line_numbers"]


def line_numbers(path: Path, beginnings: Collection[str]) -> dict[str, list[int]]:
    """Return where in a local file lines begin with each of ``beginnings``: numbers from 1, in order.

    For the few lines of a large file that a report shows. One pass, a chunk in memory at a time; what is not a local
    file has no numbers.
    """
    found: dict[str, list[int]] = {beginning: [] for beginning in beginnings}
    lengths = {len(beginning) for beginning in found}
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            for length in lengths:
                if length <= len(line) and (beginning := line[:length]) in found:
                    found[beginning].append(number)
    return found
