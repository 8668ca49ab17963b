"""Measure how fast files of OTLP become canonical events, on one core and on two, beside a plain loop in Python.

The loop looks the same fields up by the same names and writes parquet; it trusts its input and runs on one core. Ours is
the job of a reconciliation. Both take turns in one process that may use so many cores; the first round warms up.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.proofs.bench.reconcile import run_module, write_day
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns

_ROWS = 10_000
_LENGTH_BYTES = 4
_CORES = (1, 2)
_EACH = {1: "one core", 2: "each of two cores"}
_LOOP, _UNIT, _TARGET = "a plain loop in Python, one core", "spans/s a core", Target("≥", 1.0)
_TIMES = ("trace_id", "span_id", "start_ms", "end_ms")


def measure(effort: Effort) -> list[Row]:
    """Make a day, write its spans in both layouts, and read each both ways."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_day(root / "day", effort.messages)
        count = _as_protobuf(root / "day" / "otlp", root / "proto")
        took = {
            cores: run_module("tests.proofs.bench.normalisation", root, count, effort.rounds, cores)
            for cores in _CORES
            if cores <= len(os.sched_getaffinity(0))
        }
    return [
        compare(f"OTLP {layout} to events, {_EACH[cores]}", _LOOP, of_all[name], of_all[f"{name} loop"], _UNIT, _TARGET)
        for cores, of_all in took.items()
        for layout, name in (("JSON", "json"), ("protobuf", "proto"))
    ]


def main(folder: str, spans: str, rounds: str, cores: str) -> int:
    """Measure in this process, on so many cores; print what it did of ``spans`` a second and core, round by round."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])  # the JVM and its Python workers inherit it
    from spark_jobs.exchange.local import LocalEngine  # noqa: PLC0415 - after the core is chosen

    root = Path(folder)
    lines, proto, count = root / "day" / "otlp", root / "proto", int(spans)
    engine = LocalEngine(int(cores))
    contenders = {
        "json": partial(_ours, engine, lines, root, count, int(cores)),
        "json loop": partial(_loop, _json_spans, lines, root, count),
        "proto": partial(_ours, engine, proto, root, count, int(cores)),
        "proto loop": partial(_loop, _proto_spans, proto, root, count),
    }
    run_in_turns(contenders, 1)  # warm
    took = run_in_turns(contenders, int(rounds))
    engine.__exit__()
    sys.stdout.write(json.dumps(took) + "\n")
    return 0


def _ours(engine: Any, source: Path, root: Path, count: int, cores: int) -> float:
    from bridge.otlp.detect import Side  # noqa: PLC0415 - as above
    from spark_jobs.jobs.reading import read_side  # noqa: PLC0415 - as above
    from spark_jobs.sources.files import find_inputs  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory(dir=root) as work:
        began = time.perf_counter()
        side = read_side(engine, Side.OTLP, find_inputs(Side.OTLP, (str(source),), {}), work)
        seconds = time.perf_counter() - began
        events = sum(row.rows for row in side.survey.rows.values())
        assert side.records_read == count == events, f"{side.records_read} of {count} spans read"
    return count / seconds / cores


def _loop(spans: Callable[[Path], Iterator[dict[str, Any]]], source: Path, root: Path, count: int) -> float:
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    from bridge.otlp.roles import ALIASES  # noqa: PLC0415 - as above

    names = {field: (*alias.names, *alias.arrays) for field, alias in ALIASES.items()}
    schema = pa.schema([(name, pa.string()) for name in (*_TIMES[:2], *names)] + [(t, pa.int64()) for t in _TIMES[2:]])
    target, began, rows, written = root / "loop.parquet", time.perf_counter(), [], 0
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for span in spans(source):
            known = span.pop("attributes")
            for field, spellings in names.items():
                span[field] = next((known[name] for name in spellings if name in known), None)
            rows.append(span)
            if len(rows) == _ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                written, rows = written + len(rows), []
        writer.write_table(pa.Table.from_pylist(rows, schema))
    seconds = time.perf_counter() - began
    assert written + len(rows) == count, f"{written + len(rows)} of {count} spans read"
    return count / seconds


def _json_spans(lines: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(lines.glob("part-*")):
        for line in file.read_bytes().splitlines():
            for span in _spans_of(json.loads(line)):
                yield {
                    "trace_id": span["traceId"],
                    "span_id": span["spanId"],
                    "start_ms": int(span["startTimeUnixNano"]) // 1_000_000,
                    "end_ms": int(span["endTimeUnixNano"]) // 1_000_000,
                    "attributes": {item["key"]: _json_text(item["value"]) for item in span["attributes"]},
                }


def _spans_of(export: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in export["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def _json_text(value: dict[str, Any]) -> str:
    if "arrayValue" in value:
        return json.dumps([_json_text(one) for one in value["arrayValue"]["values"]])
    return str(next(iter(value.values())))


def _proto_spans(framed: Path) -> Iterator[dict[str, Any]]:
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData  # noqa: PLC0415 - as above

    for payload in _payloads(framed):
        for resource in TracesData.FromString(payload).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    yield {
                        "trace_id": span.trace_id.hex(),
                        "span_id": span.span_id.hex(),
                        "start_ms": span.start_time_unix_nano // 1_000_000,
                        "end_ms": span.end_time_unix_nano // 1_000_000,
                        "attributes": {item.key: _proto_text(item.value) for item in span.attributes},
                    }


def _payloads(framed: Path) -> Iterator[bytes]:
    for file in sorted(framed.iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            first = at + _LENGTH_BYTES
            at = first + int.from_bytes(data[at:first], "big")
            yield data[first:at]


def _proto_text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return json.dumps([_proto_text(one) for one in value.array_value.values])
    return str(getattr(value, kind))


def _as_protobuf(lines: Path, target: Path) -> int:
    """Write the same exports as length-prefixed protobuf, a file for a file: one is one task's. Return how many spans."""
    target.mkdir()
    count = 0
    for file in sorted(lines.glob("part-*")):
        with (target / f"{file.stem}.binpb").open("wb") as out:
            for line in file.read_bytes().splitlines():
                message, spans = _message(json.loads(line))
                count += spans
                data = message.SerializeToString()
                out.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    return count


def _message(export: dict[str, Any]) -> tuple[Any, int]:
    from google.protobuf.json_format import ParseDict  # noqa: PLC0415 - as above
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData  # noqa: PLC0415 - as above

    ids = [(bytes.fromhex(span.pop("traceId")), bytes.fromhex(span.pop("spanId"))) for span in _spans_of(export)]
    message = ParseDict(export, TracesData())
    spans = [span for one in message.resource_spans for part in one.scope_spans for span in part.spans]
    for span, (trace_id, span_id) in zip(spans, ids, strict=True):
        span.trace_id, span.span_id = trace_id, span_id
    return message, len(spans)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
