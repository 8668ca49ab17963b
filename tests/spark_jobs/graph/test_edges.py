"""Legs add up to edges: against a plain Python oracle, in parts, capped, and a fate for every message."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.graph.edges import SPREADS, GraphPart, add_up, build_graph, merge_parts
from spark_jobs.graph.legs import COUNTS, LEG, choose_owners, find_owners, merge_owners
from tests.spark_jobs.graph import graph_oracle

OPENING_MS, HORIZON_MS = 1_000, 9_000
TOPICS = ["orders", "bills", "DefaultCluster_REPLY_TOPIC", None]
_times = st.sampled_from([None, 0, 999, 1_000, 5_000, 8_999, 9_000, 9_001, 20_000])
_outcomes = st.sampled_from([True, True, True, False, None])


def leg(kind: str, message: str, **fields: Any) -> dict[str, Any]:
    flags = {"identified": True, "success": True, "inside": True, "on_native": False, "on_otlp": True}
    clean = {**flags, "bare_topic": "orders", "event_ms": 5_000, "finished": True if kind == "consume" else None}
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
    drawn_legs = [draw(any_leg(kind, message)) for kind in kinds]
    states = draw(st.lists(st.sampled_from(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]), max_size=1))
    drawn_legs += [leg("transaction_end", message, transaction_state=state) for state in states]
    drawn_legs += [leg("recall", message)] * draw(st.sampled_from([0, 0, 0, 1]))
    topics = {"bare_topic": "CG"}
    return [{**one, "identified": identified, **(topics if one["via"] else {})} for one in drawn_legs]


def add_up_in(parts: int, legs: list[dict[str, Any]], judged: Any = (OPENING_MS, HORIZON_MS)) -> GraphPart:
    numbers = {message: at for at, message in enumerate(dict.fromkeys(one["message"] for one in legs))}
    some = [[one for one in legs if numbers[one["message"]] % parts == part] for part in range(parts)]
    tables = [pa.Table.from_pylist(rows, schema=LEG) for rows in some]
    owned = choose_owners(merge_owners(map(find_owners, tables)))
    return merge_parts(add_up(table, owned, judged) for table in tables)


def counts_of(part: GraphPart) -> dict[Any, dict[str, int]]:
    """Return the counts and percentiles of each edge that are not zero."""
    edges_of = {}
    for key, edge in part.edges.items():
        counts = {name: count for name, count in zip(COUNTS, edge.counts.tolist(), strict=True) if count}
        for name, spread in zip(SPREADS, edge.spreads, strict=True):
            ranks = spread.rank((0.5, 0.95, 0.99)) if spread else ()
            counts |= {f"{name}_{rank}": value for rank, value in zip((50, 95, 99), ranks, strict=False) if value}
        edges_of[key] = counts
    return edges_of


@settings(max_examples=12)
@given(data=st.data(), parts=st.integers(1, 3))
def test_edges_agree_with_the_plain_python_oracle(data, parts):
    legs = [one for at in range(30) for one in data.draw(ways(f"M{at}"))]
    expected = graph_oracle.edges(legs, opening_ms=OPENING_MS, horizon_ms=HORIZON_MS)
    assert counts_of(add_up_in(parts, legs)) == expected


@settings(max_examples=5)
@given(data=st.data())
def test_graph_does_not_depend_on_the_number_of_parts(data):
    legs = [one for at in range(20) for one in data.draw(ways(f"M{at}"))]
    how = {"sides": ("otlp",), "judged": (OPENING_MS, HORIZON_MS), "at_most": 3}
    assert build_graph(add_up_in(4, legs), **how) == build_graph(add_up_in(1, legs), **how)


def test_no_legs_give_an_empty_graph():
    graph = build_graph(add_up_in(1, []), sides=("native",), judged=(None, None))
    assert (graph.nodes, graph.edges, graph.calls, graph.first_ms) == ((), (), (), None)


@pytest.fixture(scope="module")
def capped_part():
    legs = []
    for topic, sends in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
        known = {"bare_topic": topic, "service": "shop", "group": "P", "busy_ms": 9}
        legs += [leg("publish", f"{topic}{at}", **known) for at in range(sends)]
        legs.append(leg("consume", f"{topic}0", bare_topic=topic, service="shop", group=f"G{topic}", queue_ms=7))
    legs.append(leg("consume", "x", bare_topic=None, service=None, group="Ga", on_native=True, on_otlp=False))
    return add_up_in(2, legs)


def test_edges_beyond_the_cap_are_summed_up_in_one_edge_a_kind(capped_part):
    capped = build_graph(capped_part, sides=("otlp",), judged=(OPENING_MS, HORIZON_MS), at_most=2)
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


@pytest.fixture(scope="module")
def whole(capped_part):
    return build_graph(capped_part, sides=("otlp",), judged=(OPENING_MS, HORIZON_MS), direct={("web", "shop"): 4})


def test_delivery_to_a_service_that_sends_to_the_topic_is_a_loop(whole):
    assert {edge.source for edge in whole.edges_of("consume") if edge.is_loop} == {f"topic:{name}" for name in "abcd"}
    calls = {(call.parent, call.child): (call.direct, call.messages) for call in whole.calls}
    assert calls == {("web", "shop"): (4, 0), ("shop", "shop"): (0, 4)}


def test_node_lists_the_services_and_groups_it_stands_for(whole):
    nodes = {node.id: node for node in whole.nodes}
    assert nodes["producer:shop"].groups == ("P",)
    assert nodes["consumer_group:Ga"].services == ("shop",)


def test_no_message_is_missing_without_a_settled_part():
    legs = [leg("publish", "m", service="shop"), leg("consume", "n", group="G")]
    counts = counts_of(add_up_in(1, legs, (None, None)))
    assert counts["publish", "shop", "orders"]["fate_pending"] == 1
    assert counts["consume", "G", "orders"]["origin_unjudged"] == 1
