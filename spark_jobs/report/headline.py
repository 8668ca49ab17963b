"""The sentences at the top of every report: the verdict, its grounds, and the next steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_jobs.report.glossary import FINE, SIDE_NAME, find_entry, group_finding, label_finding
from spark_jobs.report.wording import count, duration, number, percent, plural, ppm, utc
from spark_jobs.taxonomy import Outcome, Reason, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_jobs.report.result import Finding, Loss, Result

_SUBJECT: Final = {"native": "The native trace", "otlp": "OTLP"}
_LOST: Final = (("otlp", Status.NATIVE_ONLY.value, "span"), ("native", Status.OTLP_ONLY.value, "native record"))
"""Side that lost, status of its lost events, and a noun for one."""

_LEAD: Final = {
    Verdict.PASS.value: "The two formats agree: no gate fails",
    Verdict.WARN.value: "Every hard gate holds; at least one warning is worth a look",
    Verdict.FAIL.value: "At least one gate does not hold",
    Verdict.INCONCLUSIVE.value: "There was not enough to judge by. This is not a pass",
}
_COUNTED_GATES: Final = (
    *("unexplained_loss_native", "unexplained_loss_otlp", "malformed", "critical_field_agreement", "field_agreement"),
    *("writer_silent", "duplicate_excess", "conflicting_duplicates"),
)
"""Gates whose failure a count in the sentence explains."""
_MOST_GATES: Final = 3
_NOT_HELD: Final = (Outcome.FAIL.value, Outcome.WARN.value)
_DUPLICATED: Final = (Status.DUPLICATED_NATIVE.value, Status.DUPLICATED_OTLP.value, Status.DUPLICATED_BOTH.value)
_UNJUDGED: Final = (Status.PENDING.value, Status.OUT_OF_SCOPE.value, Status.MALFORMED.value)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the sentence of the verdict.

    ``target`` is a section, or the finding whose samples it links to; ``step`` is the advice.
    """

    text: str
    target: str | Finding
    label: str
    step: str


_UNBALANCED: Final = Part(
    "The counts do not balance",
    "inputs",
    "Balance",
    "Trust no other number here; report this run to the maintainers with its result.json.",
)


@dataclass(frozen=True, slots=True)
class Matched:
    """Keys equal on both sides, of the ``checked`` settled keys that both sides should have."""

    keys: int
    checked: int

    @property
    def rate(self) -> float | None:
        """The share, ``None`` if nothing was checked."""
        return self.keys / self.checked if self.checked > 0 else None


def count_matched(result: Result) -> Matched:
    """Return the events that are equal on both sides, of those that both sides should have."""
    judged = sum(keys for name, keys in result.status.items() if name not in _UNJUDGED)
    both = sum(n for name, n in result.status.items() if group_finding(name) == FINE)
    return Matched(keys=both, checked=judged - result.reason.get(Reason.BY_DESIGN.value, 0))


def describe_verdict(result: Result) -> str:
    """Return the meaning of the verdict in one sentence, with the reason of an inconclusive one."""
    lead = _LEAD.get(result.verdict, "This verdict is unknown to the report")
    if result.verdict == Verdict.INCONCLUSIVE.value:
        return f"{lead}: {result.doubt or 'a gate that can fail the run had nothing to measure'}."
    return f"{lead}."


def list_problems(result: Result) -> list[Part]:
    """Return the problems as parts of one sentence, the gravest first."""
    problems = [] if result.conservation.holds else [_UNBALANCED]
    problems += _list_losses(result)
    problems += _list_findings(result)
    others = [one for one in result.gates if one.outcome in _NOT_HELD and one.name not in _COUNTED_GATES]
    for gate in others[:_MOST_GATES]:
        text = f"{gate.name} is {number(gate.value)} (must be {gate.op} {number(gate.threshold)})"
        problems.append(Part(text, "gates", gate.name, gate.explanation))
    if len(others) > _MOST_GATES:
        problems.append(Part(f"{plural(len(others) - _MOST_GATES, 'more gate')} not held", "gates", "", ""))
    return problems


