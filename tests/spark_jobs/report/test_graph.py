"""The graph's drawing and files: what they show is what was counted, whatever the names are."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from spark_jobs.report.graph import Call, Edge, Graph, Node, Spread, node_id
from spark_jobs.report.graph_files import node_name
from spark_jobs.report.graph_page import GRAPH_FILES, render_graph_page
from spark_jobs.report.svg.graph import MOST_NODES, graph_svg

HOSTILE = '<script>alert("x")</script>\\" ]; evil -> "\u202e\x01\n'
DOT_LINE = re.compile(r'  "((?:[^"\\]|\\.)*)"(?: -> "((?:[^"\\]|\\.)*)")? \[label="((?:[^"\\]|\\.)*)", [^"]*\];')


def made(topics: int = 3, name: str = "T{}") -> Graph:
    """Return a graph in which every topic has one producer of three and one group of its own."""
    senders = [f"P{at}" for at in range(min(topics, 3))]
    nodes = [Node(id=node_id("producer", one), kind="producer", name=one, services=(one,)) for one in senders]
    edges = []
    for at in range(topics):
        topic, group = name.format(at), f"G{at}"
        nodes += [
            Node(id=node_id("topic", topic), kind="topic", name=topic),
            Node(id=node_id("consumer_group", group), kind="consumer_group", name=group, services=("svc",)),
        ]
        sent = {"source": node_id("producer", f"P{at % 3}"), "target": node_id("topic", topic), "kind": "publish"}
        given = {"source": node_id("topic", topic), "target": node_id("consumer_group", group), "kind": "consume"}
        counts = {"count": 10 * (topics - at), "messages": 10 * (topics - at)}
        edges += [
            Edge(**sent, **counts, failures=at % 2, fates={"consumed": counts["count"]}, took=Spread(count=1, p95=3)),
            Edge(**given, **counts, is_loop=at == 0, queued=Spread(count=2, p50=1, p95=2, p99=2, min=-4, max=2)),
        ]
    calls = (Call(parent="P0", child="svc", direct=2, messages=3),)
    return Graph(sides=("otlp",), nodes=tuple(nodes), edges=tuple(edges), calls=calls, opening_ms=1, horizon_ms=2)


def cards(svg: str) -> list[tuple[float, float]]:
    return [(float(card.get("x")), float(card.get("y"))) for card in ET.fromstring(svg).iter("rect")]


@pytest.mark.parametrize("topics", [1, 3, 20])
def test_every_node_has_a_card_and_every_edge_a_line(topics):
    """No two cards lie on each other; each edge has a line and a tip."""
    graph = made(topics)
    svg = graph_svg(graph)
    places = cards(svg)
    assert len(places) == len(set(places)) == len(graph.nodes)
    assert len(list(ET.fromstring(svg).iter("path"))) == 2 * len(graph.edges)


def test_a_large_graph_shows_the_busiest_and_says_how_many_more_there_are():
    """Sixty topics: twenty are drawn, with their groups; forty more of each are said, none silently left out."""
    svg = graph_svg(made(60))
    texts = [text.text for text in ET.fromstring(svg).iter("text")]
    assert len(cards(svg)) == 3 + 2 * MOST_NODES
    assert {"and 40 topics more", "and 40 consumer groups more"} <= set(texts)
    assert {"T0", "T19"} <= set(texts)
    assert "T20" not in texts


def test_the_same_graph_is_drawn_the_same_way_in_any_order():
    """The order of nodes and edges in the data decides nothing."""
    graph = made(9)
    turned = replace(graph, nodes=graph.nodes[::-1], edges=graph.edges[::-1])
    assert sorted(cards(graph_svg(graph))) == sorted(cards(graph_svg(turned)))
    named = {text.text: text.get("y") for text in ET.fromstring(graph_svg(graph)).iter("text")}
    assert named.items() >= {text.text: text.get("y") for text in ET.fromstring(graph_svg(turned)).iter("text")}.items()


def test_an_empty_graph_says_so_in_every_file():
    """Nothing was sent: each format is still well formed."""
    written = {name: render(Graph()) for name, render in GRAPH_FILES.items()}
    assert "no message was sent or delivered" in written["graph.svg"]
    assert json.loads(written["dependencies.json"]) == []
    assert json.loads(written["graph.json"])["edges"] == []
    ET.fromstring(written["graph.graphml"].partition("\n")[2])


def test_a_hostile_name_is_text_everywhere():
    """In markup, XML and DOT it stays one name; nothing of it is carried out or hidden."""
    graph = made(2, name=HOSTILE + "{}")
    assert "<script>" not in render_graph_page(graph)
    ET.fromstring(GRAPH_FILES["graph.svg"](graph))
    ET.fromstring(GRAPH_FILES["graph.graphml"](graph).partition("\n")[2])
    body = GRAPH_FILES["graph.dot"](graph).splitlines()[3:-1]
    parsed = [DOT_LINE.fullmatch(line) for line in body]
    assert all(parsed)
    labels = [re.sub(r"\\(.)", r"\1", found[3]) for found in parsed if found[2] is None]
    assert labels == [node_name(node) for node in graph.nodes]


def test_dependencies_have_the_shape_that_jaeger_reads():
    """Parent, child, callCount and nothing else; both ways of reaching a service are added up."""
    assert json.loads(GRAPH_FILES["dependencies.json"](made())) == [{"parent": "P0", "child": "svc", "callCount": 5}]


def test_rates_are_of_what_is_known_and_topics_are_totalled():
    """An unknown outcome is no success; a topic's node carries the sums of its edges."""
    edge = Edge(source="producer:P", target="topic:T", kind="publish", count=10, messages=8, failures=1, again=2)
    assert (replace(edge, outcome_unknown=6).error_rate, edge.retry_rate) == (0.25, 0.2)
    plain = made(1).to_json()
    topic = next(node for node in plain["nodes"] if node["kind"] == "topic")
    assert (topic["sends"], topic["deliveries"], topic["consumer_groups"]) == (10, 10, 1)
