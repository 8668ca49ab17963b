"""The speed of the native codec, beside OTLP's protobuf of the same records and RocketMQ's own classes.

The records are those a real 5.3.3 client wrote. All contenders of this process take turns within a round, and medians
count. Java runs afterwards, warmed up, on the same bodies; its best round counts, which is in its favour.
"""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.exporters.packing import SpanPacker
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.landing import LandedMessage, json_line
from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.wire.native import decode_body, encode_context
from spark_jobs.normalise.native import record_columns
from spark_jobs.schemas import BODY, InputCounts
from tests.peers.peer import PeerUnavailableError, jars_of
from tests.proofs.bench import otlp_spans
from tests.proofs.bench.forwarding import RECORDS_EACH, trace_messages
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns
from tests.support.native_vectors import recorded

JAVA = Path(__file__).resolve().parent / "java"
JAVA_SECONDS = 120
BUILT, READ = "OTLP protobuf, built and serialised", "OTLP protobuf, parsed and read"
JAVA_CLASSES = "RocketMQ 5.5.0, Java"
TARGETS = {BUILT: Target("≥", 3.0), READ: Target("≥", 3.0)}
FROM_RECORDS, IN_COLUMNS = "native encode, record to landing bytes", "native decode, in columns"
"""Of values that Python can use, from and to."""

REPEATS, JAVA_REPEATS = 20, 2_000
_MESSAGES = 2_000


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    size: int  # bytes of all records in its format
    act: Callable[[], int]  # does all records once and returns how many


def measure(effort: Effort) -> list[Row]:
    """Measure every contender; Java's are left out, loudly, where there is no Maven or no JDK."""
    bodies = [each.body for each in recorded("rocketmq-5.3.3") if not decode_body(each.body).errors]
    records, repeats = sum(len(decode_body(body).contexts) for body in bodies), effort.scale(REPEATS)
    jobs = {"encode": _encoders(bodies), "decode": _decoders(bodies)}
    took = {
        job: run_in_turns({one.name: partial(_speed, one, records, repeats) for one in contenders}, effort.rounds)
        for job, contenders in jobs.items()
    }
    rows = [_from_records(records, effort), _in_columns(effort)]
    java_ns = _java_ns(bodies, effort)
    for job, rounds in took.items():
        (_, ours), *others = rounds.items()
        rows += [
            compare(f"native {job}", name, ours, theirs, "records/s", TARGETS.get(name)) for name, theirs in others
        ]
        if java_ns:
            speed = 1e9 / java_ns[f"{job}_ns"]
            note = "Java's figure is that of its best round"
            rows.append(Row(f"native {job}", JAVA_CLASSES, median(ours), speed, "records/s", None, note))
    return rows


def _encoders(bodies: list[bytes]) -> list[_Contender]:
    groups = [decode_body(body).contexts for body in bodies]
    size = sum(otlp_spans.message_of(group).ByteSize() for group in groups)

    def native() -> int:
        return sum(len(encode_context(trace_ctx).body) for group in groups for trace_ctx in group)

    def built() -> int:
        return sum(len(otlp_spans.message_of(group).SerializeToString()) for group in groups)

    return [_Contender("native, ours", sum(map(len, bodies)), native), _Contender(BUILT, size, built)]


def _decoders(bodies: list[bytes]) -> list[_Contender]:
    otlp = [otlp_spans.message_of(decode_body(body).contexts).SerializeToString() for body in bodies]
    size, records = sum(map(len, otlp)), sum(len(decode_body(body).contexts) for body in bodies)

    def native() -> int:
        assert sum(len(decode_body(body).contexts) for body in bodies) == records
        return sum(map(len, bodies))

    def read() -> int:
        assert sum(len(otlp_spans.read(data)) for data in otlp) == records
        return size

    return [_Contender("native, ours", sum(map(len, bodies)), native), _Contender(READ, size, read)]


