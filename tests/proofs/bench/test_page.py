"""The page shows the figures beside it, and no figure can call itself met."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.proofs.bench import record
from tests.proofs.bench.__main__ import KEPT, PAGE
from tests.proofs.bench.page import page, rows_of
from tests.proofs.bench.rows import Effort, Row, Target, beside, interleaved
from tests.proofs.bench.sections import SECTIONS
from tests.support.source_tree import ROOT


def _figures(*rows, name="processor", effort=None):
    return record.with_section({}, name, rows, effort or Effort())


def test_the_page_is_made_of_the_figures_kept_beside_it():
    assert PAGE.read_text(encoding="utf-8") == page(record.read(KEPT)), "run: make performance"


def test_every_kept_section_is_one_that_can_be_measured_again():
    assert set(record.read(KEPT)) <= set(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_has_a_module(name):
    """It is found without being imported: some need Spark."""
    assert find_spec(f"tests.proofs.bench.{SECTIONS[name].home}")


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "met"),
    [
        (1.0, 2.0, Target("≤", 0.5), True),
        (1.1, 2.0, Target("≤", 0.5), False),
        (6.0, 2.0, Target("≥", 3.0), True),
        (5.9, 2.0, Target("≥", 3.0), False),
        (11, 96, Target("≤", 12, "jobs"), True),
        (13, 96, Target("≤", 12, "jobs"), False),
        (1.0, 2.0, None, None),
        (1.0, None, Target("≤", 0.5), None),
    ],
)
def test_a_target_is_met_by_the_ratio_or_by_our_own_figure(ours, theirs, target, met):
    assert Row("m", "a", ours, theirs, "u", target).met is met


def test_a_file_cannot_say_met_of_a_figure_that_is_not():
    figures = _figures(Row("`on_end` with room", "a", 3.0, 2.0, "µs", Target("≤", 1.0)))
    figures["processor"]["rows"][0] |= {"met": True, "ratio": 0.1}
    (row,) = rows_of(figures["processor"])
    assert (row.met, row.ratio) == (False, 1.5)
    assert "Of 1 targets measured 0 are met." in page(figures)
    assert "| 1.5 x | ≤ 1 x | **no** |" in page(figures)


def test_a_quick_run_is_not_taken_for_a_measurement():
    row = Row("m", "a", 1.0, 2.0, "µs", Target("≤", 1.0))
    quick, earnest = page(_figures(row, effort=Effort(2, 0.05))), page(_figures(row))
    assert "hardly any work" in quick
    assert "Of 0 targets measured 0 are met." in quick
    assert "hardly any work" not in earnest
    assert "Of 1 targets measured 1 are met." in earnest


def test_an_anchor_that_noise_left_nothing_of_proves_nothing():
    """Added time is a difference, and may come out below zero."""
    row = Row("m", "a", 1.0, -0.1, "µs", Target("≤", 0.5))
    assert (row.ratio, row.met) == (None, None)
    row = beside("m", "a", [3.0] * 5, [-0.5, -0.2, -0.1, 8.0, 9.0], "µs", Target("≤", 0.4))
    assert (row.ratio, row.met) == (None, None)


def test_a_section_that_was_not_measured_is_named():
    assert "Not measured yet: `make bench ARGS='--only reconcile'`." in page({})


def test_the_page_keeps_what_was_not_measured_again():
    row = Row("m", "a", 1.0, 2.0, "µs")
    kept = _figures(row, name="growth", effort=Effort(messages=500_000)) | _figures(row)
    quick = record.with_section({}, "growth", [row], Effort(share=0.05, messages=500_000))
    anew = record.with_section({}, "processor", [Row("m", "a", 5.0, 2.0, "µs")], Effort())
    for less in (quick, _figures(row, name="growth", effort=Effort(messages=50_000))):
        found = record.together(kept, less | anew)
        assert (found["growth"], found["processor"]) == (kept["growth"], anew["processor"])
    assert record.together({}, quick) == quick
    for messages in (500_000, 600_000):
        more = _figures(row, name="growth", effort=Effort(1, messages=messages))
        assert record.together(kept, more)["growth"] is more["growth"]


def test_the_machine_is_described_and_not_named():
    told = str(record.machine())
    assert str(Path.home()) not in told
    assert str(ROOT) not in told
    assert re.search(r"'cores': \d+", told)


def test_contenders_take_turns_and_every_round_begins_with_another():
    """So that whoever comes first after a pause is not always the same."""
    order = []
    took = interleaved({name: lambda name=name: order.append(name) or 1.0 for name in "ab"}, 3)
    assert ("".join(order), took) == ("abbaab", {"a": [1.0] * 3, "b": [1.0] * 3})


def test_medians_count_and_the_rounds_are_told():
    row = beside("m", "a", [1.0, 2.0, 90.0], [2.0, 2.0, 2.0], "µs")
    assert (row.ours, row.theirs, row.low, row.ratio, row.high) == (2.0, 2.0, 0.5, 1.0, 45.0)


def test_a_machine_that_is_half_as_fast_every_other_moment_does_not_move_the_ratio():
    """Each round is a pair; the medians of the two sides may be of different moments."""
    ours, theirs = [1.0, 2.0, 1.0, 2.0, 1.0], [4.0, 4.0, 2.0, 4.0, 2.0]
    row = Row.of_json(beside("m", "a", ours, theirs, "µs", Target("≤", 0.5)).as_json())
    assert (row.ours, row.theirs, row.ratio, row.met) == (1.0, 4.0, 0.5, True)
