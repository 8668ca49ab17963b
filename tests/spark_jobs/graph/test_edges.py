"""Legs add up to edges: against a plain Python oracle, capped, and one word for every message without a delivery."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.graph.edges import COUNTS, edges, members, messaging_calls
from spark_jobs.graph.journeys import journeys
from spark_jobs.graph.legs import LEG
from spark_jobs.graph.owners import owners, read_owners
from spark_jobs.graph.read import read_calls, read_graph
from tests.support import graph_oracle

pytestmark = pytest.mark.spark

OPENING_MS, HORIZON_MS = 1_000, 9_000
TOPICS = ["orders", "bills", "DefaultCluster_REPLY_TOPIC", None]
_times = st.sampled_from([None, 0, 999, 1_000, 5_000, 8_999, 9_000, 9_001, 20_000])
_outcomes = st.sampled_from([True, True, True, False, None])


def leg(kind: str, message: str, **fields: Any) -> dict[str, Any]:
    clean = {
        "identified": True,
        "bare_topic": "orders",
        "success": True,
        "inside": True,
        "on_native": False,
        "on_otlp": True,
        "event_ms": 5_000,
        "finished": True if kind == "consume" else None,
    }
    return {**dict.fromkeys(LEG.names), **clean, "kind": kind, "message": message, **fields}


@st.composite
def any_leg(draw: st.DrawFn, kind: str, message: str) -> dict[str, Any]:
    consume = kind == "consume"
    return leg(
        kind,
        message,
        bare_topic=draw(st.sampled_from(TOPICS)),
        via=draw(st.sampled_from([None, None, None, "RETRY", "DLQ"])),
        group=draw(st.sampled_from(["G1", "G2", None])),
        service=draw(st.sampled_from(["shop", "bank", None, None])),
        event_ms=draw(_times),
        busy_ms=draw(st.sampled_from([None, 0, 3, 500])),
        queue_ms=draw(st.sampled_from([None, -4, 7, 80])) if consume else None,
        finished=draw(st.booleans()) if consume else None,
        success=draw(_outcomes),
        retry_times=draw(st.sampled_from([None, 0, 0, 2])),
        msg_type=draw(st.sampled_from([None, "Normal_Msg", "Trans_Msg_Half", "Delay_Msg"])),
        inside=draw(st.sampled_from([True, True, True, False])),
        on_native=draw(st.booleans()),
    )


@st.composite
def ways(draw: st.DrawFn, message: str) -> list[dict[str, Any]]:
    """Return the legs of one message: sends, deliveries, copies over retry and dead-letter topics, an end, a recall."""
    identified = draw(st.sampled_from([True, True, True, False]))
    kinds = draw(st.lists(st.sampled_from(["publish", "publish", "consume", "consume"]), max_size=5))
    found = [draw(any_leg(kind, message)) for kind in kinds]
    states = draw(st.lists(st.sampled_from(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]), max_size=1))
    found += [leg("transaction_end", message, transaction_state=state) for state in states]
    found += [leg("recall", message)] * draw(st.sampled_from([0, 0, 0, 1]))
    topics = {"bare_topic": "CG"}
    return [{**one, "identified": identified, **(topics if one["via"] else {})} for one in found]


def told(spark, legs: list[dict[str, Any]], **bounds):
    frame = spark.createDataFrame([tuple(one[name] for name in LEG.names) for one in legs], LEG)
    span = {"opening_ms": OPENING_MS, "horizon_ms": HORIZON_MS}
    return journeys(frame.repartition(2), read_owners(owners(frame).collect()), **{**span, **bounds})


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_edges_are_what_a_plain_reading_of_the_definitions_gives(spark, data):
    """Fifty messages of every kind at once: counts, fates, origins and percentiles of every edge."""
    legs = [one for at in range(50) for one in data.draw(ways(f"M{at}"))]
    found = {}
    for row in edges(told(spark, legs)).collect():
        counts = {name: row[name] for name in COUNTS if row[name]}
        for name in ("busy_ms", "queue_ms"):
            ranks = row[name]["ranks"] or ()
            counts |= {f"{name}_{rank}": value for rank, value in zip((50, 95, 99), ranks, strict=False) if value}
        found[row["kind"], row["party"], row["topic"]] = counts
    assert found == graph_oracle.edges(legs, opening_ms=OPENING_MS, horizon_ms=HORIZON_MS)


@pytest.fixture(scope="module")
def capped(spark):
    """Two edges a kind are told, one more for all others."""
    legs = []
    for topic, sends in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
        known = {"bare_topic": topic, "service": "shop", "group": "P", "busy_ms": 9}
        legs += [leg("publish", f"{topic}{at}", **known) for at in range(sends)]
        legs.append(leg("consume", f"{topic}0", bare_topic=topic, service="shop", group=f"G{topic}", queue_ms=7))
    legs.append(leg("consume", "x", bare_topic=None, service=None, group="Ga", on_native=True, on_otlp=False))
    ways_ = told(spark, legs).cache()
    rows = edges(ways_, at_most=2).collect(), members(ways_).collect()
    calls = read_calls([{"parent": "web", "child": "shop", "calls": 4}], messaging_calls(ways_).collect())
    ways_.unpersist()
    return read_graph(*rows, sides=("otlp",), calls=calls)


def test_what_is_beyond_the_cap_is_summed_up_in_one_edge_a_kind(capped):
    """The busiest are told one by one; the others' counts add up, their percentiles are left out."""
    sends, deliveries = capped.edges_of("publish"), capped.edges_of("consume")
    assert [(edge.target, edge.count, edge.stands_for) for edge in sends] == [
        ("topic:a", 5, 0),
        ("topic:b", 4, 0),
        ("others:topic", 5, 2),
    ]
    assert (sends[0].took.p95, sends[-1].took.count) == (9, 0)
    assert sum(edge.count for edge in sends) == 14
    assert sum(edge.count for edge in deliveries) == 5
    assert deliveries[-1].stands_for == 3
    assert [node.name for node in capped.nodes if node.stands_for] == ["others", "others", "others"]


def test_a_group_that_sends_to_its_own_topic_is_a_loop(capped):
    """A service of the group is among the topic's senders, and its call to itself over the topic is counted."""
    assert {edge.source for edge in capped.edges_of("consume") if edge.is_loop} == {"topic:a"}
    calls = {(call.parent, call.child): (call.direct, call.messages) for call in capped.calls}
    assert calls == {("web", "shop"): (4, 0), ("shop", "shop"): (0, 4)}


def test_a_node_says_which_services_and_groups_it_stands_for(capped):
    """A producer is its service and tells its groups; a delivery by an owned group runs in the owner."""
    nodes = {node.id: node for node in capped.nodes}
    assert nodes["producer:shop"].groups == ("P",)
    assert nodes["consumer_group:Ga"].services == ("shop",)


def test_nothing_is_missing_where_the_data_has_no_settled_part(spark):
    """Without a horizon nothing is called never consumed or never published."""
    legs = [leg("publish", "m", service="shop"), leg("consume", "n", group="G")]
    rows = edges(told(spark, legs, opening_ms=None, horizon_ms=None)).collect()
    counts = {row["kind"]: row for row in rows}
    assert counts["publish"]["fate_pending"] == counts["consume"]["origin_unjudged"] == 1
