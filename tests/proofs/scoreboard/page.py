"""Write ``docs/scoreboard.md``, one line per row, from the observations of one run and the published costs."""

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from tests.proofs.bench.rows import Row
from tests.proofs.scoreboard.rows import ROWS
from tests.proofs.scoreboard.stage import INCUMBENT, Seen
from tests.support.source_tree import ROOT

_NOTE: Final = (
    "<!-- Generated from tests/proofs/scoreboard/rows.py by `make scoreboard`. Edit the probes, not this page. -->"
)
_ROW: Final = re.compile(r"^\| (?P<number>[FT]\d+) \| .*? \| (?P<incumbent>\w+) \| (?P<ours>\w+) \|", re.MULTILINE)
_TITLES: Final = {"F": "Defects of the incumbent", "T": "Features"}


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
                observed = (theirs.word, ours.word, _cell(theirs.evidence), _cell(ours.evidence))
                lines.append(f"| {' | '.join((row.number, row.requirement, *observed))} |")
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
    return {match["number"]: (match["incumbent"], match["ours"]) for match in _ROW.finditer(text)}


FIGURES: Final = ROOT / "docs" / "performance.json"
COSTS: Final = {
    "F17": (
        0.5,
        (
            "`produce` and its report: calling thread, recording",
            "`poll` and its process span: calling thread, recording",
        ),
    ),
    "T39": (
        0.25,
        (
            "`produce` and its report: calling thread, sampler off",
            "`poll` and its process span: calling thread, sampler off",
        ),
    ),
}
"""Row → the most that ours may cost as a share of the incumbent's, and the rows of the performance page that say so."""
_EVIDENCE: Final = "[measured](performance.md#added-to-the-clients-calls)"


def published_costs(figures: Mapping[str, Any] | None = None) -> dict[str, dict[str, Seen]]:
    """Return subject → number of the row → verdict, with a link in place of the figures.

    Args:
        figures: as in ``docs/performance.json``, which is read without them.
    """
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if figures is None else figures
    ratios = {row.measure: row.ratio for row in map(Row.from_json, figures["sections"]["clients"]["rows"])}
    ours = {}
    for number, (most, measures) in COSTS.items():
        measured = [ratios[measure] for measure in measures]
        ours[number] = Seen(all(ratio is not None and ratio <= most for ratio in measured), _EVIDENCE)
    return {"incumbent": {number: Seen(False, _EVIDENCE) for number in COSTS}, "ours": ours}
