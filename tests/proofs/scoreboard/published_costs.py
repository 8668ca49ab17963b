"""Judge the cost rows of the scoreboard by the figures that the performance page publishes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.proofs.bench.rows import Row
from tests.proofs.scoreboard.stage import Seen
from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

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