def _list_losses(result: Result) -> list[Part]:
    return [
        _part(f"{plural(lost, noun)} lost without explanation", status, Reason.UNEXPLAINED.value)
        for side, status, noun in _LOST
        if side in result.loss and (lost := result.loss[side].unexplained)
    ]


def _list_findings(result: Result) -> Iterator[Part]:
    outcomes = {gate.name: gate.outcome for gate in result.gates}
    if unreadable := result.inputs.native.malformed + result.inputs.otlp.malformed:
        yield _part(f"{plural(unreadable, 'piece')} unreadable", Status.MALFORMED.value)
    if differing := result.status.get(Status.MISMATCHED.value, 0):
        yield _part(
            f"{plural(differing, 'event')} {'differs' if differing == 1 else 'differ'}", Status.MISMATCHED.value
        )
    copied = {name: n for name in _DUPLICATED if (n := result.status.get(name, 0))}
    if copied and any(outcomes.get(name) in _NOT_HELD for name in ("duplicate_excess", "conflicting_duplicates")):
        most = max(copied, key=lambda name: copied[name])
        yield replace(_part(f"{plural(sum(copied.values()), 'event')} duplicated", most), label="Duplicated")
    if silent := result.reason.get(Reason.WRITER_SILENT.value, 0):
        status = next((one for one, why in result.findings if why == Reason.WRITER_SILENT.value), "")
        yield _part(f"{plural(silent, 'event')} of services silent on one side", status, Reason.WRITER_SILENT.value)


def _part(text: str, status: str, reason: str | None = None) -> Part:
    entry = find_entry(reason or status)
    label = label_finding(reason or status)
    return Part(text, (status, reason), label[:1].upper() + label[1:], entry.action if entry else "")


def describe_loss(side: str, loss: Loss) -> str:
    """Return the loss of ``side`` with its upper bound at 95 % confidence."""
    lacked = f"{count(loss.unexplained)} of {plural(loss.checked, 'event')}"
    bound = f"; with 95 % confidence the unexplained rate is below {ppm(loss.upper_bound_95_ppm)}"
    return (
        f"{_SUBJECT.get(side, side)} lacks {lacked} without explanation"
        f"{f' and {count(loss.attributed)} for a named reason' if loss.attributed else ''}"
        f"{bound if loss.upper_bound_95_ppm is not None else ''}."
    )


def list_figures(result: Result) -> list[tuple[str, str, str]]:
    """Return the figures of the run as (label, value, note), in reading order."""
    left = sum(result.status.get(name, 0) for name in _UNJUDGED)
    judged = sum(result.status.values()) - left
    equal = count_matched(result)
    rate = percent(equal.keys, equal.checked)
    found = [
        ("Events judged", count(judged), f"and {count(left)} not judged"),
        ("Matched", rate, f"{count(equal.keys)} equal, of {count(equal.checked)} that both sides should have"),
    ]
    for side, loss in sorted(result.loss.items()):
        bound = "no bound: nothing was checked"
        if loss.upper_bound_95_ppm is not None:
            bound = f"of {count(loss.checked)}; below {ppm(loss.upper_bound_95_ppm)} at 95 % confidence"
        found.append((f"Unexplained loss, {SIDE_NAME.get(side, side)}", count(loss.unexplained), bound))
    return found


def describe_scope(result: Result) -> str:
    """Return the window and the settled horizon of the run, and what earlier runs left to it."""
    settled = "no settled horizon"
    if result.horizon_ms is not None:
        settled = f"settled up to {utc(result.horizon_ms)} (grace {duration(result.grace_ms)})"
    carried = describe_carried(result)
    window = f"{utc(result.window.begin_ms)} to {utc(result.window.end_ms)}, {settled}"
    return f"{window}; {carried}" if carried else window


def describe_carried(result: Result) -> str:
    """Return what earlier runs of the history left open; an empty text without any."""
    carried = result.inputs.native.carried + result.inputs.otlp.carried
    left = f"included: {plural(carried, 'event')} that earlier runs left open"
    return f"{left}; name another --history to start over" if carried else ""
