"""This module knows the few sentences everybody reads: the verdict, what it is about and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.report.wording import count, duration, percent, ppm, utc
from spark_jobs.taxonomy import Outcome, Reason, Status, Verdict

if TYPE_CHECKING:
    from spark_jobs.report.result import Loss, Result

__all__ = [
    "SIDE_NAME",
    "Headline",
    "Matched",
    "headline",
    "loss_sentence",
    "matched",
    "meaning",
]

SIDE_NAME = {"native": "native trace", "otlp": "OTLP"}
_SUBJECT = {"native": "The native trace", "otlp": "OTLP"}

_MEANING = {
    Verdict.PASS.value: "The two formats tell the same story: every gate holds.",
    Verdict.WARN.value: "Every hard gate holds; at least one warning is worth a look.",
    Verdict.FAIL.value: "At least one gate does not hold.",
    Verdict.INCONCLUSIVE.value: "There was not enough to judge by. This is not a pass:",
}
_MATCHED = (Status.MATCHED_EXACT.value, Status.MATCHED_NORMALISED.value)
_UNJUDGED = (Status.PENDING.value, Status.OUT_OF_SCOPE.value, Status.MALFORMED.value)


@dataclass(frozen=True, slots=True)
class Headline:
    """The banner: ``figures`` are (label, value, note) in reading order."""

    verdict: str
    meaning: str
    because: tuple[str, ...]
    figures: tuple[tuple[str, str, str], ...]
    scope: str


@dataclass(frozen=True, slots=True)
class Matched:
    """Keys that are equal on both sides, and settled ones that should be there: all but those with BY_DESIGN."""

    keys: int
    checked: int

    @property
    def rate(self) -> float | None:
        """The share, ``None`` when there is nothing to share."""
        return self.keys / self.checked if self.checked > 0 else None


def matched(result: Result) -> Matched:
    """Return how many of the events that both sides should have are there and equal."""
    judged = sum(keys for name, keys in result.status.items() if name not in _UNJUDGED)
    both = sum(result.status.get(name, 0) for name in _MATCHED)
    return Matched(keys=both, checked=judged - result.reason.get(Reason.BY_DESIGN.value, 0))


def headline(result: Result) -> Headline:
    """Return what the top of every report says about ``result``."""
    return Headline(
        verdict=result.verdict,
        meaning=meaning(result),
        because=_because(result),
        figures=(_checked(result), _matched(result), *(_lost(side, result.loss[side]) for side in sorted(result.loss))),
        scope=_scope(result),
    )


def meaning(result: Result) -> str:
    """Return what the verdict says, in one sentence; of an inconclusive one also why, and the mend."""
    said = _MEANING.get(result.verdict, "This verdict is unknown to the report.")
    if result.verdict == Verdict.INCONCLUSIVE.value:
        return f"{said} {result.doubt or 'a gate that can fail the run had nothing to measure'}."
    return said


def loss_sentence(side: str, loss: Loss) -> str:
    """Return what ``side`` lacks, with the bound that 95 of 100 such runs would hold."""
    lacked = f"{count(loss.unexplained)} of {count(loss.checked)} events"
    bound = f"; with 95 % confidence the rate is below {ppm(loss.upper_bound_95_ppm)}"
    return (
        f"{_SUBJECT.get(side, side)} lacks {lacked} without explanation"
        f"{bound if loss.upper_bound_95_ppm is not None else ''}"
        f"{f', and {count(loss.attributed)} more whose reason is named' if loss.attributed else ''}."
    )


def _because(result: Result) -> tuple[str, ...]:
    broken = () if result.conservation.holds else ("The books do not balance: see the balance sheet.",)
    kept = {Outcome.PASS.value}
    gates = sorted(
        (gate for gate in result.gates if gate.outcome not in kept), key=lambda gate: _RANK.get(gate.outcome, 0)
    )
    return (*broken, *(f"{gate.name}: {gate.outcome}" for gate in gates))


_RANK = {Outcome.FAIL.value: 0, Outcome.INCONCLUSIVE.value: 1, Outcome.WARN.value: 2}


def _checked(result: Result) -> tuple[str, str, str]:
    total = sum(result.status.values())
    judged = total - sum(result.status.get(name, 0) for name in _UNJUDGED)
    return ("Events judged", count(judged), f"of {count(total)} seen on either side")


def _matched(result: Result) -> tuple[str, str, str]:
    found = matched(result)
    rate = "—" if found.rate is None else percent(found.keys, found.checked)
    return ("Matched", rate, f"{count(found.keys)} equal, of {count(found.checked)} that both sides should have")


def _lost(side: str, loss: Loss) -> tuple[str, str, str]:
    bound = "no bound: nothing was checked"
    if loss.upper_bound_95_ppm is not None:
        bound = f"of {count(loss.checked)}; below {ppm(loss.upper_bound_95_ppm)} at 95 % confidence"
    return (f"Unexplained loss, {SIDE_NAME.get(side, side)}", count(loss.unexplained), bound)


def _scope(result: Result) -> str:
    settled = "no settled horizon"
    if result.horizon_ms is not None:
        settled = f"settled up to {utc(result.horizon_ms)} (grace {duration(result.grace_ms)})"
    return f"{utc(result.window.begin_ms)} to {utc(result.window.end_ms)}, {settled}"
