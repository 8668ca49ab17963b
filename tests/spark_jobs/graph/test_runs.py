"""`mqtrace graph` on the spans of a made-up system, and the graphs of what two real systems recorded."""

import base64
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from otel_mqtrace.cli import main
from spark_jobs.jobs.graph import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.spark_jobs.graph.graph_world import world

DUAL = Path(__file__).parents[2] / "vectors" / "dual"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    place = tmp_path_factory.mktemp("shop")
    (place / "spans.jsonl").write_text(json.dumps(world()) + "\n")
    printed = io.StringIO()
    with redirect_stderr(printed), redirect_stdout(printed):
        code = main(["graph", "--otlp", str(place / "spans.jsonl"), "--out", str(place / "out"), "--grace", "1s"])
    assert code == 0, printed.getvalue()
    (place / "printed.txt").write_text(printed.getvalue())
    return place / "out"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    drawn = {}

    def graph(folder: str, *sides: str):
        if (folder, sides) not in drawn:
            sources = {side: (str(DUAL / folder / f"{side}.jsonl"),) for side in sides}
            out = tmp_path_factory.mktemp("recorded")
            drawn[folder, sides] = run(ReconcileOptions(**sources, out=out, grace_ms=0, native_writer="mqtrace"))
        return drawn[folder, sides]

    return graph


@pytest.fixture(scope="module")
def plain(shop):
    return json.loads((shop / "graph.json").read_text())


@pytest.fixture(scope="module")
def edge(plain):
    by_ends = {(one["source"], one["target"]): one for one in plain["edges"]}
    assert len(by_ends) == len(plain["edges"])

    def of(source: str, target: str):
        delivery = by_ends.get((f"topic:{source}", f"consumer_group:{target}"))
        return delivery or by_ends[f"producer:{source}", f"topic:{target}"]

    return of


def test_graph_of_an_empty_file_is_drawn_with_a_warning(tmp_path, capsys):
    (tmp_path / "spans.jsonl").touch()
    assert main(["graph", "--otlp", str(tmp_path / "spans.jsonl"), "--out", str(tmp_path / "out")]) == 0
    assert "the graph is empty" in capsys.readouterr().err


def test_retry_topics_and_namespaces_are_folded_into_the_topics_of_their_messages(plain):
    assert {(one["source"].partition(":")[2], one["target"].partition(":")[2]) for one in plain["edges"]} == {
        *(("shop", "orders"), ("shop", "bills"), ("shop", "ticks"), ("shop", "lost")),
        *(("orders", "CG_billing"), ("orders", "CG_audit"), ("ghosts", "CG_billing")),
        *(("bills", "CG_bills"), ("bills", "CG_rescue"), ("ticks", "CG_ticks")),
    }
    assert [node["namespaces"] for node in plain["nodes"] if node["name"] == "bills"] == [["ns1"]]


def test_consumer_that_only_links_to_its_send_is_tied_to_it(edge):
    billing = edge("orders", "CG_billing")
    assert (billing["deliveries"], billing["messages"], billing["failures"]) == (5, 5, 1)
    assert billing["origins"] == {"never_published": 0, "unidentified": 0, "unjudged": 0}
    assert (billing["queue_ms"]["p50"], billing["queue_ms"]["min"], billing["queue_ms"]["max"]) == (100, 94, 100)
    assert edge("orders", "CG_audit")["queue_ms"]["max"] == 10


def test_send_that_nothing_points_at_is_unidentified(edge):
    """A send without a message id has no known delivery; a failed one is failed."""
    sends = edge("shop", "orders")
    counts = {name: count for name, count in sends["fates"].items() if count}
    assert (sends["sends"], counts) == (7, {"consumed": 5, "failed": 1, "unidentified": 1})
    assert (sends["failures"], sends["error_rate"]) == (1, round(1 / 7, 6))


def test_retries_and_dead_letters_count_on_the_topic_of_their_message(edge):
    bills, rescue = edge("bills", "CG_bills"), edge("bills", "CG_rescue")
    assert (bills["deliveries"], bills["messages"], bills["redeliveries"], bills["via_retry"]) == (2, 1, 1, 1)
    assert (rescue["deliveries"], rescue["via_dlq"], rescue["redeliveries"]) == (1, 1, 0)


def test_missing_messages_are_counted_in_the_settled_part_only(edge):
    assert {name: n for name, n in edge("shop", "lost")["fates"].items() if n} == {"never_consumed": 1, "pending": 1}
    assert edge("ghosts", "CG_billing")["origins"] == {"never_published": 1, "unidentified": 0, "unjudged": 1}


def test_calls_join_services_directly_and_over_topics(plain):
    """What Jaeger's own job would give, and the deliveries whose traces only link; no call within a service."""
    calls = {(row["parent"], row["child"]): row["direct"] + row["messages"] for row in plain["calls"]}
    called = {"billing": 5 + 2, "audit": 3, "rescue": 1, "shop": 1}
    assert calls == {("web", "shop"): 3, **{("shop", service): count for service, count in called.items()}}


def test_run_writes_every_file_and_pages_without_network_or_script(shop):
    names = {"graph.json", "graph.html", "graph.svg", "graph.dot"}
    assert {path.name for path in shop.iterdir()} == names
    page, svg = (shop / "graph.html").read_text(), (shop / "graph.svg").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert svg.replace("http://www.w3.org/2000/svg", "").find("http") == -1
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_command_prints_a_table_and_the_paths_of_its_files(shop):
    printed = (shop.parent / "printed.txt").read_text()
    assert "CG_billing" in printed
    for line in printed.splitlines()[-4:]:
        name, _, path = line.partition(": ")
        assert Path(path).name == name
        assert Path(path).is_file()


def test_names_in_the_table_are_no_markup(tmp_path, capsys):
    lines = (DUAL / "app-4.9.8-dup" / "native.jsonl").read_text(encoding="utf-8").splitlines()
    bodies = [base64.b64decode(json.loads(line)["body_base64"]).replace(b"CG_billing", b"[/]billing") for line in lines]
    native = "".join(json.dumps({"body_base64": base64.b64encode(body).decode()}) + "\n" for body in bodies)
    (tmp_path / "native.jsonl").write_text(native, encoding="utf-8")
    words = ["--native", str(tmp_path / "native.jsonl"), "--out", str(tmp_path / "graph")]
    assert main(["graph", *words]) == 0
    assert "[/]billing" in capsys.readouterr().out


# -- two recorded systems: the counts are those of the recordings' own notes ------------------------------------------
APP, SCENARIOS = "app-4.9.8-dup", "scenarios-5.3.3-old"


def sums(graph, kind: str, name: str) -> int:
    return sum(getattr(edge, name) for edge in graph.edges_of(kind))


def test_native_records_alone_give_producer_groups_topics_and_consumer_groups(recorded):
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
    calls = {(call.parent, call.child): call.messages for call in recorded(APP, "native", "otlp").calls}
    assert calls == {("order-service", "shipping-service"): 132, ("order-service", "billing-service"): 90}


def test_one_way_send_gets_the_id_that_its_consumers_name(recorded):
    graph = recorded(APP, "otlp")
    fates = {name: sum(edge.fates[name] for edge in graph.edges_of("publish")) for name in ("consumed", "unidentified")}
    assert fates["unidentified"] == 0
    assert sums(graph, "consume", "never_published") == 0
