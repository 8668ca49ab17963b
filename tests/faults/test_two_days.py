"""What one run leaves open the next one takes up: new, still open, resolved."""

from __future__ import annotations

from tests.faults.confusion import compared, disagreements
from tests.faults.runs import reconciled
from tests.faults.two_days import two_days


def test_what_the_first_day_leaves_open_is_told_of_on_the_second(tmp_path):
    """A late span and a late end resolve what was open, a loss stays open, a loss of today is new."""
    history = tmp_path / "history"
    for corpus in two_days():
        judged = reconciled(corpus, tmp_path / corpus.name, history=history)
        assert disagreements(compared(corpus.truth, judged.rows)) == []
        assert judged.result.conservation.holds
