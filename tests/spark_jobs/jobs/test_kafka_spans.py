"""Our native trace against spans of OpenTelemetry's Java agent for Kafka, without message ids; both on topics."""

from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka.cimpl import Producer

from otel_mqtrace.testing.embedded import EmbeddedKafka
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.support.archives import consume, pub
from tests.support.otlp_json import CLIENT, CONSUMER, PRODUCER, line, listed, resource, span
from tests.support.reading import read_verdicts
from tests.support.trace_stories import body_of

START_MS = 1_795_260_000_000
MESSAGES = 6
UNTITLED = 5
"""The offset of a message whose sender wrote no id: both sides know it by its place."""
IDS = {offset: f"C000020262BB60E53B936993952C{offset:04X}" for offset in range(MESSAGES)} | {UNTITLED: "orders-0@5"}
TRACE_ID = "1" * 32


def native(offset):
    """One send (unless an untraced producer sent it) and one delivery, as our hooks record them."""
    at_ms, named = START_MS + offset * 1000, {"msg_id": IDS[offset], "tags": None, "keys": None}
    sent = pub(at_ms, cost_ms=4, offset_msg_id=f"orders-0@{offset}", store_host=None, body_length=3, **named)
    call = consume(f"R{offset}", at_ms + 50, 20, **named)
    return call if offset == UNTITLED else [sent, *call]


def made(number, kind, offset, at_ms, cost_ms, *, links=(), **more):
    attributes = {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.operation.name": kind,
        "messaging.operation.type": kind,
        "messaging.client.id": "c-1",
        **({} if kind == "send" else {"messaging.consumer.group.name": "billing"}),
        **({} if offset is None else {"messaging.destination.partition.id": "0", "messaging.kafka.offset": offset}),
        **more,
    }
    kinds = {"send": PRODUCER, "process": CONSUMER, "receive": CLIENT}
    fields = {"traceId": TRACE_ID, "name": f"{kind} orders", "links": list(links)}
    return span(number, kinds[kind], at_ms, cost_ms, attributes, **fields)


def spans():
    """What the agent records of the same: sends, one poll with all messages on its links, and a process span each."""
    agent, links = [], [{"traceId": TRACE_ID, "spanId": f"{offset + 1:016x}"} for offset in range(MESSAGES)]
    for offset, link in enumerate(links):
        at_ms = START_MS + offset * 1000
        if offset != UNTITLED:
            agent.append(made(offset + 1, "send", offset, at_ms, 4))
        agent.append(made(offset + 101, "process", offset, at_ms + 50, 20, links=[link]))
    polled = [{**link, "attributes": listed({"messaging.kafka.offset": at})} for at, link in enumerate(links)]
    agent.append(made(201, "receive", None, START_MS, 5, links=polled))
    refused = {
        "messaging.destination.partition.id": "-1",
        "messaging.kafka.offset": -1,
        "error.type": "TimeoutException",
    }
    agent.append(made(202, "send", None, START_MS + 1500, 5, **refused))
    return line(resource("svc", *agent, scope="io.opentelemetry.kafka-clients-0.11"))


@pytest.fixture(scope="module")
def both_runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("kafka-spans")
    with EmbeddedKafka() as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        kafka.create_topic("traces", 2)
        kafka.create_topic("spans", 1)
        for offset in range(MESSAGES):
            body, arrival_ms = body_of(*native(offset)), START_MS + offset * 1000 + 100
            producer.produce("traces", body, partition=offset % 2, timestamp=arrival_ms)
        producer.produce("spans", spans(), partition=0)
        assert producer.flush(30) == 0
        source = f"kafka://{kafka.bootstrap_servers}"
        options = ReconcileOptions(
            native=(f"{source}/traces",),
            otlp=(f"{source}/spans",),
            out=out,
            profile="java-agent",
            native_writer="mqtrace",
            grace_ms=0,
            engine="local",
        )
        result = run(options)
        chosen = run(replace(options, out=out / "auto", profile="auto", native_writer="auto"))
    return result, read_verdicts(out), chosen


def test_sends_and_deliveries_match_by_their_position_in_the_topic(both_runs):
    """Only the refused send is on one side."""
    result, rows = both_runs[:2]
    met = Counter(row["kind"] for row in rows if row["native"] and row["otlp"])
    assert met == {"publish": MESSAGES - 1, "consume": MESSAGES}
    assert {row["msg_id"] for row in rows if row["native"]} == set(IDS.values())
    assert {row["key_level"] for row in rows if row["kind"] == "publish" and row["native"]} == {1}
    alone = [(row["kind"], row["status"], row["reason"]) for row in rows if not (row["native"] and row["otlp"])]
    assert alone == [("publish", "OTLP_ONLY", "UNEXPLAINED")]
    assert result.conservation.holds
    assert "MISMATCHED" not in result.status
    assert not result.duplicates


def test_result_contains_the_offsets_that_were_read(both_runs):
    native, otlp = (getattr(both_runs[0].inputs, side) for side in ("native", "otlp"))
    offsets = [(one.source.rpartition("/")[2], one.partition, one.first, one.end) for one in native.offsets]
    assert offsets == [("traces", 0, 0, 3), ("traces", 1, 0, 3)]
    assert [(one.partition, one.first, one.end) for one in otlp.offsets] == [(0, 0, 1)]
    assert native.layouts == ("kafka",)


def test_writers_are_detected_from_the_beginning_of_the_topics(both_runs):
    result, _, chosen = both_runs
    assert (chosen.writers.profile, chosen.writers.native_writer) == ("java-agent", "mqtrace")
    assert "io.opentelemetry.kafka-clients-0.11 in kafka://" in chosen.writers.evidence[0]
    assert (chosen.status, chosen.reason, chosen.gates) == (result.status, result.reason, result.gates)
