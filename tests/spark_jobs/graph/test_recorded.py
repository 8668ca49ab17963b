"""The graph of what two real systems recorded: the counts are those of the recordings' own notes."""

from __future__ import annotations

APP, SCENARIOS = "app-4.9.8-dup", "scenarios-5.3.3-old"


def sums(graph, kind: str, name: str) -> int:
    return sum(getattr(edge, name) for edge in graph.edges_of(kind))


def test_native_records_alone_give_producer_groups_topics_and_consumer_groups(recorded):
    """107 sends with their ids, 222 deliveries whose topic only their send knows; one of 3 messages without a Pub."""
    graph = recorded(APP, "native")
    assert (graph.sides, sums(graph, "publish", "count")) == (("native",), 115)
    assert sums(graph, "consume", "count") == 222
    kinds = {node.kind: node for node in graph.nodes}
    assert not any(node.services for node in graph.nodes)
    assert kinds["consumer_group"].name.startswith("CG_")
    unknown = [edge for edge in graph.edges if edge.source == "topic:"]
    assert sum(edge.messages for edge in unknown) == sum(edge.never_published for edge in unknown) > 0


def test_both_sides_count_every_send_and_delivery_once(recorded):
    """The application's own log: 120 messages, 222 deliveries; the one refused send is the one that failed."""
    graph = recorded(APP, "native", "otlp")
    assert (sums(graph, "publish", "count"), sums(graph, "consume", "count")) == (120, 222)
    assert (sums(graph, "publish", "native"), sums(graph, "publish", "otlp")) == (115, 120)
    assert (sums(graph, "consume", "native"), sums(graph, "consume", "otlp")) == (222, 222)
    assert sums(graph, "publish", "failures") == 1
    assert {node.name for node in graph.nodes if node.kind == "producer"} == {"order-service"}


def test_services_reach_each_other_over_topics(recorded):
    """Billing links in batches across traces, shipping is a child: both are edges, all 222 deliveries of them."""
    calls = {(call.parent, call.child): call.messages for call in recorded(APP, "native", "otlp").calls}
    assert calls == {("order-service", "shipping-service"): 132, ("order-service", "billing-service"): 90}


def test_one_way_send_gets_the_id_that_its_consumers_name(recorded):
    graph = recorded(APP, "otlp")
    fates = {name: sum(edge.fates[name] for edge in graph.edges_of("publish")) for name in ("consumed", "unidentified")}
    assert fates["unidentified"] == 0
    assert sums(graph, "consume", "never_published") == 0
