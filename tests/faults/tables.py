"""Print the proof: the verdict of every fault, the confusion matrix, and the two rivals."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.faults.baselines import LOST_NATIVE, LOST_OTLP, Calls
from tests.faults.confusion import Cell
from tests.faults.truth import Event

_BLOCK = re.compile(r"(<!-- played: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNEXPLAINED = "UNEXPLAINED"
_LOSSES = {LOST_NATIVE, LOST_OTLP}


class Score(NamedTuple):
    """How many of what is called a silent loss are one, and how many of those that are one are called so."""

    called: int
    true: int
    precision: float
    recall: float


def score_losses(cells: Iterable[Cell], calls: Calls | None = None) -> Score:
    cells = list(cells)
    true = {cell.event for cell in cells if cell.expected.endswith(_UNEXPLAINED)}
    called = {cell.event for cell in cells if cell.got.endswith(_UNEXPLAINED)}
    if calls is not None:
        called = {event for event, words in calls.items() if words.keys() & _LOSSES}
    precision, recall = (len(called & true) / len(events) if events else 1.0 for events in (called, true))
    return Score(len(called), len(true), precision, recall)


def proof_blocks(worlds: Mapping[str, Sequence[Cell]]) -> dict[str, str]:
    cells = [cell for of_world in worlds.values() for cell in of_world]
    return {"confusion": confusion_table(cells), "faults": faults_table(worlds)}


def confusion_table(cells: Sequence[Cell]) -> str:
    """Return a row per verdict that was expected: how many keys, how many got it, and what the others got."""
    counted = Counter((cell.expected, cell.got) for cell in cells)
    rows = []
    for word in sorted({expected for expected, _ in counted}):
        got = {verdict: count for (expected, verdict), count in sorted(counted.items()) if expected == word}
        others = ", ".join(f"`{verdict}` {count}" for verdict, count in got.items() if verdict != word)
        rows.append([f"`{word}`", str(sum(got.values())), str(got.get(word, 0)), others])
    return _table(["should be", "keys", "called so", "called otherwise"], rows, right_from=1, right_until=3)


def faults_table(worlds: Mapping[str, Sequence[Cell]]) -> str:
    """Return what happens to an event, how often it was played in each world, and what it is called."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for world, cells in worlds.items():
        for cell in cells:
            rows[cell.fault, cell.got][world] += 1
    body = [
        [actual, f"`{got}`", *(str(counts[world] or "") for world in worlds)]
        for (actual, got), counts in sorted(rows.items(), key=lambda row: row[0])
    ]
    return _table(["what happens", "what it is called", *worlds], body, right_from=2)


def rivals_table(cells: Sequence[Cell], rivals: Mapping[str, Calls]) -> str:
    """Return, per fault, what each calls its events; and below, how well each finds what was silently lost."""
    ours: dict[str, set[str]] = defaultdict(set)
    events: dict[str, set[Event]] = defaultdict(set)
    for cell in cells:
        ours[cell.fault].add(cell.got)
        events[cell.fault].add(cell.event)
    body = [
        [
            event_name,
            ", ".join(f"`{word}`" for word in sorted(ours[event_name])),
            *(_words(calls, events[event_name]) for calls in rivals.values()),
        ]
        for event_name in sorted(ours)
    ]
    scores = [score_losses(cells), *(score_losses(cells, calls) for calls in rivals.values())]
    named = {
        "**called silently lost**": [str(score.called) for score in scores],
        "**of those really so** (precision)": [f"{score.precision:.1%}" for score in scores],
        "**of the silent losses found** (recall)": [f"{score.recall:.1%}" for score in scores],
    }
    rows = [*body, *([name, *values] for name, values in named.items())]
    return _table(["what happens", "mqtrace", *rivals], rows, right_until=0)


def _words(calls: Calls, events: Iterable[Event]) -> str:
    counts = (sorted(calls.get(event, Counter()).items()) for event in events)
    parts = ([word if count == 1 else f"{count} rows {word}" for word, count in words] for words in counts)
    return " / ".join(sorted({" + ".join(each) or "no row" for each in parts}))


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right_from: int = 0, right_until: int | None = None
) -> str:
    right = range(right_from, len(head) if right_until is None else right_until)
    rule = ["---:" if at in right else "---" for at in range(len(head))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def filled_in(text: str, blocks: Mapping[str, str]) -> str:
    """Return ``text`` with each named block between ``<!-- played: NAME -->`` and ``<!-- end -->`` written anew."""
    return _BLOCK.sub(
        lambda block: f"{block[1]}{blocks.get(block[2], block[0][len(block[1]) : -len(block[3])])}{block[3]}", text
    )
