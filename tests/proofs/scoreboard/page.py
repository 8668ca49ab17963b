"""Print ``docs/scoreboard.md``, one line per row, from what was seen in one run."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from tests.proofs.scoreboard.rows import ROWS
from tests.proofs.scoreboard.subjects import INCUMBENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.proofs.scoreboard.stage import Seen

_NOTE: Final = (
    "<!-- Generated from tests/proofs/scoreboard/rows.py by `make scoreboard`. Edit the probes, not this page. -->"
)
_ROW: Final = re.compile(r"^\| (?P<number>[FT]\d+) \| .*? \| (?P<incumbent>\w+) \| (?P<ours>\w+) \|", re.MULTILINE)
_TITLES: Final = {
    "F": "Defects found in the incumbent by running it, turned round",
    "T": "Features",
}


def page(seen: Mapping[str, Mapping[str, Seen]]) -> str:
    """Return the page; ``seen`` is subject → name of the probe, or number of the row where it has none → what was seen."""
    lines = [
        _NOTE,
        "# Scoreboard",
        "",
        f"The same user code under `{INCUMBENT.distribution}` {INCUMBENT.version} (the incumbent) and under ours, each in",
        f"processes of its own, against the embedded broker; confluent-kafka {version('confluent-kafka')}. Every cell is what",
        "a probe in `tests/proofs/scoreboard/probes` observed in that run: no verdict is written by hand. `make proofs` runs all",
        "probes again and fails when one of ours is not `yes`, or when a verdict here is not what was seen;",
        "`make scoreboard` writes this page. The two cost rows (F17, T39) follow from the figures of",
        "[Performance](performance.md#added-to-the-clients-calls), which are on that page only.",
    ]
    for prefix, title in _TITLES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| | asked | incumbent | ours | seen: incumbent | seen: ours |",
            "|---|---|---|---|---|---|",
        ]
        for row in ROWS:
            if row.number.startswith(prefix):
                theirs, ours = (seen[subject][row.probe.__name__ if row.probe else row.number] for subject in seen)
                cells = (row.number, row.asks, theirs.word, ours.word, _cell(theirs.evidence), _cell(ours.evidence))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_remarks(), ""])


def _remarks() -> list[str]:
    return [
        "## What was run, where it is not plain",
        "",
        "* F13: an application that calls the incumbent's `instrument_producer` and `instrument_consumer` by hand; ours has no",
        "  such call, so the objects are used as they are.",
        "* F16, T16: the embedded broker has no share groups. A subclass of `ShareConsumer` answers `poll` with messages made",
        "  in the test; what is observed is what its `poll` and `acknowledge` leave.",
        "* T9, T15 and others: ours is told of the handler by `with process(message)`; the incumbent has no way to be told, so",
        "  there the handler simply runs.",
        "* T8, T10, T17, T22, T23, T25, T26, T33, T36: reached through options of `instrument()`; the incumbent is given the same",
        "  options and knows none of them.",
        "* F17, T39: `produce` with its report and `poll` with its process span, CPU time of the calling thread. A row is `yes`",
        "  where both keep the mark. Ours records four times as many attributes of a message and follows it to its delivery report.",
        "* T37: the incumbent leaves the choice of a processor to its user; the SDK's `BatchSpanProcessor` stands for it.",
    ]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def verdicts(text: str) -> dict[str, tuple[str, str]]:
    """Read the verdicts of a page back: number of the row → (incumbent, ours)."""
    return {found["number"]: (found["incumbent"], found["ours"]) for found in _ROW.finditer(text)}
