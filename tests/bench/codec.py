"""This module knows how fast the native codec is, beside OTLP's protobuf of the same records and RocketMQ's own classes.

The records are those a real 5.3.3 client wrote, body by body. All contenders of this process run in turns within one
round, so that a busy moment hits each; the best round counts. Java runs afterwards, warmed up, on the same bodies.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.codec.native import decode_body, encode_context
from otel_mqtrace._clock import SystemClock
from tests.bench import otlp_spans
from tests.peers.maven import PeerUnavailableError, jars_of
from tests.support.native_vectors import recorded

JAVA = Path(__file__).resolve().parent / "java"
JAVA_SECONDS = 120
ROUNDS, REPEATS, JAVA_REPEATS = 7, 20, 2_000


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one contender does ``job``; ``times_ours`` is its time for a record divided by our codec's."""

    job: str
    contender: str
    us_per_record: float
    records_per_second: int
    mb_per_second: float
    times_ours: float


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    size: int  # bytes of all records in its format
    act: Callable[[], int]  # does all records once and returns how many


def speeds() -> list[Speed]:
    """Measure every contender; Java's are left out, loudly, where there is no Maven or no JDK."""
    bodies = [each.body for each in recorded("rocketmq-5.3.3") if not decode_body(each.body).errors]
    ours = {"encode": _encoders(bodies), "decode": _decoders(bodies)}
    best_ns = {job: _best_ns(contenders) for job, contenders in ours.items()}
    size, records = sum(map(len, bodies)), sum(len(decode_body(body).contexts) for body in bodies)
    java_ns = _java_ns(bodies)
    found = []
    for job, contenders in ours.items():
        base_ns = best_ns[job][0] / records
        found += [
            _speed(job, one.name, took_ns / records, one.size / records, base_ns)
            for one, took_ns in zip(contenders, best_ns[job], strict=True)
        ]
        if java_ns:
            found.append(_speed(job, "RocketMQ 5.5.0, Java", java_ns[f"{job}_ns"], size / records, base_ns))
    return found


def _encoders(bodies: list[bytes]) -> list[_Contender]:
    groups = [decode_body(body).contexts for body in bodies]
    messages = [otlp_spans.message_of(group) for group in groups]
    size = sum(message.ByteSize() for message in messages)

    def native() -> int:
        return sum(len(encode_context(trace_ctx).body) for group in groups for trace_ctx in group)

    def built() -> int:
        return sum(len(otlp_spans.message_of(group).SerializeToString()) for group in groups)

    def serialised() -> int:
        return sum(len(message.SerializeToString()) for message in messages)

    return [
        _Contender("native, ours", sum(map(len, bodies)), native),
        _Contender("OTLP protobuf, built and serialised", size, built),
        _Contender("OTLP protobuf, serialised only", size, serialised),
    ]


def _decoders(bodies: list[bytes]) -> list[_Contender]:
    otlp = [otlp_spans.message_of(decode_body(body).contexts).SerializeToString() for body in bodies]
    size, records = sum(map(len, otlp)), sum(len(decode_body(body).contexts) for body in bodies)

    def native() -> int:
        assert sum(len(decode_body(body).contexts) for body in bodies) == records
        return sum(map(len, bodies))

    def read() -> int:
        assert sum(len(otlp_spans.read(data)) for data in otlp) == records
        return size

    def parsed() -> int:
        return sum(otlp_spans.TracesData.FromString(data).ByteSize() for data in otlp)

    return [
        _Contender("native, ours", sum(map(len, bodies)), native),
        _Contender("OTLP protobuf, parsed and read", size, read),
        _Contender("OTLP protobuf, parsed only", size, parsed),
    ]


def _best_ns(contenders: list[_Contender]) -> list[float]:
    clock, best_ns = SystemClock(), [float("inf")] * len(contenders)
    for _ in range(ROUNDS):
        for number, one in enumerate(contenders):
            began = clock.monotonic_ns()
            done = [one.act() for _ in range(REPEATS)]
            took_ns = clock.monotonic_ns() - began
            assert set(done) == {one.size}, f"{one.name} did not do its work"
            best_ns[number] = min(best_ns[number], took_ns / REPEATS)
    return best_ns


def _speed(job: str, name: str, ns: float, size: float, base_ns: float) -> Speed:
    return Speed(job, name, round(ns / 1e3, 3), int(1e9 / ns), round(size / ns * 1e3, 1), round(ns / base_ns, 3))


def _java_ns(bodies: list[bytes]) -> dict[str, float]:
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
        command = [java, "-cp", f"{folder}:{classpath}", "CodecBench", str(lines), str(ROUNDS), str(JAVA_REPEATS)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=JAVA_SECONDS)
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said


def _skipped(reason: str) -> dict[str, float]:
    sys.stdout.write(f"bench: Java's codec SKIPPED: {reason}\n")
    return {}
