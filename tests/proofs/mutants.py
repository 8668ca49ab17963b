"""Mutation tests: how many random changes to one of four packages the tests notice, and which they do not.

Needs ``pip install mutmut coverage`` and a checkout that nothing else uses: each mutant is written into it in turn::

    coverage run --data-file COVERAGE -m pytest -n 0 tests/…      with dynamic_context = test_function
    python tests/proofs/mutants.py RESULTS COVERAGE… --seed 28 --minutes 60

The mutations are mutmut's. A mutant is run against the tests that execute its line, the most specific first. RESULTS
gets one JSON object per mutant, and a second run goes on behind them; packages take turns, so that a run that is cut off
has sampled them equally.
"""

import argparse
import ast
import json
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import cache_from_source
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import libcst as cst
from coverage import CoverageData
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import create_mutations

from otel_mqtrace._clock import MonotonicNs, SystemClock, pause

PACKAGES: Final = ("otel_mqtrace/wire", "otel_mqtrace/records", "otel_mqtrace/spans", "spark_jobs/judging")
ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 120
_STEP_S: Final = 0.02
_EXAMPLES: Final = 8
_MOST_TESTS: Final = 15
_OUTCOMES: Final = {0: "survived", 4: "not run", 5: "not run"}
"""pytest's exit code → outcome; a test that cannot be found is no verdict."""


class Mutant(NamedTuple):
    """One change of one function of one file."""

    package: str
    file: str
    line: int
    function: str
    module: cst.Module
    original: cst.CSTNode
    mutated: cst.CSTNode

    @property
    def code(self) -> str:
        """The whole file with the change."""
        return self.module.deep_replace(self.original, self.mutated).code  # type: ignore[arg-type,union-attr]

    def as_json(self, outcome: str) -> str:
        """Return one line."""
        before, after = (" ".join(self.module.code_for_node(node).split()) for node in (self.original, self.mutated))
        fields = {"file": self.file, "line": self.line, "function": self.function, "before": before, "after": after}
        return json.dumps({"package": self.package, **fields, "outcome": outcome})


def mutants_of(package: str) -> Iterator[Mutant]:
    """Yield every mutant of the functions of ``package``."""
    for path in sorted((ROOT / package).rglob("*.py")):
        module, mutations, *_ = create_mutations(str(path), path.read_text(encoding="utf-8"))
        lines = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        for each in mutations:
            function = each.contained_by_top_level_function
            if not isinstance(function, cst.FunctionDef) or each.original_node not in lines:
                continue  # a table of a class or module: wrong values there break an import, not a rule
            yield Mutant(
                package,
                str(path.relative_to(ROOT)),
                lines[each.original_node].start.line,
                function.name.value,
                module,
                each.original_node,
                each.mutated_node,
            )


def sample(packages: Sequence[str], seed: int, per_package: int) -> list[Mutant]:
    """Return random mutants, the packages in turn."""
    dice = random.Random(seed)
    columns = []
    for package in packages:
        every = list(mutants_of(package))
        columns.append(dice.sample(every, min(per_package, len(every))))
    return [each for each in chain.from_iterable(zip_longest(*columns)) if each is not None]


class Coverage:
    """Which tests execute a line."""

    def __init__(self, data_files: Sequence[str]) -> None:
        self._tests: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for data_file in data_files:
            data = CoverageData(data_file)
            data.read()
            for file in data.measured_files():
                for line, tests in data.contexts_by_lineno(file).items():
                    self._tests[file, line].update(filter(None, tests))
        self._reach = Counter(test for tests in self._tests.values() for test in tests)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the node ids of the tests that execute the line of ``mutant``, the most specific first.

        Coverage gives all properties one context: where one of them executes the line, all of the package's come last.
        """
        tests = self._tests[str(ROOT / mutant.file), mutant.line]
        names = [_node_id(each) for each in sorted(tests, key=lambda test: (self._reach[test], test))]
        properties = [each for each in _properties(mutant.package) if each not in names] if "" in names else []
        return [*filter(None, dict.fromkeys(names)), *properties][:_MOST_TESTS]


def _node_id(context: str) -> str:
    """``tests.a.test_b.test_c`` → ``tests/a/test_b.py::test_c``; empty for Hypothesis's own function."""
    parts = context.split(".")
    for at in range(len(parts), 0, -1):
        if parts[0] == "tests" and ROOT.joinpath(*parts[:at]).with_suffix(".py").is_file():
            return "::".join([f"{'/'.join(parts[:at])}.py", *parts[at:]])
    return ""


