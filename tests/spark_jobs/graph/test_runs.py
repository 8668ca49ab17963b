"""`mqtrace graph` on the spans of a made-up system, and the graphs of what two real systems recorded."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from otel_mqtrace.cli import main
from spark_jobs.jobs.graph import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.support.otlp_json import CLIENT, CONSUMER, PRODUCER, SERVER, line, resource, span

DUAL = Path(__file__).parents[2] / "vectors" / "dual"
START_MS = 1_795_262_400_000


def made(kind, number, at_ms, topic=None, *, parent=None, link=None, group=None, msg_id=None):
    """Return a span of 5 ms: a child of ``parent``, else the root of a trace of its own."""
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": "send" if kind == PRODUCER else "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": group,
        "messaging.message.id": msg_id,
    }
    fields = {"traceId": parent["traceId"], "parentSpanId": parent["spanId"]} if parent else {}
    fields |= {"links": [{name: link[name] for name in ("traceId", "spanId")}]} if link else {}
    return span(number, kind, START_MS + at_ms, 5, attributes if topic else {}, **fields)


def world():
    """Return a call, a send that its delivery only links to, and two that nothing takes: 20 s in all."""
    call = made(CLIENT, 1, 0)
    served = made(SERVER, 2, 0, parent=call)
    sent = made(PRODUCER, 3, 0, "orders", parent=served)
    lost = [made(PRODUCER, 4, 6_000, "lost", msg_id="N1"), made(PRODUCER, 5, 19_500, "lost", msg_id="N2")]
    taken = made(CONSUMER, 6, 105, "orders", group="[/]billing", link=sent)
    services = {"web": [call, made(CLIENT, 7, 20_000)], "shop": [served, sent, *lost], "billing": [taken]}
    return line(*(resource(service, *spans) for service, spans in services.items()))


def test_command_draws_the_graph_of_a_file_of_spans(tmp_path, capsys):
    (tmp_path / "spans.jsonl").write_text(world())
    out = tmp_path / "out"
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(out), "--grace", "1s"]) == 0
    graph = json.loads((out / "graph.json").read_text())
    edges = {(edge["source"].partition(":")[2], edge["target"].partition(":")[2]): edge for edge in graph["edges"]}
    fates = {topic: edges["shop", topic]["fates"] for topic in ("orders", "lost")}
    assert {topic: {name: n for name, n in counts.items() if n} for topic, counts in fates.items()} == {
        "orders": {"consumed": 1},
        "lost": {"never_consumed": 1, "pending": 1},  # the second is too young to be missing
    }
    assert edges["orders", "[/]billing"]["queue_ms"]["max"] == 100
    calls = {(call["parent"], call["child"]): (call["direct"], call["messages"]) for call in graph["calls"]}
    assert calls == {("web", "shop"): (1, 0), ("shop", "billing"): (0, 1)}

    assert {path.name for path in out.iterdir()} == {"graph.json", "graph.html", "graph.svg", "graph.dot"}
    page, svg = (out / "graph.html").read_text(), (out / "graph.svg").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert svg.replace("http://www.w3.org/2000/svg", "").find("http") == -1
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"

    printed = capsys.readouterr().out
    assert "[/]billing" in printed
    for printed_line in printed.splitlines()[-4:]:
        name, _, path = printed_line.partition(": ")
        assert Path(path).name == name
        assert Path(path).is_file()


def test_graph_of_an_empty_file_is_drawn_with_a_warning(tmp_path, capsys):
    (tmp_path / "spans.jsonl").touch()
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(tmp_path / "out")]) == 0
    assert "the graph is empty" in capsys.readouterr().err


def test_malformed_and_cut_off_lines_are_counted_as_not_drawn(tmp_path, capsys):
    (tmp_path / "spans.jsonl").write_text(f"{world()}\n{{\n{world()}\n{world()[:-9]}")
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(tmp_path / "out")]) == 0
    lost = f"1 malformed record and 1 cut-off tail; first: {tmp_path}/spans.jsonl:3: not OTLP traces"
    assert capsys.readouterr().err == f"mqtrace: warning: not drawn: {lost}; mqtrace inspect names them\n"


# -- A recorded system: the counts are those of its own notes
@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    def draw(*sides: str):
        sources = {side: (str(DUAL / "app-4.9.8-dup" / f"{side}.jsonl"),) for side in sides}
        return run(ReconcileOptions(**sources, out=tmp_path_factory.mktemp("app"), grace_ms=0, native_writer="mqtrace"))

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
    calls = {(call.parent, call.child): call.messages for call in graph.calls}
    assert calls == {("order-service", "shipping-service"): 132, ("order-service", "billing-service"): 90}


def test_one_way_send_gets_the_id_that_its_consumers_name(recorded):
    graph = recorded["otlp",]
    assert sum(edge.fates["unidentified"] for edge in graph.edges_of("publish")) == 0
    assert sums(graph, "consume", "never_published") == 0
