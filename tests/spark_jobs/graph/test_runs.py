"""`mqtrace graph` on the spans of a made-up system, and the graphs of what two real systems recorded."""

import json
from collections import Counter
from pathlib import Path

import pytest

from otel_mqtrace.cli import main
from spark_jobs.jobs.graph import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.support.otlp_json import CLIENT, CONSUMER, PRODUCER, line, resource, span

DUAL = Path(__file__).parents[2] / "vectors" / "dual"
START_MS = 1_795_262_400_000


def made(kind, number, at_ms, topic=None, *, link=None, group=None, msg_id=None):
    """Return a span of 5 ms, the root of a trace of its own."""
    call = {"system": "rocketmq", "operation.type": "send" if kind == PRODUCER else "process"}
    message = {"destination.name": topic, "consumer.group.name": group, "message.id": msg_id}
    attributes = {f"messaging.{name}": value for name, value in {**call, **message}.items()}
    fields = {"links": [{name: link[name] for name in ("traceId", "spanId")}]} if link else {}
    return span(number, kind, START_MS + at_ms, 5, attributes if topic else {}, **fields)


def world():
    """Return a send that its delivery only links to, two that nothing takes, and a span of no message: 20 s in all."""
    sent = made(PRODUCER, 3, 0, "orders")
    lost = [made(PRODUCER, 4, 6_000, "lost", msg_id="N1"), made(PRODUCER, 5, 19_500, "lost", msg_id="N2")]
    taken = made(CONSUMER, 6, 105, "orders", group="[/]billing", link=sent)
    services = {"web": [made(CLIENT, 7, 20_000)], "shop": [sent, *lost], "billing": [taken]}
    return line(*(resource(service, *spans) for service, spans in services.items()))


def test_command_draws_the_graph_of_a_file_of_spans(tmp_path, capsys):
    (tmp_path / "spans.jsonl").write_text(world())
    out = tmp_path / "out\x07"
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(out), "--grace", "1s"]) == 0
    graph = json.loads((out / "graph.json").read_text())
    edges = {(edge["source"].partition(":")[2], edge["target"].partition(":")[2]): edge for edge in graph["edges"]}
    fates = {topic: edges["shop", topic]["fates"] for topic in ("orders", "lost")}
    assert {topic: {name: n for name, n in counts.items() if n} for topic, counts in fates.items()} == {
        "orders": {"consumed": 1},
        "lost": {"never_consumed": 1, "pending": 1},  # the second is too young to be missing
    }
    assert edges["orders", "[/]billing"]["queue_ms"]["max"] == 100

    assert {path.name for path in out.iterdir()} == {"graph.json", "graph.html", "graph.dot"}
    page = (out / "graph.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "[/]billing" in page
    shown = f"{tmp_path}/out⟨U+0007⟩/graph.html"
    assert capsys.readouterr().out == f"graph: {shown}, with graph.dot and graph.json beside it\n"


def test_graph_of_an_empty_file_is_drawn_with_a_warning(tmp_path, capsys):
    (tmp_path / "spans.jsonl").touch()
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(tmp_path / "out")]) == 0
    assert "the graph is empty" in capsys.readouterr().err


def test_malformed_and_cut_off_lines_are_counted_as_not_drawn(tmp_path, capsys):
    (tmp_path / "spans.jsonl").write_text(f"{world()}\n{{\n{world()}\n{world()[:-9]}")
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(tmp_path / "out")]) == 0
    lost = f"1 malformed record and 1 cut-off tail; first: {tmp_path}/spans.jsonl:3: not OTLP traces"
    assert capsys.readouterr().err == f"mqtrace: warning: not drawn: {lost}; mqtrace inspect names them\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    def draw(*sides: str):
        sources = {side: (str(DUAL / "app-4.9.8-dup" / f"{side}.jsonl"),) for side in sides}
        return run(ReconcileOptions(**sources, out=tmp_path_factory.mktemp("app"), grace_ms=0))

    return {sides: draw(*sides) for sides in (("native",), ("otlp",), ("native", "otlp"))}


def sums(graph, kind: str, name: str) -> int:
    return sum(getattr(edge, name) for edge in graph.edges_of(kind))


def test_native_records_alone_give_producer_groups_topics_and_consumer_groups(recorded):
    graph = recorded["native",]
    assert (graph.sides, sums(graph, "publish", "count"), sums(graph, "consume", "count")) == (("native",), 115, 222)
    kinds = {node.kind: node for node in graph.nodes}
    assert not any(node.services for node in graph.nodes)
    assert kinds["consumer_group"].name.startswith("CG_")
    unknown = [edge for edge in graph.edges if edge.source == "topic:"]
    assert sum(edge.messages for edge in unknown) == sum(edge.never_published for edge in unknown) > 0


def test_both_sides_count_every_send_and_delivery_once(recorded):
    """The application's own log: 120 messages, 222 deliveries; the one refused send is the one that failed."""
    graph = recorded["native", "otlp"]
    assert (sums(graph, "publish", "count"), sums(graph, "consume", "count")) == (120, 222)
    assert (sums(graph, "publish", "native"), sums(graph, "publish", "otlp")) == (115, 120)
    assert (sums(graph, "consume", "native"), sums(graph, "consume", "otlp")) == (222, 222)
    assert sums(graph, "publish", "failures") == 1
    assert {node.name for node in graph.nodes if node.kind == "producer"} == {"order-service"}
    services, deliveries = {node.id: node.services for node in graph.nodes}, Counter()
    for edge in graph.edges_of("consume"):
        deliveries[services[edge.target]] += edge.count
    assert deliveries == {("shipping-service",): 132, ("billing-service",): 90}


def test_one_way_send_gets_the_id_that_its_consumers_name(recorded):
    graph = recorded["otlp",]
    assert sum(edge.fates["unidentified"] for edge in graph.edges_of("publish")) == 0
    assert sums(graph, "consume", "never_published") == 0
