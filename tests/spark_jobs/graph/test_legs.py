"""Verdicts become legs: names without what stands around them, places for want of ids, the owners of groups."""

from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark_jobs.graph import legs as graph_legs
from spark_jobs.graph.edges import find_judged_span
from spark_jobs.schemas import VERDICT
from spark_jobs.sums import sum_of


def verdict(kind: str = "consume", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "msg_id": "M1", "status": "MATCHED_EXACT", "topic": "orders", "otlp": {}, **fields}


def verdicts(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([*rows], schema=VERDICT)


OF_BOTH_SIDES = verdict(
    native={"start_ms": 5, "success": False, "msg_type": "Normal_Msg"},
    otlp={"start_ms": 6, "end_ms": 9, "success": True, "transaction_state": "UNKNOW"},
    status="OUT_OF_SCOPE",
    event_ms=-1,
)
VALUES = {
    "names without namespace": (verdict(group="ns%CG", otlp={"service": ""}), {"group": "CG", "service": None}),
    "blank names": (verdict(group="", otlp={"service": "shop"}), {"group": None, "service": "shop"}),
    "the native side first": (
        OF_BOTH_SIDES,
        {"busy_ms": 4, "success": False, "msg_type": "Normal_Msg", "transaction_state": "UNKNOW", "finished": True}
        | {"inside": False, "on_native": True, "on_otlp": True, "event_ms": None},
    ),
    "a send is neither finished nor not": (verdict("publish", otlp={"end_ms": 5}), {"finished": None}),
    "a finished delivery": (verdict(otlp={"end_ms": 5}), {"finished": True}),
    "an unfinished delivery": (verdict(otlp={"end_ms": None}), {"finished": False}),
    "a duration that overflows": (verdict(otlp={"start_ms": -(2**62) * 2 + 1, "end_ms": 2**62}), {"busy_ms": None}),
    **{
        f"topic {topic!r:.12}": (verdict(topic=topic), {"via": via, "namespace": namespace, "bare_topic": bare})
        for topic, via, namespace, bare in [
            ("orders", None, None, "orders"),
            ("%DLQ%ns%CG", "DLQ", "ns", "CG"),
            *((unnamed, None, None, None) for unnamed in ("", None)),
            ("x" * 1_200, None, None, "x" * 1_000),
        ]
    },
}


@pytest.mark.parametrize(("row", "values"), VALUES.values(), ids=VALUES)
def test_leg_has_the_values_of_its_verdict(row, values):
    legs = graph_legs.make_legs(verdicts(row))
    assert legs.schema == graph_legs.LEG
    (leg,) = legs.to_pylist()
    assert {name: leg[name] for name in values} == values


def test_row_without_an_id_is_a_message_of_its_own(tmp_path):
    place = {"path": "f", "line": 3, "record_index": 0}
    rows = verdicts(
        verdict(msg_id=None, otlp={"trace_id": "t", "span_id": "s", **place}),
        verdict(msg_id=None, otlp=None, native=place),
        verdict(msg_id=None, otlp=place),
        verdict(),
    )
    paths = [str(tmp_path / name) for name in "ab"]
    for path, part in zip(paths, (rows[:3], rows[3:]), strict=True):
        parquet.write_table(part, path, row_group_size=2)
    legs = graph_legs.read_verdict_legs(paths)
    assert legs.equals(graph_legs.make_legs(rows))
    made = [("span:t/s", False), ("row:f:3:0", False), ("row:f:3:0", False), ("M1", True)]
    assert [(leg["message"], leg["identified"]) for leg in legs.to_pylist()] == made


def test_group_belongs_to_the_only_service_of_its_legs():
    named = [verdict(group=group, otlp={"service": "shop"}) for group in "ABC"]
    others = [verdict(group="A"), verdict("publish", group="B"), verdict(group="C")]
    one, other = (
        graph_legs.make_legs(verdicts(*rows))
        for rows in (named, [*others, verdict(group="C", otlp={"service": "bank"})])
    )
    owners = sum_of(dict, [graph_legs.find_owners(one), graph_legs.find_owners(other)])
    assert graph_legs.choose_owners(owners) == {("consume", "A"): "shop"}


def test_owners_of_verdicts_are_those_of_their_legs():
    rows = verdicts(verdict(group="ns%A", otlp={"service": "shop"}), verdict(group="A"), verdict("publish", group=None))
    assert graph_legs.find_verdict_owners(rows) == graph_legs.find_owners(graph_legs.make_legs(rows))


def test_missing_sends_and_deliveries_count_a_grace_from_either_end_of_the_data():
    assert find_judged_span(0, 201_000, 1_000) == (1_000, 200_000)
    assert find_judged_span(None, None, 1_000) == (None, None)
