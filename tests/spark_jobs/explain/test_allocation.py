"""Counted drops as a budget: what they cover, what they never cover, and that nothing but the data decides."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.drops import CountedDrop
from spark_jobs.explain.budgets.allocation import CELL_MS, Loss, allocate


def loss(cell: int | None, count: int = 1, *, service: str | None = "shop", **fields) -> Loss:
    services = None if service is None else frozenset({service})
    slot = f"{fields.get('side', 'native')}/{service}/{fields.get('group')}/{fields.get('process')}/{cell}"
    return Loss(**{"slot": slot, "side": "native", "count": count, "services": services, "cell": cell, **fields})


def drop(cell: int | None, count: int = 1, *, cause: str = "queue_full", **fields) -> CountedDrop:
    bucket = {} if cell is None else {"bucket_start_ms": cell * CELL_MS, "bucket_ms": CELL_MS}
    return CountedDrop(**{"side": "native", "component": "queue", "cause": cause, "count": count, **bucket, **fields})


def paid(losses, drops) -> dict[int | None, int]:
    """Return how many keys of each cell are covered."""
    found = Counter()
    cell_of = {each.slot: each.cell for each in losses}
    for each in allocate(losses, drops).covered:
        found[cell_of[each.slot]] += each.count
    return dict(found)


def test_a_bucket_that_counts_exactly_its_losses_covers_exactly_them():
    """Losses that nobody counted, one bucket away, must not take the counter from those it counted."""
    assert paid([loss(6, 5), loss(7, 12), loss(8, 5)], [drop(7, 12)]) == {7: 12}


def test_a_counter_covers_a_part_and_the_rest_stays_open():
    """Five of twelve; and of five losses no more than five."""
    assert paid([loss(7, 12)], [drop(7, 5)]) == {7: 5}
    assert allocate([loss(7, 5)], [drop(7, 12)]).spent == (5,)


def test_one_bucket_of_distance_is_forgiven_and_two_are_not():
    """A span's end, a record's end and the counter's clock may fall on either side of a boundary."""
    assert paid([loss(6), loss(8)], [drop(7, 2)]) == {6: 1, 8: 1}
    assert paid([loss(5), loss(9)], [drop(7, 2)]) == {}


def test_counts_shift_along_a_long_burst():
    """Each bucket's tail was counted in the next one: all are covered although the two ends are far apart."""
    losses = [loss(1, 11), *(loss(cell, 10) for cell in range(2, 40)), loss(40, 9)]
    drops = [drop(cell, 10) for cell in range(1, 41)]
    assert sum(paid(losses, drops).values()) == 400


@pytest.mark.parametrize(
    ("of_loss", "of_drop"),
    [
        ({"service": "shop"}, {"service": "cart"}),
        ({"group": "billing"}, {"group": "mail"}),
        ({"process": "0A0B"}, {"process": "0A0C"}),
        ({"side": "otlp"}, {"side": "native"}),
    ],
)
def test_a_large_counter_elsewhere_excuses_nothing_here(of_loss, of_drop):
    """Another service, group, process or side: not one key, however much was counted there."""
    assert paid([loss(7, 3, **of_loss)], [drop(7, 1_000_000, **of_drop)]) == {}


def test_what_is_unknown_on_either_side_is_no_contradiction():
    """A native record names no service, a dump of counters neither group nor time."""
    assert paid([loss(7, 3, service=None, group="g")], [drop(None, 2, service="shop")]) == {7: 2}
    assert paid([loss(None, 3)], [drop(None, 9)]) == {None: 3}
    assert paid([loss(None, 3)], [drop(7, 9)]) == {}


def test_a_lost_start_of_a_delivery_pays_for_no_key():
    """Its end made the key known; where that was lost, too, it was counted once more."""
    assert paid([loss(7, 2)], [drop(7, 2, of_start=True)]) == {}
    assert allocate([loss(7, 2)], [drop(7, 2, of_start=True), drop(7, 1)]).spent == (0, 1)


def test_what_was_counted_for_a_known_key_is_spent_before_any_other_is_covered():
    """The lost end of a delivery a bucket away comes before a key in the very bucket; and it never gives way again."""
    known, other = loss(8, known=True), loss(7, 3)
    found = allocate([other, known], [drop(7, 2)]).covered
    assert [(each.slot, each.count) for each in found] == [(other.slot, 1), (known.slot, 1)]
    assert paid([loss(8, known=True), loss(7, 2)], [drop(7), drop(8)]) == {8: 1, 7: 1}


