"""Faults at random, the books exact: every seed that ever failed is kept here and runs first."""

import secrets

import pytest

from tests.chaos.storm import Storm

ONCE_FAILED: list[int] = []
"""Seeds that found a mistake, with what it was."""
FRESH = 12
"""Storms with seeds nobody has seen; a failure names its seed, to be added above."""


@pytest.mark.parametrize("seed", [*ONCE_FAILED, *range(4)])
def test_the_books_balance_in_storms_already_seen(seed):
    assert Storm(seed).rage()


def test_the_books_balance_in_storms_nobody_has_seen():
    for _ in range(FRESH):
        seed = secrets.randbits(32)
        try:
            Storm(seed).rage()
        except AssertionError as broken:
            raise AssertionError(f"add {seed} to ONCE_FAILED: {broken}") from broken
