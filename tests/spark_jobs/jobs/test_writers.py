"""Who wrote the sources of a run, as their first spans and records show it."""

from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from bridge.otlp.detect import Side
from otel_mqtrace._errors import UnreadableInputError, UsageError
from otel_mqtrace.model import TransactionState
from spark_jobs.jobs import writers
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.jobs.reading import ReadOptions
from spark_jobs.jobs.writers import find_writers
from spark_jobs.policy.profiles import AUTO
from spark_jobs.sources.files import find_inputs
from tests.support.archives import ID, consume, end, pub
from tests.support.landings import write_landing
from tests.support.otlp_json import PRODUCER, line, resource, span
from tests.support.reading import read_verdicts
from tests.support.trace_stories import body_of

VECTORS = Path(__file__).parents[2] / "vectors"
DUAL = VECTORS / "dual"
RECORDED = VECTORS / "native" / "recorded"
BROKER_ID = "7F0000010000E38D0000000000022078"
AGENT = "io.opentelemetry.rocketmq-client-4.8"
MESSAGING = {"messaging.system": "rocketmq", "messaging.operation": "publish"}
EITHER = {"profile": AUTO, "native_writer": AUTO}


def landing(path: Path, *contexts) -> str:
    return str(write_landing(path, *map(body_of, contexts)))


def spans(path: Path, scope: str, attributes: dict[str, str]) -> str:
    path.write_text(line(resource("shop", span(1, PRODUCER, 1_700_000_000_000, 10, attributes), scope=scope)))
    return str(path)


def writers_of(native: str | list[str], otlp: str | list[str], **named: str):
    """Return the writers of some sources; ``named`` are those that options name."""
    sides = ([one] if isinstance(one, str) else one for one in (native, otlp))
    inputs = (find_inputs(side, srcs, {}) for side, srcs in zip((Side.NATIVE, Side.OTLP), sides, strict=True))
    return find_writers(*inputs, ReadOptions(), **{**EITHER, **named})


@pytest.mark.parametrize(
    ("recording", "writer"),
    [
        ("rocketmq-4.4.0", "rocketmq-4.9.1"),  # of one shape with 4.4.0
        *((release, release) for release in ("rocketmq-4.8.0", "rocketmq-4.9.8")),
        ("rocketmq-4.9.8-cloud", "rocketmq-4.9.8"),
        *((release, "rocketmq") for release in ("rocketmq-5.3.3", "rocketmq-5.3.3-cloud")),
    ],
)
def test_recorded_client_is_found_with_a_release_of_its_rules(recording, writer):
    writers = writers_of(str(RECORDED / f"{recording}.jsonl"), str(DUAL / "app-4.9.8-dup" / "otlp.jsonl"))
    assert (writers.profile, writers.native_writer) == ("java-agent", writer)


OWN_SPAN = ("otel_mqtrace", {"mqtrace.trace_type": "Pub"})
OF_A_BROKER = pub(offset_msg_id=BROKER_ID)
DELIVERY = consume("A" * 32, 1_700_000_000_000)
WRITERS = {
    "our spans and records": ([pub(), *DELIVERY], OWN_SPAN, {}, ("mqtrace", "mqtrace")),
    # Our hooks write the offset ids that a client gives them: the spans tell whose records these are.
    "our spans beside ids of a broker": ([OF_A_BROKER], OWN_SPAN, {}, ("mqtrace", "mqtrace")),
    # Deliveries have no offset id, and a region says nothing about the writer.
    "the agent's spans beside deliveries": (DELIVERY, (AGENT, MESSAGING), {}, ("java-agent", "rocketmq")),
    "the agent's spans beside the Kafka positions of our records": (
        [pub()],
        ("io.opentelemetry.kafka-clients-0.11", {"messaging.system": "kafka", "messaging.operation.type": "send"}),
        {},
        ("java-agent", "mqtrace"),
    ),
    "forwarded spans beside ids of a broker": (
        [OF_A_BROKER],
        ("bridge.forwarder", {"mqtrace.trace_type": "Pub", **MESSAGING}),
        {},
        ("mqtrace", "rocketmq"),
    ),
    "no evidence at all": ([], ("io.opentelemetry.jdbc", {"db.system": "mysql"}), {}, ("mqtrace", "mqtrace")),
    "a delivery without a region beside a named profile": (
        [DELIVERY[0]._replace(region_id=None)],
        ("acme.tracing", MESSAGING),
        {"profile": "mqtrace"},
        ("mqtrace", "rocketmq-4.9.8"),
    ),
    "a named profile": ([OF_A_BROKER], ("acme.tracing", MESSAGING), {"profile": "mqtrace"}, ("mqtrace", "rocketmq")),
}


