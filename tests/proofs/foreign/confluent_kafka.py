"""Run confluent-kafka's own tests under an instrumentation, and report what it broke.

``python -m tests.proofs.foreign.confluent_kafka CHECKOUT`` (``make test-foreign CHECKOUT=…``) needs a checkout of the client and
what its tests import (``requirements/requirements-tests.txt``); a file that cannot be imported is counted and named. The unit
tests run once under each mode, all at once. A test that passes bare and fails twice under a mode is broken. Two modes count
spans as they end only: ordinary sends and polls then stay records. Exit code 1: ours broke something, or traced less when it
was switched on late; 2: no such checkout, or a run that did not end in time.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

MODES: Final = {
    "bare": "nothing",
    "early": "ours, before the import",
    "late": "ours, after the import",
    "records-early": "ours on records, before the import",
    "records-late": "ours on records, after the import",
    "contrib-early": "the incumbent, before the import",
    "contrib-late": "the incumbent, after the import",
}
"""Mode → what is switched on, and when."""
_PLUGIN: Final = Path(__file__).resolve().parent / "plugin"
_SUITE: Final = ("tests/test_*.py", "tests/avro/test_*.py", "tests/_util/test_*.py")
_PYTEST: Final = ("-q", "-pno:randomly", "-pno:cacheprovider", "-Wignore", "--continue-on-collection-errors")
_FLOOD: Final = 200
"""More spans than this in one test: it sends in a loop until it is stopped, and how far it comes is chance."""
_LOOK_S: Final = 0.5
_PAIRS: Final = (("early", "late"), ("records-early", "records-late"))
_OURS: Final = tuple(mode for pair in _PAIRS for mode in pair)


@dataclass(slots=True)
class Outcome:
    """One run: how each test ended, why it failed, how many spans began in it, and how many of each operation never ended.

    ``failed`` are failures of ours that no test noticed, by place.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    not_collected: set[str] = field(default_factory=set)
    spans: Counter[str] = field(default_factory=Counter)
    unended: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def comparable_spans(self) -> Counter[str]:
        """Spans by test, without the tests that send in a loop until they are stopped: those have no number."""
        return Counter({test: number for test, number in self.spans.items() if 0 < number <= _FLOOD})

    @property
    def floods(self) -> set[str]:
        return {test for test, number in self.spans.items() if number > _FLOOD}

    def count(self, outcome: str) -> int:
        return sum(1 for how in self.outcomes.values() if how == outcome)

    def note(self, test: str, outcome: str, reason: str) -> None:
        self.outcomes[test] = outcome
        if reason:
            self.reasons[test] = reason


class SuiteError(Exception):
    """A suite that cannot be run, or did not come to its end."""


def run_mode(checkout: Path, mode: str, tests: Sequence[str], *, hang_s: float, until: float = math.inf) -> Outcome:
    """Run ``tests`` (files or single tests, relative to the checkout) under one mode, in processes of their own.

    A test that shows no end for ``hang_s`` seconds is killed with its process and counts as failed; the tests after it
    go on in another process. ``until`` is when all of it must have ended, by ``time.monotonic()``.
    """
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        for attempt in count():
            lines, done = Path(folder) / f"{attempt}.jsonl", Path(folder) / "done"
            done.write_text("\n".join(outcome.outcomes), encoding="utf-8")
            lines.touch()
            known = len(outcome.outcomes)
            command = [sys.executable, "-m", "pytest", "-p", "mqtrace_under_test", *_PYTEST, *tests]
            with (Path(folder) / "output").open("w+", encoding="utf-8", errors="replace") as output:
                process = subprocess.Popen(
                    command,
                    cwd=checkout,
                    env=_environment(mode, lines, done),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                _watch(process, lines, hang_s, until)
                if time.monotonic() >= until:
                    raise SuiteError(
                        f"{mode}: not done in time: {len(outcome.outcomes)} tests had ended before the last"
                    )
                if _read(lines, outcome, hang_s):
                    return outcome
                output.seek(0)
                if len(outcome.outcomes) == known:
                    raise SuiteError(f"{mode}: pytest ended with {process.returncode}:\n{output.read()[-2000:]}")
    raise AssertionError  # count() never ends


def _environment(mode: str, lines: Path, done: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MQTRACE_"))}
    return clean | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_PLUGIN), clean.get("PYTHONPATH")))),
        "MQTRACE_FOREIGN_MODE": f"ours-{mode.removeprefix('records-')}" if mode in _OURS else mode,
        "MQTRACE_FOREIGN_COUNTS": "ends" if mode.startswith("records-") else "starts",
        "MQTRACE_FOREIGN_OUT": str(lines),
        "MQTRACE_FOREIGN_DONE": str(done),
    }


def _watch(process: subprocess.Popen[bytes], lines: Path, hang_s: float, until: float) -> None:
    written, since = 0, time.monotonic()
    while process.poll() is None:
        if (now_written := lines.stat().st_size) != written or not written:
            written, since = now_written, time.monotonic()
        if time.monotonic() >= min(since + hang_s, until):
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)


def _read(lines: Path, outcome: Outcome, hang_s: float) -> bool:
    """Add what a process wrote to ``outcome``; return whether it came to its end."""
    reports = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    begun = None
    for each in reports:
        begun = each.get("began", begun)
        if "test" in each:
            outcome.note(each["test"], each["outcome"], each["reason"])
            begun = None
        outcome.spans.update(each.get("spans", {}))
        if "not_collected" in each:
            outcome.not_collected.add(each["not_collected"])
    if begun is not None:
        outcome.note(begun, "failed", f"its process died, or showed no end for {hang_s:.0f} s")
    outcome.failed.update(reports[-1].get("failed", {}) if reports else {})
    if not reports or not reports[-1].get("finished"):
        return False
    outcome.unended.update(Counter(reports[-1]["started"]) - Counter(reports[-1]["ended"]))
    return True


