"""A counted loss over runs that follow each other: it pays for as many keys as were counted, in however many runs."""

from __future__ import annotations

import pytest

from spark_jobs.drops import CountedDrop
from spark_jobs.history.paid import add_earlier_losses, find_payable
from spark_jobs.sources.ledger import LedgerRead


def drop(count, *, start_ms=None, width_ms=None, **fields):
    given = {"side": "otlp", "component": "queue", "cause": "full", "count": count, **fields}
    return CountedDrop(**given, bucket_start_ms=start_ms, bucket_ms=width_ms)


@pytest.mark.parametrize(
    ("now", "earlier", "left"),
    [
        ([], [drop(5)], []),
        ([drop(5)], [drop(5)], [0]),
        ([drop(7)], [drop(5)], [2]),
        ([drop(7, before=True)], [drop(5)], [2]),
        ([drop(2), drop(4)], [drop(5)], [0, 1]),
        ([drop(5, service="shop")], [drop(5)], [5]),
        ([drop(5, start_ms=0, width_ms=20)], [drop(3, start_ms=0, width_ms=10)], [2]),
        ([drop(5, start_ms=10, width_ms=10)], [drop(3, start_ms=0, width_ms=10)], [5]),
        ([drop(5)], [drop(3, start_ms=0, width_ms=10)], [2]),
        ([drop(5, start_ms=0, width_ms=10)], [drop(3)], [5]),
        ([drop(5)], [drop(2), drop(2)], [1]),
    ],
)
def test_loss_that_is_counted_again_is_not_a_second_one(now, earlier, left):
    """The same counter over the same stretch of time or a longer one holds it; any other says nothing of it."""
    found = add_earlier_losses(now, earlier)
    assert [one.count for one in found[: len(now)]] == left
    assert sum(one.count for one in found[len(now) :]) == sum(one.count for one in earlier)


def test_earlier_losses_are_payable_without_a_ledger():
    assert find_payable(None, ()) is None
    assert find_payable(None, (drop(5),)) == LedgerRead(drops=(drop(5),))
    ledger = LedgerRead(files=("ledger.json",), drops=(drop(5),))
    assert find_payable(ledger, ()) is ledger
    found = find_payable(ledger, (drop(3),))
    assert (found.files, [one.count for one in found.drops]) == (("ledger.json",), [2, 3])
