"""Counted drops as a budget: what they cover, what they never cover, and what a later run has of them."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.columns import is_known
from spark_jobs.explain import drop_budget
from spark_jobs.explain.drop_budget import CELL_MS, Allocation, LossGroup, LostKeys
from spark_jobs.explain.keys import RESIDUE
from spark_jobs.judging.columns import flatten_sides
from spark_jobs.schemas import CountedDrop


def loss(cell: int | None, count: int = 1, *, service: str | None = "shop", known: bool = False, **fields) -> LostKeys:
    services = None if service is None else frozenset({service})
    return LostKeys(LossGroup(fields.pop("side", "native"), service, cell=cell, **fields), count, services, known)


def drop(cell: int | None, count: int = 1, *, cause: str = "queue_full", **fields) -> CountedDrop:
    bucket = {} if cell is None else {"bucket_start_ms": cell * CELL_MS, "bucket_ms": CELL_MS}
    return CountedDrop(**{"side": "native", "component": "queue", "cause": cause, "count": count, **bucket, **fields})


def cover(losses, drops) -> dict[int | None, int]:
    reasons = Counter()
    for each in drop_budget.allocate(losses, drops)[0]:
        reasons[each.group.cell] += each.count
    return dict(reasons)


WIDE = CountedDrop(side="native", component="c", cause="x", count=9, bucket_start_ms=0, bucket_ms=CELL_MS * 4_000)
COVERED = {
    "a bucket covers its own losses before those beside it": (
        [loss(6, 5), loss(7, 12), loss(8, 5)],
        [drop(7, 12)],
        {7: 12},
    ),
    "all cells of a bucket of hours": (
        [loss(0), loss(3_999), loss(4_000), loss(4_001)],
        [WIDE],
        {0: 1, 3_999: 1, 4_000: 1},
    ),
    "another process": ([loss(7, 3, process="0A0B")], [drop(7, 99, process="0A0C")], {}),
    "another side": ([loss(7, 3, side="otlp")], [drop(7, 99)], {}),
    "an unknown time of both": ([loss(None, 3)], [drop(None, 9)], {None: 3}),
    "a loss of unknown time is in no bucket": ([loss(None, 3)], [drop(7, 9)], {}),
    "namespace and retry prefix are ignored": ([loss(7, group="%RETRY%ns1%billing")], [drop(7, group="billing")], {7: 1}),
    "the start of a delivery": ([loss(7, 2)], [drop(7, 2, of_start=True)], {}),
    "a burst whose tails were counted a bucket later": (
        [loss(1, 11), *(loss(cell, 10) for cell in range(2, 40)), loss(40, 9)],
        [drop(cell, 10) for cell in range(1, 41)],
        {1: 11, **dict.fromkeys(range(2, 40), 10), 40: 9},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("losses", "drops", "covered"), COVERED.values(), ids=COVERED)
def test_drops_cover_losses(losses, drops, covered):
    assert cover(losses, drops) == covered


def test_known_loss_uses_its_drops_before_any_other_is_covered():
    allocated, *used = drop_budget.allocate([loss(7, 3), loss(8, known=True)], [drop(7, 2)])
    assert ([(each.group.cell, each.count) for each in allocated], used) == ([(7, 1)], [(2,), (2,)])
    settled = replace(loss(8, known=True), is_settled=True)
    allocated, *used = drop_budget.allocate([settled, loss(7, 2)], [drop(7), drop(8)])
    assert ([(each.group.cell, each.count) for each in allocated], used) == ([(7, 1)], [(1, 1), (1, 0)])
    assert drop_budget.allocate([loss(7, 2)], [drop(7, 2, of_start=True), drop(7, 1)])[1] == (0, 1)
    forgotten = replace(loss(7, 2), is_settled=True)
    assert drop_budget.allocate([loss(7, 3), forgotten], [drop(7, 3)])[1:] == ((3,), (1,))


def test_drop_with_a_bucket_is_spent_before_one_without():
    losses, drops = [loss(7, 2), loss(90, 2)], [drop(None, 2, cause="send_failed"), drop(7, 2)]
    allocated, used, _ = drop_budget.allocate(losses, drops)
    assert [(each.group.cell, each.cause, each.count) for each in allocated] == [
        (7, "queue_full", 2),
        (90, "send_failed", 2),
    ]
    assert used == (2, 2)


_CELLS, _MAYBE = st.integers(0, 6), st.sampled_from([None, "a", "b"])
_LOSSES = st.lists(
    st.builds(loss, _CELLS, st.integers(1, 6), service=_MAYBE, group=_MAYBE),
    max_size=8,
    unique_by=lambda each: each.group,
)
_DROPS = st.lists(st.builds(drop, st.none() | _CELLS, st.integers(0, 6), service=_MAYBE, group=_MAYBE), max_size=8)


def _may_pay(one: CountedDrop, other: LostKeys) -> bool:
    near = one.bucket_start_ms is None or abs(one.bucket_start_ms // CELL_MS - other.group.cell) <= 1
    service = one.service is None or other.services is None or one.service in other.services
    return near and service and (None in (one.group, other.group.group) or one.group == other.group.group)


def _most(losses: list[LostKeys], drops: list[CountedDrop]) -> int:
    """Return the most keys that can be covered at all: the smallest cut, by looking at every set of drops."""
    best = sum(each.count for each in losses)
    for chosen in range(1 << len(drops)):
        inside = [each for number, each in enumerate(drops) if chosen >> number & 1]
        unpaid = [each for number, each in enumerate(drops) if not chosen >> number & 1]
        reached = sum(each.count for each in losses if any(_may_pay(one, each) for one in unpaid))
        best = min(best, sum(each.count for each in inside) + reached)
    return best


@given(losses=_LOSSES, drops=_DROPS)
def test_allocation_covers_as_much_as_the_drops_allow_and_never_more(losses, drops):
    allocated, used, _ = drop_budget.allocate(losses, drops)
    covered = Counter()
    for each in allocated:
        covered[each.group] += each.count
    assert sum(covered.values()) == sum(used) == _most(losses, drops)
    assert all(0 <= count <= each.count for count, each in zip(used, drops, strict=True))
    for each in losses:
        assert covered[each.group] <= min(each.count, sum(one.count for one in drops if _may_pay(one, each)))


count = partial(drop, None)


@pytest.mark.parametrize(
    ("now", "earlier", "left"),
    [
        ([], [count(5)], []),
        ([count(5)], [count(5)], [0]),
        ([count(7)], [count(5)], [2]),
        ([count(7, before=True)], [count(5)], [2]),
        ([count(2), count(4)], [count(5)], [0, 1]),
        ([count(5, service="shop")], [count(5)], [5]),
        ([count(5, bucket_start_ms=0, bucket_ms=20)], [count(3, bucket_start_ms=0, bucket_ms=10)], [2]),
        ([count(5, bucket_start_ms=10, bucket_ms=10)], [count(3, bucket_start_ms=0, bucket_ms=10)], [5]),
        ([count(5)], [count(3, bucket_start_ms=0, bucket_ms=10)], [2]),
        ([count(5, bucket_start_ms=0, bucket_ms=10)], [count(3)], [5]),
        ([count(5)], [count(2), count(2)], [1]),
    ],
)
def test_loss_that_is_counted_again_is_carried_over_once(now, earlier, left):
    counts = drop_budget.carry_over(now, earlier)
    assert [one.count for one in counts[: len(now)]] == left
    assert sum(one.count for one in counts[len(now) :]) == sum(one.count for one in earlier)


ID = "C0000201" + "0A0B" + "00000001" + "0" * 12


def rows_of(*rows: dict) -> dict:
    defaults = {"kind": "publish", "status": "OTLP_ONLY", "reason": "UNEXPLAINED", "on_native": False}
    return dict(flatten_sides(pa.Table.from_pylist([{**defaults, **row} for row in rows], schema=RESIDUE)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("a", -5, None, 1), -6242766807896990128),
        (("", 0, "h\u00e9llo" * 20, None), -6654923225715072744),
        ((None, 9223372036854775807, "x" * 32, 7), -5492001042696643090),
        (("publish", 3, "0123456789abcdef0123456789abcdef0123456", -9223372036854775808), -2110517724060434207),
    ],
)
def test_hash_of_a_row_equals_sparks(values, expected):
    """Printed by Spark 3.5: ``select xxhash64(a, b, c, d)``."""
    assert drop_budget.spark_hash(*values) == expected


@pytest.mark.parametrize(
    ("made", "process"),
    [
        *((made, "0A0B") for made in (ID, ID.lower(), "0" * 24 + ID)),
        *((made, None) for made in (ID[:-1], ID[:-1] + "g", None)),
        (ID[1:] + "\n", "A0B0"),  # as Java's $ took it
    ],
)
def test_process_is_read_from_the_id_that_the_losing_process_generated(made, process):
    assert drop_budget.group_residue(rows_of({"msg_id": made, "attempt_id": ID})).groups[0].process == process
    other = rows_of({"kind": "consume", "msg_id": ID, "attempt_id": made})
    assert drop_budget.group_residue(other).groups[0].process == process
    assert drop_budget.group_residue(rows_of({"kind": "recall", "msg_id": ID})).groups[0].process is None


def test_keys_of_a_group_are_chosen_by_time_then_by_hash():
    made = [{"msg_id": f"M{number}", "otlp.end_ms": at, "event_ms": at} for number, at in enumerate([5, 5, 5, 1, None])]
    columns = rows_of(*made)
    grouped, is_open = drop_budget.group_residue(columns), is_known(columns["reason"])
    by_hash = sorted(range(3), key=lambda row: drop_budget.spark_hash("publish", f"M{row}", 5))
    order = [3, *by_hash, 4]
    group = grouped.groups[0]
    for count in range(6):
        chosen = drop_budget.choose_rows(columns, grouped, is_open, [Allocation(group, "full", count)])
        assert {row for row, _ in chosen} == set(order[:count])
    two = drop_budget.choose_rows(columns, grouped, is_open, [Allocation(group, "a", 2), Allocation(group, "b", 1)])
    assert two == [(order[0], "a"), (order[1], "a"), (order[2], "b")]
