"""The graph's drawing and files: what they show is what was counted, whatever the names are."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.graph.legs import FATES
from spark_jobs.report.graph import Edge, Graph, Node, Spread, node_id
from spark_jobs.report.graph_files import MOST_NODES, graph_svg, node_name, render_dot, render_files, render_graph_page

HOSTILE = '<script>alert("x")</script>\\" ]; evil -> "\u202e\x01\n'
DOT_LINE = re.compile(r'  "((?:[^"\\]|\\.)*)"(?: -> "((?:[^"\\]|\\.)*)")? \[label="((?:[^"\\]|\\.)*)", [^"]*\];')


def made(topics: int = 3, name: str = "T{}") -> Graph:
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
            Edge(**given, **counts, queued=Spread(count=2, p50=1, p95=2, p99=2, min=-4, max=2)),
        ]
    return Graph(sides=("otlp",), nodes=tuple(nodes), edges=tuple(edges), opening_ms=1, horizon_ms=2)


def cards(svg: str) -> list[tuple[float, float]]:
    return [(float(card.get("x")), float(card.get("y"))) for card in ET.fromstring(svg).iter("rect")]


LETTER = 0.62  # of the font's size: wider than the mean letter of the fonts that browsers take


def boxes(svg: str) -> list[tuple[str, float, float, float, float]]:
    """Return every label beside an edge as (text, left, top, right, bottom)."""
    texts = [text for text in ET.fromstring(svg).iter("text") if text.get("font-size") == "10"]
    return [
        (text.text, x, y - 8, x + len(text.text) * 10 * LETTER * 0.9, y + 2)
        for text in texts
        for x, y in [(float(text.get("x")), float(text.get("y")))]
    ]


def strokes(svg: str) -> list[tuple[list[tuple[float, float]], float]]:
    """Return every edge as points along it and half its thickness."""
    labels = []
    for path in ET.fromstring(svg).iter("path"):
        if path.get("fill") == "none":
            x, y, bent, *curve = map(float, re.findall(r"[\d.]+", path.get("d")))
            ends = [(bent, y), *zip(curve[::2], curve[1::2], strict=True)]
            bend = [bezier(ends, at / 40) for at in range(41)]
            stub = [(x + (bent - x) * at / 40, y) for at in range(41)]
            labels.append((stub + bend, float(path.get("stroke-width")) / 2))
    return labels


def bezier(ends: list[tuple[float, float]], at: float) -> tuple[float, float]:
    weights = ((1 - at) ** 3, 3 * at * (1 - at) ** 2, 3 * at**2 * (1 - at), at**3)
    return tuple(sum(weight * end[axis] for weight, end in zip(weights, ends, strict=True)) for axis in (0, 1))


@st.composite
def meshes(draw):
    """Return graphs in which up to eight topics have any producers and groups, with counts up to ten billion."""
    sizes = [draw(st.integers(1, 8)) for _ in range(3)]
    kinds = ("producer", "topic", "consumer_group")
    nodes = [
        Node(id=node_id(kind, f"{kind}-{at}"), kind=kind, name=f"{kind}-{at}", services=("a-service-of-some-length",))
        for kind, size in zip(kinds, sizes, strict=True)
        for at in range(size)
    ]
    numbers = st.sampled_from([1, 7, 4_000, 99_999, 123_456, 9_876_543, 9_876_543_210])
    edges = []
    for first, second, kind in (("producer", "topic", "publish"), ("topic", "consumer_group", "consume")):
        pairs = [(a, b) for a in nodes if a.kind == first for b in nodes if b.kind == second]
        for a, b in draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)):
            n = draw(numbers)
            counts = {"failures": draw(st.sampled_from([0, 1, n])), "again": draw(st.sampled_from([0, n]))}
            edges.append(Edge(source=a.id, target=b.id, kind=kind, count=n, messages=n, **counts))
    return Graph(sides=("otlp",), nodes=tuple(nodes), edges=tuple(edges))


@given(meshes())
@settings(max_examples=30)
def test_no_label_lies_on_an_edge_a_card_or_another_label(graph):
    svg = graph_svg(graph)
    drawn = boxes(svg)
    for at, (_, left, top, right, bottom) in enumerate(drawn):
        for _, other_left, other_top, other_right, other_bottom in drawn[:at]:
            assert left >= other_right or other_left >= right or top >= other_bottom or other_top >= bottom
        for points, half in strokes(svg):
            assert not any(left < x < right and top - half < y < bottom + half - 1 for x, y in points)
        for card in ET.fromstring(svg).iter("rect"):
            x, y = float(card.get("x")), float(card.get("y"))
            aside = left >= x + float(card.get("width")) or right <= x
            assert aside or top >= y + float(card.get("height")) or bottom <= y


@given(meshes())
@settings(max_examples=20)
def test_card_shows_its_number(graph):
    words = [text.text for text in ET.fromstring(graph_svg(graph)).iter("text")]
    for node in graph.nodes:
        legs = sum(edge.count for edge in graph.edges if node.id in {edge.source, edge.target})
        if node.kind != "topic" and legs:
            shown = f"{legs:,} {'sent' if node.kind == 'producer' else 'delivered'}"
            assert any(word.startswith(shown) for word in words)
    assert max(map(len, words)) <= 36


@pytest.mark.parametrize("topics", [1, 3, 20])
def test_node_has_a_card_and_edge_a_line_and_an_arrow_to_the_right(topics):
    graph = made(topics)
    svg = graph_svg(graph)
    places = cards(svg)
    assert len(places) == len(set(places)) == len(graph.nodes)
    assert len(list(ET.fromstring(svg).iter("path"))) == 2 * len(graph.edges)
    edges = [points for points, _ in strokes(svg)]
    assert len(edges) == len(graph.edges)
    assert all(points[0][0] < points[-1][0] for points in edges)


def test_large_graph_shows_the_busiest_and_the_number_of_others():
    svg = graph_svg(made(60))
    texts = [text.text for text in ET.fromstring(svg).iter("text")]
    assert len(cards(svg)) == 3 + 2 * MOST_NODES
    assert {"and 40 topics more", "and 40 consumer groups more"} <= set(texts)
    assert {"T0", "T19"} <= set(texts)
    assert "T20" not in texts


def test_empty_graph_is_marked_in_every_file():
    written = render_files(Graph())
    assert "no message was sent or delivered" in written["graph.html"]
    assert json.loads(written["graph.json"])["edges"] == []


def test_hostile_name_is_text_in_every_file():
    graph = made(2, name=HOSTILE + "{}")
    assert "<script>" not in render_graph_page(graph)
    ET.fromstring(graph_svg(graph))
    parsed = [DOT_LINE.fullmatch(line) for line in render_dot(graph).splitlines()[3:-1]]
    assert all(parsed)
    labels = [re.sub(r"\\(.)", r"\1", match[3]) for match in parsed if match[2] is None]
    assert labels == [node_name(node) for node in graph.nodes]


def test_page_explains_every_fate_of_a_message():
    graph = made(1)
    sent, delivered = graph.edges
    page = render_graph_page(replace(graph, edges=(replace(sent, fates=dict.fromkeys(FATES, 1)), delivered)))
    assert [fate for fate in FATES if f'<th scope="row">{fate.replace("_", " ")}</th>' not in page] == []


def test_rates_are_of_known_outcomes_and_topics_have_totals():
    edge = Edge(source="producer:P", target="topic:T", kind="publish", count=10, messages=8, failures=1, again=2)
    assert (replace(edge, outcome_unknown=6).error_rate, edge.retry_rate) == (0.25, 0.2)
    plain = made(1).to_json()
    topic = next(node for node in plain["nodes"] if node["kind"] == "topic")
    assert (topic["sends"], topic["deliveries"], topic["consumer_groups"]) == (10, 10, 1)
