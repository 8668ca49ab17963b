"""Write ``docs/scoreboard.md``, one line per row, from the observations of one run."""

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
    "F": "Defects of the incumbent",
    "T": "Features",
}


def page(seen: Mapping[str, Mapping[str, Seen]]) -> str:
    """Return the page; ``seen`` is subject → name of the probe, or number of the row where it has none → what was seen."""
    lines = [
        _NOTE,
        "# Scoreboard",
        "",
        f"The same user code with `{INCUMBENT.distribution}` {INCUMBENT.version} (the incumbent) and with ours, each in",
        f"its own process, on the embedded broker with confluent-kafka {version('confluent-kafka')}. Probes in",
        "`tests/proofs/scoreboard/probes` observe every cell. `make proofs` runs them again and fails when one of ours is not `yes`",
        "or a verdict differs from this page; `make scoreboard` writes the page. The cost rows F17 and T39 use the figures of",
        "[Performance](performance.md#added-to-the-clients-calls).",
    ]
    for prefix, title in _TITLES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| | requirement | incumbent | ours | observed: incumbent | observed: ours |",
            "|---|---|---|---|---|---|",
        ]
        for row in ROWS:
            if row.number.startswith(prefix):
                theirs, ours = (seen[subject][row.probe.__name__ if row.probe else row.number] for subject in seen)
                cells = (
                    row.number,
                    row.requirement,
                    theirs.word,
                    ours.word,
                    _cell(theirs.evidence),
                    _cell(ours.evidence),
                )
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_remarks(), ""])


def _remarks() -> list[str]:
    return [
        "## Notes",
        "",
        "* F13: the application calls the incumbent's `instrument_producer` and `instrument_consumer`. Ours needs no such call.",
        "* F16, T16: the embedded broker has no share groups. A subclass of `ShareConsumer` returns prepared messages from `poll`.",
        "* T9, T15 and others: the handler runs inside `with process(message)` with ours; the incumbent has no such call.",
        "* T8, T10, T17, T22, T23, T25, T26, T33, T36: options of `instrument()`. The incumbent gets the same options and ignores them.",
        "* F17, T39: CPU time of the calling thread for `produce` with its report and for `poll` with its process span. Both must",
        "  meet the bound. Ours records four times as many attributes.",
        "* T37: the incumbent has no processor of its own and runs with the SDK's `BatchSpanProcessor`.",
    ]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def verdicts(text: str) -> dict[str, tuple[str, str]]:
    """Read the verdicts of a page back: number of the row → (incumbent, ours)."""
    return {found["number"]: (found["incumbent"], found["ours"]) for found in _ROW.finditer(text)}
