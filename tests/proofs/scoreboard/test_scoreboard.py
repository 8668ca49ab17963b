"""Our instrumentation passes every probe; the incumbent does as the page shows."""

import json
import os
import re
import signal
import warnings

import pytest

from tests.proofs.bench.page import format_row, read_rows
from tests.proofs.scoreboard.page import COSTS, FIGURES, page, published_costs, verdicts
from tests.proofs.scoreboard.rows import MEASURED_INCUMBENT, PROBES, ROWS
from tests.proofs.scoreboard.runner import observe
from tests.proofs.scoreboard.stage import INCUMBENT, SUBJECTS, Seen
from tests.support.source_tree import ROOT

PAGE = ROOT / "docs" / "scoreboard.md"
OBSERVED = [pytest.param(row, id=row.number) for row in ROWS if row.probe is not None]


@pytest.fixture(scope="module")
def seen():
    """One run of every probe under both subjects."""
    return observe()


@pytest.mark.parametrize("row", OBSERVED)
def test_ours_meets_the_requirement(row, seen):
    """Every row, ``yes`` without a condition."""
    answer = seen["ours"][row.probe.__name__]
    assert answer.yes is True, f"{row.number} {row.requirement}: {answer.word}: {answer.evidence}"


@pytest.mark.parametrize("row", OBSERVED)
def test_incumbent_has_its_measured_verdict(row, seen):
    """A newer release that does better is said, not held against anybody; the measured one must not have changed."""
    answer = seen["incumbent"][row.probe.__name__]
    texts = (
        f"{row.number} {row.requirement}: the incumbent {INCUMBENT.version} was seen to do it: {answer.word} ({answer.evidence}), "
        f"rows.py says {row.incumbent}: if that is so, change it there and run: make scoreboard"
    )
    if INCUMBENT.version != MEASURED_INCUMBENT:
        if answer.word != row.incumbent:
            warnings.warn(texts, stacklevel=1)
        return
    assert answer.word == row.incumbent, texts


def test_page_shows_the_verdicts_of_this_run(seen):
    """Both verdicts of every row that is probed; ``make scoreboard`` fixes it."""
    written = verdicts(PAGE.read_text(encoding="utf-8"))
    now = {row.number: tuple(seen[s][row.probe.__name__].word for s in SUBJECTS) for row in ROWS if row.probe}
    assert {number: written.get(number) for number in now} == now, "run: make scoreboard"
    assert written.keys() == {row.number for row in ROWS}


def test_cost_rows_follow_from_the_performance_page():
    """Verdicts only: a figure that stood here too would contradict that page after its next measurement."""
    text = PAGE.read_text(encoding="utf-8")
    published = published_costs()
    assert {number: verdicts(text)[number] for number in COSTS} == {
        number: tuple(published[subject][number].word for subject in SUBJECTS) for number in COSTS
    }, "run: make scoreboard"
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {number} " for number in COSTS))]
    assert [row for row in rows if re.search(r"\d", row.split("|", 3)[3])] == []


def test_no_figure_of_the_performance_page_stands_in_the_scoreboard():
    measured = {
        cell
        for section in json.loads(FIGURES.read_text(encoding="utf-8"))["sections"].values()
        for row in read_rows(section)
        for cell in re.findall(r"\d[\d,]*\.\d+", " ".join(format_row(row)[2:6]))
    }
    numbers = re.findall(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.])", PAGE.read_text(encoding="utf-8").split("\n## ", 1)[1])
    assert measured
    assert measured & set(numbers) == set()
    assert re.findall(r"\d+ ?(?:µs|x\b|spans/s|records/s)", PAGE.read_text(encoding="utf-8")) == []


def test_cost_row_fails_where_one_call_misses_the_mark():
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = {row["measure"]: row for row in figures["sections"]["clients"]["rows"]}
    most, measures = COSTS["F17"]
    for measure in measures:
        rows[measure]["ratio"] = rows[measure]["middle"] = most
    assert published_costs(figures)["ours"]["F17"].yes is True
    rows[measures[1]]["ratio"] = rows[measures[1]]["middle"] = most + 0.01
    assert published_costs(figures)["ours"]["F17"].yes is False


def test_page_can_be_read_back():
    theirs, ours = Seen("partly", "1 | 2"), Seen(True, "line\nline")
    every = [*PROBES, *(row.number for row in ROWS if row.probe is None)]
    text = page({"incumbent": dict.fromkeys(every, theirs), "ours": dict.fromkeys(every, ours)})
    assert set(verdicts(text).values()) == {("partly", "yes")}
    assert set(verdicts(text)) == {row.number for row in ROWS}


def test_probe_that_raises_or_dies_is_no(monkeypatch):
    from tests.proofs.scoreboard import runner  # noqa: PLC0415 - its table is changed

    monkeypatch.setitem(runner.PROBES, "raises", lambda _: 1 / 0)
    monkeypatch.setitem(runner.PROBES, "dies", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    raised = runner._forked(SUBJECTS["ours"], "127.0.0.1:1", "raises")
    died = runner._forked(SUBJECTS["ours"], "127.0.0.1:1", "dies")
    assert (raised.word, raised.evidence) == ("no", "raised ZeroDivisionError: division by zero")
    assert (died.word, died.evidence) == ("no", "the process died: signal 9")


def test_rows_are_the_findings_and_the_features():
    numbers = [row.number for row in ROWS]
    assert numbers == [f"F{n}" for n in range(1, 18)] + [f"T{n}" for n in range(1, 40)]
