"""The memory of a worker that judges one message with a hundred thousand deliveries, and with a million.

``python -m tests.proofs.bench.hot_message DELIVERIES FOLDER`` is such a worker; it prints one JSON object.
"""

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from spark_jobs.exchange import packing
from spark_jobs.exchange.engine import leave_pandas_out, use_system_allocator
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.jobs.judge_tasks import BucketPlan, judge_buckets, pack_events
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.policy import make_plan, read_policy
from spark_jobs.schemas import NORMALISED
from tests.proofs.bench.reconcile import run_module
from tests.proofs.bench.rows import Effort, Row, Target

_BEGIN_MS: Final = 1_795_219_200_000
_ROWS: Final = 50_000
_MOST_MIB: Final = {100_000: 300, 1_000_000: 700}
_BUCKETS: Final = (20, 100, 500, 2_000)


def measure(_effort: Effort) -> list[Row]:
    """Judge each size in a process of its own; then pack the events of the smaller one into blobs of different sizes."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for deliveries, most_mib in _MOST_MIB.items():
            cost = run_module("tests.proofs.bench.hot_message", deliveries, Path(folder) / str(deliveries))
            note = f"{cost['seconds']:.0f} s, {cost['cpu_seconds']:.0f} s CPU"
            measure = f"most memory of a worker, a message with {deliveries:,} deliveries"
            rows.append(Row(measure, "a bound", cost["most_mib"], most_mib, "MiB", Target("≤", 1.0), note))
        files = sorted(Path(folder, "100000").glob("*.parquet"))
        rows += (_pack(files, buckets) for buckets in _BUCKETS)
    return rows


def _pack(files: list[Path], buckets: int) -> Row:
    """Return the cost of packing and opening ``buckets`` blobs."""
    tables = [parquet.read_table(path, read_dictionary=["side", "kind", "half", "path"]) for path in files]
    whole = pa.concat_tables(tables, promote_options="permissive").drop_columns(["bad"]).slice(0, 100_000)
    batch = whole.unify_dictionaries().combine_chunks().to_batches()[0]
    began = time.process_time()
    blobs = list(packing.pack_rows(batch, np.arange(len(batch), dtype=np.int64) % buckets, buckets))
    packed = time.process_time()
    for _, blob in blobs:
        packing.open_blobs([blob])
    each = 1e6 / len(batch)
    note = f"opening {(time.process_time() - packed) * each:.2f} µs, {sum(len(blob) for _, blob in blobs) // len(batch)} bytes"
    name = f"pack a row, {len(batch) // buckets:,} rows a blob"
    return Row(name, "none", round((packed - began) * each, 2), None, "µs CPU", note=note)


def _judge(deliveries: int, folder: Path) -> dict[str, Any]:
    began, used = time.perf_counter(), time.process_time()
    leave_pandas_out()
    use_system_allocator()
    folder.mkdir(parents=True)
    files = [_write(folder / f"{name}.parquet", name, deliveries) for name in ("before", "after", "span")]
    end_ms = _BEGIN_MS + 10 * deliveries
    policy, facts = read_policy(None), Facts(data_end_ms=end_ms, horizon_ms=end_ms)
    for name in ("settled", "residue"):
        (folder / name).mkdir()
    plan = BucketPlan(
        policy=policy,
        facts=facts,
        plan=make_plan(policy, facts),
        settled=str(folder / "settled"),
        residue=str(folder / "residue"),
    )
    pieces = packing.pieces_of(files)
    buckets = packing.count_buckets(pieces, 1)
    with LocalEngine(1) as engine:
        tasks = packing.group_pieces(pieces, 1)
        pack, judge = partial(pack_events, buckets, 1, ()), partial(judge_buckets, plan, buckets, 1)
        (answer,) = engine.exchange(pack, tasks, judge, buckets)
    assert answer.counted.tally.status == {"MATCHED_EXACT": deliveries - 1}, answer.counted.tally.status
    (residue,) = answer.residue.values()
    assert residue["status"].to_pylist() == ["NATIVE_ONLY"], "the lost span"
    return {"most_mib": _most_mib(), "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}


def _write(path: Path, half: str, deliveries: int) -> str:
    with parquet.ParquetWriter(path, NORMALISED) as writer:
        for first in range(half == "span", deliveries, _ROWS):
            numbers = np.arange(first, min(first + _ROWS, deliveries))
            writer.write_table(_make_events(half, numbers))
    return str(path)


def _make_events(half: str, numbers: Any) -> pa.Table:
    size, is_span, starts = len(numbers), half == "span", _BEGIN_MS + 10 * numbers
    values: dict[str, Any] = {
        "side": pa.array(["otlp" if is_span else "native"] * size),
        "kind": pa.array(["consume"] * size),
        "half": pa.array(["whole" if is_span else half] * size),
        "msg_id": pa.array(["HOT"] * size),
        "group_name": pa.array(["billing"] * size),
        "attempt_id": pa.array([f"A{number:015X}" for number in numbers.tolist()]),
        "retry_times": pa.array(np.zeros(size, np.int32)),
        "path": pa.array([half] * size),
        "line": pa.array(numbers),
        "record_index": pa.array(np.zeros(size, np.int32)),
        "writer": pa.array(["mqtrace"] * size),
        "raw_hash": pa.array(numbers * 3 + ("before", "after", "span").index(half)),
    }
    if half != "after":
        values["start_ms"] = pa.array(starts)
    if half != "before":
        values |= {"end_ms": pa.array(starts + 7), "cost_ms": pa.array(np.full(size, 7))}
        values |= {"success": pa.array([True] * size), "context_code": pa.array(["SUCCESS"] * size)}
    if is_span:
        values |= {"trace_id": pa.array([f"{number:032x}" for number in numbers.tolist()])}
        values |= {"span_id": pa.array([f"{number:016x}" for number in numbers.tolist()])}
    columns = [values[field.name] if field.name in values else pa.nulls(size, field.type) for field in NORMALISED]
    return pa.table(columns, schema=NORMALISED)


def _most_mib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_judge(int(sys.argv[1]), Path(sys.argv[2]))) + "\n")