def test_drops_that_pay_for_the_same_are_one_to_the_budget():
    """Five hundred slots and a thousand rows without a bucket: no half a million pairs; each row says what it paid."""
    drops = [drop(None, cause=f"c{number % 2}", service="shop", component=f"q{number}") for number in range(1_000)]
    losses = [loss(cell, 1) for cell in range(500)]
    tracemalloc.start()
    try:
        found = allocate(losses, [*drops, drop(None, 500, service="cart")])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert (sum(found.spent), max(found.spent), found.spent[-1]) == (500, 1, 0)
    assert Counter(each.cause for each in found.covered) == {"c0": 250, "c1": 250}


def test_namespaces_and_retry_prefixes_do_not_tell_groups_apart():
    """The native record may have stripped what the counter kept."""
    assert paid([loss(7, group="%RETRY%ns1%billing")], [drop(7, group="billing")]) == {7: 1}


def test_the_better_known_counter_pays_first():
    """A counter of the whole run stays for the losses that no bucket covers."""
    losses, drops = [loss(7, 2), loss(90, 2)], [drop(None, 2, cause="send_failed"), drop(7, 2)]
    allocation = allocate(losses, drops)
    assert sorted((each.slot, each.cause, each.count) for each in allocation.covered) == [
        (losses[0].slot, "queue_full", 2),
        (losses[1].slot, "send_failed", 2),
    ]
    assert allocation.spent == (2, 2)


def test_a_bucket_of_hours_pays_wherever_it_reaches():
    """A counter that was read twice a day."""
    wide = CountedDrop(side="native", component="c", cause="x", count=9, bucket_start_ms=0, bucket_ms=CELL_MS * 4_000)
    assert paid([loss(0), loss(3_999), loss(4_000), loss(4_001)], [wide]) == {0: 1, 3_999: 1, 4_000: 1}


_NAMES = st.sampled_from(["a", "b"])
_MAYBE = st.one_of(st.none(), _NAMES)
_LOSSES = st.lists(
    st.builds(
        lambda cell, count, service, group: loss(cell, count, service=service, group=group),
        st.integers(0, 6),
        st.integers(1, 6),
        _MAYBE,
        _MAYBE,
    ),
    max_size=8,
    unique_by=lambda each: each.slot,
)
_DROPS = st.lists(
    st.builds(
        lambda cell, count, service, group: drop(cell, count, service=service, group=group),
        st.one_of(st.none(), st.integers(0, 6)),
        st.integers(0, 6),
        _MAYBE,
        _MAYBE,
    ),
    max_size=8,
)


def _may_pay(one: CountedDrop, other: Loss) -> bool:
    near = one.bucket_start_ms is None or abs(one.bucket_start_ms // CELL_MS - other.cell) <= 1
    service = one.service is None or other.services is None or one.service in other.services
    return near and service and (None in (one.group, other.group) or one.group == other.group)


def _most(losses: list[Loss], drops: list[CountedDrop]) -> int:
    """Return the most keys that can be covered at all: the smallest cut, by looking at every set of drops."""
    total, best = sum(each.count for each in losses), None
    for chosen in range(1 << len(drops)):
        inside = [each for number, each in enumerate(drops) if chosen >> number & 1]
        unpaid = [each for number, each in enumerate(drops) if not chosen >> number & 1]
        reached = sum(each.count for each in losses if any(_may_pay(one, each) for one in unpaid))
        cut = sum(each.count for each in inside) + reached
        best = cut if best is None else min(best, cut)
    return min(total, best or 0)


@given(losses=_LOSSES, drops=_DROPS)
def test_as_much_is_covered_as_the_counters_allow_and_never_more(losses, drops):
    """The sum is the largest there is; no drop is spent twice, no loss covered twice, none by a stranger's counter."""
    allocation = allocate(losses, drops)
    covered = Counter()
    for each in allocation.covered:
        covered[each.slot] += each.count
    assert sum(covered.values()) == sum(allocation.spent) == _most(losses, drops)
    assert all(covered[each.slot] <= each.count for each in losses)
    assert all(0 <= spent <= each.count for spent, each in zip(allocation.spent, drops, strict=True))
    for each in losses:
        assert covered[each.slot] <= sum(one.count for one in drops if _may_pay(one, each))


@given(losses=_LOSSES, drops=_DROPS, seed=st.integers())
def test_the_order_of_the_losses_decides_nothing(losses, drops, seed):
    """Rows come from Spark in any order."""
    shuffled = losses[:]
    random.Random(seed).shuffle(shuffled)
    assert allocate(shuffled, drops) == allocate(losses, drops)