@cache
def _properties(package: str) -> list[str]:
    """Return the node ids of the Hypothesis tests of ``package``."""
    return [
        f"{path.relative_to(ROOT)}::{each.name}"
        for path in sorted((ROOT / "tests" / package).glob("test_*.py"))
        for each in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef) and any("given(" in ast.unparse(mark) for mark in each.decorator_list)
    ]


class _FewExamples:
    """A pytest plugin: most mutants that a property notices fall to its first examples."""

    @staticmethod
    def pytest_collection_modifyitems(items: list[Any]) -> None:
        from hypothesis import settings  # noqa: PLC0415 - as in _preload

        for item in items:
            known = getattr(item.obj, "_hypothesis_internal_use_settings", None)
            if known is not None:
                item.obj._hypothesis_internal_use_settings = settings(known, max_examples=_EXAMPLES)


def outcome_of(mutant: Mutant, tests: Sequence[str]) -> str:
    """Return ``killed``, ``survived``, ``timeout``, ``not run`` or ``not covered``; the file is restored."""
    if not tests:
        return "not covered"
    path = ROOT / mutant.file
    original = path.read_text(encoding="utf-8")
    compiled = Path(cache_from_source(str(path)))
    try:
        path.write_text(mutant.code, encoding="utf-8")
        compiled.unlink(missing_ok=True)  # its check of the source's age and size is too coarse for this
        return _run(tests)
    finally:
        path.write_text(original, encoding="utf-8")
        compiled.unlink(missing_ok=True)


def _run(tests: Sequence[str]) -> str:
    process = os.fork()  # what third-party packages take to import is paid once, in the parent
    if process == 0:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        import pytest  # noqa: PLC0415 - as below

        options = ["-x", "-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        os._exit(int(pytest.main([*options, *tests], plugins=[_FewExamples()])))
    clock = SystemClock()
    give_up = MonotonicNs(clock.monotonic_ns() + _TIMEOUT_S * 1_000_000_000)
    while clock.monotonic_ns() < give_up:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return _OUTCOMES.get(os.waitstatus_to_exitcode(status), "killed")
        pause(_STEP_S)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "timeout"


def _preload() -> None:
    """Import what the tests import of other packages, and nothing of ours."""
    import confluent_kafka  # noqa: F401, PLC0415
    import hypothesis  # noqa: F401, PLC0415
    import numpy  # noqa: F401, ICN001, PLC0415
    import opentelemetry.sdk.trace.export  # noqa: F401, PLC0415
    import pyarrow.compute  # noqa: F401, PLC0415
    import pytest  # noqa: F401, PLC0415


def main() -> None:
    """Run the sample until it or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("coverage", nargs="+")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--per-package", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=1440)
    parser.add_argument("--package", action="append", choices=PACKAGES)
    given = parser.parse_args()
    clock = SystemClock()
    until = clock.monotonic_ns() + given.minutes * 60e9
    coverage, mutants = Coverage(given.coverage), sample(given.package or PACKAGES, given.seed, given.per_package)
    _preload()
    counts: Counter[tuple[str, str]] = Counter()
    done = len(given.results.read_text(encoding="utf-8").splitlines()) if given.results.exists() else 0
    with given.results.open("a", encoding="utf-8") as results:
        for mutant in mutants[done:]:
            if clock.monotonic_ns() >= until:
                break
            outcome = outcome_of(mutant, coverage.tests_of(mutant))
            counts[mutant.package, outcome] += 1
            results.write(f"{mutant.as_json(outcome)}\n")
            results.flush()
    for (package, outcome), count in sorted(counts.items()):
        sys.stdout.write(f"{package:25} {outcome:12} {count}\n")


if __name__ == "__main__":
    main()
