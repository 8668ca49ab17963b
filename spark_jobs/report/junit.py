"""``junit.xml``: one test per gate, so that a CI server shows a gate like any other test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.report.headline import meaning
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import number
from spark_jobs.taxonomy import ExitCode, Outcome

if TYPE_CHECKING:
    from spark_jobs.report.result import Gate, Result

__all__ = ["render_junit"]

_VERB = {Outcome.FAIL.value: "failure", Outcome.INCONCLUSIVE.value: "skipped"}


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    element: str  # failure, error, skipped, or empty for a test that passed
    message: str
    said: str


def render_junit(result: Result) -> str:
    """Return the suite: a failed gate is a failure with value and threshold, an undecidable one is skipped.

    Books that do not balance (exit code 3) and a run that could not conclude (exit code 4) add one erroneous test of
    their own: neither may look green on a CI server, whatever the gates say.
    """
    cases = [_case(gate) for gate in result.gates]
    if result.exit_code == ExitCode.INCONCLUSIVE:
        cases.append(_Case("conclusive", "error", "the run is inconclusive", meaning(result)))
    if not result.conservation.holds or result.exit_code == ExitCode.IDENTITY_BROKEN:
        told = f"native: {result.conservation.native}; OTLP: {result.conservation.otlp}"
        cases.append(_Case("conservation", "error", "the books do not balance", told))
    counts = {name: sum(case.element == name for case in cases) for name in ("failure", "error", "skipped")}
    page = environment().get_template("junit.xml.j2")
    return page.render(result=result, cases=cases, counts=counts)


def _case(gate: Gate) -> _Case:
    message = f"{gate.name} is {number(gate.value)}, must be {gate.op} {number(gate.threshold)}"
    said = f"{gate.outcome}: {message}. {gate.explanation}".strip()
    return _Case(gate.name, _VERB.get(gate.outcome, ""), message, said)
