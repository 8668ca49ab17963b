"""How many spans may be missing by chance when the policy says which share of messages is sampled."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.explain.budgets.allocation import Loss
from spark_jobs.explain.budgets.sampled_share import allow_missing, limit_missing, share_out


def exact_tail(keys: int, ratio: float, most: int) -> float:
    """Return how likely more than ``most`` of ``keys`` are not sampled."""
    return sum(
        math.comb(keys, missing) * (1 - ratio) ** missing * ratio ** (keys - missing)
        for missing in range(most + 1, keys + 1)
    )


@pytest.mark.parametrize("keys", [50, 200, 800])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_the_bound_is_exceeded_by_chance_in_about_one_run_of_a_hundred(keys, ratio):
    """Against the exact binomial distribution."""
    assert 0.001 < exact_tail(keys, ratio, allow_missing(keys, ratio)) < 0.025


def test_keys_of_one_message_stand_and_fall_together():
    """Four deliveries of each message: the same share, a wider spread; simulated."""
    chance, messages, ratio = random.Random(7), 250, 0.5
    most = allow_missing(4 * messages, ratio, keys_per_message=4)
    missing = [4 * sum(chance.random() >= ratio for _ in range(messages)) for _ in range(2_000)]
    assert sum(count > most for count in missing) < 50
    assert sum(count > allow_missing(4 * messages, ratio) for count in missing) > 100


def test_everything_sampled_allows_nothing_and_nothing_more_than_all_is_allowed():
    """The edges of the ratio."""
    assert allow_missing(1_000, 1.0) == 0
    assert allow_missing(10, 0.01) == 10
    assert allow_missing(0, 0.5) == 0


def test_what_is_known_not_to_be_sampled_is_part_of_what_chance_allows():
    """Link flags already named 50 of the keys; the bound is for both together."""
    most = allow_missing(1_450, 0.5)
    assert limit_missing(500, 900, 50, 950, ratio=0.5) == most - 50
    assert limit_missing(500, 5, 50, 55, ratio=0.5) == 5
    assert limit_missing(0, 0, 0, 0, ratio=0.5) == 0


@given(
    counts=st.lists(st.tuples(st.integers(1, 500), st.sampled_from(["otlp", "native"])), max_size=12),
    most=st.integers(0, 3_000),
)
def test_a_bound_is_shared_out_to_the_last_key_and_no_slot_gets_more_than_it_has(counts, most):
    """Only keys without a span; each slot its share, rounded."""
    losses = [Loss(slot=f"s{number}", side=side, count=count) for number, (count, side) in enumerate(counts)]
    covered = {each.slot: each.count for each in share_out(losses, most)}
    whole = sum(loss.count for loss in losses if loss.side == "otlp")
    assert sum(covered.values()) == min(most, whole)
    for loss in losses:
        share = loss.count * min(most, whole) / whole if loss.side == "otlp" else 0
        assert abs(covered.get(loss.slot, 0) - share) < 1
        assert covered.get(loss.slot, 0) <= loss.count
