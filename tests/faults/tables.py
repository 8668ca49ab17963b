"""This module knows how the proof is printed: what every fault is called, the confusion matrix, and the two rivals."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.faults.baselines import LOST_NATIVE, LOST_OTLP, Calls
from tests.faults.confusion import Cell, matrix
from tests.faults.truth import Event

__all__ = ["Score", "confusion_table", "faults_table", "filled_in", "found", "rivals_table"]

_BLOCK = re.compile(r"(<!-- played: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNEXPLAINED = "UNEXPLAINED"
_LOSSES = {LOST_NATIVE, LOST_OTLP}


class Score:
    """How many of what is called a silent loss are one, and how many of those that are one are called so."""

    def __init__(self, called: set[Event], true: set[Event]) -> None:
        self.called, self.true, self.right = len(called), len(true), len(called & true)

    @property
    def precision(self) -> float:
        """The share of the called ones that are silent losses."""
        return self.right / self.called if self.called else 1.0

    @property
    def recall(self) -> float:
        """The share of the silent losses that are called so."""
        return self.right / self.true if self.true else 1.0


def found(cells: Iterable[Cell], calls: Calls | None = None) -> Score:
    """Return the score of our own verdicts, or of another's calls of the same events."""
    cells = list(cells)
    true = {cell.event for cell in cells if cell.expected.endswith(_UNEXPLAINED)}
    if calls is None:
        return Score({cell.event for cell in cells if cell.got.endswith(_UNEXPLAINED)}, true)
    return Score({event for event, words in calls.items() if words.keys() & _LOSSES}, true)


def confusion_table(cells: Sequence[Cell]) -> str:
    """Return the matrix: a row per class that was expected, a numbered column per class that was said."""
    counted = matrix(cells)
    classes = sorted({word for pair in counted for word in pair})
    numbers = {word: str(number) for number, word in enumerate(classes, 1)}
    head = ["expected", "", *numbers.values()]
    rows = [[f"`{word}`", numbers[word], *(str(counted[word, got] or "") for got in classes)] for word in classes]
    return _table(head, rows, right_from=1)


def faults_table(worlds: Mapping[str, Sequence[Cell]]) -> str:
    """Return what happens to an event, how often it was played in each world, and what it is called."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for world, cells in worlds.items():
        for cell in cells:
            rows[_told(cell), cell.got][world] += 1
    body = [
        [told, f"`{got}`", *(str(counts[world] or "") for world in worlds)]
        for (told, got), counts in sorted(rows.items(), key=lambda row: row[0])
    ]
    return _table(["what happens", "what it is called", *worlds], body, right_from=2)


def _told(cell: Cell) -> str:
    return "nothing happens" if cell.fault == "none" else cell.fault


def rivals_table(cells: Sequence[Cell], rivals: Mapping[str, Calls]) -> str:
    """Return, per fault, what each calls its events; and below, how well each finds what was silently lost."""
    ours: dict[str, set[str]] = defaultdict(set)
    events: dict[str, set[Event]] = defaultdict(set)
    for cell in cells:
        ours[_told(cell)].add(cell.got)
        events[_told(cell)].add(cell.event)
    body = [
        [
            told,
            ", ".join(f"`{word}`" for word in sorted(ours[told])),
            *(_words(calls, events[told]) for calls in rivals.values()),
        ]
        for told in sorted(ours)
    ]
    scores = [found(cells), *(found(cells, calls) for calls in rivals.values())]
    named = {
        "**called silently lost**": [str(score.called) for score in scores],
        "**of those really so** (precision)": [f"{score.precision:.1%}" for score in scores],
        "**of the silent losses found** (recall)": [f"{score.recall:.1%}" for score in scores],
    }
    return _table(["what happens", "mqtrace", *rivals], [*body, *([name, *values] for name, values in named.items())])


def _words(calls: Calls, events: Iterable[Event]) -> str:
    said = {_counted(calls.get(event, Counter())) for event in events}
    return " / ".join(sorted(said))


def _counted(words: Counter[str]) -> str:
    told = [word if count == 1 else f"{count} rows {word}" for word, count in sorted(words.items())]
    return " + ".join(told) or "no row"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right_from: int | None = None) -> str:
    right = len(head) if right_from is None else right_from
    rule = ["---" if at < right else "---:" for at in range(len(head))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def filled_in(text: str, blocks: Mapping[str, str]) -> str:
    """Return ``text`` with each named block between ``<!-- played: NAME -->`` and ``<!-- end -->`` written anew."""
    return _BLOCK.sub(
        lambda block: f"{block[1]}{blocks.get(block[2], block[0][len(block[1]) : -len(block[3])])}{block[3]}", text
    )
