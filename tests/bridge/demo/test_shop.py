"""The order system of the demo: declined cards, and waiting that ends. Its messages: ``tests/flow/test_demo``."""

import pytest

from bridge.demo.shop import CardDeclinedError, Tally, charge
from otel_mqtrace._errors import PeerError


def test_card_is_declined_as_often_as_ordered():
    assert charge(b'{"order": 4, "declines": 0}', 0)
    assert not charge(b'{"order": 4, "declines": 2}', 1)
    assert charge(b'{"order": 4, "declines": 2}', 2)
    with pytest.raises(CardDeclinedError):
        charge(b'{"order": 5, "declines": 1}', 0)


def test_waiting_without_progress_raises_an_error():
    tally = Tally()
    tally.add()
    tally.wait_for(1)
    with pytest.raises(PeerError, match="stand still at 1 of 2"):
        tally.wait_for(2, patience_s=0.01)
    tally.fail(RuntimeError("no disk"))
    with pytest.raises(PeerError, match="died: no disk"):
        tally.wait_for(2)
