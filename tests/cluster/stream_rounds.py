"""A stream of many rounds, six hours of traffic in each: ``python -m tests.cluster.stream_rounds ROOT WORK ROUNDS``.

A process of it ends after ROUNDS rounds, or kills itself where ``KILLS`` says, once for each; start it again then.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bridge.storage.paths import AnyPath, as_path, sorted_glob
from bridge.storage.stores import use_settings
from spark_jobs.jobs import stream
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.report.result import Result
from tests.cluster.cluster_runs import put
from tests.proofs.bench.trace_day import BEGIN_MS, DAY_MS, EVERY, _Day

A_ROUND: Final = 100  # messages
ROUNDS_A_DAY: Final = 4
KEPT_ROUNDS: Final = 2 * ROUNDS_A_DAY  # by the policy below
STAYS_ROUNDS: Final = 12  # so long a file stays where it landed
KILLS: Final = {5: "looking for", 9: "reading", 14: "judging every key", 15: "adding up", 17: "reported"}
"""In which round, at which stage the process kills itself."""

_POLICY: Final = 'forget_after = "2d"\n'


class _Weeks(_Day):
    """Traffic without an end: so many messages a day."""

    def _start_ms(self, number: int) -> int:
        return BEGIN_MS + number * DAY_MS // (A_ROUND * ROUNDS_A_DAY)


class Rounds:
    """The rounds of a process: what lands before each, and the figures of each in ``WORK/rounds.jsonl``."""

    def __init__(self, root: AnyPath, work: Path, rounds: int) -> None:
        self._root, self._work, self._rounds = root, work, rounds
        self._counter = work / "landed"

    @property
    def landed(self) -> int:
        return int(self._counter.read_text()) if self._counter.exists() else 0

    def land(self, _seconds: float = 0) -> None:
        """Let the next six hours land, and remove what has been there long enough; end the stream after the last."""
        number = self.landed
        if number == self._rounds:
            raise KeyboardInterrupt
        parts = self._work / "parts"
        for side in ("native", "otlp"):
            (parts / side).mkdir(parents=True, exist_ok=True)
        messages = range(number * A_ROUND, (number + 1) * A_ROUND)
        _Weeks(EVERY * EVERY, 0, weak=False).write(parts, number, messages)
        put(parts, self._root)
        for file in parts.rglob("part-*"):
            file.unlink()
        for old in sorted_glob(self._root, f"*/part-{number - STAYS_ROUNDS:05d}.*"):
            old.unlink()
        self._counter.write_text(str(number + 1))

    def reach(self, stage: str) -> None:
        wanted, mark = KILLS.get(self.landed), self._work / f"killed-{self.landed}"
        if wanted and stage.startswith(wanted) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def record(self, result: Result) -> Iterator[dict[str, str]]:
        """Write down what a round came to, and what it finds on disk."""
        yield {}
        kept = [path for name in ("stream", "history") for path in (self._root / "out" / name).rglob("*")]
        files = [path for path in kept if path.is_file()]
        row = {
            "round": self.landed,
            "holds": result.conservation.holds,
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files if path.name != "runs.jsonl"),
            "keys": sum(result.status.values()),
        }
        with (self._work / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.reach("reported")


def main() -> None:
    """Run the stream until its rounds are over."""
    root, work, rounds = as_path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    settings = json.loads(os.environ.get("STORE_SETTINGS", "{}"))
    use_settings(settings)
    run = Rounds(root, work, rounds)
    (work / "policy.toml").write_text(_POLICY)
    if not run.landed:
        run.land()
    options = ReconcileOptions(
        native=(f"{root}/native",),
        otlp=(f"{root}/otlp",),
        out=root / "out",
        history=root / "out" / "history",
        policy=work / "policy.toml",
        profile="mqtrace",
        native_writer="mqtrace",
        master="local[1]",
        conf={f"spark.hadoop.{name}": value for name, value in settings.items()},
    )
    stream.run(options, every_ms=1000, wait=run.land, progress=run.reach, report=run.record)


if __name__ == "__main__":
    main()