@pytest.mark.parametrize(("contexts", "scope", "named", "writers_found"), WRITERS.values(), ids=WRITERS)
def test_writers_are_found_in_the_sources(tmp_path, contexts, scope, named, writers_found):
    native, otlp = landing(tmp_path / "native.jsonl", *contexts), spans(tmp_path / "otlp.jsonl", *scope)
    writers = writers_of(native, otlp, **named)
    assert (writers.profile, writers.native_writer) == writers_found


def test_reason_is_given_for_each_writer_that_was_found(tmp_path):
    native, otlp = landing(tmp_path / "native.jsonl", OF_A_BROKER), spans(tmp_path / "otlp.jsonl", *OWN_SPAN)
    assert writers_of(native, otlp).reasons.keys() == EITHER.keys()
    why = "native writer rocketmq: sends with offset ids of a RocketMQ broker in native.jsonl"
    assert writers_of(native, [], profile="mqtrace").reasons == {"native_writer": why}
    (tmp_path / "native.jsonl").write_text("")
    assert writers_of(native, []).reasons == {}


def test_messaging_spans_of_an_unknown_scope_require_the_profile(tmp_path):
    native = landing(tmp_path / "native.jsonl", pub())
    otlp = spans(tmp_path / "otlp.jsonl", "acme.tracing", MESSAGING)
    with pytest.raises(UsageError, match=r"otlp\.jsonl.*acme\.tracing: give --profile mqtrace or --profile java-agent"):
        writers_of(native, otlp)


def test_landing_in_parquet_shows_its_writer(tmp_path):
    bodies = [body_of(pub(offset_msg_id=BROKER_ID)), body_of(pub())]
    parquet.write_table(pa.table({"body": [None, b"junk", bodies[0]]}), tmp_path / "other.parquet")
    parquet.write_table(pa.table({"body": [bodies[1]]}), tmp_path / "own.parquet")
    parquet.write_table(pa.table({"body": pa.array([], pa.binary())}), tmp_path / "none.parquet")
    named = {"otlp": [], "profile": "java-agent"}
    assert writers_of(str(tmp_path / "other.parquet"), **named).native_writer == "rocketmq"
    assert writers_of(str(tmp_path / "own.parquet"), **named).native_writer == "mqtrace"
    assert writers_of(str(tmp_path / "none.parquet"), **named).reasons == {}


def test_column_that_holds_no_bodies_is_refused(tmp_path):
    parquet.write_table(pa.table({"body": [1, 2]}), tmp_path / "native.parquet")
    with pytest.raises(UnreadableInputError, match="column 'body' holds int64, expected bytes"):
        writers_of(str(tmp_path / "native.parquet"), [])


def test_of_many_files_some_of_the_whole_range_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "MOST_FILES", 4)
    for number in range(20):
        spans(tmp_path / f"part-{number:02d}.jsonl", AGENT if number == 15 else "io.opentelemetry.x", MESSAGING)
    result = writers_of([], str(tmp_path), native_writer="rocketmq")
    why = f"profile java-agent: spans of scopes io.opentelemetry.x, {AGENT} in part-00.jsonl and 3 more"
    assert result.reasons == {"profile": why}