def broken(bare: Outcome, under: Outcome) -> list[str]:
    """Return the tests that passed with nothing switched on and did not under a mode; one that vanished is among them."""
    return sorted(
        test for test, how in bare.outcomes.items() if how == "passed" and under.outcomes.get(test) != "passed"
    )


def _confirmed(checkout: Path, mode: str, suspects: Sequence[str], *, hang_s: float, until: float) -> list[str]:
    if not suspects:
        return []
    again = run_mode(checkout, mode, suspects, hang_s=hang_s, until=until)
    return [test for test in suspects if again.outcomes.get(test) != "passed"]


def verdict(seen: dict[str, Outcome], broke: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with ours, a sentence each; empty means that all is well."""
    wrong = [f"{mode}: {len(broke[mode])} tests broken" for mode in _OURS if broke.get(mode)]
    for pair in _PAIRS:
        if set(pair) <= seen.keys():
            early, late = (seen[mode] for mode in pair)
            differ = early.comparable_spans.keys() | late.comparable_spans.keys()
            wrong += [
                f"{test}: {early.spans[test]} spans {pair[0]}, {late.spans[test]} {pair[1]}"
                for test in sorted(differ)
                if early.spans[test] != late.spans[test] and test not in early.floods & late.floods
            ]
    ours = [(mode, seen[mode]) for mode in _OURS if mode in seen]
    wrong += [f"{mode}: spans that never ended: {dict(each.unended)}" for mode, each in ours if each.unended]
    wrong += [f"{mode}: failures of ours: {dict(each.failed)}" for mode, each in ours if each.failed]
    return wrong


def _table(seen: dict[str, Outcome], broke: dict[str, list[str]]) -> Iterable[str]:
    head = ("mode", "tests", "passed", "failed", "skipped", "broken", "spans")
    yield "{:<36}{:>7}{:>8}{:>8}{:>9}{:>8}  {}".format(*head)
    for mode, under in seen.items():
        counts = [under.count(each) for each in ("passed", "failed", "skipped")]
        spans = str(sum(under.comparable_spans.values())) + (f" and {len(under.floods)} floods" if under.floods else "")
        lost = str(len(broke[mode])) if mode in broke else "-"
        yield f"{MODES[mode]:<36}{sum(counts):>7}{counts[0]:>8}{counts[1]:>8}{counts[2]:>9}{lost:>8}  {spans}"


def _details(seen: dict[str, Outcome], broke: dict[str, list[str]]) -> Iterable[str]:
    for file in sorted(seen["bare"].not_collected):
        yield f"not collected (what it imports is missing): {file}"
    for mode, tests in broke.items():
        for test in tests:
            yield f"broken by {MODES[mode]}: {test}: {seen[mode].reasons.get(test, 'it did not run')}"


def _suite(checkout: Path) -> list[str]:
    if not (checkout / "src" / "confluent_kafka").is_dir() and not list(checkout.glob(_SUITE[0])):
        raise SuiteError(
            f"{checkout} is no checkout of confluent-kafka: it has neither src/confluent_kafka nor {_SUITE[0]}"
        )
    files = sorted(path.relative_to(checkout).as_posix() for pattern in _SUITE for path in checkout.glob(pattern))
    if not files:
        raise SuiteError(
            f"{checkout} has no {', '.join(_SUITE)}: a source distribution has no tests, clone the repository"
        )
    return files


def _observed(
    checkout: Path, modes: Sequence[str], *, hang_s: float, until: float
) -> tuple[dict[str, Outcome], dict[str, list[str]]]:
    files = _suite(checkout)
    with ThreadPoolExecutor(len(modes)) as side_by_side:
        runs = side_by_side.map(lambda mode: run_mode(checkout, mode, files, hang_s=hang_s, until=until), modes)
        seen = dict(zip(modes, runs, strict=True))
    broke = {}
    for mode in modes:
        if mode != "bare":
            suspects = broken(seen["bare"], seen[mode])
            broke[mode] = _confirmed(checkout, mode, suspects, hang_s=hang_s, until=until)
            seen[mode].outcomes.update({test: "passed" for test in suspects if test not in broke[mode]})
    return seen, broke


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and say what ours broke; see the module for exit codes."""
    parser = argparse.ArgumentParser(
        prog="tests.proofs.foreign.confluent_kafka", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("checkout", type=Path, help="folder of the client's repository, at the tag to test")
    parser.add_argument("--mode", action="append", choices=[m for m in MODES if m != "bare"], help="only these modes")
    parser.add_argument(
        "--hang-s", type=float, default=90, help="a test that takes longer, in seconds, counts as failed"
    )
    parser.add_argument("--within-s", type=float, default=1800, help="all of it must have ended after so many seconds")
    given = parser.parse_args(arguments)
    modes = ["bare", *(mode for mode in MODES if mode in (given.mode or MODES) and mode != "bare")]
    try:
        until = time.monotonic() + given.within_s
        seen, broke = _observed(given.checkout.resolve(), modes, hang_s=given.hang_s, until=until)
    except SuiteError as problem:
        sys.stderr.write(f"foreign suite: error: {problem}\n")
        return 2
    wrong = verdict(seen, broke)
    sys.stdout.write(
        "\n".join([*_table(seen, broke), *_details(seen, broke), *(f"WRONG: {each}" for each in wrong), ""])
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
