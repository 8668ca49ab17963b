"""Evidence of a run about its unexplained rows, however the run is cut into tasks."""

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.explain import evidence as run_evidence
from spark_jobs.explain.keys import narrow, read_ids
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.policy import read_policy
from spark_jobs.schemas import EVENT, VERDICT

POLICY = read_policy(None, profile="java-agent", native_writer="rocketmq-5.3.3")
PROCESS = "C000020262BB60E53B93"


def uid(counter: int, drawn_ms: int = 0) -> str:
    return f"{PROCESS}{drawn_ms:08X}{counter:04X}"


def lost_send(counter: int) -> dict:
    span = {"service": "shop", "span_id": "s", "batch_size": 1, "record_index": 0, "start_ms": 10_000, "end_ms": 10_010}
    own = {"kind": "publish", "msg_id": uid(counter), "topic": "orders", "event_ms": 10_000, "otlp": span}
    return {**own, "status": "OTLP_ONLY", "reason": "UNEXPLAINED"}


def collect(verdicts: list[dict], family: str, *, traffic: list[dict] | None = None, tasks: int = 2):
    table = pa.Table.from_pylist(verdicts, schema=VERDICT)
    residue = narrow(table)
    wanted = run_evidence.find_wanted_keys(residue, POLICY)
    size = -(-len(table) // tasks)
    parts = [run_evidence.collect_evidence(table.slice(begin, size), wanted) for begin in range(0, len(table), size)]
    parts.append(run_evidence.collect_traffic(pa.Table.from_pylist(traffic or [], schema=EVENT), wanted))
    return run_evidence.ResidueRows(residue, run_evidence.merge_evidence(parts), POLICY, Facts()).evidence_of(family)


def test_keys_of_a_large_residue_are_those_of_all_its_rows():
    lost = [narrow(pa.Table.from_pylist([lost_send(n)], schema=VERDICT)) for n in (1, 2)]
    residue = pa.concat_tables([*lost[:1] * 10_000, *lost[1:]]).combine_chunks()
    of_each = [run_evidence.find_wanted_keys(rows, POLICY).keys for rows in lost]
    assert run_evidence.find_wanted_keys(residue, POLICY).keys.tolist() == np.union1d(*of_each).tolist()


def test_trace_traffic_adds_ids_and_ends_of_its_process_but_no_key():
    traffic = [{"msg_id": uid(10, 77), "start_ms": 1, "end_ms": 20_000}]
    assert collect([lost_send(9)], "next1", traffic=traffic).moments(0) == [77]
    process = collect([lost_send(9)], "process", traffic=traffic)
    assert (process.count("keys")[0], int(process.value("otlp_ms").values[0])) == (1, 20_000)


@pytest.mark.parametrize("tasks", [1, 2])
def test_more_neighbours_than_are_kept_are_unknown_not_absent(tasks):
    def neighbours(count: int) -> list[dict]:
        return [{"kind": "consume", "msg_id": uid(10), "status": "PENDING"} for _ in range(count)]

    most = run_evidence.MOST_MOMENTS
    assert collect([lost_send(9), *neighbours(most)], "next1", tasks=tasks).moments(0) == [0] * most
    assert collect([lost_send(9), *neighbours(most + 1)], "next1", tasks=tasks).moments(0) is None


def test_counter_of_the_next_id_wraps_around():
    assert collect([lost_send(0xFFFF), {"kind": "publish", "msg_id": uid(0, 5)}], "next1").moments(0) == [5]


def test_key_with_an_unknown_part_has_no_evidence():
    row = {**lost_send(1), "msg_id": None}
    evidence = collect([row, {"kind": "publish", "msg_id": None, "status": "PENDING"}], "message")
    assert not evidence.is_known.any()
    assert evidence.count("keys").tolist() == [0]
    assert not evidence.value("first_ms").known.any()


def test_ids_of_either_length_are_read_and_others_are_not():
    texts = [uid(0xABCD, 0x12345678), "0" * 24 + uid(1, 2), uid(1).lower(), uid(1) + "\n", uid(1)[1:], None]
    ids = read_ids(pa.array(["x", *texts]).slice(1))
    assert ids.process.known.tolist() == [True, True, False, False, False, False]
    assert (ids.counter.values[:2].tolist(), ids.generated_ms.values[:2].tolist()) == ([0xABCD, 1], [0x12345678, 2])
    assert len(np.unique(ids.process.values[:2])) == 2
