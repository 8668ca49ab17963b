"""A stream that goes on for weeks, killed now and then: exact after each restart, its state no larger than before."""

import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

from bridge.storage.paths import as_path, list_files, open_parquet
from bridge.storage.stores import use_settings
from tests.cluster.cluster_runs import LONGEST_S, ROOT
from tests.cluster.clusters import TestStore, s3, spark_environment
from tests.cluster.stream_rounds import A_ROUND, KEPT_ROUNDS, KILLS

pytestmark = pytest.mark.cluster

# by the rest of a message's number, divided by a thousand
_STATUS = {
    "publish": {1: "OTLP_ONLY", 2: "NATIVE_ONLY", 5: "DUPLICATED_OTLP", 6: "MISMATCHED"},
    "consume": {3: "NATIVE_ONLY", 4: "OTLP_ONLY"},
}


@pytest.mark.parametrize(("place", "rounds"), [("disk", 60), ("s3", 36)])
def test_stream_of_many_rounds_with_kills_is_exact_and_its_state_stays_flat(place, rounds, tmp_path):
    here = nullcontext(TestStore(str(tmp_path / "root"), {}))
    with here if place == "disk" else s3(tmp_path) as store:
        use_settings(store.settings)
        command = [sys.executable, "-m", "tests.cluster.stream_rounds", store.root, str(tmp_path), str(rounds)]
        environment = spark_environment(PYTHONPATH=str(ROOT), STORE_SETTINGS=json.dumps(store.settings))
        ends = []
        while not ends or ends[-1] == -signal.SIGKILL:
            log = tmp_path / f"{len(ends)}.log"
            with log.open("wb") as output:
                streams, patience_s = {"stdout": output, "stderr": output}, 2 * LONGEST_S
                done = subprocess.run(
                    command, env=environment, check=False, timeout=patience_s, cwd=tmp_path, **streams
                )
            ends.append(done.returncode)
        assert ends == [-signal.SIGKILL] * len(KILLS) + [0], log.read_text()[-3000:]
        figures = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
        assert {row["round"] for row in figures} == set(range(1, rounds + 1))
        assert all(row["holds"] for row in figures)
        _assert_flat(figures)
        _assert_exact(store.root, rounds)
    use_settings({})


def _assert_flat(rounds: list[dict[str, Any]]) -> None:
    third = len(rounds) // 3
    for name in ("files", "bytes", "keys"):
        before, after = (max(row[name] for row in rows) for rows in (rounds[third : 2 * third], rounds[2 * third :]))
        assert after <= 1.1 * before, (name, rounds)


def _assert_exact(root: str, rounds: int) -> None:
    """Both keys of each message of the last days are judged once, none of those before."""
    rows = [
        row for file in list_files(as_path(root) / "out" / "verdicts") for row in open_parquet(file).read().to_pylist()
    ]
    keys = Counter((int(row["msg_id"], 16), row["kind"]) for row in rows)
    first = min(number for number, _ in keys)
    assert KEPT_ROUNDS * A_ROUND <= rounds * A_ROUND - first <= (2 * KEPT_ROUNDS + 2) * A_ROUND
    assert keys == Counter(
        (number, kind) for number in range(first, rounds * A_ROUND) for kind in ("publish", "consume")
    )
    for row in rows:
        expected = _STATUS[row["kind"]].get(int(row["msg_id"], 16) % 1000, "MATCHED_EXACT")
        assert row["status"] == expected, row