def _from_records(records: int, effort: Effort) -> Row:
    """Measure the way of a recorded send into a line of a landing, beside OTLP's message of the same fields."""
    exporter, provider = RecordingExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(MqTraceSpanProcessor(exporter, background=False))
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider), group_name="orders", servers="127.0.0.1:9092")
    for _ in range(records):
        recorded = hook.record("orders", b"x" * 200, None, [("kind", b"order")], None, None)
        assert recorded is not None, "a send that took the slow way"
        assert recorded[0] is not None, "a send that is not sampled"
        hook.end_record(recorded[0], 0, 7)
    provider.force_flush()
    spans = exporter.take_all()
    packer = SpanPacker(encode=encode_context, dialect="5.5.0", max_message_bytes=128_000, region_id=None)
    groups = [decode_body(message.value).contexts for message in packer.pack_batches([spans]).messages]
    assert sum(map(len, groups)) == records, "a send left no record"

    def native() -> int:
        packed = packer.pack_batches([spans])
        landed = [
            LandedMessage(source="trace", arrival_ms=1, body=each.value, keys=each.keys) for each in packed.messages
        ]
        return sum(len(json_line(each)) for each in landed)

    def built() -> int:
        return sum(len(otlp_spans.message_of(group).SerializeToString()) for group in groups)

    took = _in_turns(native, built, records, effort)
    return compare(FROM_RECORDS, BUILT, *took, "records/s", Target("≥", 8.0))


def _in_columns(effort: Effort) -> Row:
    """Measure what Spark's tasks do: bodies of a hundred records, as a trace topic holds them, into Arrow columns."""
    bodies = [message.body for message in trace_messages(_MESSAGES)]
    records = RECORDS_EACH * _MESSAGES
    batch = pa.RecordBatch.from_pylist([{"body": body} for body in bodies], schema=pa.schema(BODY))
    otlp = [otlp_spans.message_of(decode_body(body).contexts).SerializeToString() for body in bodies]

    def columns() -> int:
        parts = record_columns([batch], InputCounts(), msg_type_map="a", charset="utf-8")
        return sum(len(part["type"]) for part in parts)

    def read() -> int:
        return sum(len(otlp_spans.read(data)) for data in otlp)

    took = _in_turns(columns, read, records, replace(effort, share=effort.share / 10))
    return compare(IN_COLUMNS, READ, *took, "records/s", Target("≥", 6.0))


def _in_turns(
    ours: Callable[[], int], theirs: Callable[[], int], records: int, effort: Effort
) -> tuple[list[float], list[float]]:
    pair = (_Contender("ours", ours(), ours), _Contender("theirs", theirs(), theirs))
    repeats = effort.scale(REPEATS)
    took = run_in_turns({one.name: partial(_speed, one, records, repeats) for one in pair}, effort.rounds)
    return took["ours"], took["theirs"]


def _speed(one: _Contender, records: int, repeats: int) -> float:
    began = time.process_time_ns()
    done = [one.act() for _ in range(repeats)]
    took_ns = time.process_time_ns() - began
    assert set(done) == {one.size}, f"{one.name} did not do its work"
    return records * repeats / took_ns * 1e9


def _java_ns(bodies: list[bytes], effort: Effort) -> dict[str, float]:
    java, compiler = shutil.which("java"), shutil.which("javac")
    if not (java and compiler):
        return _skipped("no JDK (java and javac) on the path")
    try:
        classpath = f"{jars_of(JAVA / 'pom.xml', 'RocketMQ-client')}/*"
    except PeerUnavailableError as reason:
        return _skipped(str(reason))
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "bodies"
        lines.write_text("".join(base64.b64encode(body).decode() + "\n" for body in bodies), encoding="ascii")
        subprocess.run([compiler, "-cp", classpath, "-d", folder, str(JAVA / "CodecBench.java")], check=True)
        repeats = str(effort.rounds), str(effort.scale(JAVA_REPEATS))
        command = [java, "-cp", f"{folder}:{classpath}", "CodecBench", str(lines), *repeats]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=JAVA_SECONDS)
    speeds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return speeds


def _skipped(reason: str) -> dict[str, float]:
    sys.stdout.write(f"bench: Java's codec SKIPPED: {reason}\n")
    return {}
