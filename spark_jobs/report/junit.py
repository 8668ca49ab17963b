"""``junit.xml``: one test per gate, as a CI server shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_jobs.report.headline import meaning
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import number
from spark_jobs.taxonomy import ExitCode, Outcome

if TYPE_CHECKING:
    from spark_jobs.report.result import Gate, Result

__all__ = ["render_junit"]

_ELEMENT: Final = {Outcome.FAIL.value: "failure", Outcome.INCONCLUSIVE.value: "skipped"}


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    element: str  # failure, error, skipped, or empty for a test that passed
    message: str
    output: str


def render_junit(result: Result) -> str:
    """Return the suite: a failed gate is a failure with value and threshold, an inconclusive one is skipped.

    A run that does not balance (exit code 3) or is inconclusive (exit code 4) adds an error, so that it never looks
    green.
    """
    cases = [_case(gate) for gate in result.gates]
    if result.exit_code == ExitCode.INCONCLUSIVE:
        cases.append(_Case("conclusive", "error", "the run is inconclusive", meaning(result)))
    if not result.conservation.holds or result.exit_code == ExitCode.IDENTITY_BROKEN:
        equations = f"native: {result.conservation.native}; OTLP: {result.conservation.otlp}"
        cases.append(_Case("conservation", "error", "the books do not balance", equations))
    counts = {name: sum(case.element == name for case in cases) for name in ("failure", "error", "skipped")}
    page = environment().get_template("junit.xml.j2")
    return page.render(result=result, cases=cases, counts=counts)


def _case(gate: Gate) -> _Case:
    message = f"{gate.name} is {number(gate.value)}, must be {gate.op} {number(gate.threshold)}"
    output = f"{gate.outcome}: {message}. {gate.explanation}".strip()
    return _Case(gate.name, _ELEMENT.get(gate.outcome, ""), message, output)
