"""Loss groups: their names, their key, and the rows chosen of one."""

import pyarrow as pa
import pytest

from spark_jobs.columns import is_known
from spark_jobs.explain.drop_budget import Allocation, LossGroup, choose_rows, group_residue, spark_hash
from spark_jobs.explain.keys import RESIDUE
from spark_jobs.judging.columns import flatten_sides

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
    assert spark_hash(*values) == expected


def test_name_of_a_group_is_json_without_nulls():
    assert LossGroup("native", None, None, None, None).name == '{"lost":"native"}'
    named = LossGroup("otlp", 'q"\\\x01\n/\u00fc', "g", "0A0B", -3).name
    assert named == '{"lost":"otlp","service":"q\\"\\\\\\u0001\\n/\u00fc","grp":"g","process":"0A0B","cell":-3}'


@pytest.mark.parametrize(
    ("made", "process"),
    [
        (ID, "0A0B"),
        (ID.lower(), "0A0B"),
        ("0" * 24 + ID, "0A0B"),
        (ID[:-1], None),
        (ID[:-1] + "g", None),
        (ID[1:] + "\n", "A0B0"),  # as Java's $ took it
        (None, None),
    ],
)
def test_process_is_read_from_the_id_that_the_losing_process_generated(made, process):
    columns = rows_of({"msg_id": made, "attempt_id": ID})
    assert group_residue(columns).groups[0].process == process
    other = rows_of({"kind": "consume", "msg_id": ID, "attempt_id": made})
    assert group_residue(other).groups[0].process == process
    assert group_residue(rows_of({"kind": "recall", "msg_id": ID})).groups[0].process is None


def test_cell_is_known_near_a_bucket_only():
    columns = rows_of(*({"otlp.end_ms": ms} for ms in (19_999, 20_000, 39_999, 40_000, -1, 1 << 62)))
    near = group_residue(columns, [range(2, 4)])
    assert [near.groups[place].cell for place in near.group_of] == [None, 2, 3, None, None, None]
    assert {group.cell for group in group_residue(columns).groups} == {None}
    many = [range(cell, cell + 1) for cell in range(2, 1_000, 2)]
    hull = group_residue(columns, many)
    assert [hull.groups[place].cell for place in hull.group_of] == [None, 2, 3, 4, None, None]


def test_keys_of_a_group_are_chosen_by_time_then_by_hash():
    made = [{"msg_id": f"M{number}", "otlp.end_ms": at, "event_ms": at} for number, at in enumerate([5, 5, 5, 1, None])]
    columns = rows_of(*made)
    grouped, is_open = group_residue(columns), is_known(columns["reason"])
    by_hash = sorted(range(3), key=lambda row: spark_hash("publish", f"M{row}", 5))
    order = [3, *by_hash, 4]
    group = grouped.groups[0]
    for count in range(6):
        chosen = choose_rows(columns, grouped, is_open, [Allocation(group, "full", count)])
        assert {row for row, _ in chosen} == set(order[:count])
    two = choose_rows(columns, grouped, is_open, [Allocation(group, "a", 2), Allocation(group, "b", 1)])
    assert two == [(order[0], "a"), (order[1], "a"), (order[2], "b")]
