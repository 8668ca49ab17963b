"""Tests of the performance page and of its figures."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.proofs.bench import record
from tests.proofs.bench.__main__ import KEPT, PAGE
from tests.proofs.bench.page import make_page, read_rows
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns
from tests.proofs.bench.sections import SECTIONS
from tests.support.source_tree import ROOT


def _figures(*rows, name="processor", effort=None):
    return record.add_section({}, name, rows, effort or Effort())


def test_page_equals_its_kept_figures():
    assert PAGE.read_text(encoding="utf-8") == make_page(record.read(KEPT)), "run: make performance"


def test_every_kept_section_still_exists():
    assert set(record.read(KEPT)) <= set(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_section_has_a_module(name):
    assert find_spec(f"tests.proofs.bench.{SECTIONS[name].module}")


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
def test_target_is_compared_with_the_ratio_or_with_our_own_figure(ours, theirs, target, met):
    assert Row("m", "a", ours, theirs, "u", target).met is met


def test_met_in_the_file_is_computed_again():
    figures = _figures(Row("`on_end` with room", "a", 3.0, 2.0, "µs", Target("≤", 1.0)))
    figures["processor"]["rows"][0] |= {"met": True, "ratio": 0.1}
    (row,) = read_rows(figures["processor"])
    assert (row.met, row.ratio) == (False, 1.5)
    assert "0 of 1 targets are met. Missed:" in make_page(figures)
    assert "| 1.5 x | ≤ 1 x | **no** |" in make_page(figures)


def test_quick_run_is_marked_and_not_judged():
    row = Row("m", "a", 1.0, 2.0, "µs", Target("≤", 1.0))
    quick, complete = make_page(_figures(row, effort=Effort(2, 0.05))), make_page(_figures(row))
    assert "A quick run" in quick
    assert "0 of 0 targets are met." in quick
    assert "A quick run" not in complete
    assert "1 of 1 targets are met." in complete


def test_negative_anchor_gives_no_ratio():
    row = Row("m", "a", 1.0, -0.1, "µs", Target("≤", 0.5))
    assert (row.ratio, row.met) == (None, None)
    row = compare("m", "a", [3.0] * 5, [-0.5, -0.2, -0.1, 8.0, 9.0], "µs", Target("≤", 0.4))
    assert (row.ratio, row.met) == (None, None)


def test_unmeasured_section_is_named():
    assert "Not measured yet: `make bench ARGS='--only reconcile'`." in make_page({})


def test_quick_run_replaces_only_a_quick_run():
    row = Row("m", "a", 1.0, 2.0, "µs")
    full, quick = _figures(row), _figures(row, effort=Effort(share=0.05))
    again = _figures(row, effort=Effort(rounds=1))
    assert record.merge_figures(full, quick) == full
    assert record.merge_figures(full, again) == again
    assert record.merge_figures({}, quick) == record.merge_figures(quick, quick) == quick


def test_machine_is_described_without_its_paths():
    described = str(record.machine())
    assert str(Path.home()) not in described
    assert str(ROOT) not in described
    assert re.search(r"'cores': \d+", described)


def test_every_round_starts_with_the_next_contender():
    order = []
    results = run_in_turns({name: lambda name=name: order.append(name) or 1.0 for name in "ab"}, 3)
    assert ("".join(order), results) == ("abbaab", {"a": [1.0] * 3, "b": [1.0] * 3})


def test_row_has_medians_the_spread_of_the_ratios_and_their_median():
    row = compare("m", "a", [1.0, 2.0, 90.0], [2.0, 2.0, 2.0], "µs")
    assert (row.ours, row.theirs, row.low, row.ratio, row.high) == (2.0, 2.0, 0.5, 1.0, 45.0)
    ours, theirs = [1.0, 2.0, 1.0, 2.0, 1.0], [4.0, 4.0, 2.0, 4.0, 2.0]
    row = Row.from_json(compare("m", "a", ours, theirs, "µs", Target("≤", 0.5)).to_json())
    assert (row.ours, row.theirs, row.ratio, row.met) == (1.0, 4.0, 0.5, True)