def test_zstd_file_of_frames_is_read_at_its_beginning(tmp_path):
    data = (DUAL / "app-4.9.8-dup" / "otlp.pb.framed").read_bytes() * 30
    path = tmp_path / "spans.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    assert writers_of([], str(path), native_writer="rocketmq").profile == "java-agent"


def test_sources_that_mix_writers_are_judged_key_by_key(tmp_path):
    at_ms = 1_795_262_480_000
    ends = [end(at_ms + 1, TransactionState.COMMIT_MESSAGE), pub(at_ms, msg_id="B" * 32)]
    native = landing(tmp_path / "own.jsonl", pub(at_ms, store_host="10.0.0.1:9092"), *ends)
    attributes = {"mqtrace.trace_type": "Pub", "messaging.message.id": ID, "messaging.destination.name": "orders"}
    otlp = spans(tmp_path / "own-spans.jsonl", "otel_mqtrace", attributes)
    app = {"native": str(DUAL / "app-4.9.8-dup" / "native.jsonl"), "otlp": str(DUAL / "app-4.9.8-dup" / "otlp.jsonl")}
    sources = {"native": (native, app["native"]), "otlp": (otlp, app["otlp"])}
    result = run(ReconcileOptions(**sources, out=tmp_path / "out", engine="local", is_complete=True))
    assert result.writers.profile == "mqtrace+java-agent"
    assert result.writers.native_writer == "mqtrace+rocketmq-4.9.8"
    assert result.horizon_ms == result.window.end_ms > result.inputs.native.last_event_ms
    assert (result.grace_ms, result.doubt, "PENDING" in result.status) == (0, None, False)
    assert result.status["MATCHED_EXACT"] + result.status["MATCHED_NORMALISED"] == 337
    assert result.reason_detail["java_agent_makes_no_span_for_transaction_end"] == 11
    rows = [row for row in read_verdicts(tmp_path / "out") if row["msg_id"] in {ID, "B" * 32}]
    verdicts = {(row["kind"], row["msg_id"]): (row["status"], row["reason"]) for row in rows}
    assert verdicts == {
        ("publish", ID): ("MISMATCHED", None),
        ("publish", "B" * 32): ("NATIVE_ONLY", "UNEXPLAINED"),
        ("transaction_end", ID): ("NATIVE_ONLY", "SHUTDOWN_WINDOW"),
    }
    assert {row["native"]["writer"] for row in rows} == {"mqtrace"}


def test_each_file_of_mixed_native_records_is_read_with_its_own_writer(tmp_path):
    own = landing(tmp_path / "own.jsonl", pub())
    other = landing(tmp_path / "other.jsonl", pub(offset_msg_id=BROKER_ID))
    inputs = find_inputs(Side.NATIVE, [own, other], {})
    how = writers.name_native_writers(inputs, ReadOptions(native_writer="mqtrace+rocketmq-4.9.8"))
    assert (how.native_writer, how.native_writers) == ("mqtrace", {other: "rocketmq-4.9.8"})
    plain = ReadOptions(native_writer="rocketmq")
    assert writers.name_native_writers(inputs, plain) is plain


def test_one_file_of_both_native_writers_requires_the_option(tmp_path):
    own, other = pub(), pub(offset_msg_id=BROKER_ID)
    otlp = spans(tmp_path / "otlp.jsonl", AGENT, MESSAGING)
    native = landing(tmp_path / "native.jsonl", own, other)
    with pytest.raises(UsageError, match=r"native\.jsonl has records of both: give --native-writer"):
        writers_of(native, otlp)
    apart = [landing(tmp_path / "own.jsonl", own), landing(tmp_path / "other.jsonl", other)]
    assert writers_of(apart, otlp).native_writer == "mqtrace+rocketmq"
