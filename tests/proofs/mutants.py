"""Mutation tests: how many random changes to a package the tests notice, and which they do not.

Needs ``pip install mutmut coverage`` and a checkout that nothing else uses: each mutant is written into it in turn::

    python tests/proofs/mutants.py RESULTS tests/otel_mqtrace/wire … --package otel_mqtrace/wire --seed 47

The mutations are mutmut's. The tests are collected once, and run once to find the lines that each executes. A mutant is
then put into the functions of a child process, which runs the tests of its line, the most specific first. RESULTS gets
one JSON object per mutant, and a run that was interrupted goes on behind them.
"""

import argparse
import gc
import json
import os
import pickle
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import libcst as cst
import pytest
from coverage import Coverage
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import create_mutations

PACKAGES: Final = ("otel_mqtrace/wire", "otel_mqtrace/records", "otel_mqtrace/spans", "spark_jobs/judging")
ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 120
_EXAMPLES: Final = 30
_MOST_TESTS: Final = 120
_OUTCOMES: Final = {0: "survived", -signal.SIGALRM: "timeout"}
"""Exit code of a child → outcome; any other is ``killed``."""


class Mutant(NamedTuple):
    """One change of one function of one file."""

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
        return json.dumps({**fields, "outcome": outcome})


def mutants_of(package: str) -> Iterator[Mutant]:
    """Yield every mutant of the functions of ``package``."""
    for path in sorted((ROOT / package).rglob("*.py")):
        module, mutations, *_ = create_mutations(str(path), path.read_text(encoding="utf-8"))
        lines = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        for each in mutations:
            function = each.contained_by_top_level_function
            if not isinstance(function, cst.FunctionDef) or each.original_node not in lines:
                continue  # a table of a class or module: wrong values there break an import, not a rule
            place = (str(path.relative_to(ROOT)), lines[each.original_node].start.line, function.name.value)
            yield Mutant(*place, module, each.original_node, each.mutated_node)


class Mutating:
    """A pytest plugin that runs the collected tests for each mutant, in a child of this process."""

    def __init__(self, mutants: Sequence[Mutant], package: str, results: Path) -> None:
        self._mutants, self._results = mutants, results
        self._own = f"tests/{package}/"  # where its tests are: they mirror the packages
        self._failed: set[str] = set()
        self._enter: Callable[[str], object] = str
        self.counts: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: Any) -> None:
        self._enter(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        for item in session.items:
            _limit_examples(item)
        gc.unfreeze()  # what is frozen is not listed, and spares each child its collection
        functions = [each for each in gc.get_objects() if type(each) is FunctionType]
        gc.freeze()
        tests = self._find_tests(session.items)
        for mutant in self._mutants:
            outcome = self._try(mutant, tests[mutant.file, mutant.line][:_MOST_TESTS], functions)
            self.counts[outcome] += 1
            with self._results.open("a", encoding="utf-8") as results:
                results.write(f"{mutant.as_json(outcome)}\n")
        return True

    def _run(self, items: Sequence[Any], before: Callable[[Any], object]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            before(item)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)

    def _find_tests(self, items: Sequence[Any]) -> defaultdict[tuple[str, int], list[Any]]:
        """Return the tests that execute a line and succeed, the package's own first, of those that of the fewest lines.

        What fixtures execute is of every test of the file: one of them may have set up what the others share.
        """
        found = self._results.with_suffix(".lines")
        if not found.exists():
            run_in_child(lambda: self._measure(items, found))
        lines_of, failed = pickle.loads(found.read_bytes())
        tests: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
        known = sorted(items, key=lambda item: (item.nodeid[: len(self._own)] != self._own, len(lines_of[item.nodeid])))
        for item in known:
            for line in lines_of[item.nodeid] | lines_of[_file_of(item)] if item.nodeid not in failed else ():
                tests[line].append(item)
        return tests

    def _measure(self, items: Sequence[Any], found: Path) -> None:
        include = [f"{ROOT / package}/*" for package in PACKAGES]
        coverage = Coverage(data_file=None, include=include, config_file=False)
        with coverage.collect():
            self._enter = coverage.switch_context
            self._run(items, lambda item: self._enter(_file_of(item)))
        data, lines_of = coverage.get_data(), defaultdict(set)
        for file in data.measured_files():
            for line, names in data.contexts_by_lineno(file).items():
                for name in names:
                    lines_of[name].add((str(Path(file).relative_to(ROOT)), line))
        found.write_bytes(pickle.dumps((lines_of, self._failed)))

    def _try(self, mutant: Mutant, tests: Sequence[Any], functions: Sequence[FunctionType]) -> str:
        """Return ``killed``, ``survived``, ``timeout`` or ``not covered``; the file is restored."""
        path = ROOT / mutant.file
        original, compiled = path.read_text(encoding="utf-8"), Path(cache_from_source(str(path)))

        def run() -> None:
            signal.alarm(_TIMEOUT_S)
            _put_into(functions, path, mutant.code)
            self._run(tests, lambda _: os._exit(1) if self._failed else None)
            os._exit(bool(self._failed))

        try:
            path.write_text(mutant.code, encoding="utf-8")  # for the programs that tests start
            compiled.unlink(missing_ok=True)  # its check of the source's age and size is too coarse for this
            return _OUTCOMES.get(run_in_child(run), "killed") if tests else "not covered"
        finally:
            path.write_text(original, encoding="utf-8")
            compiled.unlink(missing_ok=True)


def _file_of(item: Any) -> str:
    return str(item.nodeid.partition("::")[0])


def _limit_examples(item: Any) -> None:
    """Let a property run a few of its examples: most mutants that it notices fall to the first."""
    from hypothesis import settings  # noqa: PLC0415 - pytest imports it first

    known = getattr(item.obj, "_hypothesis_internal_use_settings", None)
    if known is not None:
        item.obj._hypothesis_internal_use_settings = settings(known, max_examples=min(_EXAMPLES, known.max_examples))


def _put_into(functions: Sequence[FunctionType], path: Path, text: str) -> None:
    """Give the functions that were made from ``path`` the code that they have in ``text``."""
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(text, str(path), "exec"))}
    for function in functions:
        known = function.__code__
        code = codes.get((known.co_qualname, known.co_firstlineno)) if known.co_filename == str(path) else None
        if code is not None and code.co_freevars == known.co_freevars:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def run_in_child(act: Callable[[], object]) -> int:
    """Return the exit code of a silent child process that has done ``act``; what it left running is killed."""
    process = os.fork()
    if process == 0:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        try:
            act()
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Try a random sample of the mutants of a package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--package", choices=PACKAGES, required=True)
    given = parser.parse_args()
    every = list(mutants_of(given.package))
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    done = len(given.results.read_text(encoding="utf-8").splitlines()) if given.results.exists() else 0
    mutating = Mutating(drawn[done:], given.package, given.results)
    options = ["-s", "-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not spark"]
    pytest.main([*options, "--hypothesis-seed=0", *given.tests], plugins=[mutating])
    sys.stdout.write("".join(f"{outcome:12} {count}\n" for outcome, count in sorted(mutating.counts.items())))


if __name__ == "__main__":
    main()
