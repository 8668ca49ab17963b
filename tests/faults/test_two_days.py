"""What one run leaves open the next one takes up: new, still open, resolved."""

from tests.faults.confusion import compared, disagreements
from tests.faults.runs import reconciled
from tests.faults.two_days import two_days


def test_keys_left_open_on_the_first_day_end_on_the_second(tmp_path):
    history = tmp_path / "history"
    for corpus in two_days():
        judged = reconciled(corpus, tmp_path / corpus.name, history=history)
        assert disagreements(compared(corpus.truth, judged.rows)) == []
        assert judged.result.conservation.holds
