"""Run probes: a process for each subject, a fork of it for each probe, one broker for all.

The process of a subject has imported the client and nothing that speaks to a broker, so a fork of it is as good as a
fresh interpreter: what a probe leaves switched on, attached or leaked dies with it.

``python -m tests.proofs.scoreboard.runner SUBJECT SERVERS`` prints one JSON line for each probe.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.proofs.scoreboard.rows import PROBES
from tests.proofs.scoreboard.stage import SUBJECTS, Seen, Stage, Subject
from tests.support.source_tree import ROOT

_PROBE_SECONDS = 60
_RUN_SECONDS = 300


def observe(names: list[str] | None = None) -> dict[str, dict[str, Seen]]:
    """Run probes (all of them unless named) for every subject at the same time: subject → probe → what was seen."""
    with EmbeddedKafka() as kafka, ThreadPoolExecutor(len(SUBJECTS)) as side_by_side:
        for subject in SUBJECTS:
            for name in names or PROBES:
                kafka.create_topic(_topic(subject, name), partitions=1)
        servers = kafka.bootstrap_servers
        seen = side_by_side.map(lambda subject: _observed(subject, servers, names or []), SUBJECTS)
        return dict(zip(SUBJECTS, seen, strict=True))


def _topic(subject: str, probe: str) -> str:
    return f"orders.{probe.replace('_', '.')}.{subject}"


def _observed(subject: str, servers: str, names: list[str]) -> dict[str, Seen]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MQTRACE_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.scoreboard.runner", subject, servers, *names],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(lines) != len(names or PROBES):
        raise AssertionError(f"the process of {subject} ended with {done.returncode}: {done.stderr[-2000:]}")
    return {line["probe"]: Seen(line["yes"], line["evidence"]) for line in lines}


def _forked(subject: Subject, servers: str, name: str) -> Seen:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _report(write, _looked(subject, servers, name))
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as reports:
        text = reports.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return Seen(False, f"the process died: signal {os.WTERMSIG(status)}")
    answer = json.loads(text)
    return Seen(answer["yes"], answer["evidence"])


def _looked(subject: Subject, servers: str, name: str) -> Seen:
    signal.alarm(_PROBE_SECONDS)  # a probe that hangs is a process that died of signal 14
    stage = Stage(subject, servers, _topic(subject.name, name))
    try:
        return PROBES[name](stage)
    except Exception as error:  # noqa: BLE001 - whatever is raised into the user's code is what was seen
        sys.stderr.write(f"-- {name}, {subject.name}\n{traceback.format_exc()}")
        return Seen(False, stage.mask_topic(f"raised {type(error).__name__}: {str(error)[:120]}"))


def _report(target: int, seen: Seen) -> None:
    with os.fdopen(target, "w", encoding="utf-8") as out:
        out.write(json.dumps({"yes": seen.yes, "evidence": seen.evidence}))
    sys.stderr.flush()
    os._exit(0)


def main(subject: str, servers: str, *names: str) -> int:
    """Run the probes of one subject in this process; return 0."""
    for name in names or PROBES:
        seen = _forked(SUBJECTS[subject], servers, name)
        sys.stdout.write(json.dumps({"probe": name, "yes": seen.yes, "evidence": seen.evidence}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
